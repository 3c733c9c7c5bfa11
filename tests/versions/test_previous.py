"""The program of the version before, built from the history, beside today's: real workers and producers.

`previous_version.txt` names its commit. As long as it says HEAD, nothing is released, and the last
commit stands for the version before.
"""

import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from fairlead import State
from fairlead.core.ids import JobId
from fairlead.stores.postgres.address import Address
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.system import faults
from tests.system.faults import PostgresShop
from tests.system.redis_faults import RedisShop
from tests.system.tree import Shop, Tree, children, until
from tests.versions import previous as building
from tests.versions.previous import FILE, Functions, Previous, build

APP = Path(__file__).with_name("both_run.py")
ROOT = Path(__file__).parent.parent.parent
OPTIONS = ("--lease", "2", "--grace", "5")


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Previous:
    return build(tmp_path_factory.mktemp("previous"))


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def shop(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    previous: Previous,
) -> Iterator[Shop]:
    """A shop whose store the version before has made, and today's has been brought to since."""
    monkeypatch.setattr(Shop, "source", APP)
    made: Shop
    if request.param == "sqlite":
        previous.migrate(f"sqlite:///{tmp_path}/jobs.db", tmp_path)
        made = Shop(tmp_path)
    elif request.param == "postgres":
        migrate, server = faults.migrate, request.getfixturevalue("rough_server")
        assert isinstance(server, PostgresServer)

        def after_previous(address: Address) -> None:
            previous.migrate(server.url(schema=address.schema), tmp_path)
            migrate(address)

        monkeypatch.setattr(faults, "migrate", after_previous)
        made = PostgresShop(tmp_path, server)
    else:
        redis = request.getfixturevalue("rough_redis")
        assert isinstance(redis, RedisServer)
        made = RedisShop(tmp_path, redis)
        previous.migrate(made.owner_url, tmp_path)
    with made:
        yield made


def run_by(shop: Shop, tree: Tree, ids: Collection[JobId]) -> set[JobId]:
    """Return those of these jobs that a tree has begun to run."""
    pids = {tree.pid, *children(tree.pid)}
    return {line.job for line in shop.starts() if line.pid in pids and line.job in ids}


def ended(shop: Shop) -> set[JobId]:
    """Return the jobs that a handler came to the end of."""
    return {line.job for line in shop.lines(what="end")}


def test_workers_of_both_take_jobs_of_both_and_each_finishes_what_the_other_leaves(
    shop: Shop, previous: Previous
) -> None:
    theirs = previous.start(shop, *OPTIONS)
    ours = shop.start(*OPTIONS)
    until(lambda: "is ready" in theirs.log and "is ready" in ours.log, 30)
    _work_until_one_dies(shop, previous, (theirs, ours), victim=theirs)
    again = previous.start(shop, *OPTIONS)
    until(lambda: "is ready" in again.log, 30)
    _work_until_one_dies(shop, previous, (again, ours), victim=ours)
    for tree in (theirs, ours, again):
        assert "Traceback" not in tree.log


def _work_until_one_dies(
    shop: Shop, previous: Previous, trees: tuple[Tree, Tree], victim: Tree
) -> None:
    by_them = previous.put(shop, wait=(20, 0.3), second_time=(2, 0))
    by_us = {"wait": shop.put_many("wait", 20, 0.3), "plain": shop.put_many("plain", 4, 0.3)}
    for tree in trees:
        for put in (by_them, by_us):
            until(lambda: run_by(shop, tree, put["wait"]), what="runs by each of the other's jobs")
    by_them |= previous.put(shop, charge=(6, 1.5))
    by_us |= {"charge": shop.put_many("charge", 6, 1.5)}
    charges = {*by_them["charge"], *by_us["charge"]}
    until(lambda: run_by(shop, victim, charges) - ended(shop), what="a charge that is under way")
    shop.freeze(victim)
    cut = run_by(shop, victim, charges) - ended(shop)
    assert cut
    victim.kill()
    shop.until_final()
    for job in (job for put in (by_them, by_us) for ids in put.values() for job in ids):
        record = shop.record(job)
        if job not in charges:
            assert record.state is State.DONE
            continue
        # What was claimed ahead by a tree that is no more may have begun, for all that others know.
        begun = len(shop.starts(job))
        assert (record.state, begun) == (State.DONE, 1) or record.reason == "uncertain"
        assert begun <= 1, "it may have been done, and is not done again"
        assert job not in cut or record.reason == "uncertain"


# What it replaces

BEFORE = Functions(3, "functions", "views")


@pytest.mark.parametrize(
    ("now", "may_follow"),
    [
        (BEFORE, True),
        (Functions(4, "functions", "views"), True),
        (Functions(4, "others", "views"), True),
        (Functions(3, "others", "views"), False),
        (Functions(3, "functions", "others"), False),
        (Functions(2, "functions", "views"), False),
    ],
)
def test_other_functions_need_a_greater_revision(now: Functions, may_follow: bool) -> None:
    assert now.may_follow(BEFORE) is may_follow


def test_the_functions_of_today_replace_its_own_and_never_the_other_way_round(
    previous: Previous, tmp_path: Path
) -> None:
    """Of two programs with one revision and other texts, each replaces those of the other for ever.

    While no version before is named, functions may change as they like.
    """
    before = previous.functions(tmp_path)
    assert previous.name == "HEAD" or Functions.of_today().may_follow(before), (
        f"functions of PostgreSQL were changed since {previous.name}, so catalog.REVISION must be "
        f"at least {before.revision + 1}"
    )


# The machinery


def test_its_program_is_the_one_of_that_commit(previous: Previous, tmp_path: Path) -> None:
    name = previous.file_of("fairlead.core.job", tmp_path)
    assert name.startswith(previous.path)
    there = Path(name).read_bytes()
    command = ["git", "show", f"{FILE.read_text().strip()}:src/fairlead/core/job.py"]
    assert there == subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout


@pytest.mark.parametrize(("in_ci", "end"), [(True, pytest.fail), (False, pytest.skip)])
def test_without_the_history_it_fails_in_ci_and_is_skipped_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_ci: bool, end: type
) -> None:
    monkeypatch.setattr("tests.needs.IN_CI", in_ci)
    with pytest.raises(end.Exception, match="cannot be built, because .*git fetch --unshallow"):
        building.build(tmp_path, "0" * 40)
    monkeypatch.setattr("tests.compare.build.ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(end.Exception, match="not a git repository"):
        building.build(tmp_path)
