"""Move the write-ahead log into the file, one process at a time.

Before 3.51.3, SQLite could corrupt a file when two connections checkpointed it
at once. So no connection of ours checkpoints by itself; whoever sees a long log
and gets the side lock does it for all.

The long part runs beside the writers. Under steady load the log would never be
empty at the right moment, so a short second part holds the write lock, moves
what came in between and starts the log anew. The log is never cut: to write over
an old log costs half as much per commit as to make a file longer.
"""

import fcntl
import os
import sqlite3
import time
from contextlib import ExitStack, closing

from fairlead.stores.sqlite.connection import Place, WriteLock, is_busy

LONG_LOG = 4_000
"""How many pages the log may hold before it is worth a checkpoint."""

_PATIENCE = 0.1
_HEADER, _FRAME_HEADER = 32, 24


class Checkpointer:
    """Watches the log's length and shortens it when this process holds the side lock."""

    def __init__(self, place: Place) -> None:
        self._place = place
        with ExitStack() as opened:
            self._connection = opened.enter_context(closing(place.connect()))
            self._lock = opened.enter_context(closing(WriteLock(place)))
            self._side = place.open_beside("-checkpoint")
            opened.callback(os.close, self._side)
            # The log has no locks of its own, so a descriptor of ours disturbs nobody.
            self._log = os.open(place.wal, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            opened.callback(os.close, self._log)
            page = self._connection.execute("PRAGMA page_size").fetchone()[0]
            self._opened = opened.pop_all()
        self._frame = page + _FRAME_HEADER
        self._limit = LONG_LOG
        self._asked = 0

    def close(self) -> None:
        """Let go of the file."""
        self._opened.close()

    def is_due(self) -> bool:
        """Say whether the log is long enough to be worth a checkpoint.

        Asked after every commit, it looks at every 16th. A frame belongs to the
        present log if it carries the salt of the log's header, so one frame
        tells (sqlite.org/walformat.html).
        """
        self._asked += 1
        if self._asked % 16:
            return False
        try:
            salt = os.pread(self._log, _HEADER, 0)[16:24]
            frame = os.pread(self._log, _FRAME_HEADER, _HEADER + (self._limit - 1) * self._frame)
        except OSError:
            return False
        return bool(salt) and frame[8:16] == salt

    def run(self) -> None:
        """Shorten the log, unless another process is at it."""
        try:
            fcntl.flock(self._side, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        self._connection.checkpoints = True
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            restarted = self._restart()
        except sqlite3.Error:
            # A full disk, say. The log keeps everything, so nothing is lost by waiting.
            restarted = False
        finally:
            self._connection.checkpoints = False
            fcntl.flock(self._side, fcntl.LOCK_UN)
        # A long reader keeps the log from starting anew: do not try again at every look.
        self._limit = LONG_LOG if restarted else self._limit + LONG_LOG

    def _restart(self) -> bool:
        """Move the rest while nobody writes, and have the log start anew."""
        deadline = time.monotonic() + _PATIENCE
        inside = self._lock.enter()
        try:
            while time.monotonic() < deadline:
                try:
                    rows = self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                except sqlite3.OperationalError as problem:
                    if not is_busy(problem):
                        raise
                else:
                    if not rows[0][0]:
                        return True
                time.sleep(0.0002)
        finally:
            if inside:
                self._lock.leave()
        return False
