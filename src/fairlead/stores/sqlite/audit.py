"""Check the file against itself: every job in one place, every mark in agreement (I3)."""

import sqlite3

from fairlead.core.admin import Finding
from fairlead.core.clock import SECOND
from fairlead.core.job import LONGEST_HEAD_START

_CHECKS = (
    (
        "job {} is live and finished at once",
        "SELECT id FROM fairlead_job WHERE id IN (SELECT id FROM fairlead_finished)",
    ),
    (
        "job {} is live and a dead letter at once",
        "SELECT id FROM fairlead_job WHERE id IN (SELECT id FROM fairlead_dead)",
    ),
    (
        "job {} is finished and a dead letter at once",
        "SELECT id FROM fairlead_finished WHERE id IN (SELECT id FROM fairlead_dead)",
    ),
    (
        "job {} does not agree with itself about running",
        """
        SELECT id FROM fairlead_job
        WHERE (lease_until > 0) <> (worker IS NOT NULL)
           OR (lease_until > 0) <> (claimed_at IS NOT NULL)
        """,
    ),
    (
        "job {} runs and waits for its time at once",
        "SELECT id FROM fairlead_job WHERE parked = 1 AND lease_until > 0",
    ),
    (
        "job {} runs without a fence",
        "SELECT id FROM fairlead_job WHERE lease_until > 0 AND fence = 0",
    ),
    (
        "job {} is parked for no known reason",
        "SELECT id FROM fairlead_job WHERE parked NOT IN (0, 1, 2)",
    ),
    (
        "job {} stands in the order before it is due",
        "SELECT id FROM fairlead_job WHERE parked = 0 AND lease_until = 0 AND run_at > :now",
    ),
    (
        "job {} has a head start beyond a day",
        "SELECT id FROM fairlead_job WHERE abs(run_at - order_at) > :longest",
    ),
    (
        "finished job {} is in a state that is not final",
        "SELECT id FROM fairlead_finished WHERE state NOT IN ('done', 'cancelled')",
    ),
    ("dead letter {} has no reason", "SELECT id FROM fairlead_dead WHERE reason IS NULL"),
    (
        "job {} has two lines for one fence in the attempt log",
        "SELECT job_id FROM fairlead_attempt GROUP BY job_id, fence HAVING count(*) > 1",
    ),
)


def audit(connection: sqlite3.Connection, now: int) -> list[Finding]:
    """Scan everything in one read transaction."""
    findings = []
    # A clock that went back makes due jobs look early: allow for an hour.
    values = {"now": now + 3600 * SECOND, "longest": LONGEST_HEAD_START * SECOND}
    connection.execute("BEGIN")
    try:
        for (problem,) in connection.execute("PRAGMA integrity_check").fetchall():
            if problem != "ok":
                findings.append(Finding(f"SQLite: {problem}", "restore a backup, or REINDEX"))
        for problem, query in _CHECKS:
            rows = connection.execute(query, values).fetchall()
            findings += [
                Finding(problem.format(job_id), "keep a copy of the file, and report it")
                for (job_id,) in rows
            ]
    finally:
        connection.execute("ROLLBACK")
    return findings
