"""Two builds are compared: what is slower is found, and what is not is left alone."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.compare.__main__ import Comparison
from tests.compare.build import ROOT, Build, commit
from tests.compare.places import places
from tests.compare.rows import JOBS, rows
from tests.compare.speed import Limits
from tests.compare.table import count_lines, summary
from tests.compare.verdict import Change, Pair, Ratio, Verdict, enough, ratio_of
from tests.compare.wire import counted_postgres, counted_redis

pytestmark = pytest.mark.timeout(240)

# The arithmetic


def pairs(*ratios: float) -> list[Pair]:
    return [Pair(100.0, 100.0 * ratio) for ratio in ratios]


def test_eight_pairs_enclose_the_median_by_the_least_and_the_most() -> None:
    ratio = ratio_of(pairs(1.05, 0.9, 1.0, 1.01, 0.99, 1.02, 0.98, 1.2))
    assert ratio.middle == pytest.approx(1.005, rel=1e-3)
    assert ratio[1:] == pytest.approx((0.9, 1.2))


def test_thirty_pairs_enclose_it_by_the_tenth_from_either_end() -> None:
    ratio = ratio_of(pairs(*(1 + number / 100 for number in range(30))))
    assert ratio[1:] == pytest.approx((1.09, 1.20))


def test_five_pairs_say_nothing() -> None:
    assert ratio_of(pairs(1, 1, 1, 1, 1))[1:] == (0.0, float("inf"))
    assert ratio_of(pairs(1, 1, 1, 1, 1, 1)).verdict is Verdict.FINE


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.90, 0.969, Verdict.SLOWER),
        (0.90, 0.971, Verdict.UNDECIDED),
        (0.969, 1.2, Verdict.UNDECIDED),
        (0.971, 1.2, Verdict.FINE),
    ],
)
def test_a_row_fails_only_if_the_whole_interval_is_below_the_bound(
    low: float, high: float, verdict: Verdict
) -> None:
    assert Ratio((low + high) / 2, low, high).verdict is verdict


def test_measuring_ends_when_it_is_decided_and_not_before() -> None:
    assert not enough(pairs(*[1.0] * 7), 8, 30)
    assert enough(pairs(*[1.0] * 8), 8, 30)
    assert enough(pairs(*[0.5] * 8), 8, 30)
    # At the end this would do; who looks at every pair finds something like it too often.
    assert ratio_of(pairs(0.9, *[1.0] * 8)).verdict is Verdict.FINE
    assert not enough(pairs(0.9, *[1.0] * 8), 8, 30)
    doubtful = [0.9, 1.1] * 15
    assert not enough(pairs(*doubtful[:29]), 8, 30)
    assert enough(pairs(*doubtful), 8, 30)


def test_a_count_changed_only_if_no_two_runs_overlap() -> None:
    assert Change([1.0, 1.0], [2.0, 2.0]).grew
    assert Change([2.0, 2.0], [1.0, 1.0]).fell
    noisy = Change([1.0, 1.2], [1.1, 1.3])
    assert not noisy.grew
    assert not noisy.fell


# The wire


def test_a_pipeline_of_redis_is_one_round_trip() -> None:
    counts: Counter[str] = Counter()
    talk = counted_redis(counts)
    script = b"*2\r\n$7\r\nEVALSHA\r\n$3\r\nabc\r\n"
    ping = b"*1\r\n$4\r\nPING\r\n"
    list(talk.asked(script + ping))
    list(talk.answered(b":1\r\n"))
    list(talk.asked(ping))  # The pipeline goes on: one answer is still missing.
    list(talk.answered(b"+PONG\r\n+PONG\r\n"))
    list(talk.asked(ping))
    assert counts["round trips"] == 2
    assert counts["commands"] == 4
    assert counts["scripts"] == 1
    assert counts["bytes sent"] == len(script) + 3 * len(ping)
    assert counts["bytes received"] == 18


def test_statements_of_postgresql_are_counted_as_often_as_they_run() -> None:
    counts: Counter[str] = Counter()
    talk = counted_postgres(counts)
    ready = b"Z\0\0\0\5I"
    list(talk.asked(b"\0\0\0\x08\0\3\0\0"))
    list(talk.answered(ready))
    parse, bind = b"P\0\0\0\x0cs\0SELECT\0"[:13], b"B\0\0\0\x07\0s\0"
    execute, sync = b"E\0\0\0\4", b"S\0\0\0\4"
    list(talk.asked(parse + bind + execute + bind + execute + sync))
    list(talk.answered(ready))
    list(talk.asked(b"Q\0\0\0\5\0"))
    assert counts["statements"] == 3
    assert counts["round trips"] == 2


# Whole comparisons


@pytest.fixture
def base(tmp_path: Path) -> Build:
    return copied(tmp_path / "b", "base")


def copied(folder: Path, name: str) -> Build:
    """A build as the source is now, which a test may change."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "fairlead", folder / "fairlead", ignore=ignored)
    return Build(name, folder)


def changed(tmp_path: Path, file: str, code: str, other: str) -> Build:
    """A new build that differs in one place."""
    build = copied(tmp_path / "n", "new")
    path = build.source / "fairlead" / file
    assert path.read_text().count(code) == 1, f"adapt this test to {file}"
    path.write_text(path.read_text().replace(code, other))
    return build


def compared(
    base: Build,
    new: Build,
    stores: list[str],
    words: list[str],
    limits: Limits,
    folder: Path | None = None,
) -> tuple[bool, str]:
    comparison = Comparison(base, new, folder or base.source)
    told = "\n".join(comparison.lines(stores, words, limits, 0.05))
    return comparison.failed, told


def test_a_build_beside_itself_has_all_rows_and_the_same_counts(tmp_path: Path) -> None:
    """Two pairs decide nothing; that every row is there is what counts here."""
    stores = ["core", "memory", "sqlite"]
    base, new = Build("base", ROOT / "src"), Build("new", ROOT / "src")
    failed, told = compared(base, new, stores, [], Limits(2, 2), tmp_path)
    assert not failed
    for store in stores:
        for what in JOBS[store]:
            assert f"{store:9} {what}" in told
    assert "cannot run" not in told
    assert "Of 12 counts 0 grew, 0 fell, 12 are the same." in told


def test_a_slower_build_is_found(base: Build, tmp_path: Path) -> None:
    put = "def put_blocking(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:\n"
    slept = "        __import__('time').sleep(0.0002)\n"
    new = changed(tmp_path, "stores/memory/line.py", put, put + slept)
    failed, told = compared(base, new, ["memory"], ["one by one"], Limits(6, 6))
    assert failed
    assert "  SLOWER\n" in told
    assert "1 below 0.97 of the base: SLOWER" in told


def test_one_statement_more_is_marked(base: Build, tmp_path: Path) -> None:
    new = changed(
        tmp_path,
        "stores/sqlite/writer.py",
        'connection.execute("COMMIT")',
        'connection.execute("SELECT 1") and connection.execute("COMMIT")',
    )
    failed, told = compared(base, new, ["sqlite"], ["one by one"], Limits(2, 2))
    assert not failed
    assert "3.00→4.00" in told
    assert "MORE statements" in told
    assert "1 grew" in told


def test_what_the_base_cannot_do_is_said_and_is_no_fault_of_the_new_build(
    base: Build, tmp_path: Path
) -> None:
    new = copied(tmp_path / "n", "new")
    for file in ("core/store.py", "stores/memory/line.py"):
        path = base.source / "fairlead" / file
        path.write_text(path.read_text().replace("async def extend(", "async def renew("))
    failed, told = compared(base, new, ["memory"], ["extend", "claim"], Limits(2, 2))
    assert not failed
    assert "the base build cannot run it: AttributeError" in told
    assert "memory    claim and settle" in told
    assert "1 could not be compared" in told
    failed, told = compared(
        new._replace(name="base"), base._replace(name="new"), ["memory"], ["extend"], Limits(2, 2)
    )
    assert failed
    assert "the new build cannot run it" in told


def test_a_build_that_does_not_even_start_is_told(base: Build, tmp_path: Path) -> None:
    (base.source / "fairlead" / "app.py").write_text("raise RuntimeError('not today')\n")
    failed, told = compared(base, copied(tmp_path / "n", "new"), ["memory"], [], Limits(2, 2))
    assert not failed
    assert told.count("the base build cannot run at all: RuntimeError: not today") == 5


@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_counted_places_go_through_the_proxy(store: str, tmp_path: Path) -> None:
    with places(store, tmp_path) as where:
        plain, counted = where.url(), where.url(counted=True)
        assert len(plain) == len(counted)
        assert plain.partition("compare_")[0] != counted.partition("compare_")[0]


def test_an_unknown_commit_is_told_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="make bench-compare BASE=HEAD~1"):
        commit("no-such-commit", tmp_path)


def test_rows_are_chosen_by_their_words() -> None:
    assert [row.what for row in rows("redis", ["bulk", "worker"], 1.0)] == [
        "put in bulk",
        "embedded worker",
    ]


def test_changes_are_shown_where_they_are() -> None:
    same, grew = Change([1.0], [1.0]), Change([99.0], [1204.0])
    *_, line = count_lines("redis", {"put in bulk": {"scripts": same, "bytes sent": grew}})
    assert line.split() == [
        "redis",
        "put",
        "in",
        "bulk",
        "1.00",
        "99.00→1,204",
        "MORE",
        "bytes",
        "sent",
    ]
    *_, line = count_lines("redis", {"put in bulk": {}})
    assert "could not be counted" in line
    assert summary([], [same, grew]).endswith("Of 2 counts 1 grew, 0 fell, 1 are the same.")
