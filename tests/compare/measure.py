"""Measure one build: take requests as lines of JSON, answer each with one.

This program lies outside of both builds. PYTHONPATH names the one to measure, so nothing but
what every build has is imported here, and only where it is used: what a build lacks costs it
that row alone.
"""

import asyncio
import gc
import json
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ARGUMENTS = (12345, "someone@example.com", "Your order is on its way")
BATCH = 100
LEASE = 20_000_000


class Build:
    """An app of this build on a store, and what programs and workers do with it."""

    def __init__(self, url: str) -> None:
        from fairlead.app import Fairlead

        self.app = Fairlead(url)
        self.app.open()
        self.task = self.app.task(name="notify")(self._notify)
        self._runner = asyncio.Runner()
        self._ran = 0
        self._wanted = 0
        self._all_ran = asyncio.Event()
        self._claimed: list[Any] = []

    async def _notify(self, user_id: int, address: str, subject: str) -> None:
        self._ran += 1
        if self._ran == self._wanted:
            self._all_ran.set()

    # Putting

    def put_each(self, jobs: int) -> None:
        for _ in range(jobs):
            self.task.enqueue(*ARGUMENTS)

    def put_bulk(self, jobs: int) -> None:
        self.app.enqueue_many(self.task.call(*ARGUMENTS) for _ in range(jobs))

    # Claiming, extending and settling, as a worker does but one after the other

    def drain(self, jobs: int) -> None:
        self._runner.run(self._drain(jobs))

    async def _drain(self, jobs: int) -> None:
        done = 0
        while claimed := await self._claim():
            await self._settle(claimed)
            done += len(claimed)
        assert done == jobs, f"{done} of {jobs} jobs were claimed"

    def claim_all(self, jobs: int) -> None:
        self.put_bulk(jobs)
        self._runner.run(self._claim_all())

    async def _claim_all(self) -> None:
        while claimed := await self._claim():
            self._claimed += claimed

    def extend_all(self, jobs: int) -> None:
        self._runner.run(self._extend_all())

    async def _extend_all(self) -> None:
        leases = [(job.id, job.fence) for job in self._claimed]
        for first in range(0, len(leases), BATCH):
            await self.app.store.extend(leases[first : first + BATCH], LEASE)

    def settle_all(self, jobs: int) -> None:
        claimed, self._claimed = self._claimed, []
        self._runner.run(self._settle(claimed))

    async def _claim(self) -> list[Any]:
        from fairlead.core.selection import ClaimPlan

        queues, capable = tuple(self.app.queues.values()), self.app.tasks.versions()
        return (
            await self.app.store.claim(ClaimPlan("w", queues, BATCH, LEASE, capable=capable))
        ).jobs

    async def _settle(self, jobs: list[Any]) -> None:
        from fairlead.core.outcome import Done, Policy, decide

        await self.app.store.settle([decide(job, Done(), Policy(), 0) for job in jobs])

    # A whole worker

    def work(self, jobs: int) -> None:
        self._ran, self._wanted = 0, jobs
        self._runner.run(self._work())

    async def _work(self) -> None:
        self._all_ran = asyncio.Event()
        async with self.app.worker():
            await asyncio.wait_for(self._all_ran.wait(), 60)

    # No store

    def code(self, jobs: int) -> None:
        from fairlead.core.codec import Signature

        signature = Signature("notify", self._notify)
        for _ in range(jobs):
            signature.decode(signature.encode(ARGUMENTS, {}))


class Steps(NamedTuple):
    """What is measured, with what comes before and after it."""

    run: Callable[[Build, int], None]
    prepare: Callable[[Build, int], None] | None = None
    clean: Callable[[Build, int], None] | None = None


ROWS = {
    "put one by one": Steps(Build.put_each, clean=Build.drain),
    "put in bulk": Steps(Build.put_bulk, clean=Build.drain),
    "claim and settle": Steps(Build.drain, prepare=Build.put_bulk),
    "extend leases": Steps(Build.extend_all, prepare=Build.claim_all, clean=Build.settle_all),
    "embedded worker": Steps(Build.work, prepare=Build.put_bulk),
    "encode and decode": Steps(Build.code),
}


class SqliteCounts:
    """Reads along what SQLite is told, and how much it writes to its log."""

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("sqlite:///").partition("?")[0]
        self._told: Counter[str] = Counter()
        self._connect = sqlite3.connect
        sqlite3.connect = self._traced

    def _traced(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = self._connect(*arguments, **options)
        connection.set_trace_callback(self._note)
        return connection

    def _note(self, statement: str) -> None:
        self._told["statements"] += 1
        self._told["commits"] += statement.startswith("COMMIT")

    def begin(self) -> None:
        """Begin the log anew: what is in it afterwards was written in between."""
        connection = self._connect(self._path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.close()
        self._told.clear()

    def end(self) -> dict[str, int]:
        return {**self._told, "bytes written": Path(f"{self._path}-wal").stat().st_size}


def measured(build: Build, counts: SqliteCounts | None, row: str, jobs: int, step: str) -> Any:
    """Carry out one step of a row; returns what it took."""
    action = getattr(ROWS[row], step)
    if action is None:
        return {}
    gc.collect()
    gc.freeze()  # What earlier rows left behind shall not slow down this one.
    if counts:
        counts.begin()
    began, began_cpu = time.perf_counter(), time.process_time()
    action(build, jobs)
    seconds, cpu = time.perf_counter() - began, time.process_time() - began_cpu
    return {"seconds": seconds, "cpu": cpu, "counts": counts.end() if counts else {}}


def main(url: str, *options: str) -> None:
    """Answer until there are no more requests."""
    # Only answers may be on standard output, whatever else is printed.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    counts = SqliteCounts(url) if "--trace" in options else None
    build = Build(url)
    print(json.dumps({}), file=answers)
    for line in sys.stdin:
        try:
            answer = measured(build, counts, **json.loads(line))
        except BaseException as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}".splitlines()[0]}
        print(json.dumps(answer), file=answers)
    build.app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
