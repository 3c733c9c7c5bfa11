"""End a job in a transaction of the handler's own PostgreSQL connection, of whatever library (I7)."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import errors

from fairlead import Fairlead, LeaseLost, Retry, State, StoreUnavailable, current_job, fixed
from fairlead.core import events
from fairlead.core.clock import SECOND
from fairlead.producer import BoundTask
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lane import MOST_BLOCKING
from tests.runtime.heard import Heard, ended
from tests.servers.libraries import ASYNC, LIBRARIES, Mine, go
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.words import claim, done, new_job, take_over

EVERY = pytest.mark.parametrize("library", LIBRARIES)
AT_ONCE = Retry(attempts=3, backoff=fixed(0, jitter=0))


class Desk:
    """An app, and the table of its application beside the jobs."""

    def __init__(self, server: PostgresServer, crew_url: str) -> None:
        self.server = server
        self.store = crew_url
        self.url = server.url(user="crew", password="rope")
        self.table = f"{Address.of(crew_url).schema}.effect"
        self.app = Fairlead(crew_url)
        self.follow: BoundTask[..., Any] = self.app.task(name="follow")(lambda: None)
        server.execute(f"CREATE TABLE {self.table} (note text); GRANT ALL ON {self.table} TO crew")

    def insert(self, note: str) -> str:
        return f"INSERT INTO {self.table} VALUES ('{note}')"

    def rows(self) -> list[str]:
        return [note for (note,) in self.server.execute(f"SELECT note FROM {self.table}")]

    def task(self, library: str, work: Callable[[], Awaitable[Any]]) -> BoundTask[..., Any]:
        """Make a task of what was written for every library, on a loop or in a thread."""

        async def coroutine() -> int:
            await work()
            return 0

        def plain() -> int:
            go(library, coroutine())
            return 0

        function = coroutine if library in ASYNC else plain
        return self.app.task(name="book", retry=AT_ONCE)(function)


@pytest.fixture
def desk(postgres_server: PostgresServer, crew_url: str) -> Iterator[Desk]:
    desk = Desk(postgres_server, crew_url)
    yield desk
    assert desk.app.bridge.run(desk.app.store.audit()) == []
    desk.app.close()
    postgres_server.execute(f"SET lock_timeout = '5s'; DROP TABLE {desk.table}")


async def block(desk: Desk, mine: Mine, note: str) -> None:
    """Write a row and enqueue a job in a block of the run."""
    job, later = current_job(), desk.follow.using(delay=1000)
    if mine.is_async:
        async with job.commit(mine.connection) as conn:
            assert conn is mine.connection
            await mine.execute(desk.insert(note))
            await later.aenqueue()
    else:
        with job.commit(mine.connection) as conn:
            assert conn is mine.connection
            await mine.execute(desk.insert(note))
            later.enqueue()


@EVERY
async def test_the_callers_commit_ends_the_job_and_nothing_else_does(
    desk: Desk, library: str
) -> None:
    seen: list[list[str]] = []

    async def work() -> None:
        attempt = current_job().attempt
        async with LIBRARIES[library](desk.url) as mine:
            await block(desk, mine, f"attempt {attempt}")
            seen.append(desk.rows())
            await (mine.rollback() if attempt == 1 else mine.commit())

    task = desk.task(library, work)
    async with desk.app.worker():
        record = await ended(await task.aenqueue())
    assert seen == [[], []], "we have never committed"
    assert (record.state, record.attempt) == (State.DONE, 2)
    assert [each.error for each in record.errors] == ["NotCommitted"]
    assert desk.rows() == ["attempt 2"]
    assert (await desk.app.store.count())["default"] == {State.WAITING: 1, State.DONE: 1}


@EVERY
async def test_a_run_whose_lease_was_taken_over_leaves_no_row(desk: Desk, library: str) -> None:
    told: list[BaseException] = []

    async def work() -> None:
        # In a thread of its own, because this may run on a loop or without one.
        thief = threading.Thread(target=asyncio.run, args=[take_over(desk.app, desk.store)])
        thief.start()
        thief.join()
        async with LIBRARIES[library](desk.url) as mine:
            try:
                await block(desk, mine, "late")
                await mine.commit()
            except LeaseLost as problem:
                told.append(problem)
                raise

    task = desk.task(library, work)
    heard = Heard(desk.app)
    async with desk.app.worker():
        job = await task.aenqueue()
        await heard.until(events.SettlementRefused)
    assert [type(problem) for problem in told] == [LeaseLost]
    assert desk.rows() == []
    assert (await job.arecord()).state is State.RUNNING, "it is the other worker's"
    assert (await desk.app.store.count())["default"] == {State.RUNNING: 1}


# What is refused, before a row is written


async def refused(desk: Desk, work: Callable[[], Awaitable[Any]], words: str) -> None:
    task = desk.task("asyncpg", work)
    async with desk.app.worker():
        record = await ended(await task.aenqueue())
    assert record.state is State.DEAD
    assert words in (record.errors[-1].message or "")
    assert desk.rows() == []


async def test_an_asyncpg_connection_without_a_transaction_is_refused(desk: Desk) -> None:
    async def work() -> None:
        mine = await asyncpg.connect(desk.url)
        try:
            async with current_job().commit(mine):
                await mine.execute(desk.insert("at once"))
        finally:
            await mine.close()

    await refused(desk, work, "needs a connection with an open transaction")


async def test_a_connection_that_commits_by_itself_is_refused(desk: Desk) -> None:
    async def work() -> None:
        mine = await psycopg.AsyncConnection.connect(desk.url, autocommit=True)
        async with mine, current_job().commit(mine):
            await mine.execute(desk.insert("at once"))

    await refused(desk, work, "this one commits every statement by itself")


async def test_an_async_connection_is_refused_by_a_plain_block(desk: Desk) -> None:
    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(desk.url) as mine:
            with current_job().commit(mine):
                await mine.execute(desk.insert("never"))

    await refused(desk, work, "AsyncConnection is an async connection")


async def test_a_connection_to_another_database_is_refused(desk: Desk) -> None:
    async def work() -> None:
        with psycopg.connect(desk.server.url("template1")) as mine:
            async with current_job().commit(mine):
                pass

    await refused(desk, work, "has no jobs in it")


# Our own connections


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
async def test_a_commit_whose_answer_is_lost_on_the_way_happened_once(
    desk: Desk, proxy: Proxy, is_async: bool
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
async def test_a_handler_finds_a_connection_as_if_it_were_new(desk: Desk, is_async: bool) -> None:
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
    desk: Desk, is_async: bool
) -> None:
    """A commit that was refused, or not answered, leaves a session that nobody knows."""
    found: list[int] = []
    desk.server.execute(
        f"ALTER TABLE {desk.table} ADD UNIQUE (note) DEFERRABLE INITIALLY DEFERRED;"
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
    desk: Desk,
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
        async with await psycopg.AsyncConnection.connect(desk.url) as mine:
            async with current_job().commit(mine):
                await mine.execute(desk.insert("held"))
            held.set()
            await over.wait()

    heard = Heard(desk.app)
    async with desk.app.worker(lease=0.4):
        waiting = [await long.aenqueue(), await hog.aenqueue()]
        await held.wait()
        for _ in range(20):
            await (await quick.aenqueue()).aresult(timeout=10)
            await asyncio.sleep(0.05)
        over.set()
        assert [(await ended(job)).attempt for job in waiting] == [1, 1]
    assert runs == ["long", "hog"] + ["quick"] * 20
    assert desk.rows() == ["held"]
    assert heard.of(events.LeaseExpired) == []
    assert heard.of(events.SettlementRefused) == []
    assert heard.of(events.Trouble) == []


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
async def test_a_heartbeat_meanwhile_matters_to_strict_transactions_only(
    desk: Desk, level: str
) -> None:
    store = desk.app.store
    await store.put([new_job()])
    [job] = await claim(store)
    with psycopg.connect(desk.url) as connection:
        connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        connection.execute(desk.insert("row"))
        await store.extend([(job.id, job.fence)], SECOND)
        if level == "READ COMMITTED":
            assert store.complete_within(connection, done(job)) is not None
        else:
            with pytest.raises(errors.SerializationFailure):
                store.complete_within(connection, done(job))
            connection.rollback()
    assert desk.rows() == (["row"] if level == "READ COMMITTED" else [])


async def test_who_finds_all_connections_lent_is_told_so(desk: Desk) -> None:
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
