"""Notice that a newer program changed the schema, and whether it still serves this one.

To ask with each transaction would cost every one of them a statement. SQLite compiles a statement
anew when the schema has changed since, and asks the connection's authorizer then: so nothing is
asked until that happens, and it is known before the transaction commits in which it did. On a
connection of the application's own there is no such sign; there the schema's version is read.
"""

import sqlite3
from typing import Protocol

from fairlead.stores.sqlite.migrate import check_steps
from fairlead.stores.sqlite.own import Own
from fairlead.stores.sqlite.talk import Hand


class _Program(Protocol):
    level: int


class Served:
    """Whether the file's schema still serves a program."""

    def __init__(self, program: _Program) -> None:
        self._program = program
        # The last version of the schema that served this level.
        self._seen: tuple[int, int] | None = None

    def check(self, connection: Own) -> None:
        """Raise if what was done on a connection of ours was not for this program to do."""
        if connection.compiled.is_new:
            self.check_on(connection)
            connection.compiled.is_new = False

    def check_on(self, connection: Hand) -> None:
        """Raise if the schema that a connection sees serves this program no longer."""
        [version] = connection.execute("PRAGMA schema_version").fetchone()
        now = (version, self._program.level)
        if now != self._seen:
            check_steps(connection, self._program.level)
            self._seen = now

    def explain(self, connection: Own) -> None:
        """Raise if the schema is the reason why something failed on a connection of ours."""
        try:
            self.check(connection)
        except sqlite3.Error:
            return  # The reason why it failed may keep us from asking.
