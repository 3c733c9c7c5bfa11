"""Whole workers, as `fairlead worker` starts them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from statistics import median, quantiles

import msgspec

from fairlead.app import Fairlead
from fairlead.bench.engine import Engine
from fairlead.bench.row import Row, paired
from fairlead.bench.work import fill, opened, prepared, size
from fairlead.core.job import State
from fairlead.producer import BoundTask
from fairlead.runtime.memory import resident_bytes

TARGET = "fairlead.bench.jobs:app"
PATIENCE = 300.0
BLOCKED = 8.0
"""For how long a handler blocks its loop, in seconds; with few jobs it may be less."""


async def stamp() -> int:
    """Stand in for the task that tells when its handler runs."""
    return 0


async def block(seconds: float) -> int:
    """Stand in for the task that keeps its loop from turning, and tells since when."""
    return 0


async def linger(seconds: float) -> int:
    """Stand in for the task that runs for a while, and tells since when."""
    return 0


class Wanted(msgspec.Struct, frozen=True):
    """What a worker shall reach on a store.

    `drain` is the ratio to the raw engine by the number of processes, `runners` the
    jobs a second by runner, and `p50` and `p99` the milliseconds from enqueue to handler.
    """

    drain: Mapping[int, float]
    p99: float
    p50: float = 3
    runners: Mapping[str, int] = {}


class WorkerBench:
    """Drains and latencies, each in places of their own."""

    def __init__(self, engine: Engine, rounds: int, scale: float, wanted: Wanted) -> None:
        self._engine = engine
        self._rounds = min(3, rounds)
        self._scale = scale
        self._wanted = wanted

    def rows(self) -> Iterator[Row]:
        """Measure everything; yields each row when it is known."""
        jobs = size(100_000, self._scale)
        for processes, ratio in self._wanted.drain.items():
            floor, ours = self._beside_floor(jobs, processes)
            what = f"worker, {processes} process{'es' if processes > 1 else ''}"
            yield paired(what, floor, ours, ratio)
        for runner, target in self._wanted.runners.items():
            rates = [self._drain(jobs // 2, 1, runner) for _ in range(self._rounds)]
            yield Row(f"worker, {runner} runner", "jobs/s", median(rates), target=target)
        yield from self._idle()
        killed = median(self._after_a_kill() for _ in range(self._rounds))
        yield Row("job of a killed process runs again", "s", killed, target=0.7, best="low")
        blocked = median(self._behind_a_blocked_loop() for _ in range(self._rounds))
        yield Row("jobs behind a blocked loop ran", "s", blocked, target=2, best="low")

    def _beside_floor(self, jobs: int, processes: int) -> tuple[list[float], list[float]]:
        """Take turns with the raw engine, which claims and settles the same rows."""
        floor_rates, our_rates = [], []
        for _ in range(self._rounds):
            with self._engine.floor() as floor:
                floor.put(prepared(jobs), batch=1_000)
                floor_rates.append(jobs / floor.drain(jobs, processes))
            our_rates.append(self._drain(jobs, processes, "async"))
        return floor_rates, our_rates

    def _drain(self, jobs: int, processes: int, runner: str) -> float:
        """Let a worker run that many jobs of one queue; returns how many a second."""
        with self._engine.place() as url:
            app, task = opened(url)
            fill(app, task, jobs)
            app.close()
            return drained(self._engine, url, jobs, processes, runner)

    def _idle(self) -> Iterator[Row]:
        """Enqueue into an idle worker, one job at a time, from another process."""
        with (
            self._engine.place() as url,
            Fairlead(url) as app,
            _worker(url, "async") as process,
        ):
            task = app.task(name="stamp")(stamp)
            task.enqueue().result(timeout=30)
            time.sleep(1)
            megabytes = max(map(resident_bytes, _children(process.pid))) / 1e6
            waits = _waits(task, max(10, round(500 * self._scale)))
        p99 = quantiles(waits, n=100)[98]
        yield Row("idle latency, p50", "ms", median(waits), target=self._wanted.p50, best="low")
        yield Row("idle latency, p99", "ms", p99, target=self._wanted.p99, best="low")
        yield Row("idle worker process", "MB", megabytes, target=60, best="low")

    def _after_a_kill(self) -> float:
        """Kill the one process of a worker; returns the seconds until its job runs again."""
        with self._engine.place() as url, Fairlead(url) as app, _worker(url, "async") as process:
            job = app.task(name="linger")(linger).enqueue(2.0)
            _until(lambda: job.status() is State.RUNNING)
            time.sleep(0.5)  # It was claimed; now it has started.
            [child] = _children(process.pid, "fairlead.cli.process")
            killed_at = time.time_ns()
            os.kill(child, signal.SIGKILL)
            return (job.result(timeout=PATIENCE) - killed_at) / 1e9

    def _behind_a_blocked_loop(self) -> float:
        """Let one of two processes claim quick jobs behind one that blocks its loop.

        Returns the seconds until the last of them ran, since it was blocked.
        """
        with (
            self._engine.place() as url,
            Fairlead(url) as app,
            _worker(url, "async", "--processes", "2"),
        ):
            quick = app.task(name="stamp")(stamp)
            _until(lambda: len(app.bridge.run(app.store.admin.workers())) > 0)
            quick.enqueue().result(timeout=30)
            time.sleep(1)  # The other process is up, too.
            first = app.task(name="block")(block).call(max(3.0, BLOCKED * min(1.0, self._scale)))
            calls = [quick.call() for _ in range(99)]
            app.enqueue_many([first, *calls])
            ran: list[int] = [app.job(call.id).result(timeout=PATIENCE) for call in calls]
            began: int = app.job(first.id).result(timeout=PATIENCE)
            return (max(ran) - began) / 1e9


def drained(
    engine: Engine, url: str, jobs: int, processes: int = 1, runner: str = "async", queues: int = 0
) -> float:
    """Let a worker with so many queues run the jobs of a place.

    Returns how many a second, from its first claim to its last settlement.
    """
    options = ("--processes", str(processes), "--drain")
    with _worker(url, runner, *options, queues=queues) as process:
        process.wait(PATIENCE)
    return jobs / engine.seconds_of_drain(url, jobs)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)


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
def _worker(
    url: str, runner: str, *options: str, queues: int = 0
) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "FAIRLEAD_URL": url,
        "FAIRLEAD_BENCH_RUNNER": runner,
        "FAIRLEAD_BENCH_QUEUES": str(queues),
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


def _children(pid: int, command: str = "") -> list[int]:
    """Return the processes of a worker, by their parent, and by what is in their command."""
    asked = subprocess.run(  # noqa: S603 (a fixed command and a number)
        ["/usr/bin/env", "ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line.split()[0]) for line in asked.stdout.splitlines() if command in line]
