"""Transactions on SQLite: whose connection, whose thread, and who waits for whom."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import ConfigError
from fairlead.core.job import State
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.sqlite.connection import WriteLock
from tests.words import are_new, claim, done, new_job


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = store_for(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    yield store
    assert await store.admin.audit() == []
    await store.close()


@pytest.fixture
def rows(store: Store, tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "jobs.db", timeout=0)
    connection.execute("CREATE TABLE effect (n)")
    connection.commit()
    return connection


def effects(rows: sqlite3.Connection) -> list[int]:
    return [n for (n,) in rows.execute("SELECT n FROM effect ORDER BY n")]


async def test_coroutines_have_what_most_code_uses(store: Store, rows: sqlite3.Connection) -> None:
    async with store.atransaction() as conn:
        added = await conn.execute("INSERT INTO effect VALUES (?)", (1,))
        assert (added.rowcount, added.lastrowid) == (1, 1)
        await conn.executemany("INSERT INTO effect VALUES (?)", [(2,), (3,)])
        await conn.execute("INSERT INTO effect VALUES (:n)", {"n": 4})
        found = await conn.execute("SELECT n FROM effect ORDER BY n")
        assert await found.fetchone() == (1,)
        assert await found.fetchall() == [(2,), (3,), (4,)]
        assert await found.fetchone() is None
    assert effects(rows) == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match="this transaction is over"):
        await conn.execute("SELECT 1")


async def test_an_error_that_is_kept_keeps_no_lock(store: Store, rows: sqlite3.Connection) -> None:
    """Its traceback holds a cursor, and SQLite closes no connection before its cursors."""
    kept: list[tuple[Exception, sqlite3.Cursor]] = []
    with pytest.raises(ZeroDivisionError), store.transaction() as conn:
        conn.execute("INSERT INTO effect VALUES (1), (2), (3)")
        cursor = conn.execute("SELECT n FROM effect")
        kept.append((ZeroDivisionError(), cursor))
        cursor.fetchone()
        raise kept[0][0]
    rows.execute("INSERT INTO effect VALUES (4)")
    rows.commit()
    assert effects(rows) == [4]


async def test_more_coroutines_than_a_pool_has_threads_take_their_turns(
    store: Store, rows: sqlite3.Connection
) -> None:
    """Those who wait for the lock must not keep the one who has it from a thread."""

    async def add(n: int) -> None:
        async with store.atransaction() as conn:
            await asyncio.sleep(0)
            await conn.execute("INSERT INTO effect VALUES (?)", (n,))

    async with asyncio.timeout(20):
        await asyncio.gather(*map(add, range(60)))
    assert effects(rows) == list(range(60))


async def test_a_wait_for_the_lock_that_is_cancelled_leaves_no_lock_behind(
    store: Store, rows: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, waiting, loop = WriteLock.begin, asyncio.Event(), asyncio.get_running_loop()

    def noted(*args: Any) -> None:
        loop.call_soon_threadsafe(waiting.set)
        begin(*args)

    async def add() -> None:
        async with store.atransaction() as conn:
            await conn.execute("INSERT INTO effect VALUES (1)")

    async with store.atransaction():
        monkeypatch.setattr(WriteLock, "begin", noted)
        waits = asyncio.ensure_future(add())
        await waiting.wait()
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
    async with asyncio.timeout(10):
        assert are_new(await store.put([new_job()])) == [True]
    assert effects(rows) == []


async def test_a_cancelled_block_is_rolled_back(store: Store, rows: sqlite3.Connection) -> None:
    begun = asyncio.Event()

    async def add() -> None:
        async with store.atransaction() as conn:
            await conn.execute("INSERT INTO effect VALUES (1)")
            begun.set()
            await asyncio.Event().wait()

    adding = asyncio.ensure_future(add())
    await begun.wait()
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert effects(rows) == []
    async with asyncio.timeout(10):
        assert are_new(await store.put([new_job()])) == [True]


async def test_who_ends_the_transaction_inside_its_block_is_told(
    store: Store, rows: sqlite3.Connection
) -> None:
    with (
        pytest.raises(ConfigError, match="leave COMMIT and ROLLBACK to the block"),
        store.transaction() as conn,
    ):
        conn.execute("ROLLBACK")


async def test_a_connection_that_commits_each_statement_is_refused(
    store: Store, tmp_path: Path
) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    conn = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    with pytest.raises(ConfigError, match="this one commits every statement by itself"):
        store.complete_within(conn, done(job)).run()
    with pytest.raises(ConfigError, match="this one commits every statement by itself"):
        store.put_within(conn, []).run()
    conn.execute("BEGIN")
    assert store.complete_within(conn, done(job)).run() is not None
    conn.execute("COMMIT")
    conn.close()


async def test_the_fence_is_read_under_the_write_lock(store: Store, tmp_path: Path) -> None:
    """What was true when it was read must be true at the commit: nobody writes in between."""
    await store.put([new_job()])
    [job] = await claim(store)
    theirs = sqlite3.connect(tmp_path / "jobs.db", timeout=0)
    other = sqlite3.connect(tmp_path / "jobs.db", timeout=0)
    read: list[str] = []
    theirs.set_trace_callback(read.append)
    store.complete_within(theirs, done(job)).run()
    first = next(text for text in read if "fairlead_job" in text)
    assert "UPDATE" in first, "a look before it could be outdated when the lock is ours"
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("DELETE FROM fairlead_job")
    theirs.commit()
    assert (await store.admin.count())["mail"] == {State.DONE: 1}
    theirs.close()
    other.close()


async def test_the_callers_factories_do_not_matter(store: Store, tmp_path: Path) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    conn = sqlite3.connect(tmp_path / "jobs.db")
    conn.row_factory = lambda cursor, row: {"odd": row}
    conn.text_factory = bytes
    assert store.complete_within(conn, done(job, '"é"')).run() is not None
    conn.commit()
    conn.close()
    record = await store.admin.find(job.id)
    assert record is not None
    assert record.result == '"é"'


async def test_a_plain_enqueue_on_a_connection_for_coroutines_says_what_to_write(
    store: Store,
) -> None:
    async with store.atransaction() as conn:
        with pytest.raises(ConfigError, match=r"write `await task\.aenqueue"):
            store.put_within(conn, [new_job()]).run()
