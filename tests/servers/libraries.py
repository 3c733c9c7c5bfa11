"""The libraries by which applications talk to PostgreSQL and SQLite, each under the same names.

`LIBRARIES`, and `FILE_LIBRARIES` for a path, opens a connection of each to a URL. What a test does with one is
written once, as a coroutine: `go` runs it on a loop if the library is async, and
without any if it is not, because some refuse to be used beside a running loop.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import asyncpg
import django
import django.db
import psycopg
import psycopg2
import psycopg2.extras
import sqlalchemy
from django.conf import settings
from psycopg.rows import dict_row, namedtuple_row
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as aio
from sqlalchemy.pool import NullPool

Value = TypeVar("Value")


class Mine:
    """A connection of the application's own, in a transaction, as PEP 249 has it."""

    is_async = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: str) -> None:
        cursor = self.connection.cursor()
        cursor.execute(statement)
        cursor.close()

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


class AsyncMine(Mine):
    """The same with `await`."""

    is_async = True

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


class Asyncpg(AsyncMine):
    """A connection that begins no transaction by itself."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._transaction = connection.transaction()

    async def begin(self) -> None:
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


class Alchemy(Mine):
    async def execute(self, statement: str) -> None:
        self.connection.execute(sqlalchemy.text(statement))


class AsyncAlchemy(AsyncMine):
    async def execute(self, statement: str) -> None:
        await self.connection.execute(sqlalchemy.text(statement))


Library = Callable[[str], AbstractAsyncContextManager[Mine]]


def _pep249(connect: Callable[..., Any], **options: Any) -> Library:
    @asynccontextmanager
    async def opened(address: str) -> AsyncIterator[Mine]:
        connection = connect(address, **options)
        try:
            yield Mine(connection)
        finally:
            connection.close()

    return opened


def _async_psycopg(**options: Any) -> Library:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Mine]:
        connection = await psycopg.AsyncConnection.connect(url, **options)
        try:
            yield AsyncMine(connection)
        finally:
            await connection.close()

    return opened


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Mine]:
    connection = await asyncpg.connect(url)
    try:
        mine = Asyncpg(connection)
        await mine.begin()
        yield mine
    finally:
        await connection.close()


@asynccontextmanager
async def _asyncpg_pool(url: str) -> AsyncIterator[Mine]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as proxy:
        mine = Asyncpg(proxy)
        await mine.begin()
        yield mine


def _over(driver: str) -> Callable[[str], str]:
    """Return how SQLAlchemy is told a URL of PostgreSQL."""
    return lambda url: url.replace("postgresql:", f"postgresql+{driver}:")


def _alchemy(
    told: Callable[[str], str], kind: Callable[[sqlalchemy.Engine], Any], *, begins: bool = False
) -> Library:
    @asynccontextmanager
    async def opened(address: str) -> AsyncIterator[Mine]:
        engine = sqlalchemy.create_engine(told(address), poolclass=NullPool)
        if begins:
            _begin_for_real(engine)
        connection = kind(engine)
        try:
            yield Alchemy(connection)
        finally:
            connection.close()
            engine.dispose()

    return opened


def _async_alchemy(told: Callable[[str], str], kind: Callable[[aio.AsyncEngine], Any]) -> Library:
    @asynccontextmanager
    async def opened(address: str) -> AsyncIterator[Mine]:
        engine = aio.create_async_engine(told(address), poolclass=NullPool)
        try:
            async with kind(engine) as connection:
                yield AsyncAlchemy(connection)
        finally:
            await engine.dispose()

    return opened


def _scoped(engine: sqlalchemy.Engine) -> Any:
    return orm.scoped_session(orm.sessionmaker(engine))


def _django(told: Callable[[str], dict[str, Any]], *, debug: bool = False) -> Library:
    @asynccontextmanager
    async def opened(address: str) -> AsyncIterator[Mine]:
        if not settings.configured:
            settings.configure(USE_TZ=True, DATABASES={})
            django.setup()
        django.db.connections.databases[address] = django.db.connections.configure_settings(
            {"default": told(address)}
        )["default"]
        connection = django.db.connections[address]
        connection.force_debug_cursor = debug
        connection.set_autocommit(False)
        try:
            yield Mine(connection)
        finally:
            connection.close()
            del django.db.connections[address]

    return opened


def _django_server(url: str) -> dict[str, Any]:
    """Return how Django is told a URL of PostgreSQL."""
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path[1:]),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


LIBRARIES: dict[str, Library] = {
    "psycopg": _pep249(psycopg.connect),
    "psycopg with dicts": _pep249(psycopg.connect, row_factory=dict_row),
    "psycopg with raw cursors": _pep249(psycopg.connect, cursor_factory=psycopg.RawCursor),
    "async psycopg": _async_psycopg(),
    "async psycopg with named tuples": _async_psycopg(row_factory=namedtuple_row),
    "psycopg2": _pep249(psycopg2.connect),
    "psycopg2 with dicts": _pep249(psycopg2.connect, cursor_factory=psycopg2.extras.RealDictCursor),
    "psycopg2 with named tuples": _pep249(
        psycopg2.connect, cursor_factory=psycopg2.extras.NamedTupleCursor
    ),
    "asyncpg": _asyncpg,
    "asyncpg from a pool": _asyncpg_pool,
    "sqlalchemy connection": _alchemy(_over("psycopg"), sqlalchemy.Engine.connect),
    "sqlalchemy session": _alchemy(_over("psycopg2"), orm.Session),
    "sqlalchemy scoped session": _alchemy(_over("psycopg"), _scoped),
    "async sqlalchemy connection": _async_alchemy(_over("asyncpg"), aio.AsyncEngine.connect),
    "async sqlalchemy session": _async_alchemy(_over("psycopg"), aio.AsyncSession),
    "async sqlalchemy session of asyncpg": _async_alchemy(_over("asyncpg"), aio.AsyncSession),
    "django": _django(_django_server),
}


# SQLite


@asynccontextmanager
async def _sqlite3_by_hand(path: str) -> AsyncIterator[Mine]:
    """A connection that commits each statement by itself, with a transaction begun on it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN")
    try:
        yield Mine(connection)
    finally:
        connection.close()


def _begin_for_real(engine: sqlalchemy.Engine) -> None:
    """Do what SQLAlchemy's documentation says for those who want SQLite's transactions whole."""

    @sqlalchemy.event.listens_for(engine, "connect")
    def leave_it(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


def _file(path: str) -> str:
    return f"sqlite:///{path}"


def _async_file(path: str) -> str:
    return f"sqlite+aiosqlite:///{path}"


def _django_file(path: str) -> dict[str, Any]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": path}


FILE_LIBRARIES: dict[str, Library] = {
    "sqlite3": _pep249(sqlite3.connect),
    "sqlite3 with BEGIN": _sqlite3_by_hand,
    "sqlalchemy connection": _alchemy(_file, sqlalchemy.Engine.connect),
    "sqlalchemy session": _alchemy(_file, orm.Session),
    "sqlalchemy session with BEGIN": _alchemy(_file, orm.Session, begins=True),
    "sqlalchemy scoped session": _alchemy(_file, _scoped),
    "async sqlalchemy connection": _async_alchemy(_async_file, aio.AsyncEngine.connect),
    "async sqlalchemy session": _async_alchemy(_async_file, aio.AsyncSession),
    "django": _django(_django_file),
    "django with DEBUG": _django(_django_file, debug=True),
}

ASYNC = tuple(name for name in (*LIBRARIES, *FILE_LIBRARIES) if "async" in name)


def go(name: str, work: Coroutine[Any, Any, Value]) -> Value:
    """Run what was written for every library: on a loop of its own, or without any."""
    if name in ASYNC:
        return asyncio.run(work)
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError(f"{name} has waited for a loop")
