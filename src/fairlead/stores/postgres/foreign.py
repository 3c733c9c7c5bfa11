"""Connections of the application's own, of whatever library.

What we do on one is a plain statement with one text parameter, so all that differs
is how a library takes a statement.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from fairlead.core.errors import ConfigError
from fairlead.stores.foreign import (
    ALCHEMY,
    ASYNC_ALCHEMY,
    commits_itself,
    is_async,
    kind_of,
    stranger,
)
from fairlead.stores.postgres.address import Address, told
from fairlead.stores.postgres.lane import is_ours
from fairlead.stores.postgres.owners import check_called, question_of
from fairlead.stores.postgres.problems import refusal

_KNOWN = (
    "a psycopg, psycopg2 or asyncpg connection, a SQLAlchemy Session or Connection (async ones "
    "too), or a Django connection"
)


class Executor(msgspec.Struct, frozen=True):
    """How one kind of connection runs a statement, which has %s where the text goes.

    `run` returns the one value that the statement does, or an awaitable of it. `idle`
    says that no transaction is open, and none will be by itself.
    """

    run: Callable[[Any, str, str], Any]
    idle: Callable[[Any], bool]
    is_async: bool = False


def executor_for(connection: object) -> Executor:
    """Return how a connection of the application's runs a statement."""
    found = kind_of(connection, _EXECUTORS)
    if found is not None:
        return found
    if getattr(connection, "vendor", None) == "postgresql":
        return _DJANGO
    raise stranger(connection, "the same PostgreSQL database", _KNOWN)


class Caller:
    """Calls verbs on connections of the application's own.

    Before the first, it is asked there whether the connection's user can trust whose code that
    is. The answer holds for the connection, as that for ours holds since the store was opened.
    """

    def __init__(self, address: Address, statements: Mapping[str, str]) -> None:
        self._address = address
        self._statements = statements
        self._trusted: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()

    def call(self, connection: Any, verb: str, text: str) -> Any:  # noqa: ANN401 (any library's)
        """Call a verb on a connection that is not async."""
        if not self._trusts(connection, verb):
            question = question_of(verb, self._address)
            check_called(_run(connection, question, self._address.owner or ""), self._address)
            self._remember(connection, verb)
        return _run(connection, self._statements[verb], text)

    async def acall(self, connection: Any, verb: str, text: str) -> Any:  # noqa: ANN401 (as above)
        """Call a verb on a connection of any kind."""
        if not self._trusts(connection, verb):
            question = question_of(verb, self._address)
            answer = await _arun(connection, question, self._address.owner or "")
            check_called(answer, self._address)
            self._remember(connection, verb)
        return await _arun(connection, self._statements[verb], text)

    def _trusts(self, connection: object, verb: str) -> bool:
        if is_ours(connection):
            return True
        with suppress(TypeError):  # Some cannot be remembered, and are asked each time.
            return verb in self._trusted.get(connection, ())
        return False

    def _remember(self, connection: object, verb: str) -> None:
        with suppress(TypeError):
            self._trusted.setdefault(connection, set()).add(verb)


def _run(connection: Any, statement: str, text: str) -> Any:  # noqa: ANN401 (the application's)
    executor = _plain(connection)
    try:
        return executor.run(connection, statement, text)
    except Exception as problem:
        raise explained(problem) from problem


async def _arun(connection: Any, statement: str, text: str) -> Any:  # noqa: ANN401 (as above)
    executor = executor_for(connection)
    try:
        answer = executor.run(connection, statement, text)
        return await answer if inspect.isawaitable(answer) else answer
    except Exception as problem:
        raise explained(problem) from problem


def check(connection: Any, *, is_async: bool) -> None:  # noqa: ANN401 (as above)
    """Raise unless a transaction on this connection can be shared from here, and is there."""
    executor = executor_for(connection) if is_async else _plain(connection)
    if executor.idle(connection):
        raise commits_itself()


def _plain(connection: Any) -> Executor:  # noqa: ANN401 (as above)
    executor = executor_for(connection)
    if executor.is_async:
        raise is_async(connection)
    return executor


def explained(problem: Exception) -> Exception:
    """Tell what we refuse, and who lacks our schema or our leave; the rest is theirs."""
    match _state(problem):
        case "JQ001" | "JQ002" | "JQ003" as code:
            return refusal(code, told(problem))
        case "3F000" | "42883" | "42P01":
            return ConfigError(
                "the database of this connection has no jobs in it, or not in this schema; point "
                "the app's URL at the same database, and run `fairlead migrate up` there"
            )
        case "42501" if "permission denied" in told(problem):
            return ConfigError(
                f"the user of this connection may not do that ({told(problem)}); let the owner of "
                "the schema run SELECT fairlead.allow('role', 'producer'), or 'worker' if it is "
                "to end jobs too"
            )
    return problem


def _state(problem: BaseException) -> str | None:
    """Return the SQLSTATE of an error; some libraries wrap those of others."""
    for each in (problem, getattr(problem, "orig", None), problem.__cause__):
        for name in ("sqlstate", "pgcode"):
            state = getattr(each, name, None)
            if isinstance(state, str):
                return state
    return None


def _psycopg(connection: "psycopg.Connection[Any]", statement: str, text: str) -> Any:  # noqa: ANN401
    # The application may have set factories for rows and cursors.
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        row = cursor.execute(statement.encode(), [text]).fetchone()
    return row[0] if row else None


async def _async_psycopg(
    connection: "psycopg.AsyncConnection[Any]", statement: str, text: str
) -> Any:  # noqa: ANN401
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(statement.encode(), [text])
        row = await cursor.fetchone()
    return row[0] if row else None


def _is_idle(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> bool:
    status = connection.info.transaction_status
    return connection.autocommit and status == pq.TransactionStatus.IDLE


def _cursor(connection: Any, statement: str, text: str) -> Any:  # noqa: ANN401
    """Run a statement as PEP 249 says: psycopg2 and Django."""
    with connection.cursor() as cursor:
        cursor.execute(statement, [text])
        row = cursor.fetchone()
    if not row:
        return None
    return next(iter(row.values())) if isinstance(row, dict) else row[0]


def _asyncpg(connection: Any, statement: str, text: str) -> Awaitable[Any]:  # noqa: ANN401
    answer: Awaitable[Any] = connection.fetchval(statement.replace("%s", "$1"), text)
    return answer


def _sqlalchemy(connection: Any, statement: str, text: str) -> Any:  # noqa: ANN401
    return connection.execute(_clause(statement), {"batch": text}).scalar()


async def _async_sqlalchemy(connection: Any, statement: str, text: str) -> Any:  # noqa: ANN401
    return (await connection.execute(_clause(statement), {"batch": text})).scalar()


def _clause(statement: str) -> Any:  # noqa: ANN401 (there is one only where the library is)
    from sqlalchemy import text  # noqa: PLC0415 (imported already by whoever has its connection)

    return text(statement.replace("%s", ":batch"))


def _never(connection: object) -> bool:
    """SQLAlchemy begins a transaction by itself."""
    return False


_DJANGO = Executor(
    _cursor, lambda connection: connection.get_autocommit() and not connection.in_atomic_block
)
_SYNC = Executor(_sqlalchemy, _never)
_ASYNC = Executor(_async_sqlalchemy, _never, is_async=True)
_ASYNCPG = Executor(_asyncpg, lambda connection: not connection.is_in_transaction(), is_async=True)
_EXECUTORS = {
    ("psycopg", "Connection"): Executor(_psycopg, _is_idle),
    ("psycopg", "AsyncConnection"): Executor(_async_psycopg, _is_idle, is_async=True),
    ("psycopg2", "connection"): Executor(
        _cursor,
        lambda connection: connection.autocommit and connection.info.transaction_status == 0,
    ),
    ("asyncpg", "Connection"): _ASYNCPG,
    ("asyncpg", "PoolConnectionProxy"): _ASYNCPG,
    **dict.fromkeys(ALCHEMY, _SYNC),
    **dict.fromkeys(ASYNC_ALCHEMY, _ASYNC),
}
