"""What programs and workers do with a store, at full speed."""

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec

from msgspec.structs import replace

from fairlead.app import Fairlead
from fairlead.core.errors import StoreError
from fairlead.core.job import Job, NewJob
from fairlead.core.outcome import Done, Policy, decide
from fairlead.core.selection import ClaimPlan
from fairlead.producer import BoundTask

ARGUMENTS = (12345, "someone@example.com", "Your order is on its way")
LEASE = 20_000_000

P = ParamSpec("P")
Notify = BoundTask[..., None]


async def notify(user_id: int, address: str, subject: str) -> None:
    """Stand in for a task with an everyday signature; its payload is 84 bytes."""


def opened(url: str) -> tuple[Fairlead, Notify]:
    """Return an app on a store, and its task."""
    app = Fairlead(url)
    app.open()
    return app, app.task(name="notify")(notify)


def size(jobs: int, scale: float) -> int:
    """Return how many jobs to take instead, in thousands."""
    return max(1_000, round(jobs * scale) // 1_000 * 1_000)


def prepared(jobs: int) -> list[NewJob]:
    """Return that many calls, bound and encoded, for the raw engine."""
    task = Fairlead("memory://").task(name="notify")(notify)
    return [task.call(*ARGUMENTS).job for _ in range(jobs)]


def timed(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """Return the seconds that some work takes."""
    began = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - began


def fill(app: Fairlead, task: Notify, jobs: int) -> None:
    """Enqueue many."""
    app.enqueue_many(task.call(*ARGUMENTS) for _ in range(jobs))


def enqueue_together(task: Notify, callers: int, each: int) -> None:
    """Let callers await one put after the other, all on one loop."""

    async def caller() -> None:
        for _ in range(each):
            await task.aenqueue(*ARGUMENTS)

    async def all_callers() -> None:
        await asyncio.gather(*(caller() for _ in range(callers)))

    asyncio.run(all_callers())


def enqueue_one_by_one(task: Notify, jobs: int) -> None:
    """Enqueue from one synchronous caller, a commit each."""
    for _ in range(jobs):
        task.enqueue(*ARGUMENTS)


def plan(app: Fairlead) -> ClaimPlan:
    """Ask for a hundred jobs."""
    return ClaimPlan("bench", tuple(app.queues.values()), 100, LEASE, capable=app.tasks.versions())


async def drain(app: Fairlead, seen: Callable[[list[Job]], bool] = bool) -> None:
    """Claim and settle, as long as `seen` says to go on with what was claimed.

    Goes as a worker does: two batches are under way, and each is settled while its
    successor is claimed.
    """
    first, policy = plan(app), Policy()

    async def settle(jobs: list[Job]) -> None:
        await app.store.settle([decide(job, Done(), policy, 0) for job in jobs])

    async def lane() -> None:
        claim = await app.store.claim(first)
        while seen(jobs := claim.jobs):
            asked = replace(first, credits=claim.credits)
            claim, _ = await asyncio.gather(app.store.claim(asked), settle(jobs))
        if jobs:
            await settle(jobs)

    await asyncio.gather(lane(), lane())


def drain_all(app: Fairlead) -> None:
    """Drain until there is nothing to claim."""
    app.bridge.run(drain(app))


def rate_of_drain(app: Fairlead, jobs: int) -> float:
    """Drain that many of more jobs than that; returns how many a second."""
    left = jobs

    def seen(claimed: list[Job]) -> bool:
        nonlocal left
        left -= len(claimed)
        if not claimed and left > 0:
            raise StoreError(f"{left:,} of {jobs:,} jobs were not found")
        return left > 0

    began = time.perf_counter()
    app.bridge.run(drain(app, seen))
    return (jobs - left) / (time.perf_counter() - began)
