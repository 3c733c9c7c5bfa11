"""Many queues: what a claim costs follows from its slots, and all of them are served (F78)."""

import math
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.queue import Queue
from fairlead.core.selection import Claim, ClaimPlan, Lines
from fairlead.core.store import Store
from fairlead.core.turns import Lineup
from fairlead.stores import store_for
from fairlead.stores.sqlite.line import SqliteLine
from tests import deeds
from tests.words import by, new_job


def lineup_of(number: int) -> Lineup:
    return Lineup(Queue(f"q{n}") for n in range(number))


def asked(lineup: Lineup, slots: int, credits: Mapping[str, float]) -> ClaimPlan:
    return ClaimPlan("w1", lineup, slots, 3600 * SECOND, credits=credits)


async def fill(store: Store, queues: int, *, each: int, every: int = 1) -> list[JobId]:
    """Put jobs into every so-manieth queue, in turns."""
    jobs = [new_job(queue=f"q{n}") for _ in range(each) for n in range(0, queues, every)]
    await store.put(jobs)
    return [job.id for job in jobs]


@pytest.mark.parametrize("every", [1, 10])
async def test_many_queues_take_turns(store: Store, every: int) -> None:
    """Each gives its first job before any gives its second, and no slot stays free."""
    lineup = lineup_of(120)
    put = await fill(store, 120, each=2, every=every)
    credits: Mapping[str, float] = {}
    claimed: list[JobId] = []
    claims = 0
    while len(claimed) < len(put):
        claims += 1
        answer = await store.claim(asked(lineup, 50, credits))
        credits = answer.credits
        claimed += [job.id for job in answer.jobs]
        queues = [job.queue for job in answer.jobs]
        assert len(queues) == min(50, len(put) - len(claimed) + len(queues))
    assert claims == math.ceil(len(put) / 50)
    half = len(put) // 2
    assert set(claimed[:half]) == set(put[:half])
    assert len(set(claimed)) == len(put)


async def test_a_job_that_falls_due_in_a_queue_nobody_asked_gets_its_turn(
    store: Store, clock: ManualClock
) -> None:
    """One in fifty queues; the others are full, and a claim has one slot."""
    lineup = lineup_of(50)
    await fill(store, 49, each=3)
    late = new_job(queue="q49", delay=10 * SECOND)
    await store.put([late])
    credits: Mapping[str, float] = {}
    for _ in range(10):
        credits = (await store.claim(asked(lineup, 1, credits))).credits
    clock.advance(11)
    served: list[JobId] = []
    while late.id not in served:
        assert len(served) <= 50 + 50
        answer = await store.claim(asked(lineup, 1, credits))
        credits = answer.credits
        served += [job.id for job in answer.jobs]


async def test_paused_queues_among_many_are_passed_over(store: Store) -> None:
    lineup = lineup_of(30)
    await fill(store, 30, each=1)
    for number in range(0, 30, 2):
        await deeds.pause(store, f"q{number}", by())
    answer = await store.claim(asked(lineup, 30, {}))
    assert sorted(job.queue for job in answer.jobs) == sorted(f"q{n}" for n in range(1, 30, 2))


# What it costs, counted


@pytest.mark.parametrize(("queues", "every"), [(1_000, 1), (1_000, 10)])
async def test_memory_asks_as_many_queues_as_it_serves(
    monkeypatch: pytest.MonkeyPatch, queues: int, every: int
) -> None:
    store = store_for("memory://")
    await fill(store, queues, each=2, every=every)
    opened: Counter[str] = Counter()
    read = Lines.__missing__

    def counted(self: Lines, name: str) -> object:
        opened[name] += 1
        return read(self, name)

    monkeypatch.setattr(Lines, "__missing__", counted)
    await store.claim(asked(lineup_of(queues), 50, {}))
    assert opened.total() == 50


class Counted:
    """Claims on a connection of its own, and how many statements and steps of the engine they took."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._line = SqliteLine(clock)
        self._connection.set_progress_handler(self._step, 100)
        self._connection.set_trace_callback(lambda _: self._count())
        self.steps = self.statements = 0

    def _step(self) -> int:
        self.steps += 1
        return 0

    def _count(self) -> None:
        self.statements += 1

    def claim(self, plan: ClaimPlan) -> Claim:
        self.steps = self.statements = 0
        [answer] = self._line.claim(self._connection, [plan])
        return answer

    def close(self) -> None:
        self._connection.close()


@pytest.mark.parametrize(("queues", "every"), [(100, 1), (100, 10), (1_000, 1), (1_000, 10)])
async def test_sqlite_takes_as_many_statements_and_little_more_steps(
    tmp_path: Path, clock: ManualClock, queues: int, every: int
) -> None:
    """Beside one queue: a handful of statements, and the engine does at most twice as much."""
    costs = {}
    for number, step in ((1, 1), (queues, every)):
        path = tmp_path / f"{number}.db"
        store = store_for(f"sqlite:///{path}", clock)
        await fill(store, number, each=200 * step // number + 1, every=step)
        with closing(Counted(path, clock)) as counted:
            lineup = lineup_of(number)
            answer = counted.claim(asked(lineup, 50, {}))
            answer = counted.claim(asked(lineup, 50, answer.credits))
            assert len(answer.jobs) == 50
            costs[number] = (counted.statements, counted.steps)
        await store.close()
    (_, one), (statements, many) = costs.values()
    assert statements <= 8
    assert many <= 2 * one
