"""News from elsewhere: NOTIFY as a hint, at most one in 10 ms from each process.

A notifying commit keeps the other notifying ones waiting, so a process that has just
told of a change does not tell of the next. Whoever hears of one therefore looks
again a little later, for those that were not told. Every hint may be lost: who waits
looks again after its poll interval anyway.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import psycopg

from fairlead.core.errors import StoreError
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lane import AsyncConnection, finish, opened

WORK, ENDED, PING = "work", "ended", "ping"
_LISTEN = "LISTEN {schema}"
_QUIET_SECONDS = 0.01
_ECHOES = (0.015, 0.06)
"""When to look again after a hint, for what was put in the quiet time after it."""
_BEGIN_SECONDS = 1.0
_PING_SECONDS, _PONG_SECONDS = 10.0, 5.0
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 3.0


class Bell:
    """Says whether a change is to be told to others, or was just now."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._quiet_until: dict[str, float] = {}

    def word(self, word: str) -> str | None:
        """Return the word to tell others, or None if they have just heard it."""
        now = time.monotonic()
        with self._guard:
            if now < self._quiet_until.get(word, 0.0):
                return None
            self._quiet_until[word] = now + _QUIET_SECONDS
        return word


class News:
    """Counts the changes that were noticed, and wakes who waits for them, on whatever loop.

    Who waits for work is not woken by a job that ended.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # Not the marks of an earlier life of this store, in all likelihood.
        first = time.monotonic_ns()
        self._marks = {WORK: first, ENDED: first}
        self._waiters: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def mark(self, *, for_work: bool) -> int:
        """Return the present mark."""
        return self._marks[WORK if for_work else ENDED]

    def bump(self, word: str) -> None:
        """Take note of a change: new work, or a job that ended."""
        with self._guard:
            told = {ENDED} if word == ENDED else {WORK, ENDED}
            for each in told:
                self._marks[each] += 1
            woken = [waiter for waiter in self._waiters if waiter[0] in told]
            self._waiters = [waiter for waiter in self._waiters if waiter[0] not in told]
        for _, loop, hint in woken:
            with suppress(RuntimeError):  # The loop was closed; nobody waits there any more.
                loop.call_soon_threadsafe(_resolve, hint)

    async def changed(self, since: int, *, for_work: bool) -> None:
        """Return when the mark is no longer `since`."""
        hint: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        word = WORK if for_work else ENDED
        with self._guard:
            if self._marks[word] != since:
                return
            self._waiters.append((word, asyncio.get_running_loop(), hint))
        try:
            await hint
        finally:
            with self._guard:
                self._waiters = [waiter for waiter in self._waiters if waiter[2] is not hint]


class Listener:
    """Hears what others tell, on a connection of its own, for as long as it is open."""

    def __init__(
        self,
        address: Address,
        news: News,
        hear: Callable[[int], None],
        tell: Callable[[str], Awaitable[object]],
    ) -> None:
        self._address = address
        self._news = news
        self._hear = hear
        self._tell = tell
        self._connection: AsyncConnection | None = None
        self._began = asyncio.Event()
        self._task = asyncio.ensure_future(self._listen()) if address.listen is not None else None
        self.hears = False
        """Whether it is known to hear: not before the first word, and never through a pooler."""

    async def begin(self) -> None:
        """Give it a moment to hear its first word; a mark taken then misses nothing."""
        if self._task is not None and not self._began.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEGIN_SECONDS):
                    await self._began.wait()
            self._began.set()

    def close(self) -> None:
        """Stop listening, from whatever thread."""
        if self._task is not None:
            with suppress(RuntimeError):  # Its loop is closed, and the task with it.
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        self._drop()

    def _drop(self) -> None:
        self.hears = False
        connection, self._connection = self._connection, None
        if connection is not None:
            finish(connection)

    async def _listen(self) -> None:
        """Listen for ever, on one connection after another."""
        assert self._address.listen is not None
        pause = _FIRST_PAUSE
        while True:
            try:
                self._connection = await opened(self._address.listen)
                if await _is_pooled(self._connection):
                    self._began.set()
                    return
                await self._connection.execute(
                    _LISTEN.replace("{schema}", self._address.quoted_schema)
                )
                await self._hear_all(self._connection)
            except (psycopg.Error, StoreError, OSError, TimeoutError):
                pass  # Who hears nothing polls, `doctor` says so, and claims tell of an outage.
            finally:
                # Who has heard is not one that tries in vain.
                pause = _FIRST_PAUSE if self.hears else pause
                self._drop()
            await asyncio.sleep(pause)
            pause = min(_LAST_PAUSE, pause * 2)

    async def _hear_all(self, connection: AsyncConnection) -> None:
        """Pass on what is heard, until our own words, told elsewhere, come back no more."""
        patience = 0.0
        while True:
            silent = True
            if patience:
                async for notice in connection.notifies(timeout=patience, stop_after=1):
                    silent = False
                    self._take(notice.payload)
            if not silent:
                patience = _PING_SECONDS
                continue
            if patience == _PONG_SECONDS:
                return
            async with asyncio.timeout(_PONG_SECONDS):
                await self._tell(PING)
            patience = _PONG_SECONDS

    def _take(self, payload: str) -> None:
        word, _, at = payload.partition(" ")
        if not self.hears:
            self.hears = True
            if self._began.is_set():
                self._news.bump(WORK)  # What was told while we could not hear is not lost.
            self._began.set()
        if word == PING:
            return
        if word == WORK and at.isdigit():
            self._hear(int(at))
        self._news.bump(word)
        for seconds in _ECHOES:
            asyncio.get_running_loop().call_later(seconds, partial(self._news.bump, word))


async def _is_pooled(connection: AsyncConnection) -> bool:
    """Say whether a pooler gives us one session of the server now and another then.

    To listen on one would leave it listening for whoever gets it next. A pooler is known by
    this: it makes up the number of the process that serves us.
    """
    [pid] = await (await connection.execute("SELECT pg_backend_pid()")).fetchone() or (None,)
    return bool(pid != connection.info.backend_pid)


def _resolve(hint: asyncio.Future[None]) -> None:
    if not hint.done():
        hint.set_result(None)
