"""Handlers that block, hang or do not listen: leases are kept, limits hold (F36, F37, L8)."""

import json
import os
import re
import signal

from fairlead import Retry, State, fixed
from fairlead.core.ids import JobId
from tests.system.tree import Shop, alive, in_short, on_every_store, until

TWICE = Retry(attempts=2, backoff=fixed(0.1, jitter=0))
ONCE = Retry(attempts=1)


@in_short("task", ["sleep_on_loop", "grip"], "sleep_on_loop")
def test_a_blocked_loop_keeps_its_leases(shop: Shop, task: str) -> None:
    """F36, L8: for three leases nothing in the process turns, and still nobody takes its jobs."""
    seconds = 5
    blocker = shop.put(task, seconds)
    neighbour = shop.put("wait", 0.5)
    tree = shop.start("--lease", "1.5")
    shop.until_started(blocker)
    other = shop.start("--lease", "1.5")
    shop.until_final()
    for job in (blocker, neighbour):
        record = shop.record(job)
        assert (record.state, record.attempt, len(shop.starts(job))) == (State.DONE, 1, 1)
    if task == "grip":
        assert json.loads(shop.record(blocker).result or "0") > seconds - 0.5, "it let go"
    assert "lease passed" not in tree.log + other.log


def test_a_blocked_loop_does_not_hide_a_time_limit(shop: Shop) -> None:
    """F36: the supervisor kills the process, settles the time-out, and says where it hung."""
    trees = {
        shop.put(task, 60, queue=queue, timeout=1.0, retry=TWICE): (
            task,
            shop.start("--grace", "1", "--queue", queue),
        )
        for task, queue in (("sleep_on_loop", "loop"), ("grip", "default"))
    }
    neighbours = [shop.put("wait", 1.5), shop.put("wait", 1.5, queue="default")]
    first = [shop.until_started(job) for job in trees]
    for job, (task, tree) in trees.items():
        shop.until_final(job, seconds=45)
        check_timed_out(shop, job, runs=2)
        assert re.search(rf"past its time limit of 1 s, at .*shop.py:\d+ in {task}", tree.log)
    assert not any(alive(line.pid) for line in first)
    for job in neighbours:
        shop.until_final(job)
        record = shop.record(job)
        assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0)


def check_timed_out(shop: Shop, job: JobId, runs: int, line: str | None = "shop.py:") -> None:
    record = shop.record(job)
    assert (record.state, record.reason, record.attempt) == (State.DEAD, "exhausted", runs)
    assert record.crashes == 0
    assert {past.error for past in record.errors} == {"TimedOut"}
    for past in record.errors:
        assert line is None or line in (past.message or ""), past
        assert "fairlead/" not in (past.message or ""), past
    # On a busy machine a job may be given back before it starts; that is no run.
    assert [out for out in shop.outcomes(job) if out != "returned"] == ["failed"] * runs
    assert len(shop.starts(job)) == runs


@on_every_store
def test_a_coroutine_that_swallows_its_cancellation_is_ended_with_its_process(shop: Shop) -> None:
    """F37: told first, then its process is replaced; its neighbours finish or go back uncounted."""
    stuck = shop.put("deaf", 100.0, timeout=1.0, retry=ONCE)
    neighbours = shop.put_many("wait", 5, 2.0) + shop.put_many("nap", 2, 2.0)
    tree = shop.start("--grace", "1")
    first = shop.until_started(stuck)
    after = shop.put("wait", 8.0)
    shop.until_final(stuck, seconds=30)
    check_timed_out(shop, stuck, runs=1, line=None)
    assert shop.lines(stuck, "ignored")
    until(lambda: not alive(first.pid))
    assert re.search(r"past its time limit of 1 s, at .*shop.py:\d+ in deaf", tree.log)
    shop.until_final()
    for job in (*neighbours, after):
        record = shop.record(job)
        assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0)


def test_a_thread_that_never_returns_is_ended_with_its_process(shop: Shop) -> None:
    """F37: a thread cannot be killed, so its process finishes the rest and exits."""
    stuck = shop.put("nap", 1_000.0, timeout=1.0, retry=TWICE)
    short = shop.put_many("nap", 2, 2.0) + shop.put_many("wait", 3, 2.0)
    tree = shop.start("--grace", "3")
    first = shop.until_started(stuck)
    second = shop.until_started(stuck, 2)
    assert not alive(first.pid)
    assert second.pid != first.pid
    long = shop.put("wait", 6.0)
    shop.until_final(stuck)
    check_timed_out(shop, stuck, runs=2)
    shop.until_final()
    assert re.search(r"past its time limit of 1 s, at .*shop.py:\d+ in nap", tree.log)
    for job in (*short, long):
        record = shop.record(job)
        assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0)
    assert all(len(shop.starts(job)) == 1 for job in short)


def test_a_process_that_ignores_sigterm_is_killed(shop: Shop) -> None:
    """F37: asked first, killed two seconds later; the other process does not notice."""
    stuck = shop.put("stubborn", 100.0, timeout=1.0, retry=TWICE)
    polite = shop.put("nap", 100.0, queue="process", timeout=1.0, retry=ONCE)
    tree = shop.start("--pool", "process")
    (worker,) = until(lambda: tree.workers)
    neighbours = shop.put_many("nap", 4, 0.5, queue="process")
    shop.until_final()
    check_timed_out(shop, stuck, runs=2)
    check_timed_out(shop, polite, runs=1)
    assert not any(alive(line.pid) for line in shop.starts(stuck))
    assert {shop.record(job).attempt for job in neighbours} == {1}
    assert all(len(shop.starts(job)) == 1 for job in neighbours)
    assert tree.workers == [worker]
    assert re.search(r"shop.py:\d+ in stubborn", shop.record(stuck).errors[0].message or "")


def test_a_time_limit_in_a_frozen_process_is_kept_from_outside(shop: Shop) -> None:
    """L8: a process that is stopped, not killed, is past its limit too."""
    job = shop.put("wait", 3.0, timeout=2.0, retry=TWICE)
    tree = shop.start("--grace", "0")
    first = shop.until_started(job)
    os.kill(first.pid, signal.SIGSTOP)
    shop.until_started(job, 2, seconds=15)
    assert not alive(first.pid)
    shop.until_final()
    assert shop.outcomes(job) == ["failed", "failed"]
    assert "time limit of 2 s" in tree.log
