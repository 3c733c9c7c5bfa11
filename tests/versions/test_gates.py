"""A newer program parks jobs for a gate that today's does not know: they are told, and left to it."""

import pytest

from fairlead.core.admin import ALL, Filter, PoolShare, Wait, Waiting, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.job import Gate, State
from fairlead.insight.explain import explain
from tests import deeds
from tests.versions.future import Program
from tests.words import MAIL, by, done, new_job, returned

POOL = PoolShare("default", 3, (MAIL.share,))


async def park(older: Program, **options: int) -> str:
    """Put a job that has stood before, and let the newer program park it."""
    job = new_job(**options)
    await older.put(job)
    [run] = await older.claim()
    await older.settle(returned(run))
    older.future.park(job.id)
    return job.id


async def test_claims_audit_and_repair_leave_it_alone(older: Program, clock: ManualClock) -> None:
    """Before, the repair put it back into line, and it ran past its gate."""
    before = await older.find(await park(older))
    assert await older.store.admin.audit() == []
    assert await older.store.admin.repair(by("repair")) == []
    await older.announce(t=1)
    await older.upkeep()
    assert await older.claim() == []
    clock.advance(3600)
    assert await older.claim(capable={"t": 1}) == []
    assert await older.find(before.id) == before
    assert await older.store.admin.audit() == []


async def test_it_is_told_as_parked_by_a_newer_program(older: Program, clock: ManualClock) -> None:
    """Before, it was in no list on some stores, and explained as damaged on others."""
    job_id, store = await park(older), older.store
    free = new_job()
    await older.put(free)
    assert (await older.find(job_id)).gate is Gate.NEWER_PROGRAM
    waiting = Waiting(due=1, parked=1, oldest=clock.now())
    assert await deeds.waiting(store) == {"mail": waiting}
    for wait in Wait:
        which = Filter(states=(State.WAITING,), waits=(wait,), at=clock.now())
        told = {Wait.PARKED: [job_id], Wait.DUE: [free.id]}.get(wait, [])
        assert [job.id for job in await deeds.jobs(store, which)] == told
        count = {"mail": {State.WAITING: 1}} if told else {}
        assert await store.admin.count(which) == count
    assert await store.admin.ahead(free.id) == 0
    for worker in (None, Worker("w1", {"t": 1}, (POOL,))):
        if worker is not None:
            await store.announce(worker, 50 * SECOND)
        told_of = await explain(store, job_id)
        [held] = [each for each in told_of.gates if each.gate is Gate.NEWER_PROGRAM]
        assert (told_of.gate, told_of.damaged) == (Gate.NEWER_PROGRAM, False)
        assert (held.closed, "the newer Fairlead that parked it" in (held.opens or "")) == (
            True,
            True,
        )
    assert (await explain(store, free.id)).gate is None


@pytest.mark.parametrize("way", ["cancelled", "expired"])
async def test_it_can_be_cancelled_and_expires(
    older: Program, clock: ManualClock, way: str
) -> None:
    job_id = await park(older, expires_in=5 * SECOND if way == "expired" else None)
    if way == "cancelled":
        await deeds.cancel(older.store, [job_id], "no", by())
    clock.advance(10)
    await older.upkeep()
    assert (await older.find(job_id)).state is State.CANCELLED
    assert await older.store.admin.count(ALL) == {"mail": {State.CANCELLED: 1}}


async def test_a_run_that_it_parked_as_lost_is_still_its_workers(
    older: Program, clock: ManualClock
) -> None:
    await older.put(new_job())
    [run] = await older.claim(lease=20)
    clock.advance(30)
    older.future.park(run.id, lost=True)
    assert await older.claim() == []
    assert await older.store.admin.audit() == []
    assert [job.id for job in await older.store.held("older")] == [run.id]
    assert await older.settle(done(run)) == {run.id}
