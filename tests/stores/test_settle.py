import msgspec
import pytest

from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.failure import described
from fairlead.core.job import Gate, State
from fairlead.core.outcome import (
    Cancelled,
    Crashed,
    Done,
    Failed,
    Lost,
    Outcome,
    Policy,
    Returned,
    Snoozed,
)
from fairlead.core.retry import Retry
from fairlead.core.store import Store
from tests import deeds
from tests.words import by, claim, done, failed, new_job, returned, settled


async def test_a_done_job_is_finished_with_its_result(store: Store, clock: ManualClock) -> None:
    new = new_job(options='{"tags":["keep"]}')
    await store.put([new])
    [job] = await claim(store)
    clock.advance(3)
    assert set(await store.settle([done(job, '{"answer":"42 \\"\\u0000\\""}')])) == {job.id}

    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.result) == (State.DONE, '{"answer":"42 \\"\\u0000\\""}')
    assert (record.payload, record.options, record.attempt) == ("{}", new.options, 1)
    assert (record.finished_at, record.worker, record.lease_until) == (clock.now(), "w1", None)
    assert await store.admin.count() == {"mail": {State.DONE: 1}}


async def test_a_lost_lease_cannot_settle(store: Store, clock: ManualClock) -> None:
    """A worker that was away too long must not overwrite the work of its successor (P3, I6)."""
    await store.put([new_job()])
    [first] = await claim(store, worker="slow", lease=10)
    clock.advance(11)
    [second] = await claim(store, worker="quick", lease=10)
    before = await store.admin.find(first.id)

    for outcome in (Done('"stale"'), Failed(described("Oops", "stale")), Returned(), Lost()):
        assert set(await store.settle([settled(first, outcome, clock.now())])) == set()
    assert await store.admin.find(first.id) == before
    assert await store.admin.attempts(first.id) == []

    assert set(await store.settle([done(second, '"fresh"')])) == {second.id}
    assert set(await store.settle([done(first, '"stale"')])) == set()
    record = await store.admin.find(second.id)
    assert record is not None
    assert record.result == '"fresh"'


async def test_a_passed_lease_settles_while_nobody_took_the_job(
    store: Store, clock: ManualClock
) -> None:
    """Also after a claim has seen that it passed, and left it alone."""
    await store.put([new_job(), new_job()])
    jobs = await claim(store, lease=10)
    clock.advance(100)
    assert set(await store.settle([done(jobs[0])])) == {jobs[0].id}
    assert await claim(store, worker="w2", spare_lost=True) == []
    assert set(await store.settle([done(jobs[1])])) == {jobs[1].id}
    assert await store.admin.audit() == []


async def test_a_settlement_counts_once(store: Store) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    assert set(await store.settle([done(job), done(job)])) == {job.id}
    assert set(await store.settle([done(job)])) == set()
    assert len(await store.admin.attempts(job.id)) == 1


@pytest.mark.parametrize("stale_first", [True, False])
async def test_two_settlements_of_a_job_in_a_batch_count_each_by_its_fence(
    store: Store, clock: ManualClock, stale_first: bool
) -> None:
    """A process may claim again what was taken from it, before it has given that back itself."""
    await store.put([new_job()])
    [old] = await claim(store)
    await store.settle([returned(old)])
    clock.advance(1)
    [new] = await claim(store)
    batch = [settled(old, Returned(), clock.now()), done(new, '"fresh"')]

    written = await store.settle(batch if stale_first else batch[::-1])
    assert {job_id: one.fence for job_id, one in written.items()} == {new.id: new.fence}
    record = await store.admin.find(new.id)
    assert record is not None
    assert (record.state, record.result, record.attempt) == (State.DONE, '"fresh"', 1)
    assert [line.outcome for line in await store.admin.attempts(new.id)] == ["returned", "done"]


async def test_a_given_back_job_no_longer_takes_its_old_fence(store: Store) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    await store.settle([returned(job)])
    assert set(await store.settle([done(job)])) == set()
    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.attempt) == (State.WAITING, 0)


async def test_a_batch_mixes_all_kinds_of_ends(store: Store, clock: ManualClock) -> None:
    await store.put([new_job() for _ in range(8)])
    jobs = await claim(store)
    now = clock.now()
    once = Policy(Retry(attempts=1))
    outcomes: list[tuple[Outcome, Policy | None, State, int]] = [
        (Done('"x"'), None, State.DONE, 1),
        (Failed(described("E", "m")), None, State.WAITING, 1),
        (Failed(described("E", "m")), once, State.DEAD, 1),
        (Snoozed(5), None, State.WAITING, 0),
        (Cancelled("no need"), None, State.CANCELLED, 1),
        (Crashed("SIGSEGV"), None, State.WAITING, 0),
        (Returned(), None, State.WAITING, 0),
        (Lost(), None, State.WAITING, 1),
    ]
    settlements = [
        settled(job, outcome, now, policy)
        for job, (outcome, policy, _, _) in zip(jobs, outcomes, strict=True)
    ]
    assert set(await store.settle(settlements)) == {job.id for job in jobs}
    for job, (outcome, _, state, attempt) in zip(jobs, outcomes, strict=True):
        record = await store.admin.find(job.id)
        assert record is not None
        assert (record.state, record.attempt) == (state, attempt), outcome
        [line] = await store.admin.attempts(job.id)
        assert line.outcome == type(outcome).__name__.lower()


async def test_every_ended_run_leaves_a_line_in_the_log(store: Store, clock: ManualClock) -> None:
    await store.put([new_job(delay=5 * SECOND)])
    due = clock.now() + 5 * SECOND
    clock.advance(7)
    [job] = await claim(store)
    clock.advance(1)
    settlement = msgspec.structs.replace(
        failed(job, clock.now()), started_at=clock.now() - 500_000, pool="p"
    )
    await store.settle([settlement])
    [line] = await store.admin.attempts(job.id)
    assert (line.ready_at, line.claimed_at) == (due, due + 2 * SECOND)
    assert (line.started_at, line.finished_at) == (clock.now() - 500_000, clock.now())
    assert (line.task, line.queue, line.pool, line.worker) == ("t", "mail", "p", "w1")
    assert (line.attempt, line.fence, line.outcome) == (1, job.fence, "failed")
    assert settlement.failure is not None
    assert line.fingerprint == settlement.failure.fingerprint


async def test_a_dead_letter_keeps_every_attempts_error(store: Store, clock: ManualClock) -> None:
    await store.put([new_job()])
    policy = Policy(Retry(attempts=3))
    for attempt in (1, 2, 3):
        [job] = await claim(store, worker=f"w{attempt}")
        failure = described("Oops", f"try {attempt} 'quoted' \u00e9")
        await store.settle([settled(job, Failed(failure), clock.now(), policy)])
        clock.advance(600)
    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.reason, record.attempt) == (State.DEAD, "exhausted", 3)
    assert [(e.attempt, e.worker, e.message) for e in record.errors] == [
        (n, f"w{n}", f"try {n} 'quoted' \u00e9") for n in (1, 2, 3)
    ]
    assert await claim(store) == []


async def test_the_third_crash_makes_a_dead_letter_with_the_signals_name(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    for _ in range(3):
        [job] = await claim(store)
        await store.settle([settled(job, Crashed("SIGSEGV"), clock.now())])
        clock.advance(600)
    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.reason) == (State.DEAD, "poison")
    assert (record.attempt, record.crashes) == (0, 3)
    assert [error.message for error in record.errors] == [
        f"SIGSEGV, crash {n} of 3" for n in (1, 2, 3)
    ]


async def test_a_retry_is_parked_until_its_time(store: Store, clock: ManualClock) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    await store.settle([failed(job, clock.now())])
    record = await store.admin.find(job.id)
    assert record is not None
    assert record.gate is Gate.NOT_DUE
    assert record.run_at == clock.now() + 10 * SECOND


@pytest.mark.parametrize(
    "outcome", [Done('"kept?"'), Failed(described("E", "m")), Returned(), Snoozed(1)]
)
async def test_a_run_cancelled_meanwhile_ends_as_cancelled(
    store: Store, clock: ManualClock, outcome: Outcome
) -> None:
    """Its result is not stored as a success, and it is not tried again (I17)."""
    await store.put([new_job()])
    [job] = await claim(store)
    await deeds.cancel(store, [job.id], "changed my mind", by())
    assert set(await store.settle([settled(job, outcome, clock.now())])) == {job.id}
    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.reason) == (State.CANCELLED, "changed my mind")
    assert record.result is None


async def test_an_empty_settle_is_nothing(store: Store) -> None:
    assert set(await store.settle([])) == set()
