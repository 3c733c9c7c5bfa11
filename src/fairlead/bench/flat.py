"""Whether the pace of PostgreSQL stays the same, whatever else is in the tables.

Jobs are drained at the store, without a worker: with one process less to start and
no handlers in between, the rates differ by less from round to round. Each case has
a database of its own, so that a snapshot held in one keeps nothing in another. They
take turns, a chunk of jobs at a time.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from fairlead.app import Fairlead
from fairlead.bench.postgres import described, own_server
from fairlead.bench.row import Row, paired, table
from fairlead.bench.work import (
    ARGUMENTS,
    Notify,
    drain,
    notify,
    opened,
    prepared,
    rate_of_drain,
    size,
)
from fairlead.core.errors import StoreError
from fairlead.core.ids import JobId
from fairlead.core.job import Job
from fairlead.core.outcome import Policy, Returned, decide
from fairlead.stores.postgres.floor import create_database, fill, held_snapshot

CHUNK = 40_000
UNDER_SNAPSHOT = 500_000
PROBES = 5
PROBED = 300_000
"""How many jobs are there while single ones are timed, so that the queue is never empty."""
PATIENCE = 30.0
HEAD_START = 600


class Case(msgspec.Struct, frozen=True):
    """What is in the tables before the first chunk, and whether a snapshot of that is held."""

    what: str
    waiting: int
    finished: int = 0
    held: bool = False


def report(folder: Path, rounds: int, scale: float) -> Iterator[str]:
    """Fill, drain and compare; yields line by line what to print."""
    with own_server(folder) as server, ExitStack() as open_until_the_end:
        yield f"{described(server.url())}, median of {rounds} rounds"
        apps: dict[str, Fairlead] = {}
        cases = _cases(rounds, scale)
        for number, case in enumerate(cases):
            began = time.perf_counter()
            create_database(server.url(), f"flat_{number}")
            url = server.url(f"flat_{number}")
            apps[case.what] = open_until_the_end.enter_context(_filled(url, case))
            if case.held:
                open_until_the_end.enter_context(held_snapshot(f"{url}?schema=fairlead"))
            yield f"{case.what}: filled in {time.perf_counter() - began:.0f} s"
        yield from table(_rows(cases, apps, rounds, scale), "plain", "here")


def _cases(rounds: int, scale: float) -> list[Case]:
    chunks = (rounds + 2) * size(CHUNK, scale)
    waiting, finished = size(10_000_000, scale), size(5_000_000, scale)
    drained = size(UNDER_SNAPSHOT, scale)
    return [
        Case("plain", chunks),
        Case(f"{waiting:,} waiting", waiting + chunks),
        Case(f"{finished:,} finished", chunks, finished=finished),
        Case("old snapshot", drained + chunks + PROBED, held=True),
    ]


@contextmanager
def _filled(url: str, case: Case) -> Iterator[Fairlead]:
    app, _ = opened(url)
    try:
        [job] = prepared(1)
        fill(url, case.waiting, case.finished, job.payload)
        yield app
    finally:
        app.close()


def _rows(cases: list[Case], apps: dict[str, Fairlead], rounds: int, scale: float) -> Iterator[Row]:
    plain, *others = cases
    held = apps[others[-1].what]
    rate_of_drain(held, size(UNDER_SNAPSHOT, scale))
    rates: dict[str, list[float]] = {case.what: [] for case in cases}
    for turn in range(rounds + 1):
        for case in cases:
            rate = rate_of_drain(apps[case.what], size(CHUNK, scale))
            if turn:  # The first chunk warms up: connections, plans, caches.
                rates[case.what].append(rate)
    for case in others:
        yield paired(f"drain, {case.what}", rates[plain.what], rates[case.what], 0.8)
    head_started, given_back = held.bridge.run(_out_of_turn(held))
    for what, waits in (("head start", head_started), ("given back", given_back)):
        worst = max(waits) * 1_000
        yield Row(f"old snapshot, {what}, worst", "ms", worst, target=1_000, best="low")


class _Lookout:
    """Goes through what a drain claims, for jobs whose start somebody waits for."""

    def __init__(self) -> None:
        self._expected: dict[JobId, asyncio.Future[None]] = {}
        self._wanted: asyncio.Future[Job] | None = None
        self._over = False

    def __call__(self, claimed: list[Job]) -> bool:
        for job in claimed:
            if job.id in self._expected:
                self._expected.pop(job.id).set_result(None)
        if self._wanted is not None and claimed:
            self._wanted.set_result(claimed.pop())
            self._wanted = None
        return bool(claimed) and not self._over

    def expect(self, job_id: JobId) -> asyncio.Future[None]:
        """Return what is done when this job is claimed."""
        future = self._expected[job_id] = asyncio.get_running_loop().create_future()
        return future

    async def take(self) -> Job:
        """Take a job away from the drain."""
        self._wanted = asyncio.get_running_loop().create_future()
        return await self._wanted

    def end(self) -> None:
        """Let the drain end."""
        self._over = True


async def _out_of_turn(app: Fairlead) -> tuple[list[float], list[float]]:
    """Time jobs that come to stand before the others, while those are drained."""
    lookout = _Lookout()
    elsewhere = Fairlead(app.store.url)  # Somebody else: the drain is told nothing directly.
    task = elsewhere.task(name="notify")(notify)
    await app.store.wait(0)
    draining = asyncio.ensure_future(drain(app, lookout))
    head_started, given_back = [], []
    for _ in range(PROBES):
        head_started.append(await _head_start(elsewhere, task, lookout))
        if draining.done():
            raise StoreError("the queue ran empty; the figures would mean nothing")
        given_back.append(await _give_back(elsewhere, lookout))
    lookout.end()
    await draining
    await elsewhere.store.close()
    return head_started, given_back


async def _head_start(app: Fairlead, task: Notify, lookout: _Lookout) -> float:
    call = task.using(priority=HEAD_START).call(*ARGUMENTS)
    started = lookout.expect(call.job.id)
    began = time.perf_counter()
    await app.aenqueue_many([call])
    await asyncio.wait([started], timeout=PATIENCE)
    return time.perf_counter() - began


async def _give_back(app: Fairlead, lookout: _Lookout) -> float:
    job = await lookout.take()
    started = lookout.expect(job.id)
    began = time.perf_counter()
    await app.store.settle([decide(job, Returned(), Policy(), 0)])
    await asyncio.wait([started], timeout=PATIENCE)
    return time.perf_counter() - began
