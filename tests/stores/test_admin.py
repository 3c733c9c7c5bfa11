"""What people ask of a store, and what they do to it."""

import socket
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fairlead import Fairlead
from fairlead.core.acts import Action
from fairlead.core.admin import Filter, PoolShare, Running, Wait, Waiting, Worker, by_process
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.errors import ConfigError
from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import State
from fairlead.core.outcome import Crashed, Failed, Policy
from fairlead.core.queue import Queue, Share
from fairlead.core.retry import Retry, fixed
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests import deeds
from tests.words import MAIL, by, claim, done, failed, new_job, plan, settled

START = ManualClock().now()


async def test_a_waiting_job_is_cancelled_at_once_and_never_starts(
    store: Store, clock: ManualClock
) -> None:
    job = new_job()
    await store.put([job])
    after = await deeds.cancel(store, [job.id], "not needed", by())
    assert (after[job.id].state, after[job.id].reason) == (State.CANCELLED, "not needed")
    assert await claim(store) == []


async def test_a_running_job_is_marked(store: Store) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    after = await deeds.cancel(store, [job.id], "stop", by())
    assert (after[job.id].state, after[job.id].cancel_requested) == (State.RUNNING, True)


async def test_a_finished_job_stays_as_it_is(store: Store) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    await store.settle([done(job, "1")])
    assert await deeds.cancel(store, [job.id], "too late", by()) == {}
    after = await store.admin.find(job.id)
    assert after is not None
    assert (after.state, after.result) == (State.DONE, "1")


async def test_a_job_that_started_meanwhile_is_not_cancelled_as_a_waiting_one(
    store: Store,
) -> None:
    await store.put([new_job(), new_job()])
    [running] = await claim(store, slots=1)
    [waiting] = await deeds.jobs(store, Filter(states=(State.WAITING,)))
    both = [running.id, waiting.id]
    assert set(await deeds.cancel(store, both, "stop", by(), [State.WAITING])) == {waiting.id}
    record = await store.admin.find(running.id)
    assert record is not None
    assert not record.cancel_requested
    assert set(await deeds.cancel(store, both, "stop", by(), [State.RUNNING])) == {running.id}


async def test_cancelling_an_unknown_id_has_no_later_effect(store: Store) -> None:
    job = new_job()
    assert await deeds.cancel(store, [job.id], "who?", by()) == {}
    await store.put([job])
    assert [j.id for j in await claim(store)] == [job.id]


async def test_counts_are_by_queue_and_state(store: Store) -> None:
    await store.put([new_job(), new_job(), new_job(queue="other")])
    [job] = await claim(store, slots=1)
    assert await store.admin.count() == {
        "mail": {State.RUNNING: 1, State.WAITING: 1},
        "other": {State.WAITING: 1},
    }
    await store.settle([done(job)])
    assert await store.admin.count() == {
        "mail": {State.DONE: 1, State.WAITING: 1},
        "other": {State.WAITING: 1},
    }


# Filters


async def some_jobs(store: Store, clock: ManualClock) -> dict[str, JobId]:
    """One job in every state, each with its own queue, task and tags."""
    jobs = {
        "done": new_job("a", "mail", options='{"tags":["x","y"]}'),
        "dead": new_job("b", "mail", options='{"tags":["x"]}'),
        "running": new_job("a", "other"),
        "cancelled": new_job("a", "mail"),
        "waiting": new_job("b", "mail", delay=60 * SECOND),
    }
    await store.put(list(jobs.values()))
    await deeds.cancel(store, [jobs["cancelled"].id], "not needed", by())
    clock.advance(1)
    for job in await claim(store, MAIL, Queue("other"), slots=10):
        if job.id == jobs["done"].id:
            await store.settle([done(job, "1")])
        elif job.id == jobs["dead"].id:
            await store.settle([failed(job, clock.now(), Policy(Retry(attempts=1)))])
    return {name: job.id for name, job in jobs.items()}


@pytest.mark.parametrize(
    ("which", "meant"),
    [
        (Filter(), "done dead running cancelled waiting"),
        (Filter(queues=("other",)), "running"),
        (Filter(queues=("other", "mail"), tasks=("b",)), "dead waiting"),
        (Filter(states=(State.DONE, State.DEAD)), "done dead"),
        (Filter(tags=("x",)), "done dead"),
        (Filter(tags=("y", "x")), "done"),
        (Filter(since=START + SECOND), "done dead"),
        (Filter(error="IT BROKE"), "dead"),
        (Filter(error="Oops"), "dead"),
        (Filter(error=described("Oops", "it broke").fingerprint), "dead"),
        (Filter(error=described("Oops", "it broke").fingerprint[:8]), ""),
        (Filter(error="oops", tags=("y",)), ""),
    ],
    ids=str,
)
async def test_filters_combine(store: Store, clock: ManualClock, which: Filter, meant: str) -> None:
    ids = await some_jobs(store, clock)
    found = await deeds.jobs(store, which)
    assert {job.id for job in found} == {ids[name] for name in meant.split()}
    assert sum(sum(states.values()) for states in (await store.admin.count(which)).values()) == len(
        meant.split()
    )


async def test_failures_are_grouped_by_fingerprint(store: Store, clock: ManualClock) -> None:
    await store.put([new_job("a"), new_job("b"), new_job("c")])
    jobs = await claim(store)
    failures = [described("Oops", f"user {n} is gone") for n in (1, 2)]
    failures.append(described("Other", "it broke"))
    await store.settle(
        [
            settled(job, Failed(failure, transient=False))
            for job, failure in zip(jobs, failures, strict=True)
        ]
    )
    large, small = await store.admin.groups(Filter(states=(State.DEAD,)))
    assert (large.error, large.count, large.tasks) == ("Oops", 2, ("a", "b"))
    assert (large.message, large.job) == ("user 2 is gone", jobs[1].id)
    assert (small.error, small.count, small.fingerprint) == ("Other", 1, failures[2].fingerprint)


# Reviving, editing, deleting

BY = Action("action-1", "ada", "replay", "one job")
FINAL = (State.DONE, State.DEAD, State.CANCELLED)


async def dead_job(store: Store, clock: ManualClock, **options: Any) -> JobId:
    await store.put([new_job(**options)])
    [job] = await claim(store)
    await store.settle([failed(job, clock.now(), Policy(Retry(attempts=1)))])
    return job.id


async def test_a_revived_job_keeps_its_history_and_counts_anew(
    store: Store, clock: ManualClock
) -> None:
    job_id = await dead_job(store, clock, priority=5)
    before = await store.admin.find(job_id)
    assert before is not None
    clock.advance(100)
    assert await deeds.revive(store, [job_id], [State.DEAD], BY) == [job_id]
    after = await store.admin.find(job_id)
    assert after is not None
    assert (after.state, after.attempt, after.crashes) == (State.WAITING, 0, 0)
    assert (after.errors, after.payload) == (before.errors, before.payload)
    assert (after.run_at, after.priority, after.reason) == (clock.now(), 5, None)
    [job] = await claim(store)
    assert (job.id, job.attempt, job.fence > before.fence) == (job_id, 1, True)


async def test_only_jobs_in_the_named_states_are_revived(store: Store, clock: ManualClock) -> None:
    ids = await some_jobs(store, clock)
    assert await deeds.revive(store, list(ids.values()), [State.CANCELLED], BY) == [
        ids["cancelled"]
    ]
    assert await deeds.revive(store, [ids["running"]], list(State), BY) == []


async def test_a_delayed_job_that_is_revived_is_due_now_and_one_that_is_due_keeps_its_place(
    store: Store, clock: ManualClock
) -> None:
    due, later = new_job(), new_job(delay=60 * SECOND)
    await store.put([due, later])
    clock.advance(1)
    assert await deeds.revive(store, [due.id, later.id], [State.WAITING], BY) == [later.id]
    assert [job.id for job in await claim(store)] == [due.id, later.id]


async def test_a_job_that_crashed_runs_alone_after_its_revival(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    await store.settle([settled(job, Crashed("SIGSEGV"), policy=Policy(crash_limit=1))])
    await deeds.revive(store, [job.id], [State.DEAD], BY)
    [again] = await claim(store)
    assert (again.crashes, again.runs_alone) == (0, True)


async def test_an_expiry_that_has_passed_does_not_stop_a_revived_job(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job(expires_in=SECOND)])
    clock.advance(2)
    assert await claim(store) == []
    [expired] = await deeds.jobs(store, Filter(states=(State.CANCELLED,)))
    await deeds.revive(store, [expired.id], [State.CANCELLED], BY)
    assert [job.id for job in await claim(store)] == [expired.id]


async def test_an_edit_counts_only_if_nobody_was_quicker(store: Store, clock: ManualClock) -> None:
    job_id = await dead_job(store, clock)
    assert await deeds.edit(store, job_id, "{}", '{"n":1}', 2, BY)
    assert not await deeds.edit(store, job_id, "{}", '{"n":2}', 2, BY)
    record = await store.admin.find(job_id)
    assert record is not None
    assert (record.payload, record.version) == ('{"n":1}', 2)
    [line] = await store.admin.audit_log(10, job_id)
    assert (line.before, line.count) == ("{}", 1)


async def test_a_job_that_is_not_dead_cannot_be_edited(store: Store) -> None:
    job = new_job()
    await store.put([job])
    assert not await deeds.edit(store, job.id, "{}", "[]", 1, BY)


async def test_only_final_jobs_are_deleted(store: Store, clock: ManualClock) -> None:
    ids = await some_jobs(store, clock)
    deleted = await deeds.delete(store, list(ids.values()), FINAL, BY)
    assert set(deleted) == {ids["done"], ids["dead"], ids["cancelled"]}
    assert await store.admin.find(ids["dead"]) is None
    assert await deeds.delete(store, [ids["waiting"], ids["running"]], list(State), BY) == []


# The audit log


async def test_an_action_is_one_line_however_many_calls_it_takes(
    store: Store, clock: ManualClock
) -> None:
    ids = [await dead_job(store, clock) for _ in range(3)]
    await deeds.revive(store, ids[:2], [State.DEAD], BY)
    await deeds.revive(store, ids[2:], [State.DEAD], BY)
    await deeds.pause(store, "mail", Action("action-2", "bob", "pause", "mail"))
    await deeds.note(store, Action("action-3", "bob", "enqueue", "t"), 1)
    assert [(line.who, line.verb, line.count) for line in await store.admin.audit_log()] == [
        ("bob", "enqueue", 1),
        ("bob", "pause", 1),
        ("ada", "replay", 3),
    ]


async def test_what_a_program_does_is_in_the_audit_log(any_app: Fairlead) -> None:
    task = any_app.task(name="t")(print)
    job = await task.aenqueue()
    assert await job.acancel() is State.CANCELLED
    [line] = await any_app.store.admin.audit_log()
    assert line.who.endswith("@" + socket.gethostname() + ", a program")
    assert (line.verb, line.target, line.count) == ("cancel", f"job {job.id}", 1)


@pytest.mark.parametrize("empty", ["id", "who", "verb"])
def test_an_action_that_names_nobody_is_refused(empty: str) -> None:
    parts = {"id": "1", "who": "ada", "verb": "cancel", "target": "a job"} | {empty: ""}
    with pytest.raises(ConfigError, match=f"an action needs its {empty}: say who does what"):
        Action(**parts)


async def test_another_action_does_not_vanish_in_the_line_of_one_with_the_same_id(
    store: Store, clock: ManualClock
) -> None:
    """It is refused before anything is done, or has a line of its own."""
    job_id = await dead_job(store, clock)
    await deeds.note(store, Action("1", "ada", "look", "jobs"), 0)
    for who, verb, target in (("bob", "look", "jobs"), ("ada", "x", "jobs"), ("ada", "look", "y")):
        action = Action("1", who, verb, target)
        for act in (
            deeds.pause(store, "mail", action),
            deeds.resume(store, "mail", action),
            deeds.cancel(store, [job_id], "no", action),
            deeds.revive(store, [job_id], [State.DEAD], action),
            deeds.delete(store, [job_id], [State.DEAD], action),
            deeds.edit(store, job_id, "{}", "[]", 1, action),
            deeds.note(store, action, 1),
        ):
            before = (await store.admin.find(job_id), await deeds.paused(store))
            is_done = False
            with suppress(ConfigError):
                await act
                is_done = True
            if is_done:
                [newest] = await store.admin.audit_log(1)
                assert (newest.who, newest.verb, newest.target) == (who, verb, target)
            else:
                assert (await store.admin.find(job_id), await deeds.paused(store)) == before
    first = (await store.admin.audit_log())[-1]
    assert (first.who, first.verb, first.target, first.count) == ("ada", "look", "jobs", 0)


async def test_two_edits_are_two_lines_for_each_keeps_what_it_replaced(
    store: Store, clock: ManualClock
) -> None:
    one, other = await dead_job(store, clock), await dead_job(store, clock)
    assert await deeds.edit(store, one, "{}", "[1]", 1, BY)
    with suppress(ConfigError):
        await deeds.edit(store, other, "{}", "[1]", 1, BY)
    edited = [each for each in (one, other) if (await store.admin.find(each)).payload == "[1]"]  # type: ignore[union-attr]
    assert [line.before for line in await store.admin.audit_log()] == ["{}"] * len(edited)


async def test_nothing_is_done_to_less_than_no_job(store: Store) -> None:
    with pytest.raises(ConfigError, match="done to 0 jobs or more, not to -1"):
        await deeds.note(store, BY, -1)
    assert await store.admin.audit_log() == []


# What explain asks


async def test_those_ahead_are_counted_in_order(store: Store, clock: ManualClock) -> None:
    first, second, late = new_job(), new_job(), new_job(delay=9 * SECOND)
    eager = new_job(priority=30)
    await store.put([first, second, eager, late, new_job(queue="other")])
    assert [await store.admin.ahead(job.id) for job in (eager, first, second, late)] == [0, 1, 2, 3]
    await claim(store, slots=1)
    assert await store.admin.ahead(second.id) == 1


async def test_running_jobs_are_counted_by_worker_queue_and_task(
    store: Store, clock: ManualClock
) -> None:
    begun = clock.now()
    await store.put([new_job(), new_job(), new_job(queue="other", task="u"), new_job(task="v")])
    await claim(store, slots=1, worker="w/1", lease=5)
    clock.advance(1)
    await claim(store, slots=2, worker="w/1", lease=5)
    await claim(store, Queue("other"), worker="w/2", lease=50)
    other = Running("w/2", "other", "u", 1, begun + SECOND)
    assert await deeds.running(store) == [
        Running("w/1", "mail", "t", 2, begun),
        Running("w/1", "mail", "v", 1, begun + SECOND),
        other,
    ]
    assert by_process(await deeds.running(store)) == {"w/1": {"mail": 3}, "w/2": {"other": 1}}
    clock.advance(6)
    assert await deeds.running(store) == [other]


async def test_the_oldest_due_job_of_each_queue_is_known(store: Store, clock: ManualClock) -> None:
    await store.put([new_job(priority=50), new_job(queue="other", delay=5 * SECOND)])
    begun = clock.now()
    clock.advance(2)
    await store.put([new_job()])
    assert await deeds.waiting(store) == {
        "mail": Waiting(due=2, oldest=begun),
        "other": Waiting(delayed=1),
    }
    clock.advance(4)
    assert (await deeds.waiting(store))["other"] == Waiting(due=1, oldest=begun + 5 * SECOND)


async def test_waiting_jobs_are_counted_and_listed_by_what_they_wait_for(
    store: Store, clock: ManualClock
) -> None:
    """A retry is no delayed job, and one that nobody knows is neither."""
    begun = clock.now()
    due, later = new_job(), new_job(delay=90 * SECOND)
    again, unknown = new_job(), new_job(task="u")
    await store.announce(Worker("w1", {"t": 1}), 500 * SECOND)
    await store.put([again, unknown])
    claimed = (await store.claim(plan(capable={"t": 1}))).jobs
    policy = Policy(Retry(attempts=3, backoff=fixed(30, jitter=0)))
    await store.settle([failed(job, clock.now(), policy) for job in claimed])
    assert (await deeds.waiting(store))["mail"] == Waiting(retrying=1, parked=1)
    clock.advance(3)
    await store.put([due, later])
    assert await deeds.waiting(store) == {"mail": Waiting(1, 1, 1, 1, begun + 3 * SECOND)}
    ids = {Wait.DUE: due, Wait.DELAYED: later, Wait.RETRYING: again, Wait.PARKED: unknown}

    async def listed(*waits: Wait, states: tuple[State, ...] = (State.WAITING,)) -> set[JobId]:
        which = Filter(states=states, waits=waits, at=clock.now())
        found = {job.id for job in await deeds.jobs(store, which)}
        counts = await store.admin.count(which)
        assert sum(counts.get("mail", {}).values()) == len(found)
        return found

    for wait, job in ids.items():
        assert await listed(wait) == {job.id}
    assert await listed(Wait.DUE, Wait.PARKED) == {due.id, unknown.id}
    assert await listed(Wait.DELAYED, states=()) == {later.id}
    clock.advance(31)
    assert await deeds.waiting(store) == {"mail": Waiting(2, 1, 0, 1, begun + 3 * SECOND)}
    assert await listed(Wait.DUE) == {due.id, again.id}
    await deeds.cancel(store, [job.id for job in ids.values()], "no", by("cancel"))
    assert await deeds.waiting(store) == {}
    assert len(await listed(Wait.DELAYED, states=(State.WAITING, State.CANCELLED))) == 4


async def test_a_worker_is_seen_as_it_announced_itself(store: Store, clock: ManualClock) -> None:
    pool = PoolShare("p", 5, (Share("mail", weight=3),))
    begun = clock.now()
    await store.announce(Worker("w", {"t": 2}, (pool,), 4), 10 * SECOND)
    clock.advance(5)
    await store.announce(Worker("w", {"t": 2}, (pool,), 4), 10 * SECOND)
    [worker] = await store.admin.workers()
    assert (worker.pools, worker.processes) == ((pool,), 4)
    assert (worker.started_at, worker.live_until) == (begun, begun + 15 * SECOND)


async def test_what_a_worker_of_another_version_announced_harms_nobody(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = store_for(f"sqlite:///{tmp_path}/jobs.db", clock)
    share = PoolShare("p", 5, (Share("mail"),))
    await store.announce(Worker("w1", {"t": 1}, (share,)), 10 * SECOND)
    await store.announce(Worker("w2", {"t": 1}, (share,)), 10 * SECOND)
    with sqlite3.connect(tmp_path / "jobs.db") as raw:
        raw.execute(
            "UPDATE fairlead_worker SET pools = "
            """'[{"name":"p","slots":5,"shiny":1,"queues":[{"name":"mail","max_running":3}]}]' """
            "WHERE id = 'w1'"
        )
        raw.execute("UPDATE fairlead_worker SET pools = '[7]' WHERE id = 'w2'")
    raw.close()
    first, second = await store.admin.workers()
    assert (first.pools, second.pools) == ((share,), ())
    await store.close()


async def test_jobs_that_nobody_knows_are_counted_by_task_and_version(store: Store) -> None:
    await store.put([new_job("a"), new_job("a"), new_job("b", version=2), new_job("t")])
    await claim(store, capable={"t": 1})
    assert await deeds.unknown(store) == {("a", 1): 2, ("b", 2): 1}


# The store itself


async def test_the_schema_can_be_looked_at_without_making_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = store_for(f"sqlite:///{tmp_path}/jobs.db", clock)
    steps = await store.admin.migrations()
    assert {step.applied_at for step in steps} == {None}
    assert not (tmp_path / "jobs.db").exists()
    await store.open()
    assert {step.applied_at for step in await store.admin.migrations()} == {clock.now()}
    await store.close()


async def test_the_condition_names_what_matters(tmp_path: Path) -> None:
    store = store_for(f"sqlite:///{tmp_path}/jobs.db?durability=fast")
    await store.open()
    (tmp_path / "jobs.db").chmod(0o644)
    condition = await store.admin.condition()
    await store.close()
    assert condition.facts["durability"] == "fast"
    assert (
        condition.facts["schema"]
        == f"{len(await store.admin.migrations())} of {len(await store.admin.migrations())}"
    )
    assert any("every user of this machine" in finding.problem for finding in condition.findings)
