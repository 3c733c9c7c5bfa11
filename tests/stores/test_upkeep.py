import asyncio

from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.job import Gate, Job, Reason, State
from fairlead.core.outcome import Policy
from fairlead.core.retry import Retry
from fairlead.core.store import BATCH, Store
from tests.words import claim, done, failed, new_job, quiet

WEEK = 7 * 24 * 3600


async def test_finished_jobs_and_their_log_are_forgotten_after_the_retention_time(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job(), new_job()])
    old, young = await claim(store)
    await store.settle([done(old)])
    clock.advance(WEEK)
    await store.settle([done(young)])
    assert (await store.upkeep(WEEK * SECOND)).pruned_jobs == 0
    clock.advance(1)
    done_ = await store.upkeep(WEEK * SECOND)
    assert (done_.pruned_jobs, done_.pruned_attempts) == (1, 1)
    assert await store.admin.find(old.id) is None
    assert await store.admin.attempts(old.id) == []
    assert await store.admin.find(young.id) is not None


async def test_dead_letters_are_never_forgotten(store: Store, clock: ManualClock) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    await store.settle([failed(job, clock.now(), Policy(Retry(attempts=1)))])
    clock.advance(1000 * WEEK)
    await store.upkeep(0)
    record = await store.admin.find(job.id)
    assert record is not None
    assert record.state is State.DEAD


async def test_upkeep_promotes_expires_and_brings_back(store: Store, clock: ManualClock) -> None:
    due, late, strange = (
        new_job(delay=5 * SECOND),
        new_job(expires_in=5 * SECOND),
        new_job(task="strange"),
    )
    await store.put([strange])
    await claim(store, capable={})
    await store.put([due, late])
    await store.announce(Worker("w2", {"other": 1}), 100 * SECOND)
    clock.advance(6)
    done_ = await store.upkeep(WEEK * SECOND)
    assert (done_.promoted, done_.expired, done_.brought_back) == (1, 1, 0)
    assert not done_.more
    for job, gate in ((due, None), (strange, Gate.NO_CAPABLE_WORKER)):
        record = await store.admin.find(job.id)
        assert record is not None
        assert record.gate is gate
    await store.announce(Worker("w3", {"strange": 1}), 100 * SECOND)
    record = await store.admin.find(strange.id)
    assert record is not None
    assert record.gate is None


async def test_a_job_expires_though_many_before_it_run_past_their_time(
    store: Store, clock: ManualClock
) -> None:
    """Who runs does not expire any more, and hides nobody who does."""
    await store.put([new_job(expires_in=10 * SECOND) for _ in range(1_200)])
    running: list[Job] = []
    while len(running) < 1_200:
        running += await claim(store, slots=400, lease=60)
    late = new_job(expires_in=11 * SECOND)
    await store.put([late])
    clock.advance(12)
    assert (await store.upkeep(3600 * SECOND)).expired == 1
    record = await store.admin.find(late.id)
    assert record is not None
    assert (record.state, record.reason) == (State.CANCELLED, Reason.EXPIRED)


async def test_a_round_of_upkeep_is_bounded_and_says_when_there_is_more(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job(delay=SECOND) for _ in range(BATCH + 1)])
    clock.advance(2)
    first = await store.upkeep(WEEK * SECOND)
    assert (first.promoted, first.more) == (BATCH, True)
    second = await store.upkeep(WEEK * SECOND)
    assert (second.promoted, second.more) == (1, False)


async def test_workers_are_listed_while_they_live(store: Store, clock: ManualClock) -> None:
    await store.announce(Worker("w1", {"a": 1}), 10 * SECOND)
    await store.announce(Worker("w2", {"a": 2, "b": 1}), 20 * SECOND)
    assert [w.id for w in await store.admin.workers()] == ["w1", "w2"]
    clock.advance(10)
    [left] = await store.admin.workers()
    assert (left.id, dict(left.capable)) == ("w2", {"a": 2, "b": 1})


async def test_a_put_wakes_whoever_waits(store: Store) -> None:
    mark = await quiet(store)
    waiting = [asyncio.create_task(store.wait(30, mark)) for _ in range(3)]
    await asyncio.sleep(0)
    await store.put([new_job()])
    assert mark not in await asyncio.gather(*waiting)


async def test_a_change_between_the_look_and_the_wait_is_not_missed(store: Store) -> None:
    """Also if somebody else was woken by it meanwhile."""
    mark = await quiet(store)
    other = asyncio.create_task(store.wait(30, mark))
    await asyncio.sleep(0)
    await store.put([new_job()])
    assert await other != mark
    assert await store.wait(30, mark) != mark


async def test_a_wait_without_news_ends_by_itself(store: Store) -> None:
    mark = await quiet(store)
    assert await store.wait(0.01, mark) == mark


async def test_a_wait_ends_when_a_parked_job_falls_due(store: Store) -> None:
    await store.put([new_job(delay=SECOND // 20)])
    mark = await store.wait(0, for_work=True)
    async with asyncio.timeout(20):
        while (new := await store.wait(30, mark, for_work=True)) != mark:
            mark = new


async def test_a_job_that_is_overdue_already_wakes_nobody(store: Store, clock: ManualClock) -> None:
    """With no worker to promote it, whoever waits for something else would spin."""
    await store.put([new_job(delay=SECOND)])
    clock.advance(2)
    waiting = asyncio.create_task(store.wait(30, await quiet(store)))
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()
    waiting.cancel()


async def test_upkeep_goes_on_bringing_back_what_announce_left(store: Store) -> None:
    await store.put([new_job(task="strange") for _ in range(BATCH + 5)])
    for _ in range(2):
        assert await claim(store, capable={}) == []
    await store.announce(Worker("w2", {"strange": 1}), 100 * SECOND)
    assert (await store.upkeep(WEEK * SECOND)).brought_back == 5


async def test_a_clock_that_jumped_does_not_stop_the_pruning(
    store: Store, clock: ManualClock
) -> None:
    """Jobs that finished "in the future" stand before the others, and must not hide them."""
    clock.advance(100 * WEEK)
    await store.put([new_job() for _ in range(BATCH + 10)])
    early = await claim(store, slots=BATCH + 10)
    await store.settle([done(job) for job in early])
    clock.advance(-100 * WEEK)
    await store.put([new_job()])
    [old] = await claim(store)
    await store.settle([done(old)])
    clock.advance(2 * WEEK)
    assert (await store.upkeep(WEEK * SECOND)).pruned_jobs == 1
    assert await store.admin.find(old.id) is None
