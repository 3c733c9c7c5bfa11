"""Jobs that wait outside the order, in a file: for a reason and under a key."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.admin import Filter, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.job import Gate
from fairlead.stores import store_for
from fairlead.stores.sqlite.store import SqliteStore
from fairlead.stores.sqlite.ways import bring_back
from tests import deeds
from tests.words import by, claim, failed, new_job, plan

DAY = 86_400 * SECOND


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = store_for(f"sqlite:///{path}", clock)
    assert isinstance(store, SqliteStore)
    await store.open()
    yield store
    await store.close()


def write(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(script)


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute(query).fetchall()


async def test_jobs_park_under_a_reason_and_a_key(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    kinds = [("a b", 1), ("a b", 2), ("c", 2)]
    await store.put([new_job(task, version=version) for task, version in kinds for _ in range(2)])
    await store.put([new_job(delay=SECOND)])
    await store.claim(plan(capable={"x": 1}))
    parked = "SELECT parked, park_key, count(*) FROM fairlead_job GROUP BY 1, 2 ORDER BY 1, 2"
    assert rows(path, parked) == [
        (1, None, 1),
        (2, "a b 0000000001", 2),
        (2, "a b 0000000002", 2),
        (2, "c 0000000002", 2),
    ]
    assert await deeds.unknown(store) == dict.fromkeys(kinds, 2)
    assert len(await claim(store, capable={"a b": 1})) == 2
    clock.advance(1)
    await store.upkeep(DAY)
    assert rows(path, parked) == [
        (0, None, 3),
        (2, "a b 0000000002", 2),
        (2, "c 0000000002", 2),
    ]
    [parked_job, *_] = await deeds.jobs(store, Filter(tasks=("c",)))
    assert parked_job.gate is Gate.NO_CAPABLE_WORKER
    await store.announce(Worker("w", {"c": 3, "a b": 2}), DAY)
    assert await deeds.unknown(store) == {}
    assert rows(path, "SELECT count(*) FROM fairlead_job WHERE park_key IS NULL") == [(7,)]


async def test_a_lost_run_that_parked_and_ends_after_all_is_parked_no_more(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    await store.put([new_job("strange")])
    [job] = await claim(store, lease=1)
    clock.advance(2)
    assert len((await store.claim(plan(capable={"t": 1}))).parked) == 1
    assert set(await store.settle([failed(job, clock.now())])) == {job.id}
    assert rows(path, "SELECT parked, park_key FROM fairlead_job") == [(1, None)]
    assert await store.admin.audit() == []


async def test_a_key_that_somebody_damaged_harms_no_other(store: SqliteStore, path: Path) -> None:
    await store.put([new_job("a"), new_job("b"), new_job("c"), new_job("d")])
    await store.claim(plan(capable={"t": 1}))
    write(
        path,
        """
        UPDATE fairlead_job SET park_key = NULL WHERE task = 'a';
        UPDATE fairlead_job SET park_key = x'ff' WHERE task = 'b';
        UPDATE fairlead_job SET park_key = CAST(x'ff' AS TEXT) WHERE task = 'c';
        """,
    )
    know = {"a": 1, "b": 1, "c": 1, "d": 1}
    assert [job.task for job in await claim(store, capable=know)] == ["d"]
    assert len(await deeds.unknown(store)) > 0
    assert {each.problem.partition(" ")[0] for each in await store.admin.audit()} == {"job"}
    await store.admin.repair(by())
    assert await store.admin.audit() == []
    assert {job.task for job in await claim(store, capable=know)} == {"a", "b", "c"}


@pytest.mark.parametrize("number_of_tasks", [1, 3_000])
async def test_a_claim_goes_along_what_its_worker_knows(
    store: SqliteStore, path: Path, number_of_tasks: int
) -> None:
    """Not along what is parked: that may be as many tasks as a producer thinks of."""
    jobs = [new_job(f"a task {number % number_of_tasks}") for number in range(3_000)]
    await store.put(jobs)
    while (await store.claim(plan(capable={"t": 1}))).parked:
        pass
    statement = "SELECT count(*) FROM fairlead_job WHERE parked = 2"
    assert rows(path, statement) == [(len(jobs),)]
    assert (await _steps(store)) < 300


async def test_a_worker_brings_back_what_it_knows_and_nothing_else(
    store: SqliteStore, path: Path
) -> None:
    kinds = [("a", 1), ("a", 9), ("a", 10), ("a ", 1), ("a 0000000005", 1), ("b", 1), ("B", 1)]
    await store.put([new_job(task, version=version) for task, version in kinds])
    await store.claim(plan(capable={"t": 1}))
    claimed = await store.claim(plan(capable={"a": 9, "b": 2**62}))
    known = {("a", 1), ("a", 9), ("b", 1)}
    assert {(job.task, job.version) for job in claimed.jobs} == known
    assert claimed.parked == []
    assert await deeds.unknown(store) == dict.fromkeys({*kinds} - known, 1)
    assert len((await store.claim(plan(capable=None))).jobs) == 4


async def _steps(store: SqliteStore) -> int:
    """Count how often SQLite calls back while a claim that knows nothing is made."""
    connection = (await store._opened()).writer._connection
    assert connection is not None
    counted = [0]

    def count() -> int:
        counted[0] += 1
        return 0

    connection.set_progress_handler(count, 10)
    await store.claim(plan(capable={"t": 1}))
    connection.set_progress_handler(None, 0)
    return counted[0]


async def test_what_is_parked_for_a_reason_is_found_by_leaps(
    store: SqliteStore, path: Path
) -> None:
    """Each claim asks while there is any; a key that somebody damaged opens for nobody."""
    await store.put([new_job() for _ in range(3_000)])
    write(path, "UPDATE fairlead_job SET parked = 9, park_key = iif(seq < 3000, 'full', 'open')")
    asked: list[str] = []

    def is_open(key: str) -> bool:
        asked.append(key)
        return key == "open"

    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        steps = [0]

        def count() -> None:
            steps[0] += 1

        raw.set_progress_handler(count, 10)
        assert bring_back(raw, 9, is_open) == 1
        assert asked == ["full", "open"]
        assert steps[0] < 300
        raw.set_progress_handler(None, 0)
        raw.execute("UPDATE fairlead_job SET park_key = CAST(x'ff' AS TEXT) WHERE seq = 1")
        raw.execute("UPDATE fairlead_job SET park_key = 'open' WHERE seq = 2")
        assert bring_back(raw, 9, is_open) == 1
    write(path, "UPDATE fairlead_job SET parked = 0, park_key = NULL")
