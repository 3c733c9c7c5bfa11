"""Whether a worker keeps its pace with many queues, full ones and empty ones.

A worker drains jobs from many queues, and as many from one queue, in turns. Each drain has a place
of its own.
"""

from collections.abc import Iterator
from itertools import cycle, islice

import msgspec

from fairlead.app import Fairlead
from fairlead.bench.engine import Engine
from fairlead.bench.row import Row, paired, table
from fairlead.bench.work import ARGUMENTS, notify, size
from fairlead.bench.worker import drained
from fairlead.core.queue import Queue

JOBS = 40_000


class Case(msgspec.Struct, frozen=True):
    """How many queues there are, how many have jobs, and what part of one queue's rate we want."""

    queues: int
    full: int
    target: float | None = None

    @property
    def what(self) -> str:
        """What the row is called."""
        some = "all full" if self.full == self.queues else f"{self.full:,} full"
        return f"worker, {self.queues:,} queues, {some}"


ONE = Case(1, 1)
CASES = (Case(100, 100, 0.8), Case(100, 10, 0.8), Case(1_000, 1_000, 0.6), Case(1_000, 100, 0.6))


def many_queues(engine: Engine, rounds: int, scale: float) -> Iterator[str]:
    """Fill, drain and compare; yields line by line what to print."""
    yield from table(_rows(engine, min(3, rounds), scale), "one queue", "many")


def _rows(engine: Engine, rounds: int, scale: float) -> Iterator[Row]:
    cases, jobs = (ONE, *CASES), size(JOBS, scale)
    turns = [[_drain(engine, case, jobs) for case in cases] for _ in range(rounds)]
    one, *many = (list(rates) for rates in zip(*turns, strict=True))
    for case, rates in zip(CASES, many, strict=True):
        yield paired(case.what, one, rates, case.target)


def _drain(engine: Engine, case: Case, jobs: int) -> float:
    """Let a worker run that many jobs of some of its queues; returns how many a second."""
    queues = [Queue(f"q{number}") for number in range(case.queues)]
    with engine.place() as url:
        with Fairlead(url, queues=queues) as app:
            _fill(app, case, jobs)
        return drained(engine, url, jobs, queues=case.queues)


def _fill(app: Fairlead, case: Case, jobs: int) -> None:
    """Enqueue into those that shall have jobs, in turns; they are spread over all."""
    every = case.queues // case.full
    task = app.task(name="notify")(notify)
    tasks = [task.using(queue=f"q{number}") for number in range(0, case.queues, every)]
    app.enqueue_many(some.call(*ARGUMENTS) for some in islice(cycle(tasks), jobs))
