"""The store is away for longer than a lease: nobody steals, everything is settled after it (L2, P6)."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead import State
from tests.system.tree import ALL_POOLS, Shop, until

LEASE = ("--lease", "2")


@contextmanager
def outage(shop: Shop) -> Iterator[None]:
    """Hold the write lock, as a program that hangs in its transaction would."""
    raw = sqlite3.connect(shop.folder / "jobs.db", isolation_level=None, timeout=10)
    raw.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        raw.execute("ROLLBACK")
        raw.close()


def test_jobs_that_end_during_an_outage_are_settled_after_it(shop: Shop) -> None:
    """Half of them end while the store is away, half go on; each runs exactly once."""
    shop.url += "?timeout=1"
    ending = [shop.put("wait", 2.0), shop.put("nap", 2.0), shop.put("nap", 2.0, queue="process")]
    going_on = [shop.put("wait", 9.0), shop.put("nap", 9.0)]
    first, second = shop.start(*ALL_POOLS, *LEASE), shop.start(*ALL_POOLS, *LEASE)
    for job in (*ending, *going_on):
        shop.until_started(job)
    busy, idle = first, second
    with outage(shop):
        began = time.monotonic()
        for job in ending:
            until(lambda: shop.lines(job, "end"))
        time.sleep(max(0.0, 5.0 - (time.monotonic() - began)))
        assert shop.states()[State.RUNNING] == len(shop.accepted)
        for tree in (busy, idle):
            tree.until_log("the store cannot be used")
    shop.until_final(*ending)
    for tree in (busy, idle):
        tree.until_log("the store can be used again")
    after = shop.put("quick")
    shop.until_final()
    for job in shop.accepted:
        record = shop.record(job)
        assert (record.state, record.attempt, len(shop.starts(job))) == (State.DONE, 1, 1)
        assert shop.outcomes(job) == ["done"]
    assert after in shop.accepted
    assert "lease passed" not in busy.log + idle.log


def test_a_process_that_dies_during_an_outage_is_taken_care_of_after_it(shop: Shop) -> None:
    """Its supervisor keeps what it knows until it can write it."""
    shop.url += "?timeout=1"
    victim = shop.put("adie", "abort", 1.0)
    neighbour = shop.put("wait", 2.0)
    tree = shop.start("--lease", "8")
    shop.until_started(neighbour)
    shop.until_started(victim)
    with outage(shop):
        time.sleep(3.0)
    tree.until_log("died: SIGABRT")
    shop.until_final(seconds=30)
    assert shop.record(victim).reason == "poison"
    record = shop.record(neighbour)
    assert (record.state, record.attempt, record.crashes) == (State.DONE, 1, 0)


def test_a_worker_told_to_stop_during_an_outage_waits_for_its_end(shop: Shop) -> None:
    """L5: what has ended is not thrown away; it is written when the store is back."""
    shop.url += "?timeout=1"
    job = shop.put("wait", 1.0)
    tree = shop.start("--lease", "4", "--grace", "3")
    shop.until_started(job)
    with outage(shop):
        until(lambda: shop.lines(job, "end"))
        tree.until_log("the store cannot be used")
        tree.signal(15)
        time.sleep(2.0)
        assert tree.process.poll() is None
    assert tree.ended() == 0
    assert (shop.record(job).state, len(shop.starts(job))) == (State.DONE, 1)
