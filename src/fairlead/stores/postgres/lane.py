"""Connections of our own: one for each kind of work, so that none of it waits for another.

A lane opens its connection when it is first used and again after it broke. A call
that got no answer is `Unanswered`, and not repeated here: whoever made it knows whether that
is safe. Only what the server says it undid (a deadlock, say) is done again.
"""

import asyncio
import os
import select
import threading
import time
import weakref
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from math import ceil
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg.rows import tuple_row

from fairlead.core.errors import (
    StoreUnavailable,
)
from fairlead.stores.patience import Patience
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.problems import broke, silent, typed

Connection = psycopg.Connection[tuple[Any, ...]]
AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]
Answer = TypeVar("Answer")

NO_PATH = "SET LOCAL search_path = ''"
"""What a transaction begins with in which statements of ours name functions or operators.

Somebody may have made some on the user's search path that fit our arguments better than the
server's own, and they would run with our rights. Verbs are named with their schema and need no
such thing.
"""
TRIES = 5
MOST_BLOCKING = 8
"""How many connections all threads of a program have together for puts, and for transactions."""
MOST_LENT = 8
"""How many transactions of handlers may be open on one event loop; others wait for their turn."""
MOST_PATIENT = 8
"""How many calls on one event loop may wait for transactions of others, each on its connection."""

_UNDONE = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)


class Lane:
    """One connection on one event loop, used by one call at a time."""

    def __init__(self, address: Address, patience: float | None = None) -> None:
        self._address = address
        self._patience = address.timeout if patience is None else patience
        self._connection: AsyncConnection | None = None
        self._turn = asyncio.Lock()

    async def run(self, work: Callable[[AsyncConnection], Awaitable[Answer]]) -> Answer:
        """Do some work; who is cancelled meanwhile stops waiting, the work goes on."""
        return await uncancelled(self._run(work))

    async def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""

        async def asked(connection: AsyncConnection) -> list[tuple[Any, ...]]:
            cursor = connection.cursor(binary=True)
            await cursor.execute(statement, values)
            return await cursor.fetchall()

        return await self.run(asked)

    async def _run(self, work: Callable[[AsyncConnection], Awaitable[Answer]]) -> Answer:
        async with self._turn:
            until = time.monotonic() + self._patience / 2
            for tries in range(1, TRIES + 1):
                try:
                    return await self._in_time(work)
                except _UNDONE as problem:
                    if tries == TRIES or time.monotonic() > until:
                        raise typed(problem, self._address) from problem
                except psycopg.Error as problem:
                    asked = self._connection is not None
                    self._drop_if_broken(problem)
                    raise typed(problem, self._address, asked=asked) from problem
                except BaseException:
                    self.close()
                    raise
                await asyncio.sleep(0.01 * tries)
        raise AssertionError

    async def _in_time(self, work: Callable[[AsyncConnection], Awaitable[Answer]]) -> Answer:
        """Return the answer, if it comes in time.

        When it does not, the driver may take seconds to call the question off. It does
        that on its own, with the connection, and nobody waits for it.
        """
        working = asyncio.ensure_future(self._work(work))
        try:
            with suppress(TimeoutError):
                async with Patience(self._patience):
                    await asyncio.wait({working})
        except BaseException:
            working.cancel()
            raise
        if not working.done():
            asked = self._connection is not None
            self._abandon(working)
            raise silent(self._address, self._patience, asked=asked)
        return working.result()

    async def _work(self, work: Callable[[AsyncConnection], Awaitable[Answer]]) -> Answer:
        return await work(await self._opened())

    async def _opened(self) -> AsyncConnection:
        if self._connection is not None and not _is_of_use(self._connection):
            self.close()
        if self._connection is None:
            self._connection = await opened(self._address.parameters)
        return self._connection

    async def finished(self) -> None:
        """Wait for those whose turn comes before."""
        async with self._turn:
            pass

    def _abandon(self, working: asyncio.Future[Any]) -> None:
        connection, self._connection = self._connection, None
        working.add_done_callback(_heard)
        if connection is not None:
            working.add_done_callback(lambda _: finish(connection))
        working.cancel()

    def _drop_if_broken(self, problem: psycopg.Error) -> None:
        if broke(problem):
            self.close()

    def close(self) -> None:
        """Let go of the connection, from whatever thread."""
        connection, self._connection = self._connection, None
        if connection is not None:
            finish(connection)


class PatientLanes:
    """A few lanes on one event loop, for what may have to wait for transactions of others.

    Each is used by one call at a time, so nobody waits for one that waits, unless all of them do.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lanes: list[Lane] = []
        self._idle: list[Lane] = []
        self._room = asyncio.Semaphore(MOST_PATIENT)

    async def run(self, work: Callable[[Lane], Awaitable[Answer]]) -> Answer:
        """Do some work; who is cancelled meanwhile stops waiting, the work goes on."""
        return await uncancelled(self._run(work))

    async def _run(self, work: Callable[[Lane], Awaitable[Answer]]) -> Answer:
        async with self._room:
            if not self._idle:
                self._idle.append(Lane(self._address))
                self._lanes.append(self._idle[-1])
            lane = self._idle.pop()
            try:
                return await work(lane)
            finally:
                self._idle.append(lane)

    async def finished(self) -> None:
        """Wait for what is being done."""
        for lane in list(self._lanes):
            await lane.finished()

    def close(self) -> None:
        """Let go of the connections, from whatever thread."""
        for lane in list(self._lanes):
            lane.close()


def lock_wait(patience: float) -> int:
    """Return for how many milliseconds the server may wait for others' locks.

    It is half of our own patience, so that the server tells of a wait that was too long before
    our own clock does.
    """
    return max(1, int(500 * patience))


@asynccontextmanager
async def apart(connection: AsyncConnection) -> AsyncIterator[None]:
    """Begin a transaction in which names mean what the server means by them."""
    async with connection.transaction():
        await connection.execute(NO_PATH)
        yield


class _Hurried(Connection):
    """A connection whose answers are waited for until a moment, and no longer."""

    until = float("inf")

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 (as the driver's)
        """Wait as the driver does."""
        return super().wait(_in_time(gen, self.until), *args, **options)


def _in_time(gen: Generator[Any, Any, Any], until: float) -> Generator[Any, Any, Any]:
    """Pass on what the driver waits for; it looks up ten times a second while nothing comes."""
    ready = None
    while True:
        try:
            awaited = gen.send(ready)
        except StopIteration as end:
            return end.value
        ready = yield awaited
        if not ready and time.monotonic() > until:
            raise TimeoutError


class BlockingLanes:
    """A few connections for synchronous callers, each used by one thread at a time."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[_Hurried] = []
        self._guard = threading.Lock()
        self._room = threading.BoundedSemaphore(MOST_BLOCKING)

    def run(self, work: Callable[[Connection], Answer], patience: float | None = None) -> Answer:
        """Do some work on a connection that nobody else uses meanwhile."""
        patience = patience or self._address.timeout
        until = time.monotonic() + patience / 2
        for tries in range(1, TRIES + 1):
            try:
                with self.borrowed(patience) as connection:
                    return work(connection)
            except _UNDONE as problem:
                if tries == TRIES or time.monotonic() > until:
                    raise typed(problem, self._address) from problem
            except psycopg.Error as problem:
                raise typed(problem, self._address, asked=True) from problem
            except TimeoutError as problem:
                raise silent(self._address, patience, asked=True) from problem
            time.sleep(0.01 * tries)
        raise AssertionError

    @contextmanager
    def borrowed(self, patience: float) -> Iterator[Connection]:
        """Lend a connection that nobody else uses meanwhile, for so many seconds."""
        if not self._room.acquire(timeout=self._address.timeout):
            raise StoreUnavailable(
                self._address.url,
                f"all {MOST_BLOCKING} connections of this process were in use for "
                f"{self._address.timeout:g} s; keep blocks of job.commit() short",
            )
        try:
            with self._guard:
                connection = self._idle.pop() if self._idle else None
            if connection is not None and not _is_of_use(connection):
                finish(connection)
                connection = None
            if connection is None:
                connection = self._new(patience)
            connection.until = time.monotonic() + patience
            try:
                yield connection
            except TimeoutError:
                # Else it may wait for a lock for hours, with more of its kind behind it.
                with suppress(psycopg.Error):
                    connection.cancel_safe(timeout=1.0)
                finish(connection)
                raise
            except BaseException:
                # After an interrupt nobody knows what is still on its way.
                finish(connection)
                raise
            # What a handler has set for itself is not for the next one.
            connection.row_factory, connection.cursor_factory = tuple_row, psycopg.Cursor
            with self._guard:
                self._idle.append(connection)
        finally:
            self._room.release()

    def _new(self, patience: float) -> "_Hurried":
        try:
            return connect(self._address, patience)
        except psycopg.Error as problem:
            raise typed(problem, self._address) from problem

    def close(self) -> None:
        """Let go of the idle connections."""
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            finish(connection)


class LentLanes:
    """A few connections on one event loop, lent to handlers for transactions of their own."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: list[AsyncConnection] = []
        self._room = asyncio.Semaphore(MOST_LENT)

    @asynccontextmanager
    async def borrowed(self) -> AsyncIterator[AsyncConnection]:
        """Lend a connection that nobody else uses meanwhile; who comes last waits."""
        async with self._room:
            connection = self._idle.pop() if self._idle else None
            if connection is None or connection.closed:
                connection = await self._new()
            try:
                yield connection
            except BaseException:
                finish(connection)
                raise
            connection.row_factory, connection.cursor_factory = tuple_row, psycopg.AsyncCursor
            self._idle.append(connection)

    async def _new(self) -> AsyncConnection:
        try:
            return await opened(self._address.parameters)
        except psycopg.Error as problem:
            raise typed(problem, self._address) from problem

    def close(self) -> None:
        """Let go of the idle connections, from whatever thread."""
        idle, self._idle = self._idle, []
        for connection in idle:
            finish(connection)


async def opened(parameters: Mapping[str, Any]) -> AsyncConnection:
    """Open a connection on the running loop."""
    # No statement is prepared by name: a pooler would lose it.
    connection: AsyncConnection = await psycopg.AsyncConnection.connect(
        **parameters, autocommit=True, prepare_threshold=None
    )
    _open.add(connection)
    return connection


def connect(address: Address, patience: float = float("inf")) -> _Hurried:
    """Open a connection for synchronous work, in so many seconds or less."""
    parameters = dict(address.parameters)
    given = str(parameters["connect_timeout"])
    if given.isdecimal() and patience < (int(given) or float("inf")):
        parameters["connect_timeout"] = max(2, ceil(patience))  # The least that libpq takes.
    connection = _Hurried.connect(**parameters, autocommit=True, prepare_threshold=None)
    _open.add(connection)
    return connection


def is_ours(connection: object) -> bool:
    """Say whether we opened a connection, for the user whom the store's URL names."""
    return isinstance(connection, psycopg.Connection | psycopg.AsyncConnection) and (
        connection in _open
    )


def finish(connection: Connection | AsyncConnection) -> None:
    """Close a connection at once, whichever loop or thread it belongs to."""
    _open.discard(connection)
    connection.pgconn.finish()


def _is_of_use(connection: Connection | AsyncConnection) -> bool:
    """Say whether an idle connection can be used: if something arrived unasked, it is its end."""
    if connection.closed:
        return False
    ear = select.poll()
    ear.register(connection.pgconn.socket, select.POLLIN)
    return not ear.poll(0)


async def uncancelled(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Wait for some work, which goes on if the one who waits is cancelled."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(_heard)
    return await asyncio.shield(task)


def _heard(task: asyncio.Future[Any]) -> None:
    """Take note of an error that nobody may wait for any more."""
    if not task.cancelled():
        task.exception()


_open: weakref.WeakSet[Connection | AsyncConnection] = weakref.WeakSet()


def _let_go_after_fork() -> None:
    # A child has the sockets of its parent. What it said there would end the parent's session; and
    # as long as it holds them, the server does not notice that the parent is no more.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for connection in list(_open):
        # One that broke has no socket any more, and its number may be another file's.
        if not connection.closed:
            os.dup2(nowhere, connection.pgconn.socket)
    os.close(nowhere)
    _open.clear()


os.register_at_fork(after_in_child=_let_go_after_fork)
