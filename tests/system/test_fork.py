"""Forking servers load the app first and fork later: no connection may cross the fork."""

import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead import Fairlead, State

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def fork(work: Callable[[], str]) -> Callable[[], str]:
    """Do something in a child that is killed after it; returns the way to its answer."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            os.write(write, work().encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(write)

    def answer() -> str:
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        return text

    return answer


def on_disk(path: Path) -> int:
    """Count the jobs as an outsider sees them."""
    raw = sqlite3.connect(path)
    (count,) = raw.execute("SELECT count(*) FROM fairlead_job").fetchone()
    raw.close()
    return int(count)


def test_the_app_works_on_both_sides_of_a_fork(path: Path) -> None:
    app = Fairlead(f"sqlite:///{path}")
    task = app.task(name="t")(lambda n: n)
    assert task.enqueue(0).status() is State.WAITING

    def in_the_child() -> str:
        jobs = [task.enqueue(n) for n in range(20)]
        assert {job.status() for job in jobs} == {State.WAITING}
        return " ".join(job.id for job in jobs)

    answer = fork(in_the_child)
    ours = [task.enqueue(n).id for n in range(20)]
    theirs = answer().split()
    assert len({*ours, *theirs}) == 40
    assert {app.job(job_id).status() for job_id in theirs} == {State.WAITING}
    app.close()


def test_a_childs_jobs_stay_when_the_parent_closes(path: Path) -> None:
    """The parent's last close would take the log away if the child held no lock of its own."""
    app = Fairlead(f"sqlite:///{path}")
    task = app.task(name="t")(lambda n: n)
    task.enqueue(0)
    go_read, go_write = os.pipe()

    def in_the_child() -> str:
        task.enqueue(1)
        os.close(go_write)
        os.read(go_read, 1)
        for n in range(10):
            task.enqueue(n)
        return "all acknowledged"

    answer = fork(in_the_child)
    while on_disk(path) < 2:
        pass
    app.close()
    assert on_disk(path) == 2
    os.write(go_write, b"go")
    assert answer() == "all acknowledged"
    assert on_disk(path) == 12


def test_a_fork_in_the_middle_of_commits_harms_nobody(path: Path) -> None:
    app = Fairlead(f"sqlite:///{path}?timeout=10")
    task = app.task(name="t")(lambda n: n)
    task.enqueue(0)
    stop = threading.Event()
    counts = [0, 0]

    def commit(index: int) -> None:
        while not stop.is_set():
            task.enqueue(1)
            counts[index] += 1

    threads = [threading.Thread(target=commit, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()

    def in_the_child() -> str:
        for n in range(5):
            task.enqueue(n)
        return "done"

    answers = [fork(in_the_child)() for _ in range(12)]
    stop.set()
    for thread in threads:
        thread.join()
    assert answers == ["done"] * 12
    app.close()
    assert on_disk(path) == 1 + sum(counts) + 12 * 5
