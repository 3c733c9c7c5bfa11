"""kill -9 of a worker, or of a part of it, wherever it is in a job's way (F1, F7)."""

import os
import signal

import pytest

from fairlead import State
from fairlead.runtime.points import POINTS
from tests.system.tree import ALL_POOLS, Shop, alive, descendants, in_short, on_every_store, until

LEASE = ("--lease", "2")
LONG_LEASE = ("--lease", "120")
"""Longer than anybody here waits: what runs again has not waited for it to pass."""


@in_short("point", POINTS, "claimed", "started")
def test_the_jobs_of_a_killed_process_run_again_at_once(shop: Shop, point: str) -> None:
    """F1: long before their lease has passed, because the supervisor sees it."""
    shop.put_many("quick", 5)
    shop.put_many("plain", 5)
    tree = shop.start(*LONG_LEASE, "--drain", POINT=f"{point}:kill:2")
    shop.until_fired()
    shop.until_final()
    assert tree.ended() == 0
    assert {shop.record(job).state for job in shop.accepted} == {State.DONE}
    assert {shop.record(job).attempt for job in shop.accepted} == {1}
    assert "died: SIGKILL" in tree.log


def test_a_worker_on_uvloop_keeps_the_same_promises(shop: Shop) -> None:
    """F1: the other loop, with its own timers, sockets and signals."""
    shop.put_many("quick", 50)
    shop.put_many("plain", 50)
    tree = shop.start(*ALL_POOLS, "--loop", "uvloop", "--drain", POINT="started:kill:20")
    shop.until_fired()
    shop.until_final(seconds=10)
    assert tree.ended() == 0
    assert {shop.record(job).attempt for job in shop.accepted} == {1}


@in_short("point", POINTS, "started")
def test_the_jobs_of_a_killed_tree_run_again_after_their_lease(shop: Shop, point: str) -> None:
    """F1: nobody is left to tell, so another worker takes over when the lease has passed."""
    shop.put_many("quick", 5)
    shop.put_many("plain", 5)
    first = shop.start(*ALL_POOLS, *LEASE, POINT=f"{point}:tree:2")
    shop.until_fired()
    assert first.ended() == -signal.SIGKILL
    shop.start(*LEASE)
    shop.until_final(seconds=10)
    assert {shop.record(job).state for job in shop.accepted} == {State.DONE}
    assert max(shop.record(job).attempt for job in shop.accepted) <= 2


@pytest.mark.parametrize(
    ("point", "number"), [("starting", 40), ("started", 40), ("ended", 40), ("settled", 2)]
)
def test_threads_that_serve_themselves_lose_nothing_either(
    shop: Shop, point: str, number: int
) -> None:
    """F1: they hold many jobs ahead; those that had not started go back, uncounted."""
    shop.put_many("plain", 400)
    options = ("--pool", "thread", *LONG_LEASE)
    tree = shop.start(*options, PLAIN="1", POINT=f"{point}:kill:{number}")
    shop.until_fired()
    shop.until_final()
    assert {shop.record(job).attempt for job in shop.accepted} == {1}
    assert sum(shop.record(job).crashes for job in shop.accepted) <= 1
    assert "died: SIGKILL" in tree.log


@on_every_store
def test_nothing_outlives_a_killed_supervisor(shop: Shop) -> None:
    """F7: processes, handlers in processes of their own, and what those started."""
    jobs = [
        shop.put("wait", 10.0),
        shop.put("nap", 10.0),
        shop.put("parent", 10.0),
        shop.put("parent", 10.0),
    ]
    tree = shop.start(*ALL_POOLS, "--lease", "2", "--processes", "2")
    for job in jobs:
        shop.until_started(job)
    until(lambda: len(shop.lines(what="child")) == 2)
    below = descendants(tree.pid)
    assert len(tree.workers) == 2
    assert len(below) >= 2 + 2 + 2
    os.kill(tree.pid, signal.SIGKILL)
    tree.process.wait()
    until(lambda: not any(alive(pid) for pid in below), 6, "the end of all children")
    assert shop.processes() == []
    shop.start(*ALL_POOLS, "--lease", "2")
    shop.until_final()
    assert {shop.record(job).state for job in jobs} == {State.DONE}
    assert {shop.record(job).attempt for job in jobs} == {2}
