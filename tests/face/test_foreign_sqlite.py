"""What only SQLite does in the caller's own transaction: its files, its lock, its libraries (P2, I7)."""

import sqlite3
from pathlib import Path

import django.db
import pytest
import sqlalchemy
from sqlalchemy import orm

from fairlead import ConfigError, Queue, State
from tests.face.desk import Desk, SqliteDesk, with_libraries
from tests.runtime.heard import ended
from tests.words import claim, done

EVERY = with_libraries("sqlite")


@EVERY
def test_a_connection_to_another_file_is_refused(desk: Desk, tmp_path: Path) -> None:
    async def work() -> None:
        async with desk.connection(str(tmp_path / "other.db")) as mine:
            with pytest.raises(ConfigError, match="one transaction cannot span both"):
                await desk.order(mine)

    desk.go(work())
    assert desk.jobs() == []


@EVERY
def test_who_may_only_read_is_told(desk: Desk) -> None:
    async def work() -> None:
        async with desk.connection() as mine:
            await mine.execute("PRAGMA query_only = 1")
            with pytest.raises(ConfigError, match=r"may only read .* pass a connection that may"):
                await desk.order(mine)
            await mine.rollback()

    desk.go(work())


@EVERY
def test_other_errors_stay_the_librarys_own(desk: Desk) -> None:
    async def work() -> Exception:
        holder = sqlite3.connect(desk.address, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        async with desk.connection() as mine:
            await mine.execute("PRAGMA busy_timeout = 0")
            with pytest.raises(Exception, match="locked") as problem:
                await desk.order(mine)
            await mine.rollback()
        holder.close()
        return problem.value

    module = type(desk.go(work())).__module__.split(".")[0]
    assert module == desk.library.removeprefix("async ").split()[0]


# What libraries do each in their own way


def test_a_savepoint_of_sqlalchemy_takes_its_jobs_with_it(sqlite_desk: SqliteDesk) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{sqlite_desk.address}")
    with orm.Session(engine) as session, session.begin():
        kept = sqlite_desk.task.using(connection=session).enqueue(1)
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            sqlite_desk.task.using(connection=session).enqueue(2)
            raise ZeroDivisionError
    engine.dispose()
    assert sqlite_desk.jobs() == [kept.id]


@with_libraries("sqlite", only=["django"])
def test_django_in_its_usual_mode_commits_at_once_or_with_the_atomic_block(desk: Desk) -> None:
    async def work() -> None:
        async with desk.connection() as mine:
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

    desk.go(work())


def test_a_connection_to_another_kind_of_database_is_refused(sqlite_desk: SqliteDesk) -> None:
    class Dialect:
        name = "postgresql"

    class Connection:
        __module__ = "sqlalchemy.engine.base"
        dialect = Dialect()

    with pytest.raises(ConfigError, match="to a postgresql database, the jobs are in an SQLite"):
        sqlite_desk.task.using(connection=Connection()).enqueue(1)


# job.commit(conn)


@with_libraries("sqlite", only=["sqlite3", "sqlalchemy connection", "django"])
async def test_a_connection_that_commits_by_itself_is_refused_before_a_row_is_written(
    desk: Desk,
) -> None:
    async def work() -> None:
        async with desk.connection() as mine:
            if desk.library == "django":
                mine.connection.set_autocommit(True)
            elif desk.library == "sqlite3":
                mine.connection.isolation_level = None
            else:
                mine.connection.execution_options(isolation_level="AUTOCOMMIT")
            await desk.block(mine, "at once")

    task = desk.handler(work)
    async with desk.app.worker():
        record = await ended(await task.aenqueue())
    assert record.state is State.DEAD
    assert "this one commits every statement by itself" in (record.errors[-1].message or "")
    assert desk.rows() == []


async def test_a_job_is_ended_under_its_fence_on_any_connection(sqlite_desk: SqliteDesk) -> None:
    await sqlite_desk.task.aenqueue(1)
    [job] = await claim(sqlite_desk.app.store, Queue("default"))
    engine = sqlalchemy.create_engine(f"sqlite:///{sqlite_desk.address}")
    with orm.Session(engine) as session:
        assert sqlite_desk.app.store.complete_within(session, done(job)).run() is not None
        session.commit()
        assert sqlite_desk.app.store.complete_within(session, done(job)).run() is None
    engine.dispose()
