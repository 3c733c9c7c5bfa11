"""How statements are run and their answers read; what a damaged row makes of both."""

import sqlite3
from typing import Any, Protocol

import msgspec

from fairlead.stores.sqlite.statements import statements


class Hand(Protocol):
    """What statements go through: a connection of ours, or what `foreign.py` makes of another's."""

    def execute(self, sql: str, values: Any = ..., /) -> Any:  # noqa: ANN401 (each its own cursor)
        """Run a statement; returns what has its rows, their number, and the last row's."""


UNREADABLE = (sqlite3.OperationalError, sqlite3.DataError, msgspec.MsgspecError, UnicodeError)
"""What a row raises that somebody damaged: not text, not UTF-8, not a number."""

_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> str:
    """Return a value as the JSON text that statements take for a list of rows."""
    return _encode(value).decode()


def plain(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """Return a cursor that gives rows as they are; the application may have set factories."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def ask(connection: Hand, statement: str, **values: object) -> Any:  # noqa: ANN401
    """Run a statement that returns one value."""
    return connection.execute(statements()[statement], values).fetchone()[0]


def tell(connection: Hand, statement: str, **values: object) -> int:
    """Run a statement that changes rows; returns how many."""
    changed: int = connection.execute(statements()[statement], values).rowcount
    return changed


def raise_unless_damage(problem: Exception) -> None:
    """Let through what is not the row's fault: a failing disk, a full one."""
    if getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR) != sqlite3.SQLITE_ERROR:
        raise problem
