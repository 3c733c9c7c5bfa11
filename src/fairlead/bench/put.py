"""Puts, in bulk, by many and one by one, in turns with the raw engine."""

from fairlead.bench.engine import Engine
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


class PutBench:
    """Rates of the raw engine and ours."""

    def __init__(self, engine: Engine, rounds: int, scale: float) -> None:
        self._engine = engine
        self._rounds = rounds
        self._scale = scale

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
