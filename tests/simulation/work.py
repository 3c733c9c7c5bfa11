"""The tasks of the simulation: handlers that do what handlers do, at their worst."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlead.core.errors import Ambiguous, Cancel, Permanent, RetryAfter, Snooze
from fairlead.core.job import Job
from fairlead.core.outcome import Knowledge
from fairlead.core.retry import Retry
from fairlead.core.task import Registry, Task, TaskOptions
from fairlead.runtime.run import current_job
from tests.simulation.loop import here
from tests.simulation.witness import Seen

if TYPE_CHECKING:
    from tests.simulation.world import World

CRASH_LIMIT = 3
ACTS = {
    "quick": 40,
    "nap": 20,
    "fail": 8,
    "permanent": 2,
    "snooze": 4,
    "retry_after": 3,
    "cancel": 2,
    "ambiguous": 2,
    "deaf": 3,
    "late": 3,
    "block": 6,
}
SIGNALS: dict[str, Callable[[float], Exception]] = {
    "permanent": lambda _: Permanent("simulated"),
    "snooze": Snooze,
    "retry_after": RetryAfter,
    "cancel": lambda _: Cancel("simulated"),
    "ambiguous": lambda _: Ambiguous("simulated"),
}
TASKS = {
    "note": TaskOptions(retry=Retry(attempts=4), timeout=8.0),
    "report": TaskOptions(retry=Retry(attempts=3), timeout=45.0),
    "mail": TaskOptions(retry=Retry(attempts=4), timeout=8.0, effects="external"),
    "bomb": TaskOptions(retry=Retry(attempts=3), timeout=8.0, crash_limit=CRASH_LIMIT),
}


def registry(world: "World") -> Registry:
    """Return the tasks, bound to a world."""
    tasks = Registry()
    for name, options in TASKS.items():
        tasks.add(Task(name, _handler(world, name, options.timeout), options))

    async def reconcile(job: Job) -> Knowledge:
        world.witness.asked(job.id, job.fence)
        await asyncio.sleep(world.random.uniform(0.0, 3.0))
        return world.random.choice(("done", "not_done", "not_done", "unknown"))

    asked = TaskOptions(
        retry=Retry(attempts=4), timeout=8.0, effects="external", reconcile=reconcile
    )
    tasks.add(Task("pay", _handler(world, "pay", asked.timeout), asked))
    return tasks


def _handler(world: "World", task: str, limit: float) -> Any:
    async def handler() -> int:
        job = current_job()
        seen = world.witness.starts(job.id, job.fence, here(), limit)
        try:
            await _act(world, task, seen, limit)
        except asyncio.CancelledError:
            late = world.clock.now() >= seen.deadline
            _end(world, seen, "late" if late else "cancelled")
            raise
        except Exception:
            _end(world, seen, "raised")
            raise
        _end(world, seen, "returned")
        return job.fence

    return handler


def _end(world: "World", seen: Seen, how: str) -> None:
    world.witness.ends(seen, how)


async def _act(world: "World", task: str, seen: Seen, limit: float) -> None:
    random = world.random
    if task == "bomb" and random.random() < 0.7:
        await asyncio.sleep(random.choice((0.0, random.random())))
        world.end_here()
        await asyncio.get_running_loop().create_future()
    if task == "report":
        await asyncio.sleep(random.uniform(1.0, 35.0))
        return
    (act,) = random.choices(list(ACTS), list(ACTS.values()))
    match act:
        case "nap":
            await asyncio.sleep(random.uniform(0.0, 4.0))
        case "fail":
            await asyncio.sleep(random.choice((0.0, random.random())))
            raise ValueError("simulated")
        case "deaf":
            try:
                await asyncio.sleep(2 * limit)
            except asyncio.CancelledError:
                seen.told = True
                await asyncio.sleep(random.uniform(0.0, 7.0))
        case "late":
            await asyncio.sleep(2 * limit)
        case "block":
            world.loop.freeze(here(), random.uniform(0.5, 6.0))
            await asyncio.sleep(0)
        case signal if signal in SIGNALS:
            raise SIGNALS[signal](random.uniform(0.0, 5.0))
