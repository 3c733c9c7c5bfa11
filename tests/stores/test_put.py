from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.job import Gate, State
from fairlead.core.outcome import Policy
from fairlead.core.retry import Retry
from fairlead.core.store import Store
from tests.words import are_new, claim, done, failed, new_job


async def test_a_put_job_waits_with_all_it_was_given(store: Store, clock: ManualClock) -> None:
    job = new_job(priority=30, version=3, options='{"tags":["a"]}', expires_in=60 * SECOND)
    assert are_new(await store.put([job])) == [True]

    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.task, record.queue) == (State.WAITING, "t", "mail")
    assert (record.payload, record.options, record.version) == ("{}", '{"tags":["a"]}', 3)
    assert (record.priority, record.attempt, record.gate) == (30, 0, None)
    assert (record.run_at, record.enqueued_at) == (clock.now(), clock.now())
    assert record.expires_at == clock.now() + 60 * SECOND


async def test_an_unknown_id_is_not_found(store: Store) -> None:
    assert await store.admin.find(new_job().id) is None


async def test_a_repeated_put_changes_nothing(store: Store) -> None:
    job = new_job()
    assert are_new(await store.put([job])) == [True]
    assert are_new(await store.put([job])) == [False]
    assert await store.admin.count() == {"mail": {State.WAITING: 1}}


async def test_an_id_twice_in_one_put_is_one_job(store: Store) -> None:
    job = new_job()
    assert are_new(await store.put([job, new_job(), job])) == [True, True, False]
    assert await store.admin.count() == {"mail": {State.WAITING: 2}}


async def test_a_put_is_recognised_after_the_job_is_done_or_dead(
    store: Store, clock: ManualClock
) -> None:
    """A producer that never got its answer may repeat the put hours later."""
    first, second = new_job(), new_job()
    await store.put([first, second])
    jobs = await claim(store)
    await store.settle([done(jobs[0]), failed(jobs[1], clock.now(), Policy(Retry(attempts=1)))])

    assert are_new(await store.put([first, second, new_job()])) == [False, False, True]
    assert await store.admin.count() == {"mail": {State.DONE: 1, State.DEAD: 1, State.WAITING: 1}}


async def test_a_delayed_job_is_parked_until_it_is_due(store: Store, clock: ManualClock) -> None:
    job = new_job(delay=60 * SECOND)
    await store.put([job])
    record = await store.admin.find(job.id)
    assert record is not None
    assert record.gate is Gate.NOT_DUE
    assert await claim(store) == []

    clock.advance(60)
    assert [j.id for j in await claim(store)] == [job.id]


async def test_run_at_names_an_instant(store: Store, clock: ManualClock) -> None:
    job = new_job(run_at=clock.now() + 5 * SECOND)
    await store.put([job])
    clock.advance(4.999_999)
    assert await claim(store) == []
    clock.advance(0.000_001)
    assert [j.id for j in await claim(store)] == [job.id]


async def test_many_jobs_keep_the_order_they_were_put_in(store: Store) -> None:
    jobs = [new_job() for _ in range(777)]
    assert are_new(await store.put(jobs)) == [True] * 777
    assert [j.id for j in await claim(store, slots=1000)] == [j.id for j in jobs]


def test_put_blocking_is_the_same_put(store: Store) -> None:
    job = new_job()
    assert are_new(store.put_blocking([job])) == [True]
    assert are_new(store.put_blocking([job])) == [False]


async def test_an_empty_put_is_nothing(store: Store) -> None:
    assert await store.put([]) == []
    assert await store.admin.count() == {}


async def test_names_and_texts_of_any_kind_come_back_as_they_were(store: Store) -> None:
    """No text of a producer is ever part of a statement (T7)."""
    odd = "'; DROP TABLE fairlead_job; --\u2028\"\\ \U0001f600 %s {x}"
    job = new_job(task=odd, queue=odd, options='{"correlation_id":"\\u0000"}')
    await store.put([job])
    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.task, record.queue, record.options) == (odd, odd, job.options)
