"""Connections of the application's own to the file: sqlite3, SQLAlchemy, Django.

Each of them holds a `sqlite3.Connection`. Our statements go through the library all the same:
so it knows that its transaction has begun, logs what is done in it, and raises its own errors.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fairlead.core.errors import ConfigError
from fairlead.stores.foreign import ALCHEMY, ASYNC_ALCHEMY, is_async, kind_of, stranger
from fairlead.stores.sqlite.connection import Place
from fairlead.stores.sqlite.talk import plain
from fairlead.stores.sqlite.transaction import AsyncConnection

Value = TypeVar("Value")

_KNOWN = (
    "a sqlite3 connection, a SQLAlchemy Session or Connection (async ones too), or a Django "
    "connection"
)
_LEGACY = -1  # What Python 3.12 and newer call the only way that 3.11 has.


class Shared:
    """A connection of the application's own, as our statements see it.

    `raw` is that of the driver. Our own code handles the errors of `sqlite3`, so those come out
    of `execute`; `own` turns the last one back into that of the library.
    """

    def __init__(self, run: Callable[[str, Any], Any], raw: Any) -> None:  # noqa: ANN401 (a driver's)
        self._run = run
        self._raw = raw
        self._problem: Exception | None = None

    def execute(self, sql: str, values: Any = (), /) -> Any:  # noqa: ANN401 (a cursor, or the like)
        """Run a statement; returns what has its rows, their number, and the last row's."""
        try:
            return self._run(sql, values)
        except Exception as problem:
            beneath = _beneath(problem)
            if beneath is None or beneath is problem:
                raise
            self._problem = problem
        raise beneath

    def own(self, problem: sqlite3.Error) -> Exception:
        """Return an error as the application's library raises it."""
        return self._problem or problem

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self._raw.in_transaction)

    @property
    def commits_itself(self) -> bool:
        """Whether no transaction is open, and the driver will begin none."""
        mode = getattr(self._raw, "autocommit", _LEGACY)
        begins = self._raw.isolation_level is not None if mode == _LEGACY else not mode
        return not begins and not self.in_transaction


def shared(connection: Any) -> Shared:  # noqa: ANN401 (whatever was passed)
    """Return a connection that is not async, as our statements see it."""
    if isinstance(connection, AsyncConnection):
        raise ConfigError(
            "this connection is for coroutines; inside `async with job.commit()` write "
            "`await task.aenqueue(…)`"
        )
    found = kind_of(connection, _KINDS)
    if found is not None:
        return found(connection)
    if kind_of(connection, _ASYNC_KINDS):
        raise is_async(connection)
    if getattr(connection, "vendor", None) == "sqlite":
        return _django(connection)
    raise stranger(connection, "the same SQLite file", _KNOWN)


async def within(connection: Any, work: Callable[[Shared], Value]) -> Value:  # noqa: ANN401
    """Do something on a connection of any kind, in the thread where that can be used."""
    if isinstance(connection, AsyncConnection):
        return await connection.do(lambda raw: work(_sqlite3(raw)))
    if kind_of(connection, _ASYNC_KINDS) is None:
        return work(shared(connection))
    if hasattr(connection, "sync_connection"):
        begun = connection
    else:
        begun = await connection.connection()
    answer: Value = await begun.run_sync(lambda sync: work(_alchemy(sync)))
    return answer


def check_file(place: Place, mine: Shared) -> None:
    """Raise unless a transaction of this connection can hold jobs of this file."""
    try:
        rows = mine.execute("PRAGMA database_list").fetchall()
    except sqlite3.ProgrammingError as problem:
        raise ConfigError(
            f"connection= cannot be used here: {problem} Pass an open connection, from the "
            "thread that made it"
        ) from None
    theirs = next((os.fsdecode(row[2]) for row in rows if row[0] == 0), "")
    if not theirs or Place(Path(theirs)).identity() != place.identity():
        raise _elsewhere(theirs or "an in-memory database", place)


@contextmanager
def explained(mine: Shared) -> Iterator[None]:
    """Tell who may only read; other errors of statements stay the library's own."""
    try:
        yield
    except sqlite3.Error as problem:
        if (getattr(problem, "sqlite_errorcode", 0) & 0xFF) == sqlite3.SQLITE_READONLY:
            raise ConfigError(
                f"connection= may only read ({problem}), and a job is a row to be written; pass "
                "a connection that may write"
            ) from mine.own(problem)
        raise mine.own(problem) from None


def _elsewhere(theirs: str, place: Place) -> ConfigError:
    return ConfigError(
        f"the connection is to {theirs}, the jobs are in {place.path}; one transaction cannot span "
        "both, so point the app's URL at your own file"
    )


def _beneath(problem: Exception) -> sqlite3.Error | None:
    """Return the driver's error; libraries wrap it in one of theirs."""
    for each in (problem, getattr(problem, "orig", None), problem.__cause__):
        if isinstance(each, sqlite3.Error):
            return each
    return None


def _sqlite3(connection: sqlite3.Connection) -> Shared:
    try:
        return Shared(plain(connection).execute, connection)
    except sqlite3.ProgrammingError as problem:
        raise ConfigError(
            f"connection= cannot be used here: {problem} Pass an open connection, from the "
            "thread that made it"
        ) from None


def _alchemy(connection: Any) -> Shared:  # noqa: ANN401 (the application's)
    if connection.dialect.name != "sqlite":
        raise ConfigError(
            f"connection= is to a {connection.dialect.name} database, the jobs are in an SQLite "
            "file; one transaction cannot span both, so point the app's URL at the same database"
        )

    def run(sql: str, values: Any) -> Any:  # noqa: ANN401 (as above)
        # To SQLAlchemy a list would be many rows of parameters.
        return connection.exec_driver_sql(
            sql, tuple(values) if isinstance(values, list) else values
        )

    return Shared(run, connection.connection.driver_connection)


def _session(session: Any) -> Shared:  # noqa: ANN401 (the application's)
    return _alchemy(session.connection())


def _django(connection: Any) -> Shared:  # noqa: ANN401 (the application's)
    connection.ensure_connection()

    def run(sql: str, values: Any) -> Any:  # noqa: ANN401 (as above)
        # Django has its own marks for parameters, and makes SQLite's of them.
        marked = sql.replace("%", "%%")
        marked = marked if isinstance(values, dict) else marked.replace("?", "%s")
        cursor = connection.cursor()
        cursor.execute(marked, values)
        return cursor

    return Shared(run, connection.connection)


_KINDS: dict[tuple[str, str], Callable[[Any], Shared]] = {
    ("sqlite3", "Connection"): _sqlite3,
    **dict.fromkeys(ALCHEMY, _session),
    ("sqlalchemy", "Connection"): _alchemy,
}
_ASYNC_KINDS = dict.fromkeys(ASYNC_ALCHEMY, 1)
