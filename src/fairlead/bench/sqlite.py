"""SQLite beside bare `sqlite3`: the same rows, durability and batch size."""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import ParamSpec

from fairlead.app import Fairlead
from fairlead.bench.row import Row, paired
from fairlead.core.job import Job
from fairlead.core.outcome import Done, Policy, Returned, decide
from fairlead.core.selection import ClaimPlan
from fairlead.producer import BoundTask
from fairlead.stores.sqlite.floor import Floor, waits_of_busy_timeout, waits_of_turnstile

ARGUMENTS = (12345, "someone@example.com", "Your order is on its way")
LEASE = 20_000_000
CALLERS = 100
WRITERS = 8

P = ParamSpec("P")
_number = count()


async def notify(user_id: int, address: str, subject: str) -> None:
    """Stand in for a task with an everyday signature; its payload is 84 bytes."""


class Bench:
    """All measurements in one folder, each on files of its own."""

    def __init__(self, folder: Path, rounds: int, scale: float) -> None:
        self._folder = folder
        self._rounds = rounds
        self._scale = scale

    def rows(self) -> Iterator[Row]:
        """Measure everything; yields each row when it is known."""
        yield self.bulk()
        yield self.drain()
        yield self.concurrent()
        yield paired("enqueue one by one, durable", *self.one_by_one("durable"), 0.7)
        _, ours = self.one_by_one("fast")
        yield Row("enqueue one by one, fast", "jobs/s", median(ours), target=6_500)
        yield self.backlog()
        yield from self.contention()

    def _size(self, jobs: int) -> int:
        return max(1_000, round(jobs * self._scale) // 1_000 * 1_000)

    def _path(self) -> Path:
        return self._folder / f"{next(_number)}.db"

    def _app(self, durability: str = "durable") -> tuple[Fairlead, BoundTask[..., None]]:
        app = Fairlead(f"sqlite:///{self._path()}?durability={durability}")
        app.open()
        return app, app.task(name="notify")(notify)

    def bulk(self) -> Row:
        """Put many jobs, 1,000 a transaction; ours includes encoding and checking them."""
        jobs = self._size(50_000)
        floor_rates, our_rates = [], []
        for _ in range(self._rounds):
            app, task = self._app()
            floor = Floor(self._path(), "durable")
            ready = [task.call(*ARGUMENTS).job for _ in range(jobs)]
            floor_rates.append(jobs / floor.put(ready, batch=1_000))
            our_rates.append(jobs / _timed(_fill, app, task, jobs))
            floor.close()
            app.close()
        return paired("bulk put, batches of 1,000", floor_rates, our_rates, 0.5)

    def drain(self) -> Row:
        """Claim and settle in batches of 100, with finished jobs and attempt log.

        Ours goes as a worker does: two batches are under way, and each is
        settled while its successor is claimed.
        """
        jobs = self._size(40_000)
        floor_rates, our_rates = [], []
        for _ in range(self._rounds):
            app, task = self._app()
            floor = Floor(self._path(), "durable")
            floor.put([task.call(*ARGUMENTS).job for _ in range(jobs)], batch=1_000)
            _fill(app, task, jobs)
            floor_rates.append(jobs / floor.drain("default", batch=100, jobs=jobs))
            our_rates.append(jobs / _timed(_drain_all, app))
            floor.close()
            app.close()
        return paired("claim + settle, batches of 100", floor_rates, our_rates, 0.5)

    def concurrent(self) -> Row:
        """Let many callers await one put each, again and again, at full durability.

        On one file, as in a program that has run for a while: a log that still
        grows costs twice as much per commit as one that is written over.
        """
        each = self._size(20_000) // CALLERS
        app, task = self._app()
        _enqueue_together(task, each)
        rates = [
            each * CALLERS / _timed(_enqueue_together, task, each) for _ in range(self._rounds)
        ]
        app.close()
        return Row(f"{CALLERS} aenqueue callers", "jobs/s", median(rates), target=30_000)

    def one_by_one(self, durability: str) -> tuple[list[float], list[float]]:
        """Enqueue from one synchronous caller, a commit each; the rates of floor and ours."""
        jobs = self._size(2_000)
        floor_rates, our_rates = [], []
        app, task = self._app(durability)
        floor = Floor(self._path(), durability)
        for _ in range(max(3, self._rounds)):
            ready = [task.call(*ARGUMENTS).job for _ in range(jobs)]
            floor_rates.append(jobs / floor.put(ready, batch=1))
            our_rates.append(jobs / _timed(_one_by_one, task, jobs))
        floor.close()
        app.close()
        return floor_rates, our_rates

    def backlog(self) -> Row:
        """Compare a claim out of a million waiting jobs with one out of ten thousand."""
        small, large = 10_000, self._size(1_000_000)
        times: dict[int, list[float]] = {small: [], large: []}
        apps = {jobs: self._filled(jobs) for jobs in times}
        for _ in range(40):
            for jobs, app in apps.items():
                times[jobs].append(app.bridge.run(_claim_and_return(app)))
        for app in apps.values():
            app.close()
        ratio = median(times[large]) / median(times[small])
        return Row(f"claim, {large:,} to {small:,} waiting", "ratio", ratio, target=1.2, best="low")

    def _filled(self, jobs: int) -> Fairlead:
        app, task = self._app("fast")
        _fill(app, task, jobs)
        return app

    def contention(self) -> Iterator[Row]:
        """Let eight processes write one row at a time, each as fast as it can."""
        seconds = max(2.0, 5 * self._scale)
        theirs = _Waits(_contend(waits_of_busy_timeout, self._path(), seconds))
        ours = _Waits(_contend(waits_of_turnstile, self._path(), seconds))
        who = f"{WRITERS} writers"
        yield Row(f"{who}: longest wait", "ms", ours.longest, theirs.longest, best="low")
        yield Row(f"{who}: p99 wait", "ms", ours.p99, theirs.p99, target=50, best="low")
        yield Row(f"{who}: least share", "of fair", ours.least, theirs.least, best="low")


class _Waits:
    """How long writers waited for the lock, in milliseconds, and how fairly they got it."""

    def __init__(self, by_writer: list[list[float]]) -> None:
        together = sorted(wait * 1_000 for each in by_writer for wait in each)
        shares = [len(each) for each in by_writer]
        self.longest = together[-1]
        self.p99 = quantiles(together, n=100)[98]
        self.least = min(shares) / (sum(shares) / len(shares))


def fsync_micros(folder: Path) -> float:
    """Measure what one durable write of 8 kB costs in this folder."""
    path = folder / "fsync"
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter.
    times = []
    with path.open("wb", buffering=0) as file:
        file.write(b"\0" * 8_192)
        os.fsync(file.fileno())
        for _ in range(100):
            file.seek(0)
            began = time.perf_counter()
            file.write(b"\1" * 8_192)
            sync(file.fileno())
            times.append(time.perf_counter() - began)
    path.unlink()
    return median(times) * 1e6


def _timed(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    began = time.perf_counter()
    work(*args, **kwargs)
    return time.perf_counter() - began


def _fill(app: Fairlead, task: BoundTask[..., None], jobs: int) -> None:
    app.enqueue_many(task.call(*ARGUMENTS) for _ in range(jobs))


def _enqueue_together(task: BoundTask[..., None], each: int) -> None:
    async def caller() -> None:
        for _ in range(each):
            await task.aenqueue(*ARGUMENTS)

    async def all_callers() -> None:
        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    asyncio.run(all_callers())


async def _claim_and_return(app: Fairlead) -> float:
    """Time a claim, and give the jobs back so that the next finds the same."""
    began = time.perf_counter()
    jobs = (await app.store.claim(_plan(app))).jobs
    seconds = time.perf_counter() - began
    await app.store.settle([decide(job, Returned(), Policy(), 0) for job in jobs])
    return seconds


def _drain_all(app: Fairlead) -> None:
    app.bridge.run(_drain(app))


def _one_by_one(task: BoundTask[..., None], jobs: int) -> None:
    for _ in range(jobs):
        task.enqueue(*ARGUMENTS)


def _plan(app: Fairlead) -> ClaimPlan:
    return ClaimPlan("bench", tuple(app.queues.values()), 100, LEASE, capable=app.tasks.versions())


async def _drain(app: Fairlead) -> None:
    plan = _plan(app)
    policy = Policy()

    async def settle(jobs: list[Job]) -> None:
        await app.store.settle([decide(job, Done(), policy, 0) for job in jobs])

    async def lane() -> None:
        jobs = (await app.store.claim(plan)).jobs
        while jobs:
            claim, _ = await asyncio.gather(app.store.claim(plan), settle(jobs))
            jobs = claim.jobs

    await asyncio.gather(lane(), lane())


def _contend(
    writer: Callable[[Path, float], list[float]], path: Path, seconds: float
) -> list[list[float]]:
    Floor(path, "durable").close()
    with multiprocessing.get_context("spawn").Pool(WRITERS) as pool:
        return pool.starmap(writer, [(path, seconds)] * WRITERS, chunksize=1)
