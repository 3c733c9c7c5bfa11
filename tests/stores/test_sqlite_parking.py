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
    assert rows(path, parked) == [(1, None, 1), (2, "1 a b", 2), (2, "2 a b", 2), (2, "2 c", 2)]
    assert await deeds.unknown(store) == dict.fromkeys(kinds, 2)
    assert len(await claim(store, capable={"a b": 1})) == 2
    clock.advance(1)
    await store.upkeep(DAY)
    assert rows(path, parked) == [(0, None, 3), (2, "2 a b", 2), (2, "2 c", 2)]
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


async def test_what_jobs_are_parked_for_is_found_without_reading_them_all(
    store: SqliteStore, path: Path
) -> None:
    """Each claim asks while there are any."""
    jobs = [new_job("a"), *(new_job("b") for _ in range(3_000)), new_job("c")]
    await store.put(jobs)
    while (await store.claim(plan(capable={"t": 1}))).parked:
        pass
    statement = "SELECT count(*) FROM fairlead_job WHERE parked = 2"
    assert rows(path, statement) == [(len(jobs),)]
    assert (await _steps(store)) < 300


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
