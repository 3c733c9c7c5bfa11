"""Bring the file's schema up to date: numbered scripts, each in its own transaction."""

import sqlite3
from contextlib import closing

from msgspec.structs import replace

from fairlead.core.admin import Migration
from fairlead.core.clock import Clock
from fairlead.core.errors import SchemaOutdated
from fairlead.stores.sqlite.connection import Place, WriteLock, patiently, typed
from fairlead.stores.sqlite.statements import migrations

_FOUND = "SELECT 1 FROM sqlite_master WHERE name = 'fairlead_migration'"
NOTES = """
CREATE TABLE IF NOT EXISTS fairlead_migration (
    version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL
)
"""
_SHAPE = """
SELECT ours.name, coalesce(part.name, '') FROM sqlite_master AS ours
LEFT JOIN pragma_table_info(ours.name) AS part
WHERE ours.name LIKE 'fairlead_%' AND ours.name <> 'fairlead_migration'
"""


def version(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration this file has seen.

    If its own notes say less than its tables do, somebody damaged them: the tables count.
    """
    if connection.execute(_FOUND).fetchone() is None:
        return 0
    noted = max(_times(connection), default=0)
    return noted if noted >= newest() else max(noted, _built(connection))


def _built(connection: sqlite3.Connection) -> int:
    """Return the number of the migration after which a new file looks like this one."""
    ours = _shape(connection)
    with closing(sqlite3.connect(":memory:")) as new:
        for step in migrations():
            build(new, step)
            if _shape(new) == ours:
                return step.number
    return 0


def _shape(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return the columns, views and indexes of ours that a file has."""
    return set(connection.execute(_SHAPE).fetchall())


def migrate(connection: sqlite3.Connection, place: Place, lock: WriteLock, clock: Clock) -> None:
    """Apply what is missing. Several processes may do this at once; each step happens once."""
    needed = newest()
    found = patiently(place, lambda: version(connection))
    if found > needed:
        raise SchemaOutdated(found, needed)
    for step in migrations():
        if step.number > found:
            try:
                _apply(connection, lock, step, clock.now())
            except sqlite3.Error as problem:
                raise typed(problem, place) from problem


def check_current(place: Place) -> None:
    """Raise unless the schema is up to date; needs no write lock.

    For a caller inside a transaction of its own: it may hold the write lock,
    which a migration would wait for in vain.
    """
    connection = place.open()
    try:
        found = patiently(place, lambda: version(connection))
    finally:
        connection.close()
    if found != newest():
        raise SchemaOutdated(found, newest())


def newest() -> int:
    """Return the number of the schema this program works with."""
    return migrations()[-1].number


def applied(place: Place) -> list[Migration]:
    """Return every step of the schema, with the time it was applied, if it was; applies none."""
    if not place.path.exists():
        place.check_folder()
        return migrations()
    connection = place.open()
    try:
        times = patiently(place, lambda: _times(connection))
        found = patiently(place, lambda: version(connection))
    finally:
        connection.close()
    if found > newest():
        raise SchemaOutdated(found, newest())
    # A step that is there without a note was applied at some time that nobody knows.
    times = dict.fromkeys(range(1, found + 1), 0) | times
    return [replace(step, applied_at=times.get(step.number)) for step in migrations()]


def _times(connection: sqlite3.Connection) -> dict[int, int]:
    if connection.execute(_FOUND).fetchone() is None:
        return {}
    rows = connection.execute(
        "SELECT version, iif(typeof(applied_at) = 'integer', applied_at, 0) "
        "FROM fairlead_migration WHERE version BETWEEN 1 AND 9999"
    )
    return dict(rows.fetchall())


def _apply(connection: sqlite3.Connection, lock: WriteLock, step: Migration, now: int) -> None:
    lock.begin(connection)
    try:
        # Somebody else may have been quicker; under the write lock the answer stands.
        if version(connection) < step.number:
            connection.execute(NOTES)
            build(connection, step)
            connection.execute(
                "INSERT INTO fairlead_migration (version, applied_at) VALUES (?, ?)",
                (step.number, now),
            )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def build(connection: sqlite3.Connection, step: Migration) -> None:
    """Do what a step of the schema says."""
    for statement in _split(step.sql):
        connection.execute(statement)


def _split(script: str) -> list[str]:
    """Split a script into statements; `executescript` would commit behind our back."""
    statements: list[str] = []
    rest = ""
    for line in script.splitlines():
        rest += line + "\n"
        if sqlite3.complete_statement(rest):
            statements.append(rest)
            rest = ""
    return statements
