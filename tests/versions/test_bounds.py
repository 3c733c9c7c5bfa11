"""What is out of today's bounds of a job of the version to come is that program's business (P14)."""

import pytest

from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.job import Reason, State
from fairlead.core.outcome import Settlement
from tests.versions.conftest import OWN_VERBS, PLACES, Place
from tests.versions.future import DAY, Newer, Program
from tests.words import by, new_job


@pytest.mark.parametrize("place", OWN_VERBS, indirect=True)
@pytest.mark.parametrize("stage", ["waiting", "overdue", "running", "lost", "done", "dead"])
async def test_an_older_program_leaves_alone_what_is_out_of_its_bounds(
    older: Program, newer: Newer, place: Place, clock: ManualClock, stage: str
) -> None:
    job_id = await _at_stage(newer, clock, stage)
    place.future.overstep(job_id)
    before, states = place.future.content(job_id), await older.store.admin.count()
    assert await older.claim() == []
    await older.announce(t=1)
    await older.upkeep()
    assert await older.store.admin.audit() == []
    assert await older.store.admin.repair(by()) == []
    assert place.future.content(job_id) == before
    assert await older.store.admin.count() == states
    await older.put(behind := new_job())
    assert [job.id for job in await older.claim()] == [behind.id]


@pytest.mark.parametrize("place", OWN_VERBS, indirect=True)
async def test_it_is_damage_to_a_program_of_its_level(
    older: Program, newer: Newer, place: Place
) -> None:
    await older.put(new := new_job())
    place.future.overstep(new.id)
    assert len(await newer.store.admin.audit()) == 1
    assert await older.claim() == []
    assert (await older.find(new.id)).reason == Reason.UNREADABLE


@pytest.mark.parametrize("place", [name for name in PLACES if name == "postgres"], indirect=True)
async def test_verbs_that_all_programs_share_judge_by_one_rule(
    older: Program, newer: Newer, place: Place, clock: ManualClock
) -> None:
    """They are the newest program's, and know its bounds: what they call damage is damage."""
    job_id = await _at_stage(newer, clock, "running")
    place.future.overstep(job_id)
    told = await newer.store.admin.audit()
    assert len(told) == 1
    assert await older.store.admin.audit() == told
    assert await older.store.admin.repair(by())


async def _at_stage(newer: Newer, clock: ManualClock, stage: str) -> JobId:
    new = new_job(level=2, expires_in=10 * SECOND if stage == "overdue" else None)
    await newer.put(new)
    if stage in ("running", "lost", "done", "dead"):
        [job] = await newer.claim(level=2, lease=DAY if stage == "running" else 20)
    if stage in ("done", "dead"):
        state = State(stage)
        await newer.settle(Settlement(job.id, job.fence, state, "failed", reason="because"))
        clock.advance(10 * DAY)
    clock.advance(30)
    return new.id
