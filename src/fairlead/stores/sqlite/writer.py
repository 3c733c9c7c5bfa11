"""All writes of one process: one connection, one transaction at a time, shared by all callers.

A caller hands over a request and waits. Whoever holds the turn takes everything
that has gathered, does it in one transaction, commits, and only then answers:
while one commit is under way the next batch forms by itself, without timers.

* A synchronous caller takes the turn in its own thread: alone it pays no thread
  hop, and among many threads each turn commits for all that wait.
* Async callers ring a bell, and the writer's thread takes the turn for them.
  Cancelling one cancels its wait; the work is done all the same.

Requests of the same verb are done together, as one list. If that fails, each
request is done by itself under a savepoint, so a bad one fails alone.
"""

import asyncio
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any, Generic, TypeVar

from fairlead.core.errors import (
    SchemaOutdated,
    StoreError,
    StoreUnavailable,
    Unanswered,
    WaitsForItself,
)
from fairlead.stores.sqlite.checkpoint import Checkpointer
from fairlead.stores.sqlite.connection import Place, WriteLock, is_disk_error, typed
from fairlead.stores.sqlite.holding import check_task, check_thread
from fairlead.stores.sqlite.own import Own
from fairlead.stores.sqlite.served import Served

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Verb = Callable[[sqlite3.Connection, Sequence[Item]], Sequence[Answer]]
"""Does a list of items in the open transaction and returns one answer for each."""

ITEMS_PER_COMMIT = 2_000
"""Enough to make the commit's cost vanish, few enough that others wait for milliseconds only."""
_ASIDE_SECONDS = 0.001
"""How long a thread stays aside: a lock goes to whoever asks first, not who waits longest."""


class _Request(Generic[Item, Answer]):
    """Items for one verb, and where the answers go."""

    __slots__ = ("answers", "done", "error", "items", "since", "task", "verb", "waiter")

    def __init__(self, verb: Verb[Item, Answer], items: Sequence[Item]) -> None:
        self.verb = verb
        self.items = items
        self.answers: Sequence[Answer] = ()
        self.error: BaseException | None = None
        self.done = False
        self.since = time.monotonic()
        self.task: asyncio.Task[Any] | None = None
        self.waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def succeed(self, answers: Sequence[Answer]) -> None:
        self.answers, self.error = answers, None

    def outcome(self) -> Sequence[Answer]:
        if self.error is not None:
            raise self.error
        return self.answers


class _Aside(Exception):
    """The write lock is not to be had for long: let others have the turn."""


class WriterClosed(Exception):
    """The writer had been closed before it saw the request; nothing was done."""


class Writer:
    """The one writing connection of this process, and its group commit."""

    def __init__(self, place: Place, served: Served) -> None:
        self._place = place
        self._served = served
        with ExitStack() as opened:
            self._lock = opened.enter_context(closing(WriteLock(place)))
            connection = opened.enter_context(closing(place.connect()))
            self._checkpointer = opened.enter_context(closing(Checkpointer(place)))
            self._connection: Own | None = connection
            self._pending: deque[_Request[Any, Any]] = deque()
            self._turn = threading.Lock()
            self._bell = threading.Event()
            self._closing = self._closed = False
            self._file = place.identity()
            self._log_is_long = False
            self._thread = threading.Thread(target=self._serve, name="fairlead-writer", daemon=True)
            self._thread.start()
            opened.pop_all()

    def run(self, verb: Verb[Item, Answer], items: Sequence[Item]) -> Sequence[Answer]:
        """Do this and return the answers, once they are committed."""
        request = _Request(verb, items)
        self._pending.append(request)
        try:
            while not request.done:
                # By `with` alone: after any other way to take it, an interrupt would keep it.
                with self._turn:
                    self._refuse_if_closed(request)
                    while not request.done and self._commit_some(self._check_caller):
                        pass
                if not request.done:
                    time.sleep(_ASIDE_SECONDS)
        except WaitsForItself:
            self._withdraw(request)
            raise
        if self._log_is_long:
            self._bell.set()
        return request.outcome()

    def _check_caller(self) -> None:
        """Raise if the thread that asks for the write lock has it; tell coroutines that do."""
        check_thread(self._place)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Have all who wait here find out whether they have the lock.

        A coroutine is asked in its own loop. A thread that waits for the turn finds out when it has
        it, so whoever has it steps aside.
        """
        for request in list(self._pending):
            if request.waiter is not None:
                with suppress(RuntimeError):  # The loop was closed; nobody waits there any more.
                    request.waiter[0].call_soon_threadsafe(self._ask_waiting, request)
        raise _Aside

    def _ask_waiting(self, request: _Request[Any, Any]) -> None:
        assert request.waiter is not None
        error = check_task(self._place, request.task) if request.task is not None else None
        if error is not None and self._withdraw(request):
            request.error = error
            _resolve([request.waiter[1]])

    def _withdraw(self, request: _Request[Any, Any]) -> bool:
        """Take back a request, if nobody is at it yet; what else is there goes on without it."""
        try:
            self._pending.remove(request)
        except ValueError:
            return False
        self._bell.set()
        return True

    async def submit(self, verb: Verb[Item, Answer], items: Sequence[Item]) -> Sequence[Answer]:
        """Do this from a running loop."""
        request = _Request(verb, items)
        request.task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        request.waiter = (loop, loop.create_future())
        self._pending.append(request)
        if not self._bell.is_set():
            self._bell.set()
        self._refuse_if_closed(request)
        await request.waiter[1]
        return request.outcome()

    def close(self) -> None:
        """Finish what was handed over, then let go of the file."""
        self._closing = True
        self._bell.set()
        self._thread.join()
        with self._turn:
            # From here on new requests are refused; those that came before are done.
            self._closed = True
            while self._pending:
                self._commit_some()
            if self._connection is not None:
                self._connection.close()
        self._checkpointer.close()
        self._lock.close()

    def _refuse_if_closed(self, request: _Request[Any, Any]) -> None:
        # If it is not there any more, close() still saw it.
        if self._closed and self._withdraw(request):
            raise WriterClosed

    def _serve(self) -> None:
        while not self._closing:
            self._bell.wait()
            self._bell.clear()
            while self._pending:
                with self._turn:
                    goes_on = self._commit_some(self._tell_waiting)
                if not goes_on:
                    time.sleep(_ASIDE_SECONDS)
            if self._log_is_long:
                self._log_is_long = False
                with suppress(
                    StoreError, OSError
                ):  # The log keeps everything; there is a next time.
                    self._checkpointer.run()

    def _commit_some(self, look: Callable[[], None] | None = None) -> bool:
        """Do what has gathered, up to a limit, in one transaction; then answer.

        Returns whether to go on; if not, somebody else has had the write lock for long.
        """
        batch: list[_Request[Any, Any]] = []
        try:
            connection = self._connection = self._connection or self._place.connect()
            since = self._pending[0].since if self._pending else None
            self._lock.begin(connection, since, look)
            self._gather(batch)
            self.check_file()
            self._do_all(connection, batch)
            self._served.check(connection)
            self._commit(connection)
        except _Aside:
            return False
        except WaitsForItself:
            raise  # The trouble of one caller; the others go on.
        except Exception as problem:  # noqa: BLE001 (told to every caller whose work it was)
            self._roll_back()
            if not batch:
                # Locked out: those whose time is up. Anything else is everybody's trouble.
                locked = isinstance(problem, StoreUnavailable)
                batch = self._overdue() if locked else self._gather(batch)
            outdated = isinstance(problem, SchemaOutdated)
            for request in batch:
                request.error = (None if outdated else request.error) or self._told(problem)
        except BaseException:
            # Only the caller in whose thread this happens was interrupted; others go on. With
            # no transaction left to roll back, the interrupt came after the commit.
            if self._roll_back():
                self._pending.extendleft(reversed(batch))
                self._bell.set()
            else:
                self._answer(batch)
            raise
        self._answer(batch)
        self._log_is_long = self._log_is_long or self._checkpointer.is_due()
        return True

    def _do_all(self, connection: Own, batch: list[_Request[Any, Any]]) -> None:
        if len(batch) > 1:
            for verb in dict.fromkeys(request.verb for request in batch):
                self._do(connection, verb, [r for r in batch if r.verb == verb])
            return
        # Alone it needs no savepoint: if it fails, so does the transaction.
        for request in batch:
            try:
                request.succeed(request.verb(connection, request.items))
            except sqlite3.Error:
                self._served.explain(connection)
                raise

    def _commit(self, connection: sqlite3.Connection) -> None:
        """Commit; after an error of the disk nobody knows whether the log has it."""
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as problem:
            told = typed(problem, self._place)
            if is_disk_error(problem) and isinstance(told, StoreUnavailable):
                raise Unanswered(told.url, told.problem) from problem
            raise

    def _gather(self, batch: list[_Request[Any, Any]]) -> list[_Request[Any, Any]]:
        """Take what has gathered, up to a limit; into the list, so that no interrupt loses it."""
        room = ITEMS_PER_COMMIT
        while self._pending and room > 0:
            batch.append(self._pending.popleft())
            room -= len(batch[-1].items)
        return batch

    def _do(
        self,
        connection: sqlite3.Connection,
        verb: Verb[Any, Any],
        requests: list[_Request[Any, Any]],
    ) -> None:
        if len(requests) > 1 and self._try(connection, verb, requests) is None:
            return
        for request in requests:
            request.error = self._try(connection, verb, [request])

    def _try(
        self,
        connection: sqlite3.Connection,
        verb: Verb[Any, Any],
        requests: list[_Request[Any, Any]],
    ) -> Exception | None:
        """Do the requests as one list and hand out the answers, or undo it and say why."""
        items = [item for request in requests for item in request.items]
        connection.execute("SAVEPOINT request")
        try:
            answers = verb(connection, items)
        except Exception as problem:
            if not connection.in_transaction:
                raise  # Disk full and the like end the whole transaction.
            connection.execute("ROLLBACK TO request")
            connection.execute("RELEASE request")
            return self._told(problem)
        connection.execute("RELEASE request")
        start = 0
        for request in requests:
            request.succeed(answers[start : start + len(request.items)])
            start += len(request.items)
        return None

    def _told(self, problem: Exception) -> Exception:
        """Return what callers are told: the driver's errors as our own."""
        return typed(problem, self._place) if isinstance(problem, sqlite3.Error) else problem

    def check_file(self) -> None:
        """Raise if the file was removed or replaced."""
        self._place.check_still(self._file)

    def _overdue(self) -> list[_Request[Any, Any]]:
        """Take out those who waited for the lock as long as they were told to."""
        latest = time.monotonic() - self._place.patience
        overdue: list[_Request[Any, Any]] = []
        while self._pending and self._pending[0].since <= latest:
            overdue.append(self._pending.popleft())
        return overdue

    def _roll_back(self) -> bool:
        """Undo the transaction if there is one; on a connection that cannot, by closing it."""
        if self._connection is None or not self._connection.in_transaction:
            return False
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._connection.close()
            self._connection = None
        return True

    def _answer(self, batch: list[_Request[Any, Any]]) -> None:
        """Wake everybody, with one call per event loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for request in batch:
            request.done = True
            if request.waiter is not None:
                loop, future = request.waiter
                by_loop.setdefault(loop, []).append(future)
        for loop, futures in by_loop.items():
            with suppress(RuntimeError):  # The loop was closed; nobody waits there any more.
                loop.call_soon_threadsafe(_resolve, futures)


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
