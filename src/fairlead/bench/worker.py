"""Whole workers, as `fairlead worker` starts them, on an SQLite file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median, quantiles

from fairlead.app import Fairlead
from fairlead.bench.row import Row, paired
from fairlead.bench.sqlite import ARGUMENTS
from fairlead.producer import BoundTask
from fairlead.runtime.memory import resident_bytes
from fairlead.stores.sqlite.floor import Floor, seconds_of_drain

TARGET = "fairlead.bench.jobs:app"
PATIENCE = 300.0


async def notify(user_id: int, address: str, subject: str) -> None:
    """Stand in for the task of the same name, which another process runs."""


async def stamp() -> int:
    """Stand in for the task that tells when its handler runs."""
    return 0


class WorkerBench:
    """Drains and latencies, each on files of its own."""

    def __init__(self, folder: Path, rounds: int, scale: float) -> None:
        self._folder = folder
        self._rounds = min(3, rounds)
        self._scale = scale
        self._number = 0

    def rows(self) -> Iterator[Row]:
        """Measure everything; yields each row when it is known."""
        jobs = round(100_000 * self._scale)
        for processes in (1, 2):
            floor, ours = self._beside_floor(jobs, processes)
            what = f"worker, {processes} process{'es' if processes > 1 else ''}"
            yield paired(what, floor, ours, 0.35)
        for runner, target in (("thread", 15_000), ("process", 8_000)):
            rates = [self._drain(jobs // 2, 1, runner) for _ in range(self._rounds)]
            yield Row(f"worker, {runner} runner", "jobs/s", median(rates), target=target)
        yield from self._idle()

    def _file(self) -> Path:
        self._number += 1
        return self._folder / f"worker-{self._number}.db"

    def _beside_floor(self, jobs: int, processes: int) -> tuple[list[float], list[float]]:
        """Take turns with the raw engine, which claims and settles the same rows."""
        floor_rates, our_rates = [], []
        for _ in range(self._rounds):
            floor = Floor(self._file(), "durable")
            with Fairlead(f"sqlite:///{self._file()}") as app:
                task = app.task(name="notify")(notify)
                floor.put([task.call(*ARGUMENTS).job for _ in range(jobs)], batch=1_000)
            floor_rates.append(jobs / floor.drain("default", batch=100, jobs=jobs))
            floor.close()
            our_rates.append(self._drain(jobs, processes, "async"))
        return floor_rates, our_rates

    def _drain(self, jobs: int, processes: int, runner: str) -> float:
        """Let a worker run that many jobs; returns how many a second, from its first claim."""
        path = self._file()
        with Fairlead(f"sqlite:///{path}") as app:
            task = app.task(name="notify")(notify)
            app.enqueue_many(task.call(*ARGUMENTS) for _ in range(jobs))
        with _worker(path, runner, "--processes", str(processes), "--drain") as process:
            process.wait(PATIENCE)
        return jobs / seconds_of_drain(path, jobs)

    def _idle(self) -> Iterator[Row]:
        """Enqueue into an idle worker, one job at a time, from another process."""
        path = self._file()
        with Fairlead(f"sqlite:///{path}") as app, _worker(path, "async") as process:
            task = app.task(name="stamp")(stamp)
            task.enqueue().result(timeout=30)
            time.sleep(1)
            size = max(map(resident_bytes, _children(process.pid))) / 1e6
            waits = _waits(task, max(100, round(500 * self._scale)))
        yield Row("idle latency, p50", "ms", median(waits), target=3, best="low")
        yield Row("idle latency, p99", "ms", quantiles(waits, n=100)[98], target=10, best="low")
        yield Row("idle worker process", "MB", size, target=60, best="low")


def _waits(task: BoundTask[[], int], number: int) -> list[float]:
    """Return the milliseconds from each call of `enqueue` to the first line of its handler.

    The results are asked for at the end: to wait for one beside its worker would
    measure the wait as well.
    """
    calls = []
    for _ in range(number):
        time.sleep(Random().uniform(0.02, 0.04))
        began = time.time_ns()
        calls.append((began, task.enqueue()))
    return [(job.result(timeout=30) - began) / 1e6 for began, job in calls]


@contextmanager
def _worker(path: Path, runner: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "FAIRLEAD_URL": f"sqlite:///{path}",
        "FAIRLEAD_BENCH_RUNNER": runner,
    }
    process = subprocess.Popen(  # noqa: S603 (this interpreter, our own command)
        [sys.executable, "-m", "fairlead", "worker", TARGET, "--loop", "asyncio", *options],
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


def _children(pid: int) -> list[int]:
    """Return the processes of a worker, by their parent."""
    asked = subprocess.run(  # noqa: S603 (a fixed command and a number)
        ["/usr/bin/env", "ps", "-o", "pid=", "--ppid", str(pid)],
        capture_output=True,
        check=True,
    )
    return [int(child) for child in asked.stdout.split()]
