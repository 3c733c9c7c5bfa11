"""A program leaves alone what is above its level; a newer one finds it as it was (P14)."""

from collections.abc import Sequence

import pytest

from fairlead.core.acts import FINAL
from fairlead.core.admin import PoolShare, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Wanted
from fairlead.core.job import Gate, NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.store import Store
from fairlead.insight.explain import explain
from tests import deeds
from tests.words import MAIL, by, claim, done, new_job, plan

DAY = 86_400
POOL = PoolShare("default", 3, (MAIL.share,))


@pytest.fixture
def newer() -> NewJob:
    return new_job(level=2)


async def test_a_job_tells_its_level_wherever_it_is(store: Store, newer: NewJob) -> None:
    store.level = 2
    older = new_job()
    await store.put([older, newer])
    assert await _level(store, newer) == 2
    assert await _level(store, older) == 1
    jobs = await claim(store, level=2)
    assert await _level(store, newer) == 2
    await store.settle([done(job) for job in jobs])
    assert await _level(store, newer) == 2
    assert await _level(store, older) == 1


async def _level(store: Store, job: NewJob) -> int:
    record = await store.admin.find(job.id)
    assert record is not None
    return record.level


async def test_an_older_program_does_not_claim_it(store: Store, newer: NewJob) -> None:
    behind = new_job()
    await store.put([newer, behind])
    assert [job.id for job in await claim(store)] == [behind.id]
    assert [job.id for job in await claim(store, level=2)] == [newer.id]


async def test_an_older_program_does_not_park_it_though_nobody_knows_its_task(
    store: Store,
) -> None:
    await store.put([new_job("strange", level=2)])
    assert (await store.claim(plan(capable={"t": 1}))).parked == []
    assert await deeds.unknown(store) == {}
    [parked] = (await store.claim(plan(capable={"t": 1}, level=2))).parked
    assert parked.task == "strange"


async def test_an_older_program_does_not_take_it_over(
    store: Store, newer: NewJob, clock: ManualClock
) -> None:
    await store.put([newer])
    await claim(store, level=2, lease=20)
    clock.advance(30)
    assert await claim(store) == []
    [lost] = await claim(store, level=2)
    assert lost.lost


async def test_an_older_program_does_not_settle_it(store: Store, newer: NewJob) -> None:
    store.level = 2
    await store.put([newer])
    [job] = await claim(store, level=2)
    store.level = 1
    assert await store.settle([done(job)]) == {}
    assert await store.admin.attempts(job.id) == []
    store.level = 2
    assert set(await store.settle([done(job)])) == {job.id}


async def test_an_older_program_settles_what_stands_beside_it(store: Store, newer: NewJob) -> None:
    await store.put([newer, new_job()])
    jobs = await claim(store, level=2)
    written = await store.settle([done(job) for job in jobs])
    assert set(written) == {job.id for job in jobs if job.id != newer.id}


async def test_an_older_program_puts_it_into_its_order(store: Store, clock: ManualClock) -> None:
    """Its time means the same to every program."""
    await store.put([new_job(level=2, delay=10 * SECOND)])
    clock.advance(11)
    assert await claim(store) == []
    assert len(await claim(store, level=2)) == 1


@pytest.mark.parametrize("verb", ["claim", "upkeep"])
async def test_an_older_program_does_not_expire_it(
    store: Store, clock: ManualClock, verb: str
) -> None:
    newer = new_job(level=2, expires_in=10 * SECOND)
    older = new_job(expires_in=10 * SECOND)
    await store.put([newer, older])
    clock.advance(11)
    await _look(store, verb)
    assert await store.admin.count() == {"mail": {State.WAITING: 1, State.CANCELLED: 1}}
    store.level = 2
    await _look(store, verb)
    assert await store.admin.count() == {"mail": {State.CANCELLED: 2}}


async def _look(store: Store, verb: str) -> None:
    if verb == "claim":
        assert await claim(store, level=store.level) == []
    else:
        await store.upkeep(DAY * SECOND)


async def test_an_older_program_does_not_cancel_it(store: Store, newer: NewJob) -> None:
    older = new_job()
    await store.put([newer, older])
    ids = [newer.id, older.id]
    assert set(await deeds.cancel(store, ids, "no", by())) == {older.id}
    [job] = await claim(store, level=2)
    assert await deeds.cancel(store, [job.id], "no", by()) == {}
    [kept] = await store.extend([(job.id, job.fence)], SECOND)
    assert not kept.cancel_requested
    store.level = 2
    assert set(await deeds.cancel(store, [job.id], "no", by())) == {job.id}


@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.CANCELLED])
async def test_an_older_program_neither_revives_nor_deletes_it(
    store: Store, newer: NewJob, state: State
) -> None:
    await _end(store, newer, state)
    store.level = 1
    assert await deeds.revive(store, [newer.id], [state], by()) == []
    assert await deeds.delete(store, [newer.id], [state], by()) == []
    store.level = 2
    assert await deeds.revive(store, [newer.id], [state], by()) == [newer.id]
    await _end(store, None, state)
    assert await deeds.delete(store, [newer.id], [state], by()) == [newer.id]


async def test_an_older_program_does_not_hurry_it(store: Store) -> None:
    newer = new_job(level=2, delay=10 * SECOND)
    await store.put([newer])
    assert await deeds.revive(store, [newer.id], [State.WAITING], by()) == []
    store.level = 2
    assert await deeds.revive(store, [newer.id], [State.WAITING], by()) == [newer.id]
    assert len(await claim(store, level=2)) == 1


async def test_an_older_program_does_not_edit_it(store: Store, newer: NewJob) -> None:
    await _end(store, newer, State.DEAD)
    store.level = 1
    assert not await deeds.edit(store, newer.id, "{}", "[]", 1, by())
    store.level = 2
    assert await deeds.edit(store, newer.id, "{}", "[]", 1, by())


async def test_a_revived_job_keeps_its_level(store: Store, newer: NewJob) -> None:
    await _end(store, newer, State.DEAD)
    await deeds.revive(store, [newer.id], [State.DEAD], by())
    assert await claim(store) == []
    assert await _level(store, newer) == 2


async def _end(store: Store, new: NewJob | None, state: State) -> None:
    """Let a newer program bring a job, or the only one there is, to its end."""
    store.level = 2
    if new is not None:
        await store.put([new])
    [job] = await claim(store, level=2)
    settlement = done(job)
    if state is not State.DONE:
        settlement = Settlement(job.id, job.fence, state, "failed", reason="because")
    assert set(await store.settle([settlement])) == {job.id}


async def test_an_older_program_does_not_forget_it(
    store: Store, newer: NewJob, clock: ManualClock
) -> None:
    await _end(store, newer, State.DONE)
    store.level = 1
    clock.advance(10 * DAY)
    if not store.url.startswith("postgresql"):  # There the verbs are those of the newest program.
        await store.upkeep(DAY * SECOND)
        assert await _level(store, newer) == 2
    store.level = 2
    while (await store.upkeep(DAY * SECOND)).more:
        pass
    assert await store.admin.find(newer.id) is None


async def test_an_older_program_writes_no_entry_for_it(store: Store, newer: NewJob) -> None:
    store.level = 2
    await store.put([newer])
    change = Change("step", "a", "1", owner=newer.id)
    [version] = await store.entries.write([change])
    store.level = 1
    assert await store.entries.write([change]) == [None]
    [entry] = await store.entries.read(Wanted("step", newer.id))
    assert entry.version == version


async def test_no_verb_of_an_older_program_changes_it_and_explain_says_why(
    store: Store, clock: ManualClock
) -> None:
    """Wherever it is: it waits, it runs, its run was lost, or it has ended."""
    jobs = [new_job(level=2) for _ in range(6)]
    ids = [job.id for job in jobs]
    await _everywhere(store, jobs, clock)
    before = [await store.admin.find(job_id) for job_id in ids]
    states = [record.state for record in before if record is not None]
    assert sorted(states) == ["cancelled", "dead", "done", "running", "running", "waiting"]
    store.level = 1
    assert await claim(store) == []
    assert (await store.claim(plan(capable={"other": 1}))).parked == []
    await store.announce(Worker("older", {"t": 1}, (POOL,)), DAY * SECOND)
    assert await deeds.cancel(store, ids, "no", by()) == {}
    assert await deeds.revive(store, ids, list(State), by()) == []
    assert await deeds.delete(store, ids, list(FINAL), by()) == []
    assert not any([await deeds.edit(store, job_id, "{}", "[]", 1, by()) for job_id in ids])
    runs = [(record.id, record.fence) for record in before if record is not None]
    ends = [Settlement(*run, State.DEAD, "failed", reason="because") for run in runs]
    assert await store.settle(ends) == {}
    await store.upkeep(DAY * SECOND)
    assert await store.admin.repair(by()) == []
    assert [await store.admin.find(job_id) for job_id in ids] == before
    for record in before:
        if record is not None and record.state is State.WAITING:
            assert (await explain(store, record.id)).gate is Gate.NEWER_PROGRAM
    store.level = 2
    jobs_of_newer = await claim(store, level=2)
    assert [job.lost for job in jobs_of_newer].count(True) == 1


async def _everywhere(store: Store, jobs: Sequence[NewJob], clock: ManualClock) -> None:
    store.level = 2
    await store.put(jobs[:1])
    await claim(store, level=2, lease=1)
    clock.advance(2)
    ends = (State.DONE, State.DEAD, State.CANCELLED)
    for new, state in zip(jobs[1:4], ends, strict=True):
        await store.put([new])
        running = await claim(store, level=2, spare_lost=True)
        [job] = [job for job in running if job.id == new.id]
        await store.settle([Settlement(job.id, job.fence, state, "failed", reason="because")])
    await store.put(jobs[4:5])
    await claim(store, level=2, spare_lost=True, lease=DAY)
    await store.put(jobs[5:])
