"""A worker that sleeps through its lease changes nothing any more when it wakes (F4, F5, I6)."""

import re
import signal
import time

from fairlead import State
from tests.system.tree import ALL_POOLS, Shop, alive, on_every_store, until

LEASE = ("--lease", "2")


@on_every_store
def test_a_nap_shorter_than_the_lease_goes_unnoticed(shop: Shop) -> None:
    """F4: the heartbeat catches up; there is no second run, though somebody waits for one."""
    jobs = [shop.put("wait", 3.0), shop.put("nap", 3.0), shop.put("nap", 3.0, queue="process")]
    first = shop.start(*ALL_POOLS, *LEASE)
    for job in jobs:
        shop.until_started(job)
    second = shop.start(*ALL_POOLS, *LEASE)
    time.sleep(0.7)
    first.signal_all(signal.SIGSTOP)
    time.sleep(0.7)
    first.signal_all(signal.SIGCONT)
    shop.until_final()
    assert [len(shop.starts(job)) for job in jobs] == [1, 1, 1]
    assert {shop.record(job).state for job in jobs} == {State.DONE}
    assert {shop.record(job).attempt for job in jobs} == {1}
    assert "too late" not in first.log + second.log


@on_every_store
def test_a_sleep_longer_than_the_lease_loses_the_job_for_good(shop: Shop) -> None:
    """F5: another worker ends it; the late one is told and its outcome refused."""
    running, in_process = shop.put("wait", 4.0), shop.put("nap", 4.0, queue="process")
    first = shop.start(*ALL_POOLS, *LEASE)
    shop.until_started(running)
    shop.until_started(in_process)
    ending = shop.put("nap", 0.5)
    shop.until_started(ending)
    jobs = (running, ending, in_process)
    shop.doubled = set(jobs)
    shop.freeze(first)
    shop.start(*ALL_POOLS, *LEASE)
    for job in jobs:
        shop.until_started(job, 2)
    shop.until_final(ending)
    first.signal_all(signal.SIGCONT)
    told = until(lambda: shop.lines(running, "cancelled"), what="the word that the lease is lost")
    assert told[0].detail == "LeaseLost"
    assert told[0].fence == shop.starts(running)[0].fence
    shop.until_final()
    for job in jobs:
        until(lambda: re.search(f"came too late: .*job={job}", first.log), what="a word of it")
    for job in jobs:
        record, (late, winner) = shop.record(job), shop.starts(job)
        assert record.state is State.DONE
        assert record.result == f'"by {winner.pid}"' != f'"by {late.pid}"'
        assert (record.attempt, shop.outcomes(job)) == (2, ["lost", "done"])
    # The handler of the process pool was ended, its process replaced, and all go on to work.
    until(lambda: not alive(shop.starts(in_process)[0].pid))
    after = shop.put_many("nap", 6, 0.1, queue="process")
    shop.until_final(*after)


def test_a_whole_tree_frozen_at_a_point_comes_back_as_a_stranger(shop: Shop) -> None:
    """F5: stopped between claim and start, it finds its jobs done when it wakes."""
    jobs = shop.put_many("quick", 6)
    shop.doubled = set(jobs)
    first = shop.start(*LEASE, HOLD="held")
    until(lambda: (shop.folder / "at-held").exists(), what="the point")
    shop.freeze(first)
    (shop.folder / "go-held").touch()
    second = shop.start(*LEASE)
    shop.until_final()
    results = {job: shop.record(job) for job in jobs}
    first.signal_all(signal.SIGCONT)
    late = shop.put("quick")
    time.sleep(1.0)
    assert second.stop() == 0
    shop.until_final(late)
    last = shop.put("quick")
    shop.until_final(last)
    assert {job: shop.record(job) for job in jobs} == results
