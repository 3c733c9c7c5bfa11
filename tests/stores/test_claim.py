import json

import pytest

from fairlead import ConfigError
from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.job import Gate, State
from fairlead.core.queue import Queue
from fairlead.core.selection import Unknown
from fairlead.core.store import Store
from tests import deeds
from tests.words import MAIL, by, claim, done, failed, new_job, plan, returned


async def test_a_claim_leases_counts_and_fences(store: Store, clock: ManualClock) -> None:
    new = new_job(options='{"tags":["x"]}', expires_in=3600 * SECOND)
    await store.put([new])
    [job] = await claim(store, lease=20)
    assert (job.id, job.task, job.queue, job.payload) == (new.id, "t", "mail", "{}")
    assert (job.options, job.attempt, job.crashes, job.lost) == (new.options, 1, 0, False)
    assert (job.claimed_at, job.lease_until) == (clock.now(), clock.now() + 20 * SECOND)
    assert job.fence == clock.now()
    assert job.expires_at == clock.now() + 3600 * SECOND

    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.worker, record.fence) == (State.RUNNING, "w1", job.fence)
    assert (record.lease_until, record.claimed_at) == (job.lease_until, job.claimed_at)


async def test_a_claimed_job_is_nobody_elses_while_its_lease_lasts(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    assert len(await claim(store, lease=20)) == 1
    clock.advance(19.999)
    assert await claim(store, worker="w2") == []


async def test_a_passed_lease_is_claimed_as_lost(store: Store, clock: ManualClock) -> None:
    """The lost run's worker and times stay visible, and its attempt stays counted."""
    await store.put([new_job()])
    [first] = await claim(store, lease=20)
    clock.advance(20)
    [second] = await claim(store, worker="w2", lease=20)
    assert second.lost
    assert (second.id, second.attempt) == (first.id, 1)
    assert (second.worker, second.claimed_at) == ("w1", first.claimed_at)
    assert second.fence > first.fence
    assert second.lease_until == clock.now() + 20 * SECOND


async def test_a_claim_that_waited_half_a_lease_takes_over_nothing(
    store: Store, clock: ManualClock
) -> None:
    """As long as it waited for the store, so did the heartbeats of the worker it would rob."""
    await store.put([new_job()])
    await claim(store, lease=20)
    clock.advance(20)
    asked_at = clock.now() - 10 * SECOND
    assert await claim(store, worker="w2", lease=20, asked_at=asked_at) == []
    [lost] = await claim(store, worker="w2", lease=20, asked_at=asked_at + 1)
    assert lost.lost


async def test_a_fence_grows_even_when_the_clock_goes_back(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    [first] = await claim(store)
    await store.settle([returned(first)])
    clock.advance(-3600)
    clock.advance(3599)
    await store.put([])
    clock.advance(1)
    [second] = await claim(store)
    assert second.fence == first.fence + 1


async def test_the_order_is_due_time_minus_head_start(store: Store, clock: ManualClock) -> None:
    old = new_job()
    await store.put([old])
    clock.advance(10)
    ahead, level, behind = new_job(priority=11), new_job(), new_job(priority=9)
    await store.put([level, behind, ahead])
    assert [j.id for j in await claim(store)] == [ahead.id, old.id, behind.id, level.id]


async def test_a_due_time_in_the_past_is_no_head_start(store: Store, clock: ManualClock) -> None:
    """Nobody may be more than a day ahead, whatever instant it names."""
    first, second = new_job(priority=1), new_job(run_at=1)
    await store.put([second])
    await store.put([first])
    assert [job.id for job in await claim(store)] == [first.id, second.id]
    record = await store.admin.find(second.id)
    assert record is not None
    assert record.run_at == clock.now()


async def test_a_claim_counts_the_bytes_of_options_too(store: Store) -> None:
    """F82: they may be as large as a payload."""
    options = '{"headers":{"h":"' + "x" * 100_000 + '"}}'
    jobs = [new_job(options=options) for _ in range(8)]
    await store.put(jobs)
    claimed = await store.claim(plan(slots=100, most_bytes=250_000))
    assert claimed.cut
    assert [(job.id, job.options) for job in claimed.jobs] == [
        (job.id, options) for job in jobs[:3]
    ]
    rest = await store.claim(plan(slots=100))
    assert not rest.cut
    assert len(rest.jobs) == 5


async def test_waiting_makes_up_for_any_head_start(store: Store, clock: ManualClock) -> None:
    patient = new_job()
    await store.put([patient])
    clock.advance(24 * 3600 + 1)
    await store.put([new_job(priority=24 * 3600)])
    assert next(iter(await claim(store, slots=1))).id == patient.id


async def test_a_promoted_job_keeps_its_place(store: Store, clock: ManualClock) -> None:
    early = new_job(delay=10 * SECOND)
    await store.put([early])
    clock.advance(20)
    await store.put([new_job()])
    assert (await claim(store, slots=1))[0].id == early.id


async def test_no_more_are_claimed_than_there_are_slots(store: Store) -> None:
    await store.put([new_job() for _ in range(10)])
    assert len(await claim(store, slots=3)) == 3
    assert len(await claim(store, slots=3, running={"mail": 3})) == 0
    assert len(await claim(store, slots=3, running={"mail": 2})) == 1


async def test_weights_share_the_slots_and_credits_carry_over(store: Store) -> None:
    queues = (Queue("a", weight=3), Queue("b", weight=1))
    await store.put([new_job(queue=name) for name in "ab" for _ in range(40)])
    credits: dict[str, float] = {}
    served = []
    for _ in range(40):
        answer = await store.claim(plan(*queues, slots=1, credits=credits))
        credits = dict(answer.credits)
        served += [job.queue for job in answer.jobs]
    assert (served.count("a"), served.count("b")) == (30, 10)


async def test_an_empty_queues_share_goes_to_the_others(store: Store) -> None:
    await store.put([new_job(queue="b") for _ in range(8)])
    jobs = await claim(store, Queue("a", weight=9), Queue("b", weight=1), slots=8)
    assert [job.queue for job in jobs] == ["b"] * 8


async def test_only_the_planned_queues_are_served(store: Store) -> None:
    await store.put([new_job(queue="other")])
    assert await claim(store, MAIL) == []


async def test_a_critical_queue_has_its_reserve_and_half_of_the_rest(store: Store) -> None:
    alarm = Queue("alarm", critical=True, tasks=["t"], reserve=2)
    await store.put([new_job(queue="alarm") for _ in range(20)])
    await store.put([new_job() for _ in range(20)])
    jobs = await claim(store, MAIL, alarm, slots=10)
    queues = [job.queue for job in jobs]
    assert queues[:7] == ["alarm"] * 7
    assert queues[7:] == ["mail"] * 5


async def test_a_paused_queue_is_not_served(store: Store) -> None:
    await store.put([new_job(), new_job(queue="other")])
    await deeds.pause(store, "mail", by())
    assert await deeds.paused(store) == {"mail"}
    assert [j.queue for j in await claim(store, MAIL, Queue("other"))] == ["other"]
    await deeds.resume(store, "mail", by())
    assert [j.queue for j in await claim(store, MAIL, Queue("other"))] == ["mail"]


async def test_an_expired_job_is_cancelled_and_never_claimed(
    store: Store, clock: ManualClock
) -> None:
    late, fine = new_job(expires_in=5 * SECOND), new_job()
    await store.put([late, fine])
    clock.advance(5)
    assert [j.id for j in await claim(store)] == [fine.id]
    record = await store.admin.find(late.id)
    assert record is not None
    assert (record.state, record.reason) == (State.CANCELLED, "expired")


async def test_a_running_job_does_not_expire(store: Store, clock: ManualClock) -> None:
    await store.put([new_job(expires_in=5 * SECOND)])
    [job] = await claim(store, lease=20)
    clock.advance(10)
    assert await claim(store) == []
    assert set(await store.settle([done(job)])) == {job.id}


async def test_a_lost_run_is_decided_on_even_if_the_job_expired(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job(expires_in=5 * SECOND)])
    [first] = await claim(store, lease=20)
    clock.advance(30)
    [second] = await claim(store)
    assert second.lost
    assert second.id == first.id


async def test_a_job_nobody_knows_is_parked_and_burns_no_attempt(store: Store) -> None:
    strange, known = new_job(task="strange"), new_job()
    await store.put([strange, known])
    assert [j.id for j in await claim(store, capable={"t": 1})] == [known.id]
    record = await store.admin.find(strange.id)
    assert record is not None
    assert (record.state, record.gate, record.attempt) == (
        State.WAITING,
        Gate.NO_CAPABLE_WORKER,
        0,
    )


async def test_long_options_of_parked_jobs_are_not_told(store: Store) -> None:
    """A producer may put a thousand such jobs: no claim brings them all (F82)."""
    options = [json.dumps({"correlation_id": "x" * size}) for size in (10, 200_000)]
    await store.put([new_job(f"nobody{len(each)}", options=each) for each in options])
    told = await store.claim(plan(capable={"t": 1}))
    assert [each.options for each in told.parked] == [options[0], None]


async def test_a_claim_counts_what_it_parks_by_queue_task_and_version(store: Store) -> None:
    """It names the job with the least id of each kind, however many there are."""
    news = Queue("news")
    first, other, later = new_job("a", options='{"tags":["x"]}'), new_job("b"), new_job("a", "news")
    newer = new_job("a", version=2)
    others = [new_job("a", priority=60, options='{"tags":["y"]}') for _ in range(3)]
    await store.put([*others, newer, later, other, first])
    told = await store.claim(plan(MAIL, news, capable={"t": 1}))
    assert told.parked == [
        Unknown(first.id, "a", 1, "mail", first.options, 4),
        Unknown(other.id, "b", 1, "mail", None, 1),
        Unknown(later.id, "a", 1, "news", None, 1),
        Unknown(newer.id, "a", 2, "mail", None, 1),
    ]
    assert await deeds.unknown(store) == {("a", 1): 5, ("b", 1): 1, ("a", 2): 1}
    assert (await store.claim(plan(MAIL, news, capable={"t": 1}))).parked == []


async def test_a_claim_parks_only_the_kinds_that_no_live_worker_knows(store: Store) -> None:
    await store.announce(Worker("w2", {"theirs": 1}), 20 * SECOND)
    jobs = [new_job(task, version=version) for task in ("theirs", "nobodys") for version in (1, 2)]
    await store.put(jobs)
    told = await store.claim(plan(capable={"t": 1}))
    assert [each.id for each in told.parked] == [job.id for job in jobs[1:]]
    assert [job.id for job in await claim(store, capable={"theirs": 1})] == [jobs[0].id]


async def test_a_parked_job_comes_back_to_its_place_for_a_worker_that_knows_it(
    store: Store, clock: ManualClock
) -> None:
    strange = new_job(task="strange")
    await store.put([strange])
    assert await claim(store, capable={"t": 1}) == []
    clock.advance(1)
    await store.put([new_job()])
    await store.announce(Worker("w2", {"strange": 1}), 20 * SECOND)
    record = await store.admin.find(strange.id)
    assert record is not None
    assert record.gate is None
    jobs = await claim(store, worker="w2", capable={"strange": 1, "t": 1})
    assert jobs[0].id == strange.id


async def test_a_claim_by_one_who_knows_brings_parked_jobs_back(store: Store) -> None:
    strange = new_job(task="strange")
    await store.put([strange])
    await claim(store, capable={"t": 1})
    assert [j.id for j in await claim(store, capable={"strange": 1})] == [strange.id]


async def test_a_job_another_live_worker_knows_is_left_in_its_place(
    store: Store, clock: ManualClock
) -> None:
    await store.announce(Worker("w2", {"strange": 1}), 20 * SECOND)
    strange = new_job(task="strange")
    await store.put([strange])
    assert await claim(store, capable={"t": 1}) == []
    record = await store.admin.find(strange.id)
    assert record is not None
    assert record.gate is None

    clock.advance(21)
    assert await claim(store, capable={"t": 1}) == []
    record = await store.admin.find(strange.id)
    assert record is not None
    assert record.gate is Gate.NO_CAPABLE_WORKER


async def test_a_payload_version_too_new_is_not_claimed(store: Store) -> None:
    old, new = new_job(version=1), new_job(version=2)
    await store.put([new, old])
    assert [j.id for j in await claim(store, capable={"t": 1})] == [old.id]
    assert [j.id for j in await claim(store, capable={"t": 2})] == [new.id]


async def test_a_given_back_job_is_claimed_first_again(store: Store, clock: ManualClock) -> None:
    first, second = new_job(), new_job()
    await store.put([first])
    clock.advance(1)
    await store.put([second])
    [job] = await claim(store, slots=1)
    await store.settle([returned(job)])
    [again] = await claim(store, slots=1)
    assert (again.id, again.attempt, again.lost) == (first.id, 1, False)


async def test_a_retry_waits_for_its_delay(store: Store, clock: ManualClock) -> None:
    await store.put([new_job(priority=5)])
    [job] = await claim(store)
    await store.settle([failed(job, clock.now())])
    clock.advance(9.9)
    assert await claim(store) == []
    clock.advance(0.1)
    [again] = await claim(store)
    assert (again.attempt, again.lost) == (2, False)
    record = await store.admin.find(again.id)
    assert record is not None
    assert record.priority == 5


async def test_lost_runs_of_a_task_nobody_knows_block_nobody(
    store: Store, clock: ManualClock
) -> None:
    """They are parked with their passed lease, and claimed as lost once somebody knows them."""
    await store.put([new_job(task="gone") for _ in range(1_000)])
    assert len(await claim(store, slots=1_000, lease=20)) == 1_000
    clock.advance(60)
    fine = new_job()
    await store.put([fine])
    assert await claim(store, capable={"t": 1}) == []
    assert [j.id for j in await claim(store, capable={"t": 1})] == [fine.id]
    again = await claim(store, slots=2, capable={"gone": 1})
    assert [(job.task, job.lost) for job in again] == [("gone", True)] * 2


async def test_a_late_worker_can_still_settle_a_parked_run(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job(task="gone"), new_job(task="gone")])
    first, second = await claim(store, lease=20)
    clock.advance(60)
    assert await claim(store, capable={}) == []
    assert set(await store.settle([done(first), returned(second)])) == {first.id, second.id}
    assert [job.id for job in await claim(store)] == [second.id]


async def test_a_queue_twice_in_a_plan_is_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match="names a queue twice"):
        await claim(store, MAIL, Queue("mail", weight=2))
