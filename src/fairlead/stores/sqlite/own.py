"""Connections of ours, and what can be told of them."""

import sqlite3
from contextlib import suppress
from functools import cached_property
from weakref import WeakSet


class Compiled:
    """Whether a connection has compiled a statement, for the first time or anew (see served.py)."""

    is_new = True

    def authorize(self, *_: object) -> int:
        """Take note, and allow everything."""
        self.is_new = True
        return sqlite3.SQLITE_OK


class Own(sqlite3.Connection):
    """A connection of ours."""

    checkpoints = False

    @cached_property
    def compiled(self) -> Compiled:
        """What it takes note of from now on."""
        compiled = Compiled()
        self.set_authorizer(compiled.authorize)
        return compiled

    @property
    def writes(self) -> bool:
        """Whether it may have the write lock now."""
        with suppress(sqlite3.ProgrammingError):  # It is closed.
            return self.in_transaction or self.checkpoints
        return False


_ours: WeakSet[Own] = WeakSet()


def note(connection: Own) -> None:
    """Take note of a connection, for as long as it lives."""
    _ours.add(connection)


def we_write() -> bool:
    """Say whether a connection of ours, in whatever thread, may have a write lock now."""
    try:
        return any(connection.writes for connection in _ours)
    except RuntimeError:  # Another thread has just connected.
        return True
