"""Kill the process, or its whole machine, at every crash point that one scenario passes."""

import asyncio
from random import Random

from tests import deeds
from tests.simulation.chaos import kill_at_point, report
from tests.simulation.faults import Connection
from tests.simulation.loop import Process
from tests.simulation.world import Child, Options, World
from tests.words import by

SEED = 4
PAIRS = 100


async def _scenario(world: World) -> None:
    """Put a few jobs of every kind, and let one be cancelled while it runs."""
    connection = Connection(world.network, Process("producer"))
    jobs = [world.new_job(task) for task in 2 * ("note", "pay", "mail", "report", "bomb")]
    await world.put(connection, jobs)
    await asyncio.sleep(2.0)
    await deeds.cancel(connection, [jobs[3].id], "by a person", by())
    await asyncio.sleep(5.0)


def _run(kills: set[int], *, whole_tree: bool) -> World:
    world = World(SEED, Options(machines=1, slots=2))

    def at_point(child: Child, name: str) -> bool:
        if world.points_passed not in kills:
            return False
        kill_at_point(world, child, name, whole_tree=whole_tree)
        return True

    world.on_point = at_point
    world.run(_scenario)
    assert not world.witness.broken, f"killed at {kills}, tree: {whole_tree}\n{report(world)}"
    return world


def _points() -> int:
    passed = _run(set(), whole_tree=False).points_passed
    assert passed > 30
    return passed


def test_a_process_may_die_at_any_point() -> None:
    for at in range(1, _points() + 1):
        _run({at}, whole_tree=False)


def test_a_machine_may_die_at_any_point() -> None:
    for at in range(1, _points() + 1):
        _run({at}, whole_tree=True)


def test_processes_may_die_at_any_two_points() -> None:
    random, points = Random(SEED), _points()
    for _ in range(PAIRS):
        _run(set(random.sample(range(1, points + 1), 2)), whole_tree=random.random() < 0.5)
