"""Today's program and a newer one take turns with the same jobs; whoever begins, nothing is lost,
forgotten or repeated.

`first` and `second` are the two, in either order. After whatever the newer one does, every value has
fields that today's does not know; after whatever today's does, they are still there.
"""

import pytest

from fairlead.core.acts import FINAL
from fairlead.core.admin import ALL, Filter
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change
from fairlead.core.job import Gate, Job, NewJob, State
from fairlead.core.outcome import Crashed, Lost, Policy, Settlement, Snoozed
from fairlead.core.retry import Retry
from tests import deeds
from tests.versions.future import DAY, Newer, Program
from tests.words import POLICY, by, done, failed, new_job, returned, settled

Two = tuple[Program, Program]
OPTIONS = '{"tags":["a"],"mood":{"is":"good"}}'
EXTERNAL = Policy(Retry(), effects="external")


async def put_one(program: Program, **options: object) -> NewJob:
    job = new_job(**options)  # type: ignore[arg-type]
    await program.put(job)
    return job


async def claim_one(program: Program, **options: object) -> Job:
    [job] = await program.claim(**options)
    return job


# It runs


async def test_a_job_is_put_claimed_renewed_and_settled(two: Two) -> None:
    first, second = two
    new = await put_one(first, options=OPTIONS, priority=5)
    job = await claim_one(second)
    assert (job.id, job.options, job.attempt) == (new.id, OPTIONS, 1)
    first.wrote()
    [renewed] = await second.extend(job)
    assert (renewed.id, renewed.cancel_requested) == (job.id, False)
    assert [each.id for each in await second.store.held(second.name)] == [job.id]
    assert await second.settle(done(job, "7")) == {job.id}
    for program in two:
        found = await program.find(job.id)
        assert (found.state, found.result, found.options) == (State.DONE, "7", OPTIONS)
        assert (found.priority, found.attempt) == (5, 1)
        assert await program.outcomes(job.id) == ["done"]
        assert len(await program.store.admin.recent(0)) == 1
        assert len(await deeds.jobs(program.store, Filter(tags=("a",)))) == 1


async def test_each_settles_what_the_other_claimed(two: Two) -> None:
    """As a supervisor does with the jobs of a process that died."""
    first, second = two
    await put_one(first)
    job = await claim_one(first)
    assert [each.id for each in await second.store.held(first.name)] == [job.id]
    assert await second.settle(returned(job)) == {job.id}
    again = await claim_one(first)
    assert (again.id, again.attempt) == (job.id, 1)
    assert await first.settle(done(again)) == {job.id}


async def test_a_known_id_is_recognised(two: Two) -> None:
    first, second = two
    job = await put_one(first)
    for program in (second, first):
        [answer] = await program.store.put([job])
        assert (answer.id, answer.is_new) == (job.id, False)
    claimed = await claim_one(second)
    await second.settle(done(claimed))
    [answer] = await first.store.put([job])
    assert not answer.is_new


async def test_many_jobs_are_shared_out_and_each_ends_once(two: Two) -> None:
    first, second = two
    jobs = [new_job() for _ in range(30)]
    await first.put(*jobs[:15])
    await second.put(*jobs[15:])
    ended: list[str] = []
    while len(ended) < len(jobs):
        for program in two:
            got = await program.claim(slots=4)
            ended += await program.settle(*(done(job) for job in got))
    assert sorted(ended) == sorted(job.id for job in jobs)
    for program in two:
        assert await program.store.admin.count() == {"mail": {State.DONE: 30}}


# Its run is lost


async def test_a_lost_run_is_taken_over_as_lost(two: Two, clock: ManualClock) -> None:
    first, second = two
    await put_one(first)
    job = await claim_one(first)
    clock.advance(30)
    lost = await claim_one(second)
    assert (lost.id, lost.lost, lost.attempt) == (job.id, True, 1)
    assert (lost.worker, lost.claimed_at) == (first.name, job.claimed_at)
    assert lost.fence > job.fence
    assert await first.settle(done(job)) == set()
    assert await first.extend(job) == []
    clock.advance(30)
    again = await claim_one(first)
    assert (again.lost, again.worker) == (True, first.name)
    assert await first.settle(done(again)) == {job.id}


async def test_an_outside_effect_whose_run_was_lost_is_not_silently_repeated(
    two: Two, clock: ManualClock
) -> None:
    first, second = two
    await put_one(first, options=OPTIONS)
    job = await claim_one(first)
    clock.advance(30)
    lost = await claim_one(second)
    assert lost.lost
    await second.settle(settled(lost, Lost(), clock.now(), EXTERNAL))
    for program in two:
        assert await program.claim() == []
        record = await program.find(job.id)
        assert (record.state, record.reason) == (State.DEAD, "uncertain")
        assert await program.outcomes(job.id) == ["ambiguous"]


async def test_a_lost_run_that_is_parked_is_still_lost_when_it_is_back(
    two: Two, clock: ManualClock
) -> None:
    first, second = two
    await put_one(first)
    lost = await claim_one(first)
    clock.advance(30)
    waiting = await put_one(first)
    assert await second.park(other=1) > 0
    record = await first.find(waiting.id)
    assert record.gate is Gate.NO_CAPABLE_WORKER
    assert await deeds.unknown(first.store) == {("t", 1): 2}
    await first.announce(t=1)
    back = await second.claim()
    assert {(job.id, job.lost) for job in back} == {(lost.id, True), (waiting.id, False)}


# It crashes, fails, waits again


async def test_crashes_are_counted_by_both(two: Two) -> None:
    first, second = two
    await put_one(first)
    for crashes, program in enumerate((second, first)):
        job = await claim_one(program)
        assert job.crashes == crashes
        await program.settle(settled(job, Crashed("SIGKILL")))
    job = await claim_one(second)
    assert (job.crashes, job.attempt) == (2, 1)
    await second.settle(settled(job, Crashed("SIGKILL")))
    record = await first.find(job.id)
    assert (record.state, record.reason, record.crashes) == (State.DEAD, "poison", 3)
    assert [past.outcome for past in record.errors] == ["crashed"] * 3


async def test_deaths_that_were_shared_are_counted_by_both(two: Two, clock: ManualClock) -> None:
    first, second = two
    await put_one(first)
    for deaths, program in enumerate((second, first, second)):
        job = await claim_one(program)
        assert (job.shared_deaths, job.crashes) == (deaths, 0)
        await program.settle(settled(job, Crashed("SIGKILL", company=True)))
    job = await claim_one(first)
    assert (job.shared_deaths, job.runs_alone) == (3, True)
    clock.advance(30)
    job = await claim_one(second)
    assert (job.shared_deaths, job.lost) == (3, True)
    await second.settle(returned(job))
    assert (await first.find(job.id)).shared_deaths == 3


async def test_failed_runs_are_kept_with_those_after_them(two: Two, clock: ManualClock) -> None:
    first, second = two
    await put_one(first)
    for program in (second, first):
        job = await claim_one(program)
        await program.settle(failed(job, clock.now()))
        clock.advance(20)
    job = await claim_one(second)
    await second.settle(failed(job, clock.now(), POLICY))
    for program in two:
        found = await program.find(job.id)
        assert [past.attempt for past in found.errors] == [1, 2, 3]
        assert [past.worker for past in found.errors] == [second.name, first.name, second.name]
        assert (found.state, found.reason) == (State.DEAD, "exhausted")
        [group] = await program.store.admin.groups(ALL)
        assert group.count == 1


async def test_what_waits_again_falls_due(two: Two, clock: ManualClock) -> None:
    first, second = two
    delayed = await put_one(first, delay=10 * SECOND)
    other = await put_one(first)
    job = await claim_one(second)
    await second.settle(settled(job, Snoozed(5), clock.now()))
    clock.advance(11)
    await first.upkeep()
    again = await second.claim()
    assert {each.id for each in again} == {other.id, delayed.id}
    await second.settle(*(returned(each) for each in again))
    assert len(await first.claim()) == 2


async def test_what_nobody_starts_in_time_expires(two: Two, clock: ManualClock) -> None:
    first, second = two
    jobs = [new_job(expires_in=5 * SECOND) for _ in range(2)]
    await first.put(*jobs)
    job = await claim_one(first, slots=1)
    await first.settle(returned(job))
    clock.advance(6)
    assert await second.claim() == []
    for program in two:
        assert await program.store.admin.count() == {"mail": {State.CANCELLED: 2}}
        assert {(await program.find(job.id)).reason for job in jobs} == {"expired"}


# A person has a say


async def test_what_waits_and_what_runs_is_cancelled(two: Two) -> None:
    first, second = two
    await put_one(first)
    running = await claim_one(first)
    waiting = await put_one(first)
    assert await second.cancel([running.id, waiting.id], by()) == {running.id, waiting.id}
    [asked] = await first.extend(running)
    assert asked.cancel_requested
    [written] = (await first.store.settle([done(running)])).values()
    first.wrote()
    assert written.state is State.CANCELLED
    for program in two:
        assert await program.store.admin.count() == {"mail": {State.CANCELLED: 2}}
        assert (await program.find(running.id)).reason == "no"


@pytest.mark.parametrize("state", sorted(FINAL))
async def test_what_has_ended_is_replayed_with_all_that_it_has(
    two: Two, clock: ManualClock, state: State
) -> None:
    first, second = two
    new = await put_one(first, options=OPTIONS, expires_in=60 * SECOND)
    job = await claim_one(first)
    await first.settle(failed(job, clock.now()))
    clock.advance(10)
    job = await claim_one(first)
    ended = Settlement(job.id, job.fence, state, "failed", reason="because")
    assert await second.settle(ended) == {job.id}
    clock.advance(120)
    assert await first.revive(job.id, by()) == [job.id]
    again = await claim_one(second)
    assert (again.id, again.attempt, again.expires_at) == (new.id, 1, None)
    assert (again.options, again.fence > job.fence) == (OPTIONS, True)
    assert await first.outcomes(job.id) == ["failed", "failed"]
    assert [past.attempt for past in (await first.find(job.id)).errors] == [1]
    await second.settle(done(again))
    assert await first.outcomes(job.id) == ["failed", "failed", "done"]


async def test_a_poison_job_that_is_replayed_begins_alone(two: Two) -> None:
    first, second = two
    await put_one(first)
    for program in (first, second, first):
        job = await claim_one(program)
        await program.settle(settled(job, Crashed("SIGKILL")))
    assert await second.revive(job.id, by()) == [job.id]
    again = await claim_one(first)
    assert (again.crashes, again.runs_alone) == (0, True)
    await first.settle(done(again))


async def test_a_delayed_job_is_hurried(two: Two, clock: ManualClock) -> None:
    first, second = two
    await put_one(first)
    job = await claim_one(first)
    await first.settle(settled(job, Snoozed(50), clock.now()))
    assert await second.revive(job.id, by(), [State.WAITING]) == [job.id]
    assert (await claim_one(first)).id == job.id


async def test_a_dead_letter_is_edited_and_deleted(two: Two, clock: ManualClock) -> None:
    first, second = two
    await put_one(first)
    job = await claim_one(first)
    await first.settle(failed(job, clock.now(), POLICY))
    assert await second.edit(job.id, "[]", by())
    found = await first.find(job.id)
    assert (found.payload, found.version) == ("[]", 2)
    assert await second.delete(job.id, by()) == [job.id]
    assert await first.store.admin.find(job.id) is None


async def test_what_people_did_is_logged_once_and_answered_as_before(two: Two) -> None:
    """Whoever did it first: a repeat that the other program gets is recognised."""
    first, second = two
    action = by("cancel")
    ids = []
    for program in (first, second, first):
        ids.append((await put_one(program)).id)
        assert await program.cancel(ids[-1:], action) == set(ids[-1:])
    for program in two:
        [line] = await program.store.admin.audit_log()
        assert (line.verb, line.who, line.count) == ("cancel", "ada", 3)
    for job_id in ids:
        for program in two:
            assert await program.cancel([job_id], action) == {job_id}
    [line] = await first.store.admin.audit_log()
    assert line.count == 3


async def test_a_queue_that_one_paused_is_paused_for_both(two: Two) -> None:
    first, second = two
    await put_one(first)
    await deeds.pause(first.store, "mail", by())
    first.wrote()
    assert await second.claim() == []
    assert await deeds.resume(second.store, "mail", by())
    second.wrote()
    await claim_one(first)


# What is beside the jobs


async def test_entries_of_a_job_go_with_it_and_come_back(two: Two) -> None:
    first, second = two
    new = await put_one(first)
    [version] = await first.write(Change("step", "a", "1", owner=new.id))
    [entry] = await second.read("step", new.id)
    assert (entry.value, entry.version) == ("1", version)
    assert await second.write(Change("step", "a", "2", expect=7, owner=new.id)) == [None]
    job = await claim_one(second)
    changes = [Change("step", "a", "2", version, new.id), Change("step", "b", "3", 0, new.id)]
    answers = await second.write(*changes, fence=(job.id, job.fence))
    assert all(answers)
    assert [each.value for each in await first.read("step", new.id)] == ["2", "3"]
    await first.settle(done(job))
    assert [each.value for each in await second.read("step", new.id)] == ["2", "3"]
    await second.revive(job.id, by())
    assert [each.value for each in await first.read("step", new.id)] == ["2", "3"]
    assert await first.write(Change("step", "a", None, owner=new.id)) == [0]
    assert [each.key for each in await second.read("step", new.id)] == ["b"]


async def test_entries_of_nobody_are_written_by_both(two: Two, clock: ManualClock) -> None:
    first, second = two
    due = clock.now() + 5 * SECOND
    [version] = await first.write(Change("alert", "a", "1", due_at=due))
    [second_version] = await second.write(Change("alert", "a", "2", version, due_at=due))
    assert second_version is not None
    assert await first.write(Change("alert", "a", "3", version)) == [None]
    for program in two:
        [entry] = await program.read("alert")
        assert (entry.value, entry.version, entry.due_at) == ("2", second_version, due)
    [_] = await first.write(Change("alert", "a", "4", expires_at=due))
    clock.advance(6)
    await second.upkeep()
    assert await first.read("alert") == []


async def test_workers_know_of_each_other_and_announce_themselves_again(
    two: Two, clock: ManualClock
) -> None:
    first, second = two
    await first.announce(t=2)
    await second.announce(u=1)
    clock.advance(5)
    await first.announce(t=2)
    for program in two:
        known = {worker.id: worker for worker in await program.store.admin.workers()}
        assert dict(known[first.name].capable) == {"t": 2}
        assert (known[first.name].processes, known[first.name].level) == (3, 1)
        assert known[first.name].live_until - known[first.name].started_at == 25 * SECOND
        assert set(known) == {first.name, second.name}
    await first.put(new_job("t", version=2), new_job("u"))
    assert await first.park(nothing=1) == 0, "a live worker knows them"


# What is forgotten


async def test_what_is_old_is_forgotten_whoever_wrote_it(two: Two, clock: ManualClock) -> None:
    _, second = two
    for program in two:
        await put_one(program)
        job = await claim_one(program)
        await program.settle(done(job))
    clock.advance(10 * DAY)
    pruned = await second.upkeep()
    assert (pruned.pruned_jobs, pruned.pruned_attempts) == (2, 2)
    for program in two:
        assert await deeds.jobs(program.store, ALL) == []
        assert await program.store.admin.recent(0) == []


async def test_both_find_nothing_wrong_with_what_the_other_left(
    newer: Newer, older: Program, clock: ManualClock
) -> None:
    for program in (newer, older):
        await program.put(new_job(), new_job(), new_job("strange"), new_job(delay=SECOND))
        jobs = await program.claim(capable={"t": 1})
        await program.settle(failed(jobs[0], clock.now()), done(jobs[1]))
        await program.announce(t=1)
    newer.wrote()
    for program in (older, newer):
        assert await program.store.admin.audit() == []
        assert await program.store.admin.repair(by()) == []
    older.wrote()
