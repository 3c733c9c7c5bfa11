"""The scenario of the seeds: work comes in, and everything that can go wrong does."""

import asyncio
from random import Random

from fairlead.core.clock import SECOND
from fairlead.core.errors import StoreError
from fairlead.core.job import NewJob
from tests import deeds
from tests.simulation.faults import Connection
from tests.simulation.loop import Process
from tests.simulation.world import QUEUES, Child, Options, Tree, World, find_job
from tests.words import by

FAULTS = (
    "child dies",
    "supervisor dies",
    "tree dies",
    "tree freezes",
    "child freezes",
    "supervisor freezes",
    "tree is cut off",
    "child is cut off",
    "supervisor is cut off",
    "outage",
    "deploy",
    "crash at a point",
    "tree dies at a point",
)
TASKS = {"note": 10, "report": 2, "pay": 3, "mail": 2, "bomb": 2}


class SimulationFailed(AssertionError):
    """A seed broke a promise."""


def run_seed(seed: int, options: Options | None = None) -> World:
    """Run one seed and return its world; raises with a trace if a promise was broken."""
    world = World(seed, options)
    world.run(chaos)
    if world.witness.broken:
        raise SimulationFailed(report(world))
    return world


def report(world: World) -> str:
    """Say what was broken, how to see it again, and what happened to the jobs involved."""
    lines = [f"seed {world.seed}; again with: python -m tests.simulation {world.seed}"]
    lines += [f"  {world.options!r}"]
    lines += [f"* {promise} (job {job})" for promise, job in world.witness.broken[:5]]
    _, job = world.witness.broken[0]
    lines += [f"history of job {job}:", world.witness.trace(job)]
    return "\n".join(lines)


async def chaos(world: World) -> None:
    """Let people, producers and the nemesis do their things for a while."""
    end = world.loop.time() + world.random.uniform(15.0, 60.0)
    async with asyncio.TaskGroup() as parts:
        parts.create_task(_produce(world, end))
        parts.create_task(_interfere(world, end))
        parts.create_task(_harm(world, end))
    world.on_point = lambda _child, _name: False


async def _produce(world: World, end: float) -> None:
    producer = Process("producer")
    connection = Connection(world.network, producer)
    random = world.random
    left = random.randint(10, 50)
    while left > 0 and world.loop.time() < end:
        jobs = [_new_job(world, random) for _ in range(random.randint(1, 8))]
        left -= len(jobs)
        await world.put(connection, jobs)
        await asyncio.sleep(random.choice((0.0, random.uniform(0.0, 15.0))))


def _new_job(world: World, random: Random) -> NewJob:
    (task,) = random.choices(list(TASKS), list(TASKS.values()))
    more: dict[str, object] = {}
    if random.random() < 0.2:
        more["delay"] = random.randint(0, 20 * SECOND)
    if random.random() < 0.1:
        more["priority"] = random.randint(0, 60)
    if random.random() < 0.1:
        more["expires_in"] = random.randint(1 * SECOND, 30 * SECOND)
    if world.options.alarms and task == "note" and random.random() < 0.5:
        more["queue"] = "alarms"
    return world.new_job(task, **more)


async def _interfere(world: World, end: float) -> None:
    """Be the person who cancels jobs and pauses queues."""
    connection = Connection(world.network, Process("person"))
    random = world.random
    while world.loop.time() < end:
        await asyncio.sleep(random.uniform(1.0, 15.0))
        queue = random.choice(QUEUES).name
        try:
            if random.random() < 0.3:
                await deeds.pause(connection, queue, by())
                await asyncio.sleep(random.uniform(0.0, 10.0))
            elif (job_id := find_job(world, random)) is not None:
                await deeds.cancel(connection, [job_id], "by a person", by())
        except StoreError:
            pass
        await _resume(connection, queue)


async def _resume(connection: Connection, queue: str) -> None:
    while True:
        try:
            await deeds.resume(connection, queue, by())
            return
        except StoreError:
            await asyncio.sleep(1.0)


async def _harm(world: World, end: float) -> None:
    random = world.random
    kinds = random.sample(FAULTS, random.randint(1, 4))
    while world.loop.time() < end:
        await asyncio.sleep(random.uniform(0.5, 8.0))
        number = random.randrange(len(world.trees))
        tree, kind = world.trees[number], random.choice(kinds)
        seconds = random.choice((random.uniform(0.1, 3.0), random.uniform(3.0, 40.0)))
        world.witness.note("fault", None, kind, tree.name, round(seconds, 3))
        await _do_harm(world, number, tree, kind, seconds)


async def _do_harm(world: World, number: int, tree: Tree, kind: str, seconds: float) -> None:
    match kind:
        case "supervisor dies":
            world.loop.kill(tree.supervisor)
            await asyncio.sleep(world.random.uniform(0.0, 0.5))
            world.end_tree(tree)
            world.boot(number)
        case "tree dies":
            world.end_tree(tree)
            await asyncio.sleep(world.random.choice((0.0, seconds)))
            world.boot(number)
        case "outage":
            world.outage(seconds)
            await asyncio.sleep(seconds + 8.0)
        case "deploy":
            await _deploy(world, number, tree)
        case "crash at a point":
            _arm(world, world.random.randint(1, 40), whole_tree=False)
        case "tree dies at a point":
            _arm(world, world.random.randint(1, 40), whole_tree=True)
        case _:
            _harm_some(world, tree, kind, seconds)


def _harm_some(world: World, tree: Tree, kind: str, seconds: float) -> None:
    """Do something to one process of a tree, or to all of them."""
    who, what = kind.split(" ", 1)
    child = world.random.choice(tree.children) if tree.children else None
    some: list[Process] = tree.processes()
    if who == "supervisor":
        some = [tree.supervisor]
    elif who == "child":
        some = [child] if child is not None else []
    match what:
        case "dies" if child is not None:
            world.end_child(child, "SIGKILL")
        case "freezes":
            world.pause(tree, some, seconds)
        case "is cut off":
            world.cut(tree, some, seconds)


async def _deploy(world: World, number: int, tree: Tree) -> None:
    """Stop a machine's tree, and start another in its place when it is gone."""
    tree.stop(world.random.choice((0.0, 1.0, 25.0)))
    while tree.supervisor.alive:
        await asyncio.sleep(0.5)
    world.boot(number)


def _arm(world: World, passes: int, *, whole_tree: bool) -> None:
    """Let the process die, or its machine, that passes the so many-th crash point from now."""
    left = passes

    def at_point(child: Child, name: str) -> bool:
        nonlocal left
        left -= 1
        if left:
            return False
        kill_at_point(world, child, name, whole_tree=whole_tree)
        return True

    world.on_point = at_point


def kill_at_point(world: World, child: Child, name: str, *, whole_tree: bool) -> None:
    """Let a process die at a crash point, or all of its machine, which then starts again."""
    world.witness.note("fault", None, "crash point", name, child.name)
    world.end_child(child, "SIGKILL", at=name)
    if whole_tree:
        number = world.trees.index(child.tree)
        world.end_tree(child.tree)
        world.loop.call_later(1.0, world.boot, number, context=world.loop.outside.context)
