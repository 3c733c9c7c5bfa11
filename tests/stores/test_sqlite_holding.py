"""Who waits for the write lock and has it is told so at once, with the way out."""

import asyncio
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import django.db
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as aio

from fairlead import ConfigError, Fairlead, WaitsForItself
from fairlead.producer import BoundTask
from fairlead.stores.sqlite import holding
from fairlead.stores.sqlite.connection import Place
from tests.face.desk import SqliteDesk
from tests.servers.libraries import FILE_LIBRARIES, go
from tests.system.tree import until

WAY_OUT = re.escape("this call would wait for itself; to be part of that transaction pass its")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[SqliteDesk]:
    with SqliteDesk(tmp_path) as desk:
        yield desk


INSERT = "INSERT INTO orders VALUES ('x')"


def refused(enqueue: Callable[[int], object]) -> None:
    with pytest.raises(ConfigError, match=WAY_OUT):
        enqueue(1)


# Connections of the application


def test_a_connection_in_a_local_variable(desk: SqliteDesk) -> None:
    connection = sqlite3.connect(desk.address)
    connection.execute(INSERT)
    refused(desk.task.enqueue)
    with pytest.raises(ConfigError, match=WAY_OUT):
        desk.app.enqueue_many([desk.task.call(1)])
    connection.commit()
    desk.task.enqueue(1)
    connection.close()


class Repository:
    def __init__(self, path: str) -> None:
        self.connection = sqlite3.connect(path)

    def add(self, task: BoundTask[..., Any]) -> None:
        self.connection.execute(INSERT)
        refused(task.enqueue)


def test_a_connection_in_an_attribute(desk: SqliteDesk) -> None:
    repository = Repository(desk.address)
    repository.add(desk.task)
    repository.connection.close()


def test_a_connection_in_a_global(desk: SqliteDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "shop_db", sqlite3.connect(desk.address))
    globals()["shop_db"].execute(INSERT)
    refused(desk.task.enqueue)
    globals()["shop_db"].close()


@pytest.mark.parametrize("kind", [orm.Session, sqlalchemy.Engine.connect], ids=["orm", "core"])
def test_sqlalchemy(desk: SqliteDesk, kind: Callable[[sqlalchemy.Engine], Any]) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{desk.address}")
    with kind(engine) as session:
        session.execute(sqlalchemy.text(INSERT))
        refused(desk.task.enqueue)
        session.rollback()
        desk.task.enqueue(1)
    engine.dispose()


def test_sqlalchemys_scoped_session(desk: SqliteDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{desk.address}")
    monkeypatch.setitem(globals(), "db", orm.scoped_session(orm.sessionmaker(engine)))
    globals()["db"].execute(sqlalchemy.text(INSERT))
    refused(desk.task.enqueue)
    globals()["db"].remove()
    engine.dispose()


def test_django(desk: SqliteDesk) -> None:
    async def work() -> None:
        async with FILE_LIBRARIES["django"](desk.address) as mine:
            mine.connection.set_autocommit(True)
            name = mine.connection.alias
            del mine
            with django.db.transaction.atomic(using=name):
                with django.db.connections[name].cursor() as cursor:
                    cursor.execute(INSERT)
                refused(desk.task.enqueue)

    go("django", work())


def test_a_program_without_other_threads_needs_no_connection_that_we_can_see(
    desk: SqliteDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = [sqlite3.connect(desk.address)]
    hidden[0].execute(INSERT)
    if holding._process_has_lock(Place(Path(desk.address))) is None:
        pytest.skip("this system does not tell who has a lock")
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])
    refused(desk.task.enqueue)
    hidden[0].close()


async def test_a_coroutine_that_holds_an_async_session(desk: SqliteDesk) -> None:
    engine = aio.create_async_engine(f"sqlite+aiosqlite:///{desk.address}")
    async with aio.AsyncSession(engine) as session:
        await session.execute(sqlalchemy.text(INSERT))
        advised = r"await task.using\(connection=conn\).aenqueue\(…\)"
        with pytest.raises(WaitsForItself, match=advised):
            await desk.task.aenqueue(1)
        with pytest.raises(WaitsForItself, match=advised):
            desk.task.enqueue(1)
        await desk.task.using(connection=session).aenqueue(1)
        await session.rollback()
    await desk.task.aenqueue(1)
    await engine.dispose()


# Blocks of ours


def test_a_block_of_another_app_on_the_same_file(desk: SqliteDesk) -> None:
    other = Fairlead(f"sqlite:///{desk.address}")
    with ExitStack() as block:
        block.enter_context(other.store.transaction())
        refused(desk.task.enqueue)
        with pytest.raises(ConfigError, match=WAY_OUT):
            desk.app.store.transaction().__enter__()
    other.close()
    desk.task.enqueue(1)


async def test_a_block_of_another_app_in_the_same_coroutine(desk: SqliteDesk) -> None:
    other = Fairlead(f"sqlite:///{desk.address}")
    async with other.store.atransaction():
        with pytest.raises(ConfigError, match=WAY_OUT):
            await desk.task.aenqueue(1)
        refused(desk.task.enqueue)
    await other.aclose()
    await desk.task.aenqueue(1)


# Who waits for somebody else goes on waiting


def test_another_thread_is_waited_for(desk: SqliteDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even while this thread reads in a transaction of its own on another file."""
    looked = threading.Event()
    check = holding.check_thread

    def noted(place: Place) -> None:
        check(place)
        looked.set()

    monkeypatch.setattr("fairlead.stores.sqlite.writer.check_thread", noted)
    ready = threading.Event()

    def hold() -> None:
        connection = sqlite3.connect(desk.address)
        connection.execute(INSERT)
        ready.set()
        looked.wait(10)
        connection.rollback()
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    ready.wait(10)
    elsewhere = sqlite3.connect(":memory:")
    elsewhere.execute("CREATE TABLE t (x)")
    elsewhere.execute("INSERT INTO t VALUES (1)")
    desk.task.enqueue(1)
    assert looked.is_set()
    holder.join()
    elsewhere.close()


async def test_another_coroutine_is_waited_for(
    desk: SqliteDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = asyncio.Event()
    check = holding.check_task

    def noted(place: Place, task: Any) -> Any:
        looked.set()
        return check(place, task)

    monkeypatch.setattr("fairlead.stores.sqlite.writer.check_task", noted)
    ready = asyncio.Event()

    async def hold() -> None:
        connection = sqlite3.connect(desk.address)
        connection.execute(INSERT)
        ready.set()
        await looked.wait()
        connection.rollback()
        connection.close()

    holding_it = asyncio.ensure_future(hold())
    await ready.wait()
    await desk.task.aenqueue(1)
    await holding_it


@pytest.mark.parametrize("first", ["itself", "other"])
def test_one_who_waits_for_itself_fails_alone(
    desk: SqliteDesk, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Another thread's put, which would share the batch, is done when the lock is free."""
    connection = sqlite3.connect(desk.address)
    connection.execute(INSERT)
    done: list[object] = []
    # Not through a closure: what it can reach would be this thread's connection.
    other = threading.Thread(target=lambda task: done.append(task.enqueue(2)), args=[desk.task])
    check = holding.check_thread

    def beside_another(place: Place) -> None:
        if first == "itself" and not other.ident:
            other.start()
            until(lambda: len(desk.app.store._session.writer._pending) == 2)  # type: ignore[attr-defined]
        check(place)

    monkeypatch.setattr("fairlead.stores.sqlite.writer.check_thread", beside_another)
    if first == "other":
        other.start()
        until(lambda: desk.app.store._session.writer._turn.locked())  # type: ignore[attr-defined]
    refused(desk.task.enqueue)
    assert not done
    connection.rollback()
    other.join(20)
    assert len(done) == 1
    connection.close()


def test_a_connection_that_threads_share_is_waited_for(desk: SqliteDesk) -> None:
    """Whoever has it may end its transaction, so nobody knows who waits for whom."""
    connection = sqlite3.connect(desk.address, check_same_thread=False)
    connection.execute(INSERT)
    holding.check_thread(Place(Path(desk.address)))
    connection.close()
