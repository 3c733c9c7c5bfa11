"""Promises with a bound in time, each in a world with one fault."""

import asyncio
from collections.abc import Iterator, Sequence
from inspect import signature

import pytest

from fairlead import Fairlead
from fairlead.cli.worker import worker
from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.job import Job, State
from fairlead.core.outcome import Outcome, Settlement
from fairlead.runtime.loop_runner import LoopRunner
from fairlead.runtime.run import GIVEN_BACK, Run
from fairlead.runtime.workshop import DEFAULTS
from tests.simulation import work
from tests.simulation.chaos import report
from tests.simulation.faults import Connection, Rates, at_once
from tests.simulation.loop import Process
from tests.simulation.world import WATCH, Options, World

TERMS = DEFAULTS
SLACK = 0.5


def _check(world: World) -> None:
    assert not world.witness.broken, report(world)


def _times(world: World, what: str) -> Iterator[float]:
    return (at / SECOND for at, event, *_ in world.witness.history if event == what)


async def _put(world: World, task: str, count: int) -> None:
    connection = Connection(world.network, Process("producer"))
    await world.put(connection, [world.new_job(task) for _ in range(count)])


@pytest.mark.parametrize("seed", range(10))
def test_jobs_of_a_silent_machine_run_again_within_lease_and_sweep(seed: int) -> None:
    died_at = 0.0

    async def scenario(world: World) -> None:
        nonlocal died_at
        await asyncio.sleep(1.0)
        await _put(world, "report", 4)
        await asyncio.sleep(world.random.uniform(1.0, 12.0))
        world.end_tree(world.trees[0])
        died_at = world.clock.now() / SECOND

    world = World(seed, Options(machines=2, slots=8))
    world.run(scenario)

    _check(world)
    lost = [
        at / SECOND for at, what, _, *more in world.witness.history if what == "claim" and more[-1]
    ]
    assert all(at - died_at <= TERMS.lease + TERMS.poll + SLACK for at in lost)


def test_nobody_has_to_configure_a_lease_to_have_jobs_back_within_30_seconds() -> None:
    """P5: what the test above finds holds for the lease that a worker has by default."""
    assert TERMS.lease + TERMS.heartbeat + TERMS.poll <= 30
    [lease] = [option.default for option in worker.params if option.name == "lease"]
    assert (lease, signature(Fairlead.worker).parameters["lease"].default) == (TERMS.lease,) * 2


@pytest.mark.parametrize("seconds", range(1, 41, 3))
def test_an_outage_of_any_length_costs_nobody_a_lease(seconds: int) -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(1.0)
        await _put(world, "report", 6)
        await asyncio.sleep(world.random.uniform(1.0, 12.0))
        world.outage(seconds)
        await asyncio.sleep(seconds + 10.0)

    for seed in range(5):
        world = World(seed, Options(machines=3, slots=3))
        world.run(scenario)

        _check(world)
        assert not any(more[-1] for _, what, _, *more in world.witness.history if what == "claim")


@pytest.mark.parametrize("seed", range(10))
def test_who_dies_alone_has_its_jobs_given_back_at_once(seed: int) -> None:
    died_at = 0.0

    async def scenario(world: World) -> None:
        nonlocal died_at
        await asyncio.sleep(1.0)
        await _put(world, "report", 3)
        await asyncio.sleep(1.0)
        world.end_child(world.trees[0].children[0], "SIGKILL")
        died_at = world.clock.now() / SECOND
        await asyncio.sleep(2.0)

    world = World(seed, Options(machines=1, slots=3))
    world.run(scenario)

    _check(world)
    again = [at for at in _times(world, "claim") if at > died_at]
    assert again
    assert again[0] - died_at <= 2 * WATCH + TERMS.poll + SLACK


@pytest.mark.parametrize("grace", [0.0, 5.0])
@pytest.mark.parametrize("seed", range(10))
def test_a_stop_ends_in_time_and_burns_no_attempt(grace: float, seed: int) -> None:
    took = 0.0

    async def scenario(world: World) -> None:
        nonlocal took
        await asyncio.sleep(1.0)
        await _put(world, "report", 12)
        await asyncio.sleep(world.random.uniform(0.0, 3.0))
        tree, began = world.trees[0], world.loop.time()
        tree.stop(grace)
        while tree.supervisor.alive:
            await asyncio.sleep(0.1)
        took = world.loop.time() - began
        counts = at_once(world.store.admin.count())
        assert not any(State.RUNNING in states for states in counts.values())
        world.boot(0)

    world = World(seed, Options(machines=1, slots=4, stalls=0.1, rates=Rates(slow=0.3)))
    world.run(scenario)

    _check(world)
    assert took <= grace + TERMS.patience + 2 * WATCH + 4.0 + SLACK  # Slow calls take up to 2 s.
    assert all(fact.lines[-1][1] == "done" for fact in world.witness.facts.values())
    assert all(
        {line[1] for line in f.lines} <= {"done", "returned"} for f in world.witness.facts.values()
    )


@pytest.mark.parametrize("seed", range(10))
def test_without_any_wake_up_a_job_starts_within_a_poll(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(work.ACTS, "block")  # A process whose loop does not turn claims nothing.

    async def scenario(world: World) -> None:
        await asyncio.sleep(2.0)
        for _ in range(10):
            await _put(world, "mail", 1)
            await asyncio.sleep(world.random.uniform(0.0, 3.0))

    world = World(seed, Options(machines=1, slots=20, rates=Rates(lost_hint=1.0)))
    world.run(scenario)

    _check(world)
    for fact in world.witness.facts.values():
        put = next(
            at
            for at, what, job, *_ in world.witness.history
            if what == "put" and job == fact.new.id
        )
        assert fact.claims[0].claimed_at - put <= (TERMS.poll + SLACK) * SECOND


@pytest.mark.parametrize("seed", range(20))
def test_neighbours_of_a_job_that_kills_its_process_lose_nothing(seed: int) -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(1.0)
        await _put(world, "bomb", 2)
        await _put(world, "report", 6)
        await asyncio.sleep(20.0)

    world = World(seed, Options(machines=2, slots=4))
    world.run(scenario)

    _check(world)
    for fact in world.witness.facts.values():
        if fact.new.task == "report":
            assert [line[1] for line in fact.lines if line[1] not in ("crashed", "returned")] == [
                "done"
            ]


def test_a_board_full_of_unsettled_runs_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Connection.settle

    async def slowly(
        self: Connection, settlements: Sequence[Settlement]
    ) -> dict[JobId, Settlement]:
        await asyncio.sleep(5.0)
        return await settle(self, settlements)

    async def scenario(world: World) -> None:
        await asyncio.sleep(1.0)
        connection = Connection(world.network, Process("producer"))
        await world.put(connection, [world.new_job("note", queue="alarms") for _ in range(60)])
        await asyncio.sleep(60.0)

    monkeypatch.setattr(Connection, "settle", slowly)
    monkeypatch.setitem(work.ACTS, "nap", 0)
    for seed in range(10):
        world = World(seed, Options(machines=1, slots=1, alarms=True))
        world.run(scenario)
        _check(world)


async def test_a_run_that_is_called_off_before_its_first_step_ends() -> None:
    ended: list[tuple[Run, Outcome]] = []
    job = Job(JobId("1"), "note", 1, "letters", "", None, 1, 0, 1, 0, 0, None, 1, 2, "somebody")
    world = World(0)
    runner = LoopRunner(lambda *_: None, lambda run, outcome: ended.append((run, outcome)))
    run = Run(job, world.tasks["note"], "main", 0, world.store)

    runner.start(run)
    run.called_off = GIVEN_BACK
    runner.call_off(run)
    await asyncio.sleep(0)
    world.loop.close()

    assert ended == [(run, GIVEN_BACK)]


@pytest.mark.parametrize("seed", range(10))
def test_who_was_frozen_for_longer_than_a_lease_is_told_what_it_lost(seed: int) -> None:

    async def scenario(world: World) -> None:
        await asyncio.sleep(1.0)
        await _put(world, "report", 8)
        await asyncio.sleep(1.0)
        world.pause(world.trees[0], world.trees[0].processes(), 21.5)
        await asyncio.sleep(21.5)
        await asyncio.sleep(TERMS.heartbeat + 2.0)
        late = [
            seen
            for fact in world.witness.facts.values()
            for seen in fact.claims
            if seen.taken_rightly and seen.live
        ]
        assert late == []

    world = World(seed, Options(machines=2, slots=4))
    world.run(scenario)

    _check(world)


@pytest.mark.parametrize("seed", range(40))
def test_who_begins_after_an_outage_takes_nothing_from_those_who_saw_it(seed: int) -> None:
    async def scenario(world: World) -> None:
        await asyncio.sleep(1.0)
        await _put(world, "report", 4)
        await asyncio.sleep(1.0)
        world.outage(25.0)
        await asyncio.sleep(24.5)
        for tree in world.trees[1:]:
            world.end_tree(tree)
        world.boot(1)
        world.boot(2)
        await asyncio.sleep(10.0)

    world = World(seed, Options(machines=3, slots=4))
    world.run(scenario)

    _check(world)
