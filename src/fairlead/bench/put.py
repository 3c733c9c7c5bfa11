"""Puts, in bulk, by many and one by one, in turns with the raw engine."""

from collections.abc import Iterator
from statistics import median

import msgspec

from fairlead.bench.engine import Engine
from fairlead.bench.row import Row, paired
from fairlead.bench.work import (
    enqueue_one_by_one,
    enqueue_together,
    fill,
    opened,
    prepared,
    size,
    timed,
)

Rates = list[float]


class WantedPuts(msgspec.Struct, frozen=True):
    """What puts shall reach on a server.

    `bulk` and `together` are jobs a second, `one_by_one` is the ratio to the bare
    driver; `callers` says how many come together.
    """

    bulk: int
    callers: int
    together: int
    one_by_one: float


class PutBench:
    """Rates of the raw engine and ours."""

    def __init__(self, engine: Engine, rounds: int, scale: float) -> None:
        self._engine = engine
        self._rounds = rounds
        self._scale = scale

    def rows(self, wanted: WantedPuts, raw: str) -> Iterator[Row]:
        """Measure everything; yields each row when it is known. `raw` says how many are put raw."""
        floor, ours = map(median, self.bulk())
        yield Row(f"bulk put, {raw}", "jobs/s", ours, floor, target=wanted.bulk, best="most")
        rates = self.together(wanted.callers)
        what = f"{wanted.callers} aenqueue callers"
        yield Row(what, "jobs/s", median(rates), target=wanted.together)
        yield paired("enqueue one by one", *self.one_by_one(), wanted.one_by_one)

    def bulk(self) -> tuple[Rates, Rates]:
        """Put many jobs, 1,000 a transaction; ours includes encoding and checking them."""
        jobs = size(50_000, self._scale)
        floor_rates, our_rates = [], []
        for _ in range(self._rounds):
            with self._engine.floor() as floor:
                floor_rates.append(jobs / floor.put(prepared(jobs), batch=1_000))
            with self._engine.place() as url:
                app, task = opened(url)
                our_rates.append(jobs / timed(fill, app, task, jobs))
                app.close()
        return floor_rates, our_rates

    def together(self, callers: int) -> Rates:
        """Let many callers await one put each, again and again, at full durability.

        In one place, as in a program that has run for a while: a log that still
        grows costs twice as much per commit as one that is written over.
        """
        each = size(20_000, self._scale) // callers
        with self._engine.place() as url:
            app, task = opened(url)
            enqueue_together(task, callers, each)
            rates = [
                each * callers / timed(enqueue_together, task, callers, each)
                for _ in range(self._rounds)
            ]
            app.close()
        return rates

    def one_by_one(self) -> tuple[Rates, Rates]:
        """Enqueue from one synchronous caller, a commit each."""
        jobs = size(2_000, self._scale)
        floor_rates, our_rates = [], []
        with self._engine.floor() as floor, self._engine.place() as url:
            app, task = opened(url)
            for _ in range(max(3, self._rounds)):
                floor_rates.append(jobs / floor.put(prepared(jobs), batch=1))
                our_rates.append(jobs / timed(enqueue_one_by_one, task, jobs))
            app.close()
        return floor_rates, our_rates
