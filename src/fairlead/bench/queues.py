"""Whether the pace stays the same with many queues, full ones and empty ones.

Jobs are drained at the store, without a worker, a hundred at a time. Each case has a place of its
own; they take turns with one queue, a chunk of jobs at a time.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, islice

import msgspec

from fairlead.app import Fairlead
from fairlead.bench.engine import Engine
from fairlead.bench.row import Row, paired, table
from fairlead.bench.work import ARGUMENTS, notify, rate_of_drain, size
from fairlead.core.queue import Queue

CHUNK = 4_000
TURNS = 3
"""How many chunks a round has: they are over before the machine's mood changes."""


class Case(msgspec.Struct, frozen=True):
    """How many queues there are, how many have jobs, and what part of one queue's rate we want."""

    queues: int
    full: int
    target: float | None = None

    @property
    def what(self) -> str:
        """What the row is called."""
        some = "all full" if self.full == self.queues else f"{self.full:,} full"
        return f"drain, {self.queues:,} queues, {some}"


ONE = Case(1, 1)
CASES = (Case(100, 100, 0.8), Case(100, 10, 0.8), Case(1_000, 1_000, 0.6), Case(1_000, 100, 0.6))


def many_queues(engine: Engine, rounds: int, scale: float) -> Iterator[str]:
    """Fill, drain and compare; yields line by line what to print."""
    yield from table(_rows(engine, rounds, scale), "one queue", "many")


def _rows(engine: Engine, rounds: int, scale: float) -> Iterator[Row]:
    chunk = size(CHUNK, scale)
    with ExitStack() as stack:
        apps = {case: stack.enter_context(_app(engine, stack, case)) for case in (ONE, *CASES)}
        for case, app in apps.items():
            _fill(app, case, (rounds * TURNS + 2) * chunk)
        rates: dict[Case, list[float]] = {case: [] for case in apps}
        for turn in range(rounds * TURNS + 1):
            for case, app in apps.items():
                rate = rate_of_drain(app, chunk)
                if turn:  # The first chunk warms up: connections, plans, caches.
                    rates[case].append(rate)
    for case in CASES:
        yield paired(case.what, rates[ONE], rates[case], case.target)


def _app(engine: Engine, stack: ExitStack, case: Case) -> Fairlead:
    url = stack.enter_context(engine.place())
    return Fairlead(url, queues=[Queue(f"q{number}") for number in range(case.queues)])


def _fill(app: Fairlead, case: Case, jobs: int) -> None:
    """Enqueue into those that shall have jobs, in turns; they are spread over all."""
    every = case.queues // case.full
    task = app.task(name="notify", queue="q0")(notify)
    tasks = [task.using(queue=f"q{number}") for number in range(0, case.queues, every)]
    app.enqueue_many(some.call(*ARGUMENTS) for some in islice(cycle(tasks), jobs))
