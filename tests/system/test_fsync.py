"""A disk that refuses to sync: what is not on disk is not acknowledged (F32, P1).

PostgreSQL and Redis sync their own files, and end themselves when that fails.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import without

PRODUCER = """
import sys
from fairlead import Fairlead, StoreError

app = Fairlead(f"sqlite:///{sys.argv[1]}?timeout=0.2")
task = app.task(name="t")(lambda n: n)
app.open()
for n in range(20):
    try:
        print("accepted", task.enqueue(n).id, flush=True)
    except StoreError as error:
        print("refused", error, flush=True)
"""


def traced(path: Path, fault: str) -> list[str]:
    """Run the producer with system calls that fail, counted by thread; returns what it said."""
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync"]
    command += ["-e", f"inject=fsync,fdatasync:{fault}", sys.executable, "-c", PRODUCER, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.fixture(autouse=True)
def can_trace() -> None:
    if (
        not shutil.which("strace")
        or subprocess.run(["strace", "-o", "/dev/null", "true"]).returncode
    ):
        without("a sync that fails needs strace, and the right to trace")


def test_a_job_whose_commit_cannot_be_synced_is_not_accepted(tmp_path: Path) -> None:
    said = traced(tmp_path / "jobs.db", "error=EIO:when=10+")
    words = [line.partition(" ")[0] for line in said]
    assert len(words) == 20
    assert words == sorted(words), "one was accepted after the disk had failed"
    assert {"accepted", "refused"} == set(words)
    assert "disk I/O error" in said[-1]
