"""What explain says is what the next claim does."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fairlead import JobNotFound
from fairlead.core.admin import PoolShare, Worker, by_process
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.job import Gate, NewJob, State
from fairlead.core.queue import Queue, Share
from fairlead.core.selection import ClaimPlan, Snapshot
from fairlead.core.store import Store
from fairlead.insight.explain import explain, plans_of
from fairlead.stores import store_for
from tests import deeds
from tests.words import by, claim, done, new_job, plan

QUEUES = (
    Queue("mail", weight=3),
    Queue("reports"),
    Queue("alarm", critical=True, tasks=["t"], reserve=1),
)
POOL = PoolShare("default", 3, tuple(queue.share for queue in QUEUES))

jobs = st.lists(
    st.builds(
        dict,
        task=st.sampled_from(["t", "t", "t", "u", "v"]),
        version=st.sampled_from([1, 1, 1, 2]),
        queue=st.sampled_from(["mail", "mail", "reports", "alarm"]),
        priority=st.sampled_from([0, 0, 5, -5]),
        delay=st.sampled_from([0, 0, 0, 3, 60]).map(lambda seconds: seconds * SECOND),
        expires_in=st.sampled_from([None, None, None, 2 * SECOND, 90 * SECOND]),
    ),
    min_size=1,
    max_size=14,
)


async def next_claims(store: Store, worker: Worker) -> set[JobId]:
    running = by_process(await deeds.running(store))
    plans = [plan for pool in worker.pools for plan in plans_of(worker, pool, running)]
    # A plan to judge by has no lease, and what one process claims must not be lost to the next.
    claimed = [await store.claim(replace(plan, lease=SECOND)) for plan in plans]
    return {job.id for each in claimed for job in each.jobs}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(max_examples=60)
@given(
    batch=jobs,
    earlier=st.integers(0, 4),
    lease=st.sampled_from([2, 100]),
    waited=st.sampled_from([0, 1, 4]),
    paused=st.sampled_from([None, None, "mail", "alarm"]),
    slots=st.integers(1, 6),
    processes=st.sampled_from([1, 1, 2]),
)
def test_what_explain_says_is_what_the_next_claim_does(
    kind: str,
    batch: list[dict[str, Any]],
    earlier: int,
    lease: int,
    waited: int,
    paused: str | None,
    slots: int,
    processes: int,
) -> None:
    """For every job at once: those without a closed gate are claimed, and no others."""

    async def compare(store: Store, clock: ManualClock) -> None:
        new = [
            NewJob(id=JobId(f"job-{n:02}"), payload="{}", **options)
            for n, options in enumerate(batch)
        ]
        await store.put(new)
        pool = PoolShare("default", slots, POOL.queues)
        worker = Worker("w1", {"t": 1, "u": 2}, (pool,), processes)
        await store.claim(
            ClaimPlan("w1/1", QUEUES, earlier, lease * SECOND, capable=worker.capable)
        )
        if paused is not None:
            await deeds.pause(store, paused, by())
        clock.advance(waited)
        await store.announce(worker, 50 * SECOND)
        told = {job.id: await explain(store, job.id) for job in new}
        expected = {job_id for job_id, each in told.items() if each.gates and each.gate is None}
        assert not any(each.damaged for each in told.values())
        assert await next_claims(store, worker) == expected

    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock()
        url = (
            "memory://" if kind == "memory" else f"sqlite:///{Path(folder)}/jobs.db?durability=fast"
        )
        store = store_for(url, clock)

        async def both() -> None:
            try:
                await compare(store, clock)
            finally:
                await store.close()

        asyncio.run(both())


async def announce(store: Store, **capable: int) -> None:
    await store.announce(Worker("w1", capable or {"t": 1}, (POOL,)), 100 * SECOND)


async def explained(store: Store, **options: Any) -> Any:
    job = new_job(**options)
    await store.put([job])
    return await explain(store, job.id)


async def test_a_job_that_may_start_says_so(store: Store) -> None:
    await announce(store)
    told = await explained(store)
    assert (told.gate, told.ahead, told.starts_at) == (None, 0, told.now)
    assert [barrier.gate for barrier in told.gates] == [
        Gate.PAUSED,
        Gate.NEWER_PROGRAM,
        Gate.EXPIRED,
        Gate.NOT_DUE,
        Gate.LEASE_SPARED,
        Gate.NO_CAPABLE_WORKER,
        Gate.NO_SLOT,
    ]
    assert not any(barrier.closed or barrier.opens for barrier in told.gates)


async def test_each_closed_gate_says_what_opens_it(store: Store) -> None:
    await announce(store)
    await deeds.pause(store, "mail", by())
    told = await explained(store, task="strange", delay=60 * SECOND)
    opens = {barrier.gate: barrier.opens for barrier in told.gates if barrier.closed}
    assert set(opens) == {Gate.PAUSED, Gate.NOT_DUE, Gate.NO_CAPABLE_WORKER}
    assert opens[Gate.PAUSED] == "fairlead queues resume mail"
    assert f"fairlead jobs retry {told.job.id}" in opens[Gate.NOT_DUE]
    assert "'strange' in version 1" in opens[Gate.NO_CAPABLE_WORKER]
    assert (told.gate, told.starts_at) == (Gate.PAUSED, None)


async def test_a_job_of_a_newer_program_says_what_it_waits_for(store: Store) -> None:
    await announce(store)
    told = await explained(store, level=2)
    [closed] = [barrier for barrier in told.gates if barrier.closed]
    assert (told.gate, closed.gate) == (Gate.NEWER_PROGRAM, Gate.NEWER_PROGRAM)
    assert closed.opens == "a worker of a newer Fairlead: one of level 2 or more"
    await store.announce(Worker("w2", {"t": 1}, (POOL,), level=2), 100 * SECOND)
    assert (await explain(store, told.job.id)).gate is None


async def test_many_workers_of_one_kind_are_looked_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand workers must not mean a thousand snapshots."""
    asked: list[str] = []
    snapshot = store.admin.snapshot

    async def counted(plan: ClaimPlan, limit: int) -> Snapshot:
        asked.append(plan.worker)
        return await snapshot(plan, limit)

    monkeypatch.setattr(store.admin, "snapshot", counted)
    for number in range(20):
        await store.announce(Worker(f"w{number}", {"t": 1}, (POOL,)), 100 * SECOND)
    await store.announce(Worker("other", {"t": 2}, (POOL,)), 100 * SECOND)
    told = await explained(store)
    assert told.gate is None
    assert len(asked) == 2


async def test_a_queue_that_no_live_worker_serves_is_told_of(store: Store) -> None:
    told = await explained(store)
    [closed] = [barrier for barrier in told.gates if barrier.closed]
    assert (closed.gate, told.starts_at) == (Gate.NO_CAPABLE_WORKER, None)
    assert "serves queue 'mail'" in (closed.opens or "")


async def test_of_several_workers_the_one_that_lets_it_furthest_counts(store: Store) -> None:
    await store.announce(Worker("w0", {"other": 1}, (POOL,)), 100 * SECOND)
    await announce(store)
    assert (await explained(store)).gate is None


async def test_the_slots_of_all_processes_of_a_worker_count(store: Store) -> None:
    await store.announce(Worker("w1", {"t": 1}, (POOL,), processes=2), 100 * SECOND)
    waiting = [new_job() for _ in range(7)]
    await store.put(waiting)
    gates = [(await explain(store, job.id)).gate for job in waiting]
    assert gates == [None] * 6 + [Gate.NO_SLOT]


async def test_each_process_keeps_its_own_half_from_critical_jobs(store: Store) -> None:
    """Two processes of three slots run one critical job each there, and one in the reserve."""
    await store.announce(Worker("w1", {"t": 1}, (POOL,), processes=2), 100 * SECOND)
    waiting = [new_job(queue="alarm") for _ in range(5)]
    await store.put(waiting)
    gates = [(await explain(store, job.id)).gate for job in waiting]
    assert gates == [None] * 4 + [Gate.NO_SLOT]


async def test_the_free_slots_of_all_workers_count(store: Store) -> None:
    pool = PoolShare("default", 1, POOL.queues)
    for name in ("w1", "w2"):
        await store.announce(Worker(name, {"t": 1}, (pool,)), 100 * SECOND)
    waiting = [new_job() for _ in range(3)]
    await store.put(waiting)
    gates = [(await explain(store, job.id)).gate for job in waiting]
    assert gates == [None, None, Gate.NO_SLOT]


async def test_the_start_of_a_delayed_job_is_its_time(store: Store) -> None:
    await announce(store)
    told = await explained(store, delay=60 * SECOND)
    assert (told.gate, told.starts_at) == (Gate.NOT_DUE, told.now + 60 * SECOND)


async def test_behind_full_slots_the_start_is_guessed_by_the_pace_of_the_queue(
    store: Store, clock: ManualClock
) -> None:
    """Ten jobs in 20 s, three before it: the fourth from now starts after 8 s."""
    await announce(store)
    for _ in range(10):
        await store.put([new_job()])
        [job] = await claim(store, worker="w1/1")
        clock.advance(2)
        await store.settle([done(job)])
    await store.put([new_job() for _ in range(3)])
    await claim(store, slots=3, worker="w1/1")
    await store.put([new_job() for _ in range(3)])
    told = await explained(store)
    assert (told.gate, told.ahead, told.damaged) == (Gate.NO_SLOT, 3, False)
    assert told.starts_at == clock.now() + 8 * SECOND
    assert told.basis == "in the last 20 s, jobs of this queue that started: 10; before it: 3"


async def test_without_a_pace_there_is_no_guess(store: Store) -> None:
    await announce(store)
    await store.put([new_job() for _ in range(3)])
    await claim(store, slots=3, worker="w1/1")
    told = await explained(store)
    assert (told.gate, told.starts_at) == (Gate.NO_SLOT, None)
    assert "no job of this queue has ended" in told.basis


async def test_a_running_job_is_not_explained_by_gates_and_a_lost_one_is(
    store: Store, clock: ManualClock
) -> None:
    await announce(store)
    await store.put([new_job()])
    [job] = await claim(store, lease=5, worker="w9")
    assert (await explain(store, job.id)).gates == ()
    clock.advance(6)
    told = await explain(store, job.id)
    assert (told.job.state, told.gate) == (State.RUNNING, None)
    assert [lost.id for lost in (await store.claim(plan(worker="w1"))).jobs] == [job.id]


async def test_a_job_nobody_knows_cannot_be_explained(store: Store) -> None:
    with pytest.raises(JobNotFound):
        await explain(store, JobId("nobody"))


async def test_a_renamed_task_is_named_though_no_worker_is_live(store: Store) -> None:
    """To start a worker of the app would not help, and nothing else was said."""
    job = new_job(task="shop.welcome")
    await store.put([job])

    async def opens(tasks: Mapping[str, int] | None) -> str:
        told = await explain(store, job.id, tasks)
        assert told.gate is Gate.NO_CAPABLE_WORKER
        [gate] = [each for each in told.gates if each.gate is told.gate]
        return gate.opens or ""

    assert await opens({"shop.welcomes": 1}) == (
        "task 'shop.welcome', which the app does not have (did you mean 'shop.welcomes'?); if it "
        "was renamed, list its old name where it is now, as in "
        "@app.task(aliases=['shop.welcome']), then start a worker"
    )
    assert "the app has version 0" in await opens({"shop.welcome": 0})
    for known in (None, {"shop.welcome": 1}):
        assert (await opens(known)).startswith("a worker that serves queue 'mail'")
    await store.announce(Worker("w1", {"t": 1}, (POOL,)), 100 * SECOND)
    assert "which the app does not have" in await opens({"t": 1})
    assert (await opens(None)).endswith("if it was renamed, its old name in the task's `aliases`")


async def test_numbers_that_no_worker_announces_are_survived(store: Store) -> None:
    """Whoever can announce a worker, or damage one, keeps nobody from an explanation (I22)."""
    job = new_job()
    await store.put([job])
    greatest = 2**31 - 1
    for processes, slots, weight in product([-1, 0, greatest], repeat=3):
        share = Share("mail", weight=weight, reserved=weight)
        pool = PoolShare("default", slots, (share,))
        await store.announce(Worker("w1", {"t": 1}, (pool,), processes), 100 * SECOND)
        assert (await explain(store, job.id)).gates, (processes, slots, weight)
    await announce(store)


@pytest.mark.parametrize(
    "damage", ["version = 'x'", "order_at = 'x'", "parked = -1", "parked = 40000"]
)
async def test_a_job_that_claims_cannot_read_is_told_as_damaged(
    tmp_path: Path, damage: str
) -> None:
    """It was said to wait for a slot, though all of them were free."""
    store = store_for(f"sqlite:///{tmp_path}/jobs.db")
    await store.put([job := new_job(), other := new_job()])
    await store.announce(Worker("w1", {"t": 1}, (POOL,)), 50 * SECOND)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw, raw:
        raw.execute(f"UPDATE fairlead_job SET {damage} WHERE id = ?", [job.id])
    told = await explain(store, job.id)
    assert (told.damaged, told.starts_at) == (True, None)
    assert "fairlead doctor names what is wrong" in told.basis
    assert not (await explain(store, other.id)).damaged
    await store.close()
