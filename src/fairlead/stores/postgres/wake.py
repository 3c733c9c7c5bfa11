"""News from elsewhere: NOTIFY as a hint.

A notifying commit keeps the other notifying ones waiting, so a process that has just
told of a change does not tell of the next (see `stores.news`). It tells of the queues then when it
tells the next time. Who hears of a queue asks that one; who hears of no queue, any.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress

from fairlead.core.job import LATEST, NewJob
from fairlead.stores.news import PING, WORK, Bell, News
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lane import AsyncConnection, finish, opened

_LISTEN = "LISTEN {schema}"
_PID = "SELECT pg_catalog.pg_backend_pid()"
_PLACE = re.compile("[0-9]{1,19}")
"""A place in the order, as it is told; any role may tell anything."""
_QUEUE = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""The name of a queue that can be told, as ours are."""
_MOST_QUEUES = 40
"""More are not named: a notice takes 8,000 bytes."""
_BEGIN_SECONDS = 1.0
_PING_SECONDS, _PONG_SECONDS = 10.0, 5.0
_FIRST_PAUSE, _LAST_PAUSE = 0.1, 3.0


class Crier:
    """Says what to tell others of a put: the word, and the queues that nobody told of yet."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._untold: set[str] = set()

    def word(self, jobs: Iterable[NewJob]) -> str | None:
        """Return what to tell, or None if they have just been told of others."""
        word = self._bell.word(WORK)
        untold = self._untold
        if len(untold) <= _MOST_QUEUES:
            untold.update(job.queue for job in jobs)
        if word is None:
            return None
        self._untold = set()
        return named(word, untold)


def named(word: str, queues: Collection[str]) -> str:
    """Return a word with the queues that it is about; without them, if they cannot be told."""
    if len(queues) > _MOST_QUEUES or not all(map(_QUEUE.fullmatch, queues)):
        return word
    return "/".join((word, *queues))


class Listener:
    """Hears what others tell, on a connection of its own, for as long as it is open."""

    def __init__(
        self,
        address: Address,
        news: News,
        hear: Callable[[int, Sequence[str]], None],
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
            except Exception:  # noqa: BLE001, S110 (whatever it was, the next word is to be heard)
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
        told, at, *_ = [*payload.split(" "), ""]  # Others may say more than that.
        word, *queues = told.split("/")
        if not self.hears:
            self.hears = True
            if self._began.is_set():
                self._news.bump(WORK)  # What was told while we could not hear is not lost.
            self._began.set()
        if word == PING:
            return
        if word == WORK and _PLACE.fullmatch(at):
            self._hear(min(int(at), LATEST), queues)
        self._news.hear(word)


async def _is_pooled(connection: AsyncConnection) -> bool:
    """Say whether a pooler gives us one session of the server now and another then.

    To listen on one would leave it listening for whoever gets it next. A pooler is known by
    this: it makes up the number of the process that serves us.
    """
    [pid] = await (await connection.execute(_PID)).fetchone() or (None,)
    return bool(pid != connection.info.backend_pid)
