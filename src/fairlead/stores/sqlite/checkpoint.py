"""Move the write-ahead log into the file, one process at a time.

Before 3.51.3, SQLite could corrupt a file when two connections checkpointed it
at once. So no connection of ours checkpoints by itself; whoever sees a long log
and gets the side lock does it for all.

The long part runs beside the writers. Under steady load the log would never be
empty at the right moment, so a short second part holds the write lock, moves
what came in between and starts the log anew.
"""

import fcntl
import os
import sqlite3
import time

from fairlead.stores.sqlite.connection import Place, WriteLock, is_busy

LONG_LOG = 16 * 1024 * 1024
_PATIENCE = 0.1


class Checkpointer:
    """Watches the log's length and shortens it when this process holds the side lock."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._connection = place.connect()
        self._lock = WriteLock(place)
        path = place.path.with_name(place.path.name + "-checkpoint")
        self._side = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._next = LONG_LOG

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
        self._lock.close()
        os.close(self._side)

    def forsake(self) -> sqlite3.Connection:
        """After a fork, in the child: drop all but the connection, which must not be closed."""
        self._lock.close()
        os.close(self._side)
        return self._connection

    def is_due(self) -> bool:
        """Say whether the log is long enough to be worth a checkpoint."""
        try:
            return os.stat(self._place.wal).st_size >= self._next
        except FileNotFoundError:
            return False

    def run(self) -> None:
        """Shorten the log, unless another process is at it."""
        try:
            fcntl.flock(self._side, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            restarted = self._restart()
        finally:
            fcntl.flock(self._side, fcntl.LOCK_UN)
        # A long reader keeps the log from starting anew: do not try again at every commit.
        self._next = LONG_LOG if restarted else os.stat(self._place.wal).st_size + LONG_LOG

    def _restart(self) -> bool:
        """Move the rest while nobody writes, and cut the log to nothing."""
        deadline = time.monotonic() + _PATIENCE
        with self._lock.turnstile():
            while time.monotonic() < deadline:
                try:
                    rows = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                except sqlite3.OperationalError as problem:
                    if not is_busy(problem):
                        raise
                else:
                    if not rows[0][0]:
                        return True
                time.sleep(0.0002)
        return False
