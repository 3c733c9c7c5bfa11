from fairlead.core.clock import ManualClock
from fairlead.core.job import State
from fairlead.core.store import Backend
from tests.words import claim, done, new_job


async def test_a_waiting_job_is_cancelled_at_once_and_never_starts(
    store: Backend, clock: ManualClock
) -> None:
    job = new_job()
    await store.put([job])
    after = await store.cancel([job.id], "not needed")
    assert (after[job.id].state, after[job.id].reason) == (State.CANCELLED, "not needed")
    assert await claim(store) == []


async def test_a_running_job_is_marked(store: Backend) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    after = await store.cancel([job.id], "stop")
    assert (after[job.id].state, after[job.id].cancel_requested) == (State.RUNNING, True)


async def test_a_finished_job_stays_as_it_is(store: Backend) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    await store.settle([done(job, "1")])
    after = await store.cancel([job.id], "too late")
    assert (after[job.id].state, after[job.id].result) == (State.DONE, "1")


async def test_cancelling_an_unknown_id_has_no_later_effect(store: Backend) -> None:
    job = new_job()
    assert await store.cancel([job.id], "who?") == {}
    await store.put([job])
    assert [j.id for j in await claim(store)] == [job.id]


async def test_counts_are_by_queue_and_state(store: Backend) -> None:
    await store.put([new_job(), new_job(), new_job(queue="other")])
    [job] = await claim(store, slots=1)
    assert await store.count() == {
        "mail": {State.RUNNING: 1, State.WAITING: 1},
        "other": {State.WAITING: 1},
    }
    await store.settle([done(job)])
    assert await store.count() == {
        "mail": {State.DONE: 1, State.WAITING: 1},
        "other": {State.WAITING: 1},
    }
