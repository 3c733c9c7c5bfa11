"""The command line, through its real entry point."""

import subprocess
import sys
from pathlib import Path

import pytest

FAIRLEAD = str(Path(sys.executable).parent / "fairlead")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([FAIRLEAD, *arguments], capture_output=True, text=True, check=False)


def test_help_names_the_commands_and_version_the_version() -> None:
    assert "bench" in run("--help").stdout
    assert run("--version").stdout.startswith("fairlead 0.1.0")


def test_bench_help_has_an_example() -> None:
    assert "Example: fairlead bench" in run("bench", "--help").stdout


def test_a_wrong_store_is_refused_with_the_choice() -> None:
    answer = run("bench", "--store", "oracle")
    assert answer.returncode == 2
    assert "'sqlite'" in answer.stderr


@pytest.mark.timeout(240)
def test_bench_measures_and_cleans_up(tmp_path: Path) -> None:
    """A glance, to see that every figure is made; what it says is not judged here."""
    answer = run("bench", "--quick", "--folder", str(tmp_path))
    assert answer.stderr == ""
    assert answer.returncode == 0
    for line in (
        "bulk put",
        "claim + settle",
        "aenqueue callers",
        "8 writers: p99 wait",
        "worker, 2 processes",
        "idle latency, p99",
    ):
        assert line in answer.stdout
    assert list(tmp_path.iterdir()) == []
