"""Check the file against itself: every row sound, every job in one place, every mark in agreement.

What is found is told by the audit (I3) and put right by `repair.py`.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlead.core.admin import REPAIR, Finding
from fairlead.core.clock import SECOND
from fairlead.core.errors import DecodeError
from fairlead.core.job import LONGEST_HEAD_START
from fairlead.stores.sqlite.shape import Flaw, flaws
from fairlead.stores.sqlite.sound import (
    AT_ONCE,
    ATTEMPTS,
    DEAD,
    ENTRIES,
    FINISHED,
    LIVE,
    STEPS,
    TABLES,
    WORKERS,
    Table,
    exact,
)
from fairlead.stores.sqlite.statements import migrations
from fairlead.stores.sqlite.ways import Moment

Value = TypeVar("Value")

SHAPE = Table("sqlite_master", "{}", "name", "name", {})
"""Stands for the tables, indexes and views themselves."""

CLOCKS_APART = 3600 * SECOND
"""A clock that went back makes due jobs look early: allow for an hour."""

LONGEST_LEASE = 366 * 86_400 * SECOND
"""No worker asks for more; what says more was written by somebody else."""

_OURS = """
WITH live AS (SELECT * FROM fairlead_job WHERE level <= :level),
     finished AS (SELECT * FROM fairlead_finished WHERE level <= :level),
     dead AS (SELECT * FROM fairlead_dead WHERE level <= :level)
"""
"""The jobs that this program may judge: what looks damaged of others may be a newer one's way."""

_OWNERS = """
SELECT seq, id FROM {}
WHERE attached & 1 = 0 AND id IN (SELECT owner FROM fairlead_entry WHERE owner <> '')
"""

# Each gives the key of a row and the name that people know it by.
_CHECKS = (
    (
        LIVE,
        "job {} is live and finished at once",
        "SELECT seq, id FROM live WHERE id IN (SELECT id FROM fairlead_finished)",
    ),
    (
        LIVE,
        "job {} is live and a dead letter at once",
        "SELECT seq, id FROM live WHERE id IN (SELECT id FROM fairlead_dead)",
    ),
    (
        DEAD,
        "job {} is finished and a dead letter at once",
        "SELECT seq, id FROM dead WHERE id IN (SELECT id FROM fairlead_finished)",
    ),
    (
        LIVE,
        "job {} does not agree with itself about running",
        """
        SELECT seq, id FROM live
        WHERE (lease_until > 0) <> (worker IS NOT NULL)
           OR (lease_until > 0) <> (claimed_at IS NOT NULL)
           OR (lease_until = 0 AND cancel IS NOT NULL)
        """,
    ),
    (
        LIVE,
        "job {} runs and waits for its time at once",
        "SELECT seq, id FROM live WHERE parked = 1 AND lease_until > 0",
    ),
    (
        LIVE,
        "job {} runs without a fence",
        "SELECT seq, id FROM live WHERE lease_until > 0 AND fence = 0",
    ),
    (
        LIVE,
        "job {} is leased for longer than a year",
        "SELECT seq, id FROM live WHERE lease_until > :ages",
    ),
    (
        WORKERS,
        "worker {} says that it lives for longer than a year",
        "SELECT id, id FROM fairlead_worker WHERE live_until > :ages",
    ),
    (
        LIVE,
        # Whatever gate a newer program parks for, it finds its jobs by a key.
        "job {} is parked for no reason",
        "SELECT seq, id FROM live WHERE parked > 2 AND park_key IS NULL",
    ),
    (
        LIVE,
        "job {} is parked for something else than it says",
        """
        SELECT seq, id FROM live
        WHERE parked <= 2
          AND park_key IS NOT CASE WHEN parked = 2 THEN task || printf(' %010d', version) END
        """,
    ),
    (
        LIVE,
        "job {} stands in the order before it is due",
        "SELECT seq, id FROM live WHERE parked = 0 AND lease_until = 0 AND run_at > :now",
    ),
    (
        LIVE,
        "job {} has a head start beyond a day",
        """
        SELECT seq, id FROM live
        WHERE run_at - order_at NOT BETWEEN -:longest AND :longest
        """,
    ),
    (
        LIVE,
        "job {} is of another size than it says",
        """
        SELECT seq, id FROM live WHERE size <>
        length(CAST(payload AS BLOB)) + coalesce(length(CAST(options AS BLOB)), 0)
        """,
    ),
    (
        FINISHED,
        "finished job {} is in a state that is not final",
        "SELECT seq, id FROM finished WHERE state NOT IN ('done', 'cancelled')",
    ),
    (
        DEAD,
        "dead letter {} has no reason",
        "SELECT seq, id FROM dead WHERE reason IS NULL",
    ),
    (
        ENTRIES,
        "entry {} belongs to a job that there is not",
        """
        SELECT seq, key FROM fairlead_entry
        WHERE owner <> '' AND owner NOT IN (SELECT id FROM fairlead_job)
          AND owner NOT IN (SELECT id FROM fairlead_finished)
          AND owner NOT IN (SELECT id FROM fairlead_dead)
        """,
    ),
    (LIVE, "job {} does not say that it has entries", _OWNERS.format("live")),
    (FINISHED, "finished job {} does not say that it has entries", _OWNERS.format("finished")),
    (DEAD, "dead letter {} does not say that it has entries", _OWNERS.format("dead")),
    (
        ATTEMPTS,
        "job {} has two lines for one fence in the attempt log",
        "SELECT max(seq), job_id FROM fairlead_attempt GROUP BY job_id, fence HAVING count(*) > 1",
    ),
    (
        STEPS,
        "step {} of the schema is not noted as applied",
        """
        SELECT value, value FROM json_each(:steps)
        WHERE value NOT IN (SELECT version FROM fairlead_migration)
        """,
    ),
)


class Damage(NamedTuple):
    """A row that is not as it should be: where it is, and what is wrong, in words."""

    table: Table
    key: object
    problem: str

    @property
    def place(self) -> tuple[str, object]:
        """Which row it is."""
        return self.table.name, self.key


def audit(connection: sqlite3.Connection, by: Moment) -> list[Finding]:
    """Scan everything in one read transaction."""
    findings = []
    connection.execute("BEGIN")
    try:
        for (problem,) in connection.execute("PRAGMA integrity_check").fetchall():
            # Whatever stands in a column of ours is told below, with a better remedy.
            if problem != "ok" and not problem.startswith("NULL value in fairlead_"):
                findings.append(Finding(f"SQLite: {problem}", "restore a backup, or REINDEX"))
        findings += [
            Finding(flaw.problem, flaw.remedy, grave=flaw.grave)
            for flaw in flaws(connection)
            if flaw.remedy is not None
        ]
        findings += [Finding(found.problem, REPAIR) for found in damages(connection, by)]
    finally:
        connection.execute("ROLLBACK")
    return findings


def all_damages(connection: sqlite3.Connection, by: Moment) -> list[Damage]:
    """Return all that is wrong, by one state of the file."""
    connection.execute("BEGIN")
    try:
        return list(damages(connection, by))
    finally:
        connection.execute("ROLLBACK")


def damages(connection: sqlite3.Connection, by: Moment) -> Iterator[Damage]:
    """Go through every table of ours and find what is damaged."""
    values = {
        "level": by.level,
        "now": by.now + CLOCKS_APART,
        "ages": by.now + LONGEST_LEASE,
        "longest": LONGEST_HEAD_START * SECOND,
        "steps": msgspec.json.encode([step.number for step in migrations()]).decode(),
    }
    known = list(flaws(connection))
    yield from (Damage(SHAPE, flaw.name, flaw.problem) for flaw in known if flaw.remedy is None)
    with exact(connection):
        for table in TABLES:
            yield from _as_far_as_read(_unsound(connection, table, by.level), known)
        for table, problem, query in _CHECKS:
            for key, name in _as_far_as_read(_asked(connection, _OURS + query, values), known):
                yield Damage(table, key, problem.format(name))


def _asked(
    connection: sqlite3.Connection, query: str, values: Mapping[str, object]
) -> Iterator[Any]:
    yield from connection.execute(query, values)


def _as_far_as_read(found: Iterator[Value], known: Sequence[Flaw]) -> Iterator[Value]:
    """Leave out what cannot be asked of a table that is missing or not as it was."""
    try:
        yield from found
    except sqlite3.OperationalError:
        if not known:
            raise


def _unsound(connection: sqlite3.Connection, table: Table, level: int) -> Iterator[Damage]:
    """Find the rows of a table that hold what they may not."""
    names = list(table.columns)
    key = names.index(table.key)
    looks = [(at, c.look) for at, c in enumerate(table.columns.values()) if c.look is not None]
    rows = connection.execute(table.all_rows)
    while some := rows.fetchmany(AT_ONCE):
        try:
            msgspec.convert(some, table.kinds)
            for at, look in looks:
                for row in some:
                    if row[at] is not None:
                        look(row[at])
        except (msgspec.MsgspecError, DecodeError):
            for row in some:
                problems = table.problems(row)
                if problems and not table.is_above(row, level):
                    told = ", ".join(problems.values())
                    yield Damage(table, row[key], f"{table.call(row)} cannot be read: {told}")
