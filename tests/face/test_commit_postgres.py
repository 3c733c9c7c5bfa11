"""What only PostgreSQL does when a job ends in its handler's transaction (I7)."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import errors

from fairlead import Fairlead, State, StoreUnavailable, current_job
from fairlead.core import events
from fairlead.core.clock import SECOND
from fairlead.stores import store_for
from fairlead.stores.postgres.lane import MOST_BLOCKING
from tests.face.desk import AT_ONCE, PostgresDesk
from tests.runtime.heard import Heard, ended
from tests.servers.proxy import Proxy
from tests.words import claim, done, new_job


@pytest.fixture
def desk(postgres_desk: PostgresDesk) -> PostgresDesk:
    return postgres_desk


# What is refused, before a row is written


async def refused(desk: PostgresDesk, work: Callable[[], Awaitable[Any]], words: str) -> None:
    task = desk.handler(work)
    async with desk.app.worker():
        record = await ended(await task.aenqueue())
    assert record.state is State.DEAD
    assert words in (record.errors[-1].message or "")
    assert desk.rows() == []


async def test_an_asyncpg_connection_without_a_transaction_is_refused(desk: PostgresDesk) -> None:
    async def work() -> None:
        mine = await asyncpg.connect(desk.address)
        try:
            async with current_job().commit(mine):
                await mine.execute(desk.insert("at once"))
        finally:
            await mine.close()

    await refused(desk, work, "needs a connection with an open transaction")


async def test_a_connection_that_commits_by_itself_is_refused(desk: PostgresDesk) -> None:
    async def work() -> None:
        mine = await psycopg.AsyncConnection.connect(desk.address, autocommit=True)
        async with mine, current_job().commit(mine):
            await mine.execute(desk.insert("at once"))

    await refused(desk, work, "this one commits every statement by itself")


async def test_an_async_connection_is_refused_by_a_plain_block(desk: PostgresDesk) -> None:
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(desk.address) as mine:
            with current_job().commit(mine):
                await mine.execute(desk.insert("never"))

    await refused(desk, work, "AsyncConnection is an async connection")


async def test_a_connection_to_another_database_is_refused(desk: PostgresDesk) -> None:
    async def work() -> None:
        with psycopg.connect(desk.server.url("template1")) as mine:
            async with current_job().commit(mine):
                pass

    await refused(desk, work, "has no jobs in it")


# Our own connections


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_commit_whose_answer_is_lost_on_the_way_happened_once(
    desk: PostgresDesk, proxy: Proxy, is_async: bool
) -> None:
    """The network takes the answer to COMMIT with it; the store knows that it was carried out."""
    app = Fairlead(proxy.through(desk.store))
    runs: list[int] = []

    async def abook() -> None:
        runs.append(1)
        async with current_job().commit() as conn:
            await conn.execute(desk.insert("once"))
            fault.append(proxy.lose_reply(b"COMMIT"))

    def book() -> None:
        runs.append(1)
        with current_job().commit() as conn:
            conn.execute(desk.insert("once"))
            fault.append(proxy.lose_reply(b"COMMIT"))

    fault: list[Any] = []
    task = app.task(name="book", retry=AT_ONCE)(abook if is_async else book)
    heard = Heard(app)
    async with app.worker():
        job = await task.aenqueue()
        assert (await ended(job)).state is State.DONE
        await heard.until(events.Finished)
    assert fault[0].happened.is_set()
    assert runs == [1]
    assert desk.rows() == ["once"]
    await app.aclose()


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_handler_finds_a_connection_as_if_it_were_new(
    desk: PostgresDesk, is_async: bool
) -> None:
    """What one sets for itself on a connection of ours, the next does not find on it."""
    found: list[Any] = []

    def odd(conn: Any) -> None:
        found.append((conn, conn.row_factory))
        conn.row_factory = psycopg.rows.dict_row
        conn.cursor_factory = psycopg.AsyncClientCursor if is_async else psycopg.ClientCursor

    async def abook() -> None:
        async with current_job().commit() as conn:
            odd(conn)

    def book() -> None:
        with current_job().commit() as conn:
            odd(conn)

    task = desk.app.task(name="book", retry=AT_ONCE)(abook if is_async else book)
    async with desk.app.worker():
        for _ in range(2):
            assert (await ended(await task.aenqueue())).state is State.DONE
    (first, factory), (second, again) = found
    assert first is second, "it is the same one"
    assert factory is again is psycopg.rows.tuple_row


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_connection_is_lent_to_nobody_after_a_block_that_failed(
    desk: PostgresDesk, is_async: bool
) -> None:
    """A commit that was refused, or not answered, leaves a session that nobody knows."""
    found: list[int] = []
    desk.server.execute(
        f"ALTER TABLE {desk.rows_table} ADD UNIQUE (note) DEFERRABLE INITIALLY DEFERRED;"
        f"{desk.insert('taken')}"
    )

    def note(conn: Any) -> str:
        found.append(conn.info.backend_pid)
        return desk.insert("taken" if current_job().attempt == 1 else "free")

    async def abook() -> None:
        async with current_job().commit() as conn:
            await conn.execute(note(conn))

    def book() -> None:
        with current_job().commit() as conn:
            conn.execute(note(conn))

    task = desk.app.task(name="book", retry=AT_ONCE)(abook if is_async else book)
    async with desk.app.worker():
        record = await ended(await task.aenqueue())
    assert (record.state, record.attempt) == (State.DONE, 2)
    assert [past.error for past in record.errors] == ["psycopg.errors.UniqueViolation"]
    first, second = found
    assert first != second
    assert desk.rows() == ["taken", "free"]


# Leases


async def test_a_transaction_that_is_open_for_long_costs_no_other_job_its_lease(
    desk: PostgresDesk,
) -> None:
    """Not even after the job's end is written in it, on a database nobody has used before."""
    runs: list[str] = []
    over, held = asyncio.Event(), asyncio.Event()

    @desk.app.task(name="quick", retry=AT_ONCE)
    async def quick() -> None:
        runs.append("quick")

    @desk.app.task(name="long", retry=AT_ONCE)
    async def long() -> None:
        runs.append("long")
        await over.wait()

    @desk.app.task(name="hog", retry=AT_ONCE)
    async def hog() -> None:
        runs.append("hog")
        async with await psycopg.AsyncConnection.connect(desk.address) as mine:
            async with current_job().commit(mine):
                await mine.execute(desk.insert("held"))
            held.set()
            await over.wait()

    heard = Heard(desk.app)
    async with desk.app.worker(lease=1.5):
        waiting = [await long.aenqueue(), await hog.aenqueue()]
        await held.wait()
        for _ in range(40):
            await (await quick.aenqueue()).aresult(timeout=10)
            await asyncio.sleep(0.05)
        over.set()
        assert [(await ended(job)).attempt for job in waiting] == [1, 1]
    assert runs == ["long", "hog"] + ["quick"] * 40
    assert desk.rows() == ["held"]
    assert heard.of(events.LeaseExpired) == []
    assert heard.of(events.SettlementRefused) == []
    assert heard.of(events.Trouble) == []


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
async def test_a_heartbeat_meanwhile_matters_to_strict_transactions_only(
    desk: PostgresDesk, level: str
) -> None:
    store = desk.app.store
    await store.put([new_job()])
    [job] = await claim(store)
    with psycopg.connect(desk.address) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        connection.execute(desk.insert("row"))
        await store.extend([(job.id, job.fence)], SECOND)
        if level == "READ COMMITTED":
            assert store.complete_within(connection, done(job)).run() is not None
        else:
            with pytest.raises(errors.SerializationFailure):
                store.complete_within(connection, done(job)).run()
            connection.rollback()
    assert desk.rows() == (["row"] if level == "READ COMMITTED" else [])


async def test_who_finds_all_connections_lent_is_told_so(desk: PostgresDesk) -> None:
    store = store_for(f"{desk.store}&timeout=0.1")
    with ExitStack() as blocks:
        for _ in range(MOST_BLOCKING):
            blocks.enter_context(store.transaction())
        with pytest.raises(StoreUnavailable, match=r"all 8 .* in use for 0\.1 s; keep .* short"):
            store.transaction().__enter__()
    with store.transaction() as connection:
        connection.execute(desk.insert("there is room again"))
    await store.close()
    assert desk.rows() == ["there is room again"]
