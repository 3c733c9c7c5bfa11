"""The slots of a pool: how much to claim, who runs, who waits; and which pools a worker has."""

import os
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import ConfigError, Fairlead, Pool, Queue
from fairlead.core.ids import JobId
from fairlead.core.job import Job
from fairlead.core.selection import MOST_BYTES
from fairlead.runtime.pool import Slots, bytes_for_next, phase_of
from fairlead.runtime.run import Run
from fairlead.runtime.workshop import MOST_AHEAD, Choice, PoolPlan, plan_pools

MAIL, REPORTS = Queue("mail", weight=3), Queue("reports")
ALARMS = Queue("alarms", critical=True, tasks=["t"], reserve=2)
APP = Fairlead("memory://")
APP.task(name="t")(lambda: None)


def new_run(n: int = 0, queue: str = "mail", payload: str = "{}") -> Run:
    job = Job(JobId(f"job-{n}"), "t", 1, queue, payload, None, 1, 0, n, 0, 0, None, 0, 0, "w")
    return Run(job, APP.tasks["t"], "p", n, APP.store)


def pool(*queues: Queue, slots: int = 2, self_serving: bool = False) -> tuple[Slots, list[Run]]:
    started: list[Run] = []
    plan = PoolPlan("p", queues or (MAIL,), slots, "async", self_serving)
    return Slots(plan, started.append), started


def test_claims_that_come_late_shrink_to_single_jobs_and_grow_again() -> None:
    """F15: over a slow link the same jobs would come too late, and be given back, for ever."""
    size, sizes = MOST_BYTES, []
    while size > 1:
        size = bytes_for_next(size, 2.6, lease=20.0)
        sizes.append(size)
    assert len(sizes) <= 5
    assert bytes_for_next(1, 9.0, lease=20.0) == 1
    for _ in range(22):
        size = bytes_for_next(size, 0.1, lease=20.0)
    assert size == MOST_BYTES == bytes_for_next(MOST_BYTES, 0.1, lease=20.0)


def test_an_idle_pool_asks_for_its_slots() -> None:
    slots, _ = pool(slots=5)
    assert slots.room(0.0) == 5


def test_jobs_beyond_the_slots_wait_and_start_in_order() -> None:
    slots, started = pool(slots=2)
    runs = [new_run(n) for n in range(4)]
    for run in runs:
        slots.feed(run, 1.0)
    assert (started, slots.in_hand, slots.room(1.0)) == (runs[:2], 4, 0)
    slots.ended(runs[0])
    slots.ended(runs[1])
    assert (started, slots.in_hand) == (runs, 2)


def test_the_end_of_a_run_tells_that_there_is_room() -> None:
    slots, _ = pool()
    told: list[int] = []
    slots.on_room = lambda: told.append(slots.room(0.0))
    run = new_run()
    slots.feed(run, 0.0)
    slots.ended(run)
    assert told == [2]


def test_quick_jobs_are_claimed_ahead_and_slow_ones_are_not() -> None:
    slots, _ = pool(slots=1)
    assert slots.room(10.0) == 1
    for n in range(200):
        run = new_run(n)
        slots.feed(run, 10.0)
        slots.ended(run)
    ahead = slots.room(10.1) - 1
    assert 150 <= ahead <= 200, "as many as ended in the last tenth of a second"
    assert slots.room(20.0) == 1, "nothing ended for long, so nothing will soon"


def test_no_pool_claims_ahead_without_bound() -> None:
    slots, _ = pool(slots=1)
    slots.room(10.0)
    for n in range(10_000):
        run = new_run(n)
        slots.feed(run, 10.0)
        slots.ended(run)
    assert slots.room(10.1) == 1 + MOST_AHEAD


def test_a_pool_with_a_critical_queue_never_claims_ahead() -> None:
    slots, _ = pool(MAIL, ALARMS, slots=3)
    for n in range(1_000):
        run = new_run(n)
        slots.feed(run, 10.0)
        slots.ended(run)
    assert slots.room(10.1) == 5, "its slots and the reserve"


def test_with_jobs_waiting_it_claims_only_when_it_is_worth_it() -> None:
    slots, _ = pool(slots=1)
    slots.room(10.0)
    for n in range(100):
        run = new_run(n)
        slots.feed(run, 10.0)
        slots.ended(run)
    ahead = slots.room(10.1) - 1
    for n in range(ahead):
        slots.feed(new_run(n), 10.1)
    assert slots.room(10.1) == 0


def test_the_plan_asks_for_the_shared_slots_and_names_what_is_in_hand() -> None:
    slots, _ = pool(MAIL, ALARMS, slots=3)
    slots.feed(new_run(1, "alarms"), 0.0)
    slots.feed(new_run(2, "mail"), 0.0)
    slots.credits = {"mail": -0.5}
    plan = slots.claim_plan("w", 7, {"t": 1}, slots.room(0.0))
    assert (plan.slots, plan.running, plan.credits) == (3, {"alarms": 1, "mail": 1}, {"mail": -0.5})
    assert (plan.worker, plan.lease, plan.capable) == ("w", 7, {"t": 1})
    assert plan.queues == (MAIL, ALARMS)


def test_the_plan_of_a_full_pool_leaves_the_reserve_to_the_critical_queue() -> None:
    slots, _ = pool(MAIL, ALARMS, slots=1)
    slots.feed(new_run(1, "mail"), 0.0)
    room = slots.room(0.0)
    assert (room, slots.claim_plan("w", 7, {}, room).slots) == (2, 1)


def test_a_mixed_pool_never_runs_more_than_its_capacity() -> None:
    slots, started = pool(MAIL, ALARMS, slots=2)
    runs = [new_run(n, "mail" if n % 2 else "alarms") for n in range(20)]
    for run in runs:
        slots.feed(run, 0.0)
    assert len(started) == 4
    for n in range(16):
        slots.ended(started[n])
        assert len(started) - (n + 1) == 4


def test_threads_and_processes_get_what_was_claimed_ahead_at_once() -> None:
    slots, started = pool(slots=1, self_serving=True)
    for n in range(10):
        slots.feed(new_run(n), 0.0)
    assert len(started) == 10


def test_what_has_not_started_can_be_taken_back() -> None:
    slots, started = pool(slots=1)
    runs = [new_run(n) for n in range(4)]
    for at, run in enumerate(runs):
        slots.feed(run, float(at))
    assert slots.take_back(before=2.0) == [runs[1]]
    assert slots.take_back() == runs[2:]
    assert (started, slots.in_hand) == ([runs[0]], 1)
    assert slots.claim_plan("w", 1, {}, 1).running == {"mail": 1}


def test_one_that_waits_can_be_dropped() -> None:
    slots, started = pool(slots=1)
    first, second = new_run(1), new_run(2)
    slots.feed(first, 0.0)
    slots.feed(second, 0.0)
    assert (slots.drop(second), slots.drop(second), slots.drop(first)) == (True, False, False)
    slots.ended(first)
    assert (started, slots.in_hand) == ([first], 0)


# Which pools a worker has


def app(*tasks: Any, **options: Any) -> Fairlead:
    app = Fairlead("memory://", **options)
    for number, task in enumerate(tasks):
        app.task(name=f"t{number}")(task)
    return app


async def coroutine() -> None: ...


def plain() -> None: ...


def plans(app: Fairlead, **choice: Any) -> tuple[PoolPlan, ...]:
    return plan_pools(app.pools, app.queues, app.tasks, Choice(**choice))


@pytest.mark.parametrize(
    ("tasks", "runner", "slots", "self_serving"),
    [
        ([coroutine], "async", 100, False),
        ([plain], "thread", 10, True),
        ([coroutine, plain], "thread", 10, False),
        ([], "async", 100, True),
    ],
)
def test_a_pool_runs_what_the_tasks_are(
    tasks: list[Any], runner: str, slots: int, self_serving: bool
) -> None:
    [plan] = plans(app(*tasks))
    assert (plan.name, plan.runner, plan.slots) == ("default", runner, slots)
    assert plan.self_serving is self_serving or not tasks


def test_a_process_pool_has_as_many_slots_as_there_are_cores() -> None:
    [plan] = plans(app(plain, pools=[Pool("p", runner="process")]))
    assert (plan.runner, plan.slots, plan.self_serving) == ("process", os.cpu_count(), True)


def test_slots_of_the_pool_win_over_the_default_and_the_choice_over_both() -> None:
    ours = app(coroutine, pools=[Pool("p", slots=7)])
    assert [plan.slots for plan in plans(ours)] == [7]
    assert [plan.slots for plan in plans(ours, slots=3)] == [3]


TWO = {
    "queues": [Queue("mail", weight=2), Queue("reports")],
    "pools": [Pool("post", queues=["mail"]), Pool("rest")],
}


def served(ours: Fairlead, **choice: Any) -> dict[str, list[tuple[str, int]]]:
    return {
        plan.name: [(queue.name, queue.weight) for queue in plan.queues]
        for plan in plans(ours, **choice)
    }


def test_a_worker_serves_everything_unless_told_otherwise() -> None:
    assert served(app(plain, **TWO)) == {
        "post": [("mail", 2)],
        "rest": [("reports", 1), ("default", 1)],
    }


def test_a_worker_may_serve_one_pool() -> None:
    assert served(app(plain, **TWO), pools=("post",)) == {"post": [("mail", 2)]}


def test_a_worker_may_serve_some_queues_with_weights_of_its_own() -> None:
    choice = {"queues": {"mail": 5, "default": None}}
    assert served(app(plain, **TWO), **choice) == {"post": [("mail", 5)], "rest": [("default", 1)]}


@pytest.mark.parametrize(
    ("choice", "error"),
    [
        ({"pools": ("pots",)}, r"no pool 'pots' \(did you mean 'post'\?\); it has post, rest"),
        ({"queues": {"mial": None}}, r"no queue 'mial' \(did you mean 'mail'\?\); it has default"),
        ({"pools": ("rest",), "queues": {"mail": None}}, "would serve nothing"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_with_a_next_step(
    choice: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        plans(app(plain, **TWO), **choice)


def test_a_worker_has_places_for_all_it_may_claim() -> None:
    workshop = app(plain).workshop()
    [plan] = workshop.pools
    assert workshop.places >= 2 * (plan.capacity + plan.ahead)


def test_nothing_is_claimed_ahead_while_large_payloads_are_in_hand() -> None:
    """F82: what is claimed ahead is bounded by bytes as well."""
    slots, _ = pool(slots=1)
    slots.room(0.0)
    for n in range(100):
        slots.feed(new_run(n), 0.0)
        slots.ended(new_run(n))
    assert slots.room(0.1) > 50
    large = new_run(200, payload="x" * MOST_BYTES)
    slots.feed(large, 0.1)
    assert slots.room(0.1) == 0
    slots.ended(large)
    assert slots.room(0.1) > 50


def test_processes_of_a_worker_begin_evenly_spread_and_workers_anywhere() -> None:
    phases = sorted(phase_of(f"box-1-ab/{number}", 4) for number in range(1, 5))
    gaps = {round(after - before, 6) for before, after in pairwise(phases)}
    assert gaps == {0.25}
    assert phase_of("box-1-ab/1", 4) == phase_of("box-1-ab/5", 4)
    assert phase_of("box-1-ab", 1) != phase_of("box-2-cd", 1)
    assert all(0 <= phase < 1 for phase in phases)


# Suspects


def suspect(n: int, shared: int = 1) -> Run:
    run = new_run(n)
    run.job = replace(run.job, shared_deaths=shared)
    return run


def test_suspects_are_started_apart() -> None:
    started: list[Run] = []
    apart: list[Run] = []
    plan = PoolPlan("p", (MAIL,), 3, "async", self_serving=False)
    slots = Slots(plan, started.append, start_suspect=apart.append)
    runs = [new_run(0), suspect(1), suspect(2, 0)]
    runs[2].job = replace(runs[2].job, crashes=1)
    for run in runs:
        slots.feed(run, 0.0)
    assert (started, apart) == (runs[:1], runs[1:])


def test_where_no_process_can_be_started_suspects_run_beside_others() -> None:
    slots, started = pool(slots=2)
    run = suspect(1)
    slots.feed(run, 0.0)
    assert started == [run]


def test_with_suspects_in_hand_even_who_serves_itself_keeps_to_the_slots() -> None:
    """Threads that serve themselves take what was claimed ahead; a suspect takes a slot away."""
    started: list[Run] = []
    apart: list[Run] = []
    plan = PoolPlan("p", (MAIL,), 2, "thread", self_serving=True)
    slots = Slots(plan, started.append, start_suspect=apart.append)
    ahead = [new_run(n) for n in range(3)]
    for run in ahead:
        slots.feed(run, 0.0)
    first, second = suspect(3), new_run(4)
    slots.feed(first, 0.0)
    slots.feed(second, 0.0)
    assert (started, apart) == (ahead, [])
    slots.ended(ahead[0])
    assert apart == []
    slots.ended(ahead[1])
    assert (started, apart) == (ahead, [first])
    slots.ended(first)
    assert started == [*ahead, second]


def test_a_suspect_that_is_taken_back_counts_no_more() -> None:
    apart: list[Run] = []
    plan = PoolPlan("p", (MAIL,), 1, "thread", self_serving=True)
    started: list[Run] = []
    slots = Slots(plan, started.append, start_suspect=apart.append)
    runs = [new_run(0), suspect(1), new_run(2), new_run(3)]
    for run in runs[:2]:
        slots.feed(run, 0.0)
    assert slots.take_back() == [runs[1]]
    for run in runs[2:]:
        slots.feed(run, 0.0)
    assert (started, apart) == ([runs[0], *runs[2:]], [])
