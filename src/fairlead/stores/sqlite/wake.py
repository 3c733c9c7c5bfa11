"""Notice that somebody wrote to the file, without asking it again and again.

Every commit, whoever makes it, appends to the write-ahead log; on Linux the
kernel tells us about it (inotify, about 0.1 ms). Elsewhere a watch asks SQLite
for its data version every few milliseconds. Both are hints: whoever waits looks
again after its poll interval anyway.
"""

import asyncio
import ctypes
import errno
import os
import sqlite3
from abc import ABC, abstractmethod

from fairlead.stores.sqlite.connection import Place

_IN_MODIFY = 0x2
_LOOK_SECONDS = 0.01


class Watch(ABC):
    """Watches the file for one event loop. Remembers a change that nobody waited for yet."""

    @abstractmethod
    async def changed(self, timeout: float) -> bool:  # noqa: ASYNC109 (a hint's patience)
        """Return True at a change, or at once if nobody was told of the last; else False."""

    @abstractmethod
    def close(self) -> None:
        """Stop watching, from any thread."""


class InotifyWatch(Watch):
    """Told by the kernel. The log exists as long as any connection to the file is open."""

    def __init__(self, place: Place) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        path = os.fsencode(place.wal)
        if self._fd < 0 or libc.inotify_add_watch(self._fd, path, _IN_MODIFY) < 0:
            number = ctypes.get_errno()
            if self._fd >= 0:
                os.close(self._fd)
            raise OSError(number, os.strerror(number), str(place.wal))
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[bool]] = set()
        self._seen = False
        self._loop.add_reader(self._fd, self._read)

    async def changed(self, timeout: float) -> bool:  # noqa: ASYNC109 (a hint's patience)
        """Return True at a change, or at once if nobody was told of the last; else False."""
        if self._seen:
            self._seen = False
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiters.add(waiter)
        timer = self._loop.call_later(timeout, _resolve, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    def close(self) -> None:
        """Stop watching, from any thread; whoever waits is woken."""
        try:
            self._loop.call_soon_threadsafe(self._let_go)
        except RuntimeError:  # The loop is closed, and has let go of the descriptor.
            os.close(self._fd)

    def _let_go(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        for waiter in self._waiters:
            _resolve(waiter, True)

    def _read(self) -> None:
        try:
            while os.read(self._fd, 65_536):
                pass
        except OSError as problem:
            if problem.errno != errno.EAGAIN:
                raise
        self._seen = not self._waiters
        for waiter in self._waiters:
            _resolve(waiter, True)


class LookingWatch(Watch):
    """For systems without inotify: looks at SQLite's data version every few milliseconds."""

    def __init__(self, place: Place) -> None:
        self._connection = place.connect()
        self._version = self._look()

    async def changed(self, timeout: float) -> bool:  # noqa: ASYNC109 (a hint's patience)
        """Return True at a change, or at once if nobody was told of the last; else False."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            version = self._look()
            if version != self._version:
                self._version = version
                return True
            left = deadline - loop.time()
            if left <= 0:
                return False
            await asyncio.sleep(min(_LOOK_SECONDS, left))

    def close(self) -> None:
        """Stop watching."""
        self._connection.close()

    def _look(self) -> int:
        try:
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.OperationalError:
            return self._version  # Busy for a moment; the next look will tell.


def watch_file(place: Place) -> Watch:
    """Return the best way this system has to watch the file."""
    try:
        return InotifyWatch(place)
    except (OSError, AttributeError):
        # Not Linux, or out of inotify instances, which are limited per user.
        return LookingWatch(place)


def _resolve(waiter: asyncio.Future[bool], changed: bool) -> None:  # noqa: FBT001 (a result)
    if not waiter.done():
        waiter.set_result(changed)
