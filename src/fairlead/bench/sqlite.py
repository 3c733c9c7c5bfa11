"""SQLite beside bare `sqlite3`: the same rows, durability and batch size."""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from statistics import median, quantiles

from fairlead.app import Fairlead
from fairlead.bench.disk import fsync_micros
from fairlead.bench.put import PutBench
from fairlead.bench.queues import many_queues
from fairlead.bench.row import Row, paired, table
from fairlead.bench.work import drain_all, fill, opened, plan, prepared, size, timed
from fairlead.bench.worker import Wanted, WorkerBench
from fairlead.core.outcome import Policy, Returned, decide
from fairlead.stores.sqlite.floor import (
    Floor,
    seconds_of_drain,
    waits_of_busy_timeout,
    waits_of_turnstile,
)

CALLERS = 100
WRITERS = 8
WANTED = Wanted(drain={1: 0.35, 2: 0.35}, runners={"thread": 15_000, "process": 8_000}, p99=10)

_number = count()


def report(folder: Path, rounds: int, scale: float) -> Iterator[str]:
    """Measure everything; yields line by line what to print."""
    with tempfile.TemporaryDirectory(prefix="fairlead-bench-", dir=folder) as name:
        place = Path(name)
        yield (
            f"sqlite, Python {sys.version.split()[0]}, fdatasync of 8 kB takes "
            f"{fsync_micros(place):.0f} µs here, median of {rounds} rounds"
        )
        workers = WorkerBench(Files(place), rounds, scale, WANTED)
        yield from table(chain(Bench(place, rounds, scale).rows(), workers.rows()))
        yield from many_queues(Files(place), rounds, scale)


class Files:
    """Empty SQLite files in a folder."""

    def __init__(self, folder: Path, durability: str = "durable") -> None:
        self._folder = folder
        self._durability = durability

    def path(self) -> Path:
        """Name a file that nobody has made yet."""
        return self._folder / f"{next(_number)}.db"

    @contextmanager
    def place(self) -> Iterator[str]:
        """Name one by its URL."""
        yield f"sqlite:///{self.path()}?durability={self._durability}"

    @contextmanager
    def floor(self) -> Iterator[Floor]:
        """Let bare `sqlite3` work on one."""
        floor = Floor(self.path(), self._durability)
        yield floor
        floor.close()

    def seconds_of_drain(self, url: str, jobs: int) -> float:
        """Ask the attempt log in a file."""
        return seconds_of_drain(Path(url.removeprefix("sqlite:///").partition("?")[0]), jobs)


class Bench:
    """What is measured without a worker, each on files of its own."""

    def __init__(self, folder: Path, rounds: int, scale: float) -> None:
        self._files = Files(folder)
        self._fast_files = Files(folder, "fast")
        self._rounds = rounds
        self._scale = scale

    def rows(self) -> Iterator[Row]:
        """Measure everything; yields each row when it is known."""
        puts = PutBench(self._files, self._rounds, self._scale)
        yield paired("bulk put, batches of 1,000", *puts.bulk(), 0.5)
        yield self.drain()
        rates = puts.together(CALLERS)
        yield Row(f"{CALLERS} aenqueue callers", "jobs/s", median(rates), target=30_000)
        yield paired("enqueue one by one, durable", *puts.one_by_one(), 0.7)
        _, ours = PutBench(self._fast_files, self._rounds, self._scale).one_by_one()
        yield Row("enqueue one by one, fast", "jobs/s", median(ours), target=6_500)
        yield self.backlog()
        yield from self.contention()

    def drain(self) -> Row:
        """Claim and settle in batches of 100, with finished jobs and attempt log."""
        jobs = size(40_000, self._scale)
        floor_rates, our_rates = [], []
        for _ in range(self._rounds):
            with self._files.floor() as floor, self._files.place() as url:
                floor.put(prepared(jobs), batch=1_000)
                app, task = opened(url)
                fill(app, task, jobs)
                floor_rates.append(jobs / floor.drain(jobs))
                our_rates.append(jobs / timed(drain_all, app))
                app.close()
        return paired("claim + settle, batches of 100", floor_rates, our_rates, 0.5)

    def backlog(self) -> Row:
        """Compare a claim out of a million waiting jobs with one out of ten thousand."""
        small, large = 10_000, size(1_000_000, self._scale)
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
        with self._fast_files.place() as url:
            app, task = opened(url)
            fill(app, task, jobs)
        return app

    def contention(self) -> Iterator[Row]:
        """Let eight processes write one row at a time, each as fast as it can."""
        seconds = max(0.5, 5 * self._scale)
        theirs = _Waits(_contend(waits_of_busy_timeout, self._files.path(), seconds))
        ours = _Waits(_contend(waits_of_turnstile, self._files.path(), seconds))
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


async def _claim_and_return(app: Fairlead) -> float:
    """Time a claim, and give the jobs back so that the next finds the same."""
    began = time.perf_counter()
    jobs = (await app.store.claim(plan(app))).jobs
    seconds = time.perf_counter() - began
    await app.store.settle([decide(job, Returned(), Policy(), 0) for job in jobs])
    return seconds


def _contend(
    writer: Callable[[Path, float], list[float]], path: Path, seconds: float
) -> list[list[float]]:
    Floor(path, "durable").close()
    with multiprocessing.get_context("spawn").Pool(WRITERS) as pool:
        return pool.starmap(writer, [(path, seconds)] * WRITERS, chunksize=1)
