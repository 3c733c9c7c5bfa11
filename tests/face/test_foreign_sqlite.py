"""Enqueue and end jobs inside the caller's own SQLite transaction, whatever library it uses (P2, I7)."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import django.db
import pytest
import sqlalchemy
from sqlalchemy import orm

from fairlead import ConfigError, Fairlead, LeaseLost, Queue, Retry, State, current_job, fixed
from fairlead.core import events
from fairlead.producer import BoundTask
from tests.runtime.heard import Heard, ended
from tests.servers.libraries import ASYNC, FILE_LIBRARIES, Mine, go
from tests.words import claim, done, take_over

EVERY = pytest.mark.parametrize("library", FILE_LIBRARIES)
ALL_ASYNC = pytest.mark.parametrize("library", [name for name in FILE_LIBRARIES if name in ASYNC])
AT_ONCE = Retry(attempts=3, backoff=fixed(0, jitter=0))


class Desk:
    """An app, the table of its application beside the jobs, and what is in both."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "jobs.db")
        self.app = Fairlead(f"sqlite:///{self.path}")
        self.app.open()
        self.task: BoundTask[..., Any] = self.app.task(name="t")(lambda n: n)
        self.execute("CREATE TABLE orders (job_id TEXT)")

    def execute(self, statement: str) -> list[Any]:
        connection = sqlite3.connect(self.path)
        try:
            with connection:
                return connection.execute(statement).fetchall()
        finally:
            connection.close()

    async def order(self, mine: Mine, number: int = 1) -> str:
        """Enqueue a job and write a row about it; returns the id."""
        task = self.task.using(connection=mine.connection)
        job = await task.aenqueue(number) if mine.is_async else task.enqueue(number)
        await mine.execute(f"INSERT INTO orders VALUES ('{job.id}')")
        return job.id

    def jobs(self) -> list[str]:
        return [id_ for (id_,) in self.execute("SELECT id FROM fairlead_job")]

    def rows(self) -> list[str]:
        return [id_ for (id_,) in self.execute("SELECT job_id FROM orders")]

    def handler(self, library: str, work: Callable[[], Awaitable[Any]]) -> BoundTask[..., Any]:
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
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    assert desk.app.bridge.run(desk.app.store.audit()) == []
    desk.app.close()


@EVERY
def test_the_job_commits_with_the_callers_rows(desk: Desk, library: str) -> None:
    async def work() -> str:
        async with FILE_LIBRARIES[library](desk.path) as mine:
            job_id = await desk.order(mine)
            assert desk.jobs() == desk.rows() == [], "nobody sees it before the commit"
            await mine.commit()
        return job_id

    job_id = go(library, work())
    assert desk.jobs() == desk.rows() == [job_id]
    record = desk.app.job(job_id).record()
    assert (record.state, record.arguments, record.task) == (State.WAITING, {"n": 1}, "t")


@EVERY
def test_the_job_rolls_back_with_the_callers_rows(desk: Desk, library: str) -> None:
    async def work() -> None:
        async with FILE_LIBRARIES[library](desk.path) as mine:
            await desk.order(mine)
            calls = [desk.task.call(n) for n in range(300)]
            if mine.is_async:
                assert await desk.app.aenqueue_many(calls, connection=mine.connection) == 300
            else:
                assert desk.app.enqueue_many(calls, connection=mine.connection) == 300
            await mine.rollback()

    go(library, work())
    assert desk.jobs() == desk.rows() == []


@EVERY
def test_a_job_alone_is_committed_by_the_library_and_by_nobody_else(
    desk: Desk, library: str
) -> None:
    """The library must know that a transaction has begun, though no row of its own is in it."""

    async def work(*, commit: bool) -> None:
        async with FILE_LIBRARIES[library](desk.path) as mine:
            task = desk.task.using(connection=mine.connection)
            await task.aenqueue(1) if mine.is_async else task.enqueue(1)
            if commit:
                await mine.commit()

    go(library, work(commit=False))
    assert desk.jobs() == []
    go(library, work(commit=True))
    assert len(desk.jobs()) == 1


@EVERY
def test_a_repeated_call_does_not_break_the_transaction(desk: Desk, library: str) -> None:
    calls = [desk.task.call(n) for n in range(3)]
    desk.app.enqueue_many(calls[:1])

    async def work() -> str:
        async with FILE_LIBRARIES[library](desk.path) as mine:
            if mine.is_async:
                assert await desk.app.aenqueue_many(calls, connection=mine.connection) == 2
            else:
                assert desk.app.enqueue_many(calls, connection=mine.connection) == 2
            job_id = await desk.order(mine)
            await mine.commit()
        return job_id

    job_id = go(library, work())
    assert sorted(desk.jobs()) == sorted([*(call.id for call in calls), job_id])
    assert desk.rows() == [job_id]


@EVERY
def test_a_connection_to_another_file_is_refused(desk: Desk, library: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with FILE_LIBRARIES[library](str(tmp_path / "other.db")) as mine:
            with pytest.raises(ConfigError, match="one transaction cannot span both"):
                await desk.order(mine)

    go(library, work())
    assert desk.jobs() == []


@EVERY
def test_who_may_only_read_is_told(desk: Desk, library: str) -> None:
    async def work() -> None:
        async with FILE_LIBRARIES[library](desk.path) as mine:
            await mine.execute("PRAGMA query_only = 1")
            with pytest.raises(ConfigError, match=r"may only read .* pass a connection that may"):
                await desk.order(mine)
            await mine.rollback()

    go(library, work())


@EVERY
def test_other_errors_stay_the_librarys_own(desk: Desk, library: str) -> None:
    async def work() -> Exception:
        holder = sqlite3.connect(desk.path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        async with FILE_LIBRARIES[library](desk.path) as mine:
            await mine.execute("PRAGMA busy_timeout = 0")
            with pytest.raises(Exception, match="locked") as problem:
                await desk.order(mine)
            await mine.rollback()
        holder.close()
        return problem.value

    module = type(go(library, work())).__module__.split(".")[0]
    assert module == library.removeprefix("async ").split()[0]


@ALL_ASYNC
def test_an_async_connection_is_refused_to_plain_code(desk: Desk, library: str) -> None:
    async def work() -> None:
        async with FILE_LIBRARIES[library](desk.path) as mine:
            for call in (
                lambda: desk.task.using(connection=mine.connection).enqueue(1),
                lambda: desk.app.enqueue_many([desk.task.call(1)], connection=mine.connection),
                lambda: desk.app.store.put_within(mine.connection, []),
            ):
                with pytest.raises(ConfigError, match=r"is an async connection.*aenqueue"):
                    call()

    go(library, work())


# What libraries do each in their own way


def test_a_savepoint_of_sqlalchemy_takes_its_jobs_with_it(desk: Desk) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{desk.path}")
    with orm.Session(engine) as session, session.begin():
        kept = desk.task.using(connection=session).enqueue(1)
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            desk.task.using(connection=session).enqueue(2)
            raise ZeroDivisionError
    engine.dispose()
    assert desk.jobs() == [kept.id]


def test_django_in_its_usual_mode_commits_at_once_or_with_the_atomic_block(desk: Desk) -> None:
    async def work() -> None:
        async with FILE_LIBRARIES["django"](desk.path) as mine:
            name = mine.connection.alias
            mine.connection.set_autocommit(True)
            task = desk.task.using(connection=mine.connection)
            task.enqueue(1)
            assert len(desk.jobs()) == 1, "as on PostgreSQL: whoever asks for it has it at once"
            with pytest.raises(ZeroDivisionError), django.db.transaction.atomic(using=name):
                task.enqueue(2)
                raise ZeroDivisionError
            assert len(desk.jobs()) == 1
            with django.db.transaction.atomic(using=name):
                task.enqueue(3)
                with pytest.raises(ZeroDivisionError), django.db.transaction.atomic(using=name):
                    task.enqueue(4)
                    raise ZeroDivisionError
            assert len(desk.jobs()) == 2

    go("django", work())


def test_a_connection_to_another_kind_of_database_is_refused(desk: Desk) -> None:
    class Dialect:
        name = "postgresql"

    class Connection:
        __module__ = "sqlalchemy.engine.base"
        dialect = Dialect()

    with pytest.raises(ConfigError, match="to a postgresql database, the jobs are in an SQLite"):
        desk.task.using(connection=Connection()).enqueue(1)


# job.commit(conn)


async def block(desk: Desk, mine: Mine, note: str) -> None:
    """Write a row and enqueue a job in a block of the run."""
    job, later = current_job(), desk.task.using(delay=1000)
    if mine.is_async:
        async with job.commit(mine.connection) as conn:
            assert conn is mine.connection
            await mine.execute(f"INSERT INTO orders VALUES ('{note}')")
            await later.aenqueue(1)
    else:
        with job.commit(mine.connection) as conn:
            assert conn is mine.connection
            await mine.execute(f"INSERT INTO orders VALUES ('{note}')")
            later.enqueue(1)


@EVERY
async def test_the_callers_commit_ends_the_job_and_nothing_else_does(
    desk: Desk, library: str
) -> None:
    seen: list[list[str]] = []

    async def work() -> None:
        attempt = current_job().attempt
        async with FILE_LIBRARIES[library](desk.path) as mine:
            await block(desk, mine, f"attempt {attempt}")
            seen.append(desk.rows())
            await (mine.rollback() if attempt == 1 else mine.commit())

    task = desk.handler(library, work)
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
        thief = threading.Thread(target=asyncio.run, args=[take_over(desk.app, desk.app.store.url)])
        thief.start()
        thief.join()
        async with FILE_LIBRARIES[library](desk.path) as mine:
            try:
                await block(desk, mine, "late")
                await mine.commit()
            except LeaseLost as problem:
                told.append(problem)
                raise

    task = desk.handler(library, work)
    heard = Heard(desk.app)
    async with desk.app.worker():
        job = await task.aenqueue()
        await heard.until(events.SettlementRefused)
    assert [type(problem) for problem in told] == [LeaseLost]
    assert desk.rows() == []
    assert (await job.arecord()).state is State.RUNNING, "it is the other worker's"


@pytest.mark.parametrize("library", ["sqlite3", "sqlalchemy connection", "django"])
async def test_a_connection_that_commits_by_itself_is_refused_before_a_row_is_written(
    desk: Desk, library: str
) -> None:
    async def work() -> None:
        async with FILE_LIBRARIES[library](desk.path) as mine:
            if library == "django":
                mine.connection.set_autocommit(True)
            elif library == "sqlite3":
                mine.connection.isolation_level = None
            else:
                mine.connection.execution_options(isolation_level="AUTOCOMMIT")
            await block(desk, mine, "at once")

    task = desk.handler(library, work)
    async with desk.app.worker():
        record = await ended(await task.aenqueue())
    assert record.state is State.DEAD
    assert "this one commits every statement by itself" in (record.errors[-1].message or "")
    assert desk.rows() == []


async def test_a_job_is_ended_under_its_fence_on_any_connection(desk: Desk) -> None:
    await desk.task.aenqueue(1)
    [job] = await claim(desk.app.store, Queue("default"))
    engine = sqlalchemy.create_engine(f"sqlite:///{desk.path}")
    with orm.Session(engine) as session:
        assert desk.app.store.complete_within(session, done(job)) is not None
        session.commit()
        assert desk.app.store.complete_within(session, done(job)) is None
    engine.dispose()
