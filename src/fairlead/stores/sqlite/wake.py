"""Notice that somebody committed to the file, without asking it again and again.

Every commit, whoever makes it, appends to the write-ahead log, and on Linux the
kernel tells us so (inotify). But it tells us when the log is written, which is
before it is synced and the commit can be seen. So after each sign we look at
SQLite's data version: while somebody waits, every tenth of a millisecond for the
time a sync mostly takes, and because the loop's own timers are ten times as
coarse, by naps that stop it that long; then at growing intervals, until the
commit must be there. Elsewhere a watch looks every few milliseconds.

Both are hints: whoever waits looks again after its poll interval anyway.
"""

import asyncio
import ctypes
import errno
import os
import sqlite3
import threading
import time
from abc import ABC, abstractmethod

from fairlead.stores.sqlite.connection import Place

_IN_MODIFY = 0x2
_LOOK_SECONDS = 0.01
_NAP_SECONDS, _NAPPING_SECONDS = 0.00005, 0.0015
_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.5


class Watch(ABC):
    """Watches the file for one event loop, and counts the commits it notices."""

    def __init__(self, place: Place) -> None:
        # Not the mark of an earlier watch of the same file, in all likelihood.
        self._mark = time.monotonic_ns()
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = place.connect()
        self._version = -1
        try:
            self._look()
        except BaseException:
            self._connection.close()
            raise

    @abstractmethod
    async def changed(self, timeout: float, since: int) -> int:  # noqa: ASYNC109 (patience)
        """Return the present mark: when it is no longer `since`, or when time is up."""

    def close(self) -> None:
        """Stop watching, from any thread."""
        with self._guard:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _look(self) -> bool:
        """Say whether somebody committed since the last look, and count it."""
        with self._guard:
            if self._connection is None:
                return False
            try:
                (version,) = self._connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.OperationalError:
                return False  # Busy for a moment; the next look will tell.
        if version == self._version:
            return False
        self._version = version
        self._mark += 1
        return True


class InotifyWatch(Watch):
    """Told by the kernel. The log exists as long as any connection to the file is open."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[None]] = set()
        self._timer: asyncio.Handle | None = None
        self._pause = _FIRST_PAUSE
        self._nap_until = 0.0
        try:
            self._fd = _inotify(os.fsencode(place.wal))
        except BaseException:
            super().close()
            raise
        self._loop.add_reader(self._fd, self._read)

    async def changed(self, timeout: float, since: int) -> int:  # noqa: ASYNC109 (patience)
        """Return the present mark: when it is no longer `since`, or when time is up."""
        if self._mark != since:
            return self._mark
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        timer = self._loop.call_later(timeout, _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)
        return self._mark

    def close(self) -> None:
        """Stop watching, from any thread; whoever waits is woken."""
        super().close()
        try:
            self._loop.call_soon_threadsafe(self._let_go)
        except RuntimeError:  # The loop is closed, and has let go of the descriptor.
            os.close(self._fd)

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._wake()

    def _read(self) -> None:
        """Take note that the log is being written, and look for the commit from now on."""
        try:
            while os.read(self._fd, 65_536):
                pass
        except OSError as problem:
            if problem.errno != errno.EAGAIN:
                raise
        self._pause = _FIRST_PAUSE
        self._nap_until = self._loop.time() + _NAPPING_SECONDS
        if self._timer is not None:
            self._timer.cancel()
        self._look_on()

    def _look_on(self) -> None:
        self._timer = None
        if self._look():
            self._nap_until = 0.0
            self._wake()
        if self._waiters and self._loop.time() < self._nap_until:
            time.sleep(_NAP_SECONDS)
            self._timer = self._loop.call_soon(self._look_on)
        elif self._pause <= _LAST_PAUSE:
            self._timer = self._loop.call_later(self._pause, self._look_on)
            self._pause *= 1.5

    def _wake(self) -> None:
        for waiter in self._waiters:
            _resolve(waiter)


def _inotify(path: bytes) -> int:
    """Return a descriptor that can be read whenever the file at this path is written."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if handle < 0 or libc.inotify_add_watch(handle, path, _IN_MODIFY) < 0:
        number = ctypes.get_errno()
        if handle >= 0:
            os.close(handle)
        raise OSError(number, os.strerror(number), os.fsdecode(path))
    return handle


class LookingWatch(Watch):
    """For systems without inotify: looks every few milliseconds while somebody waits."""

    async def changed(self, timeout: float, since: int) -> int:  # noqa: ASYNC109 (patience)
        """Return the present mark: when it is no longer `since`, or when time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            self._look()
            left = deadline - loop.time()
            if self._mark != since or left <= 0:
                return self._mark
            await asyncio.sleep(min(_LOOK_SECONDS, left))


def watch_file(place: Place) -> Watch:
    """Return the best way this system has to watch the file."""
    try:
        return InotifyWatch(place)
    except (OSError, AttributeError):
        # Not Linux, or out of inotify instances, which are limited per user.
        return LookingWatch(place)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
