"""End a job in one transaction with rows of the handler's own: `job.commit()` (P2, I7)."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import pq

from fairlead import (
    Cancel,
    ConfigError,
    EncodeError,
    Fairlead,
    LeaseLost,
    Retry,
    State,
    StoreUnavailable,
    current_job,
    fixed,
)
from fairlead.core import events
from fairlead.core.store import Extended
from fairlead.producer import BoundTask
from fairlead.stores.postgres.address import Address
from tests.runtime.heard import Heard, ended
from tests.servers.postgres import PostgresServer
from tests.words import take_over

AT_ONCE = Retry(attempts=3, backoff=fixed(0, jitter=0))
BOTH = pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
Step = Callable[[Any], object]


class Rows:
    """The application's own table, beside the jobs."""

    def __init__(self, store: str, table: str, connect: Callable[[], Any]) -> None:
        self.store = store
        """The URL of the jobs beside it."""
        self._table = table
        self._connect = connect

    def insert(self, note: str) -> str:
        """Return the statement that adds a row."""
        return f"INSERT INTO {self._table} VALUES ('{note}')"

    def all(self) -> list[str]:
        with self.connected() as connection:
            found = connection.execute(f"SELECT note FROM {self._table}").fetchall()
        return [note for (note,) in found]

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Give a connection of the application's own, which it commits itself."""
        connection = self._connect()
        try:
            yield connection
        finally:
            connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fairlead]:
    """An app on every store that has transactions, with the machine's clock."""
    is_sqlite = request.param == "sqlite"
    app = Fairlead(
        f"sqlite:///{tmp_path}/jobs.db" if is_sqlite else request.getfixturevalue("crew_url")
    )
    yield app
    assert app.bridge.run(app.store.admin.audit()) == []
    app.close()


@pytest.fixture
def rows(request: pytest.FixtureRequest, app: Fairlead, tmp_path: Path) -> Iterator[Rows]:
    app.open()
    if app.store.url.startswith("sqlite"):
        rows = Rows(
            app.store.url, "effect", lambda: sqlite3.connect(tmp_path / "jobs.db", timeout=10)
        )
        with rows.connected() as connection:
            connection.execute("CREATE TABLE effect (note TEXT)")
        yield rows
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    table = f"{Address.of(app.store.url).schema}.effect"
    server.execute(f"CREATE TABLE {table} (note text); GRANT ALL ON {table} TO crew")
    url: str = request.getfixturevalue("crew_url")
    yield Rows(url, table, lambda: psycopg.connect(server.url(user="crew", password="rope")))
    server.execute(f"SET lock_timeout = '5s'; DROP TABLE {table}")


def in_transaction(connection: Any) -> bool:
    if isinstance(connection, sqlite3.Connection):
        return connection.in_transaction
    return bool(connection.info.transaction_status == pq.TransactionStatus.INTRANS)


def follower(app: Fairlead) -> BoundTask[..., Any]:
    """A task on a queue nobody serves in these tests: what is put stays."""
    return app.task(name="follow")(lambda n=0: n)


def booking(
    app: Fairlead,
    rows: Rows,
    is_async: bool,
    inside: Step = lambda _: None,
    after: Step = lambda _: None,
) -> BoundTask[..., Any]:
    """A task whose block writes a row; `inside` and `after` it something happens."""

    async def abook(note: str) -> int:
        async with current_job().commit(result=7) as conn:
            await conn.execute(rows.insert(note))
            inside(conn)
        after(note)

    def book(note: str) -> int:
        with current_job().commit(result=7) as conn:
            conn.execute(rows.insert(note))
            inside(conn)
        after(note)

    return app.task(name="book", retry=AT_ONCE)(abook if is_async else book)


# It happens


@BOTH
async def test_rows_and_the_jobs_end_are_one(app: Fairlead, rows: Rows, is_async: bool) -> None:
    book = booking(app, rows, is_async)
    heard = Heard(app)
    async with app.worker():
        job = await book.aenqueue("once")
        assert await job.aresult(timeout=10) == 7
        await heard.until(events.Finished)
    assert rows.all() == ["once"]
    assert heard.story(job) == ["Enqueued", "Started", "Finished"]
    [line] = await app.store.admin.attempts(job.id)
    assert (line.outcome, line.pool, line.attempt) == ("done", "default", 1)
    assert line.started_at is not None
    assert heard.of(events.Trouble) == []


@BOTH
async def test_the_given_connection_is_the_callers_to_commit(
    app: Fairlead, rows: Rows, is_async: bool
) -> None:
    seen: list[bool] = []

    async def abook() -> int:
        with rows.connected() as mine:
            async with current_job().commit(mine, result=7) as conn:
                assert conn is mine
                conn.execute(rows.insert("mine"))
            seen.append(in_transaction(mine))
            mine.commit()

    def book() -> int:
        with rows.connected() as mine:
            with current_job().commit(mine, result=7) as conn:
                assert conn is mine
                conn.execute(rows.insert("mine"))
            seen.append(in_transaction(mine))
            mine.commit()

    task = app.task(name="book", retry=AT_ONCE)(abook if is_async else book)
    heard = Heard(app)
    async with app.worker():
        job = await task.aenqueue()
        assert await job.aresult(timeout=10) == 7
        await heard.until(events.Finished)
    assert seen == [True], "it ran once, and we did not commit"
    assert rows.all() == ["mine"]
    assert heard.story(job) == ["Enqueued", "Started", "Finished"]


async def test_enqueues_inside_join_the_transaction(app: Fairlead, rows: Rows) -> None:
    follow = follower(app).using(delay=1000)
    seen: list[Any] = []

    @app.task(name="many")
    async def many() -> None:
        async with current_job().commit():
            await follow.aenqueue(1)
            await app.aenqueue_many([follow.call(n) for n in range(3)])
            seen.append(await app.store.admin.count())
        await follow.aenqueue(2)

    @app.task(name="plain")
    def plain() -> None:
        with current_job().commit():
            follow.enqueue(1)
            assert app.enqueue_many([follow.call(n) for n in range(3)]) == 3

    async with app.worker():
        for task in (many, plain):
            await (await task.aenqueue()).aresult(timeout=10)
    assert seen == [{"default": {State.RUNNING: 1}}], "nobody sees them before the commit"
    assert await app.store.admin.count() == {"default": {State.WAITING: 9, State.DONE: 2}}


async def test_an_enqueue_with_a_connection_of_its_own_stays_apart(
    app: Fairlead, rows: Rows
) -> None:
    follow = follower(app).using(delay=1000)

    @app.task(name="t", retry=Retry(attempts=1))
    def t() -> None:
        with rows.connected() as mine, rows.connected() as other, current_job().commit(mine):
            follow.using(connection=other).enqueue()
            other.commit()
            raise ZeroDivisionError

    async with app.worker():
        await ended(await t.aenqueue())
    assert (await app.store.admin.count())["default"] == {State.WAITING: 1, State.DEAD: 1}


async def test_a_task_that_outlives_the_block_enqueues_on_its_own(
    app: Fairlead, rows: Rows
) -> None:
    follow = follower(app).using(delay=1000)
    left: list[asyncio.Task[Any]] = []

    @app.task(name="t")
    async def t() -> None:
        over = asyncio.Event()

        async def later() -> None:
            await over.wait()
            await follow.aenqueue()

        async with current_job().commit():
            left.append(asyncio.create_task(later()))
            await asyncio.sleep(0)
        over.set()
        await left[0]

    async with app.worker():
        await (await t.aenqueue()).aresult(timeout=10)
    assert (await app.store.admin.count())["default"] == {State.WAITING: 1, State.DONE: 1}


# It does not happen


@BOTH
async def test_a_block_that_raises_leaves_nothing_and_the_job_is_tried_again(
    app: Fairlead, rows: Rows, is_async: bool
) -> None:
    runs: list[int] = []
    follow = follower(app).using(delay=1000)

    def fail_once(conn: Any) -> None:
        runs.append(current_job().attempt)
        if len(runs) == 1:
            raise ZeroDivisionError

    async def abook() -> None:
        async with current_job().commit() as conn:
            await conn.execute(rows.insert("row"))
            await follow.aenqueue()
            fail_once(conn)

    def book() -> None:
        with current_job().commit() as conn:
            conn.execute(rows.insert("row"))
            follow.enqueue()
            fail_once(conn)

    task = app.task(name="book", retry=AT_ONCE)(abook if is_async else book)
    heard = Heard(app)
    async with app.worker():
        job = await task.aenqueue()
        assert (await ended(job)).state is State.DONE
    assert runs == [1, 2]
    assert rows.all() == ["row"]
    assert (await app.store.admin.count())["default"] == {State.WAITING: 1, State.DONE: 1}
    assert [event.error for event in heard.of(events.Retried)] == ["ZeroDivisionError"]
    assert [line.outcome for line in await app.store.admin.attempts(job.id)] == ["failed", "done"]


@pytest.mark.parametrize("given", [False, True], ids=["own", "given"])
@BOTH
async def test_a_run_whose_lease_was_taken_over_leaves_no_row(
    app: Fairlead, rows: Rows, is_async: bool, given: bool
) -> None:
    told: list[BaseException] = []

    async def abook() -> None:
        await take_over(app, rows.store)
        with rows.connected() as mine:
            try:
                async with current_job().commit(mine if given else None) as conn:
                    done = conn.execute(rows.insert("late"))
                    if not given:
                        await done
                mine.commit()
            except LeaseLost as problem:
                told.append(problem)
                raise

    def book() -> None:
        asyncio.run(take_over(app, rows.store))
        with rows.connected() as mine:
            try:
                with current_job().commit(mine if given else None) as conn:
                    conn.execute(rows.insert("late"))
                mine.commit()
            except LeaseLost as problem:
                told.append(problem)
                raise

    task = app.task(name="book", retry=AT_ONCE)(abook if is_async else book)
    heard = Heard(app)
    async with app.worker():
        job = await task.aenqueue()
        await heard.until(events.SettlementRefused)
    assert [type(problem) for problem in told] == [LeaseLost]
    assert rows.all() == []
    record = await job.arecord()
    assert record.state is State.RUNNING, "it is the other worker's"
    assert heard.of(events.Finished) == []


@BOTH
async def test_a_job_cancelled_while_it_runs_commits_nothing(
    app: Fairlead, rows: Rows, is_async: bool
) -> None:
    told: list[BaseException] = []

    async def abook() -> None:
        await app.job(current_job().id).acancel("enough")
        try:
            async with current_job().commit() as conn:
                await conn.execute(rows.insert("no"))
        except Cancel as problem:
            told.append(problem)
            raise

    def book() -> None:
        app.job(current_job().id).cancel("enough")
        try:
            with current_job().commit() as conn:
                conn.execute(rows.insert("no"))
        except Cancel as problem:
            told.append(problem)
            raise

    task = app.task(name="book", retry=AT_ONCE)(abook if is_async else book)
    async with app.worker():
        record = await ended(await task.aenqueue())
    assert (record.state, record.reason) == (State.CANCELLED, "enough")
    assert [str(problem) for problem in told] == ["enough"]
    assert rows.all() == []


async def test_a_given_transaction_that_was_not_committed_is_tried_again(
    app: Fairlead, rows: Rows
) -> None:
    runs: list[int] = []

    @app.task(name="book", retry=AT_ONCE)
    def book() -> None:
        runs.append(1)
        with rows.connected() as mine:
            with current_job().commit(mine) as conn:
                conn.execute(rows.insert("row"))
            if len(runs) > 1:
                mine.commit()

    async with app.worker():
        record = await ended(await book.aenqueue())
    assert (record.state, record.attempt) == (State.DONE, 2)
    assert record.errors[0].error == "NotCommitted"
    assert "given to job.commit() was not committed" in (record.errors[0].message or "")
    assert rows.all() == ["row"]


# The commit itself


@contextmanager
def lost_answer(transaction: Any, after: bool) -> Iterator[Any]:
    """Commit, or roll back, and fail to say so."""
    with suppress(ZeroDivisionError), transaction as conn:
        yield conn
        if not after:
            raise ZeroDivisionError
    raise StoreUnavailable("sqlite:///x", "the answer was lost")


@asynccontextmanager
async def alost_answer(transaction: Any, after: bool) -> AsyncIterator[Any]:
    with suppress(ZeroDivisionError):
        async with transaction as conn:
            yield conn
            if not after:
                raise ZeroDivisionError
    raise StoreUnavailable("sqlite:///x", "the answer was lost")


@pytest.mark.parametrize("after", [True, False], ids=["committed", "rolled back"])
@BOTH
async def test_the_store_tells_whether_a_commit_without_an_answer_happened(
    app: Fairlead, rows: Rows, is_async: bool, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[str] = []
    book = booking(app, rows, is_async, inside=lambda _: runs.append(current_job().id))
    plain, coroutine = app.store.transaction, app.store.atransaction

    def faulty(real: Any, wrap: Any) -> Any:
        return lambda: wrap(real(), after) if not runs else real()

    monkeypatch.setattr(app.store, "transaction", faulty(plain, lost_answer))
    monkeypatch.setattr(app.store, "atransaction", faulty(coroutine, alost_answer))
    heard = Heard(app)
    async with app.worker():
        job = await book.aenqueue("once")
        assert await job.aresult(timeout=10) == 7
        await heard.until(events.Finished)
    assert rows.all() == ["once"]
    assert len(runs) == (1 if after else 2)
    if after:
        assert heard.story(job) == ["Enqueued", "Started", "Finished"]
        assert "StoreUnavailable" in heard.of(events.Trouble)[0].problem
    else:
        assert heard.of(events.Retried)[0].error.endswith("StoreUnavailable")


@BOTH
async def test_what_a_handler_raises_after_its_commit_does_not_undo_it(
    app: Fairlead, rows: Rows, is_async: bool
) -> None:
    def fail(_: str) -> None:
        raise ValueError("secret")

    book = booking(app, rows, is_async, after=fail)
    heard = Heard(app)
    async with app.worker():
        job = await book.aenqueue("once")
        trouble = await heard.until(events.Trouble)
    record = await job.arecord()
    assert (record.state, record.result, record.errors) == (State.DONE, 7, ())
    assert rows.all() == ["once"]
    assert heard.story(job) == ["Enqueued", "Started", "Finished"]
    assert f"job {job.id} is done" in trouble.problem
    assert "raised ValueError after that" in trouble.problem
    assert "test_commit.py:" in trouble.problem
    assert "secret" not in trouble.problem


async def test_after_the_callers_own_commit_an_error_does_not_undo_it_either(
    app: Fairlead, rows: Rows
) -> None:
    @app.task(name="book", retry=AT_ONCE)
    def book() -> None:
        with rows.connected() as mine:
            with current_job().commit(mine) as conn:
                conn.execute(rows.insert("once"))
            mine.commit()
            raise ValueError

    heard = Heard(app)
    async with app.worker():
        job = await book.aenqueue()
        await heard.until(events.Trouble)
    assert rows.all() == ["once"]
    assert heard.story(job) == ["Enqueued", "Started", "Finished"]


async def test_what_a_handler_returns_after_its_commit_is_not_stored_and_it_is_told(
    app: Fairlead, rows: Rows
) -> None:
    @app.task(name="without")
    async def without() -> int:
        async with current_job().commit():
            pass
        return 8

    @app.task(name="with")
    async def with_() -> int:
        async with current_job().commit(result=9):
            pass
        return 9

    heard = Heard(app)
    async with app.worker():
        assert await (await with_.aenqueue()).aresult(timeout=10) == 9
        assert heard.of(events.Trouble) == []
        assert await (await without.aenqueue()).aresult(timeout=10) is None
        trouble = await heard.until(events.Trouble)
    assert "is not stored; pass it to the block, as in job.commit(result=…)" in trouble.problem


async def test_a_result_that_does_not_fit_is_refused_before_the_block(
    app: Fairlead, rows: Rows
) -> None:
    told: list[BaseException] = []

    @app.task(name="t")
    async def t() -> int:
        try:
            current_job().commit(result="seven")
        except EncodeError as problem:
            told.append(problem)
        return 7

    async with app.worker():
        assert await (await t.aenqueue()).aresult(timeout=10) == 7
    assert "the result of task 't'" in str(told[0])


# What is refused


async def test_other_calls_inside_the_block_are_refused(app: Fairlead, rows: Rows) -> None:
    other = await follower(app).using(delay=1000).aenqueue()
    refused: list[str] = []

    def refuses(call: Callable[[], object]) -> None:
        with pytest.raises(ConfigError, match=r"inside a block of job\.commit\(\) only enqueues"):
            call()
        refused.append("plain")

    @app.task(name="plain")
    def plain() -> None:
        with current_job().commit():
            for call in (other.status, other.record, other.cancel, other.result, app.upkeep):
                refuses(call)

    @app.task(name="coroutine")
    async def coroutine() -> None:
        async with current_job().commit():
            for call in (other.astatus, other.arecord, other.acancel, other.aresult, app.aupkeep):
                with pytest.raises(ConfigError, match="make it before the block or after it"):
                    await call()
                refused.append("async")

    async with app.worker():
        for task in (plain, coroutine):
            assert (await ended(await task.aenqueue())).state is State.DONE
    assert refused == ["plain"] * 5 + ["async"] * 5


async def test_a_run_commits_once(app: Fairlead, rows: Rows) -> None:
    told: list[str] = []

    @app.task(name="t")
    async def t() -> None:
        job = current_job()
        block = job.commit()
        async with block:
            pass
        for again in (lambda: job.commit(), lambda: block.__enter__()):
            with pytest.raises(ConfigError, match="a run has one block of job.commit") as problem:
                again()
            told.append(str(problem.value))

    async with app.worker():
        assert (await ended(await t.aenqueue())).state is State.DONE
    assert len(told) == 2


async def test_a_coroutine_is_told_to_write_async_with(app: Fairlead, rows: Rows) -> None:
    told: list[BaseException] = []

    @app.task(name="t", retry=Retry(attempts=1))
    async def t() -> None:
        try:
            with current_job().commit():
                pass
        except ConfigError as problem:
            told.append(problem)

    async with app.worker():
        await ended(await t.aenqueue())
    assert "write `async with job.commit() as conn:`" in str(told[0])


async def test_memory_says_that_it_cannot() -> None:
    app = Fairlead("memory://")

    @app.task(name="t", retry=Retry(attempts=1))
    async def t() -> None:
        async with current_job().commit():
            pass

    async with app.worker():
        record = await ended(await t.aenqueue())
    assert "memory:// has no transactions" in (record.errors[0].message or "")


# Leases


async def test_a_handler_that_goes_on_after_its_commit_is_not_called_off(
    app: Fairlead, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is gone, but not lost: heartbeats must know one from the other."""
    real, missed = app.store.extend, threading.Semaphore(0)

    async def extend(leases: Any, lease: int) -> list[Extended]:
        extended = await real(leases, lease)
        if len(extended) < len(leases):
            missed.release()
        return extended

    monkeypatch.setattr(app.store, "extend", extend)
    ends: list[str] = []

    @app.task(name="t")
    async def t() -> None:
        async with current_job().commit():
            pass
        for _ in range(2):
            await asyncio.to_thread(missed.acquire, timeout=10)
        await asyncio.sleep(0)
        ends.append("in peace")

    heard = Heard(app)
    async with app.worker(lease=2):
        job = await t.aenqueue()
        await heard.until(events.Finished)
    assert ends == ["in peace"]
    assert heard.story(job) == ["Enqueued", "Started", "Finished"]
    assert heard.of(events.Trouble) == []


async def test_a_block_longer_than_a_lease_costs_no_other_job_its_lease(
    app: Fairlead, rows: Rows
) -> None:
    """Nobody can renew a lease while it lasts, and nobody takes one over right after it."""
    runs: list[str] = []
    over = asyncio.Event()

    @app.task(name="long", retry=AT_ONCE)
    async def long() -> None:
        runs.append("long")
        await over.wait()

    @app.task(name="hog", retry=AT_ONCE)
    def hog() -> None:
        runs.append("hog")
        with current_job().commit():
            threading.Event().wait(1.5)

    heard = Heard(app)
    async with app.worker(lease=1):
        waiting = await long.aenqueue()
        await heard.until(events.Started)
        await (await hog.aenqueue()).aresult(timeout=10)
        await (await hog.aenqueue()).aresult(timeout=10)
        over.set()
        assert (await ended(waiting)).attempt == 1
    assert runs == ["long", "hog", "hog"]
    assert heard.of(events.LeaseExpired) == []
    assert heard.of(events.SettlementRefused) == []
