"""The programs in examples/ run by themselves, come out right, and leave nothing behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def printed(name: str, folder: Path) -> str:
    """Run an example as a person would, in an empty folder; returns what it printed."""
    run = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / f"{name}.py"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    assert list(folder.iterdir()) == [], "its files are gone"
    assert run.stdout.splitlines()[-1].startswith("Right: ")
    return run.stdout


def test_the_monitor_checker_does_every_check_and_alerts_once_per_change(tmp_path: Path) -> None:
    told = printed("monitor_checker", tmp_path)
    assert re.findall(r"ALERT (.+)", told) == [
        "round 2: billing is failing",
        "round 4: search is failing",
        "round 5: billing is ok",
    ]
    assert re.search(r"^320 checks in ", told, re.MULTILINE)


def test_the_counter_aggregator_counts_events_once_that_ran_twice(tmp_path: Path) -> None:
    told = printed("counter_aggregator", tmp_path)
    assert "\n60 of them were run twice\n" in told
    rows = re.findall(r"(\w+) +(\d+) views; `total \+= n` would say (\d+)", told)
    assert [page for page, _, _ in rows] == ["home", "docs", "pricing", "blog"]
    views, naive = (sum(int(row[column]) for row in rows) for column in (1, 2))
    assert 600 <= views <= 3000, "600 events of 1 to 5 views"
    assert 60 <= naive - views <= 300, "and 60 of them again"
    assert f"Right: {views:,} views" in told


def test_a_flood_of_batch_documents_does_not_delay_people_with_a_pool(tmp_path: Path) -> None:
    told = printed("pdf_service", tmp_path)
    waits = re.findall(r"(one queue|two pools): .* +(\d+) ms at the median, +(\d+) at most", told)
    (shared, *shared_waits), (split, *split_waits) = waits
    assert (shared, split) == ("one queue", "two pools")
    for before, now in zip(shared_waits, split_waits, strict=True):
        assert int(now) < int(before)
    assert int(split_waits[0]) * 4 <= int(shared_waits[0])


def test_the_webhook_forwarder_gives_up_the_dead_and_serves_the_rest(tmp_path: Path) -> None:
    told = printed("webhook_forwarder", tmp_path)
    assert "4 calls of publish made 3 events" in told
    fates = re.findall(r"^  (\S+) +(\d) delivered, (\d) dead, attempts: (\d)", told, re.MULTILINE)
    assert fates == [
        *((name, "3", "0", "1") for name in ("fast-1", "fast-2", "fast-3", "slow")),
        ("busy", "3", "0", "2"),
        ("gone", "0", "3", "1"),
        ("dead", "0", "3", "4"),
    ]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_is_listed_and_uses_public_names_only(path: Path) -> None:
    assert f"$ python examples/{path.name}\n" in (EXAMPLES / "README.md").read_text()
    assert not re.search(r"fairlead\.\w+\.|from fairlead\.|\b\w+\._\w", path.read_text())
