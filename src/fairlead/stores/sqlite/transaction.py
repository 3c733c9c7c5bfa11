"""Transactions with the application's own rows, on connections of ours.

A connection of ours waits for the write lock as the store's writer does, and has
it from the first moment: a transaction that read first and wrote later could be
refused in the middle. Nobody else writes while it lasts.

In coroutines each transaction has a thread of its own. From a shared pool those
who wait for the lock could take every thread, and the one who has it none.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from typing import Any, TypeVar

from fairlead.core.errors import ConfigError
from fairlead.stores.sqlite.connection import Place, WriteLock, typed
from fairlead.stores.sqlite.holding import check_thread, inside

Value = TypeVar("Value")


@contextmanager
def transaction(place: Place) -> Iterator[sqlite3.Connection]:
    """Give a new connection that has the write lock; commits at the end, or rolls back."""
    with closing(place.connect()) as connection:
        with closing(WriteLock(place)) as lock:
            _typed(place, lambda: lock.begin(connection, None, lambda: check_thread(place)))
        try:
            with inside(place):
                yield connection
        except BaseException:
            # To close it would not do: SQLite waits for cursors that an error's traceback holds.
            with suppress(sqlite3.Error):
                connection.rollback()
            raise
        if not connection.in_transaction:
            raise ConfigError(
                "the transaction was ended inside its block; leave COMMIT and ROLLBACK to the "
                "block: it commits at its end, and rolls back if it raises"
            )
        _typed(place, lambda: connection.execute("COMMIT"))


def _typed(place: Place, work: Callable[[], object]) -> None:
    try:
        work()
    except sqlite3.Error as problem:
        raise typed(problem, place) from problem


class _Undone(Exception):
    """Tells a transaction to roll back."""


class AsyncCursor:
    """What a statement found, for coroutines."""

    def __init__(self, connection: "AsyncConnection", cursor: sqlite3.Cursor) -> None:
        self._connection = connection
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        """How many rows the statement changed."""
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The number of the last row that was added."""
        return self._cursor.lastrowid

    async def fetchone(self) -> Any:  # noqa: ANN401 (a row)
        """Return the next row, or None."""
        return await self._connection.do(lambda _: self._cursor.fetchone())

    async def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        return await self._connection.do(lambda _: self._cursor.fetchall())


class AsyncConnection:
    """A connection for coroutines, with the part of psycopg's that most code uses.

    Everything happens in one thread, in the order it was asked for. Cancelling
    who waits cancels the wait, not the work.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "fairlead-transaction")
        self._raw: sqlite3.Connection | None = None
        self._open = ExitStack()

    async def execute(self, sql: str, params: Any = ()) -> AsyncCursor:  # noqa: ANN401 (or a dict)
        """Run a statement; its rows are fetched from what this returns."""
        return AsyncCursor(self, await self.do(lambda raw: raw.execute(sql, params)))

    async def executemany(self, sql: str, rows: Iterable[Any]) -> AsyncCursor:
        """Run a statement once for each row of parameters."""
        return AsyncCursor(self, await self.do(lambda raw: raw.executemany(sql, rows)))

    async def do(self, work: Callable[[sqlite3.Connection], Value]) -> Value:
        """Do something with the plain connection, in the thread it belongs to."""
        return await self._in_thread(lambda: work(self._connected()))

    def _connected(self) -> sqlite3.Connection:
        if self._raw is None:
            raise ConfigError("this transaction is over; use its connection inside its block only")
        return self._raw

    async def begin(self, place: Place) -> None:
        """Begin the transaction; if the wait is cancelled, it is undone as soon as it has begun."""
        try:
            await self._in_thread(lambda: self._begin(place))
        except BaseException:
            self._thread.submit(self._roll_back)
            self._thread.shutdown(wait=False)
            raise

    def _begin(self, place: Place) -> None:
        self._raw = self._open.enter_context(transaction(place))

    async def end(self, *, well: bool) -> None:
        """Commit, or roll back."""
        try:
            await self._in_thread(self._commit if well else self._roll_back)
        finally:
            self._thread.shutdown(wait=False)

    def _commit(self) -> None:
        self._raw = None
        self._open.close()

    def _roll_back(self) -> None:
        self._raw = None
        # Not with the error that is on its way: it belongs to another thread.
        self._open.__exit__(_Undone, _Undone(), None)

    async def _in_thread(self, work: Callable[[], Value]) -> Value:
        try:
            asked = self._thread.submit(work)
        except RuntimeError:  # It was shut down, for the block is over; the work says so.
            return work()
        # Shielded: a cancelled wait would take work out of the line that has not begun, such as
        # the end, and the lock would stay for ever.
        return await asyncio.shield(asyncio.wrap_future(asked))


@asynccontextmanager
async def atransaction(place: Place) -> AsyncIterator[AsyncConnection]:
    """Give a connection for coroutines that has the write lock; commits at the end."""
    connection = AsyncConnection()
    await connection.begin(place)
    try:
        with inside(place):
            yield connection
    except BaseException:
        await connection.end(well=False)
        raise
    await connection.end(well=True)
