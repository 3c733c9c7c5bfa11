"""Bring the file's schema up to date: numbered scripts, each in its own transaction."""

import sqlite3
from contextlib import closing
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.core.admin import Migration
from fairlead.core.errors import SchemaOutdated
from fairlead.core.job import HIGHEST
from fairlead.stores.sqlite.connection import Place, WriteLock, patiently, typed
from fairlead.stores.sqlite.statements import migrations
from fairlead.stores.sqlite.talk import Hand
from fairlead.stores.sqlite.ways import Moment
from fairlead.stores.steps import check_served

_FOUND = "SELECT 1 FROM sqlite_master WHERE name = 'fairlead_migration'"
SIGN = ("CREATE VIEW fairlead_step AS SELECT 1", "DROP VIEW fairlead_step")
"""Make SQLite compile its statements anew, by which running programs notice any step."""

NOTES = """
CREATE TABLE IF NOT EXISTS fairlead_migration (
    version INTEGER PRIMARY KEY, applied_at INTEGER NOT NULL, serves INTEGER NOT NULL DEFAULT 1
)
"""
# What is damaged of a step that we do not know might have said that it does not serve us.
_NOTED = f"""
SELECT version, iif(typeof(applied_at) = 'integer', applied_at, 0),
       iif(typeof(serves) = 'integer' AND serves > 0, serves, {HIGHEST})
FROM fairlead_migration WHERE version BETWEEN 1 AND 9999
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
    noted = max(_notes(connection), default=0)
    return noted if noted >= newest() else max(noted, _built(connection))


def _built(connection: sqlite3.Connection) -> int:
    """Return the number of the last migration whose marks are all there.

    There may be more: what a newer program added.
    """
    ours = _shape(connection)
    built, before = 0, set[tuple[str, str]]()
    with closing(sqlite3.connect(":memory:")) as new:
        for step in migrations():
            build(new, step)
            made = _shape(new)
            if before < made <= ours:  # One that leaves no mark cannot be told from one to come.
                built = step.number
            before = made
    return built


def _shape(connection: sqlite3.Connection) -> set[tuple[str, str]]:
    """Return the columns, views and indexes of ours that a file has."""
    return set(connection.execute(_SHAPE).fetchall())


def migrate(connection: sqlite3.Connection, place: Place, lock: WriteLock, by: Moment) -> None:
    """Apply what is missing. Several processes may do this at once; each step happens once.

    What newer programs applied is left to them, as long as it serves this one.
    """
    patiently(place, lambda: check_steps(connection, by.level))
    found = patiently(place, lambda: version(connection))
    for step in migrations():
        if step.number > found:
            try:
                _apply(connection, lock, step, by.now)
            except sqlite3.Error as problem:
                raise typed(problem, place) from problem


def check_steps(connection: Hand, level: int) -> None:
    """Raise if a newer program applied a step that does not serve programs of this level."""
    check_served(
        ((number, note.serves) for number, note in _notes(connection).items()), newest(), level
    )


def check_current(place: Place, level: int) -> None:
    """Raise unless this program can use the schema as it is; needs no write lock.

    For a caller inside a transaction of its own: it may hold the write lock,
    which a migration would wait for in vain.
    """
    connection = place.open()
    try:
        patiently(place, lambda: check_steps(connection, level))
        found = patiently(place, lambda: version(connection))
    finally:
        connection.close()
    if found < newest():
        raise SchemaOutdated(found, newest())


def newest() -> int:
    """Return the number of the schema this program works with."""
    return migrations()[-1].number


def applied(place: Place, level: int) -> list[Migration]:
    """Return every step of the schema, with the time it was applied, if it was; applies none."""
    if not place.path.exists():
        place.check_folder()
        return migrations()
    connection = place.open()
    try:
        patiently(place, lambda: check_steps(connection, level))
        notes = patiently(place, lambda: _notes(connection))
        found = patiently(place, lambda: version(connection))
    finally:
        connection.close()
    times = {number: note.applied_at for number, note in notes.items()}
    # A step that is there without a note was applied at some time that nobody knows.
    times = dict.fromkeys(range(1, found + 1), 0) | times
    return [replace(step, applied_at=times.get(step.number)) for step in migrations()]


class _Note(NamedTuple):
    """What is stored of a step that was applied."""

    applied_at: int
    serves: int


def _notes(connection: Hand) -> dict[int, _Note]:
    if connection.execute(_FOUND).fetchone() is None:
        return {}
    rows = connection.execute(_NOTED).fetchall()
    return {number: _Note(applied_at, serves) for number, applied_at, serves in rows}


def _apply(connection: sqlite3.Connection, lock: WriteLock, step: Migration, now: int) -> None:
    lock.begin(connection)
    try:
        # Somebody else may have been quicker; under the write lock the answer stands.
        if version(connection) < step.number:
            connection.execute(NOTES)
            build(connection, step)
            for statement in SIGN:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO fairlead_migration (version, applied_at, serves) VALUES (?, ?, ?)",
                (step.number, now, step.serves),
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
