"""The raw engine, for benchmarks to be compared with.

The same rows in the same tables with the same durability and batch size, by the
plainest fast SQL: no fences, no rule, no group commit, nothing checked. What
Fairlead takes longer than this is the price of what it promises.
"""

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fairlead.core.clock import SECOND, SystemClock
from fairlead.core.errors import StoreError
from fairlead.core.ids import IdMaker
from fairlead.core.job import LEVEL, NewJob
from fairlead.stores.sqlite.connection import Place, WriteLock
from fairlead.stores.sqlite.migrate import migrate
from fairlead.stores.sqlite.ways import Moment

BATCH = 100
_PUT = """
INSERT INTO fairlead_job
    (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, size, payload,
     options)
VALUES (?, ?, ?, ?, 0, ?, ?, NULL, ?, ?, ?, NULL)
"""
_CLAIM = """
UPDATE fairlead_job
SET fence = :now, attempt = attempt + 1, worker = 'raw', claimed_at = :now, lease_until = :until
WHERE seq IN (
    SELECT seq FROM fairlead_job
    WHERE queue = :queue AND parked = 0 AND lease_until <= :now ORDER BY order_at, id LIMIT :batch
)
RETURNING seq, id, task, payload
"""
_FINISH = """
INSERT INTO fairlead_finished
    (id, queue, task, version, state, run_at, order_at, expires_at, enqueued_at, payload, options,
     attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, result)
SELECT id, queue, task, version, 'done', run_at, order_at, expires_at, enqueued_at, payload,
       options, attempt, crashes, fence, worker, claimed_at, errors, :now, NULL, NULL
FROM fairlead_job WHERE seq BETWEEN :first AND :last
"""
_LOG = """
INSERT INTO fairlead_attempt
    (job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
     finished_at, outcome, fingerprint)
SELECT id, fence, attempt, task, queue, NULL, worker, run_at, claimed_at, NULL, :now, 'done', NULL
FROM fairlead_job WHERE seq BETWEEN :first AND :last
"""


class Floor:
    """A file with our tables, and bare `sqlite3` at work on it."""

    def __init__(self, path: Path, durability: str) -> None:
        place = Place(path, durability)
        self._connection = place.connect()
        lock = WriteLock(place)
        migrate(self._connection, place, lock, Moment(SystemClock().now(), LEVEL))
        lock.close()
        # Left to itself, SQLite checkpoints at the end of a commit; that is part of the raw cost.
        self._connection.execute("PRAGMA wal_autocheckpoint = 4000")

    def put(self, jobs: Sequence[NewJob], batch: int) -> float:
        """Insert prepared rows in batches; returns the seconds it took."""
        now = time.time_ns() // 1_000
        rows = [
            (j.id, j.queue, j.task, j.version, now, now, now, len(j.payload), j.payload)
            for j in jobs
        ]
        began = time.perf_counter()
        for start in range(0, len(rows), batch):
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(_PUT, rows[start : start + batch])
            self._connection.execute("COMMIT")
        return time.perf_counter() - began

    def drain(self, jobs: int, processes: int = 1) -> float:
        """Claim and settle jobs in batches, two commits a batch; returns the seconds it took.

        Always in this process: only one may write at a time, so more would not be faster.
        """
        began = time.perf_counter()
        for _ in range(0, jobs, BATCH):
            now = time.time_ns() // 1_000
            values = {"now": now, "until": now + 20_000_000, "queue": "default", "batch": BATCH}
            self._connection.execute("BEGIN IMMEDIATE")
            seqs = [row[0] for row in self._connection.execute(_CLAIM, values).fetchall()]
            self._connection.execute("COMMIT")
            ends = {"now": now, "first": min(seqs), "last": max(seqs)}
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(_FINISH, ends)
            self._connection.execute(_LOG, ends)
            self._connection.execute(
                "DELETE FROM fairlead_job WHERE seq BETWEEN :first AND :last", ends
            )
            self._connection.execute("COMMIT")
        return time.perf_counter() - began

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()


def seconds_of_drain(path: Path, jobs: int) -> float:
    """Return how long a worker took for this many jobs, from first claim to last settlement."""
    connection = Place(path).connect()
    try:
        done, began, ended = connection.execute(
            "SELECT count(*), min(claimed_at), max(finished_at) FROM fairlead_attempt "
            "WHERE outcome = 'done'"
        ).fetchone()
    finally:
        connection.close()
    if done != jobs:
        raise StoreError(f"{done:,} of {jobs:,} jobs were done; the figure would mean nothing")
    return float(ended - began) / SECOND


def waits_of_turnstile(path: Path, seconds: float) -> list[float]:
    """Write one row after another; returns how long each waited for the lock."""
    place = Place(path)
    lock = WriteLock(place)
    connection = place.connect()
    return _write_for(seconds, connection, lambda: lock.begin(connection))


def waits_of_busy_timeout(path: Path, seconds: float) -> list[float]:
    """Do the same the way SQLite does it by itself."""
    connection = Place(path).connect()
    connection.execute("PRAGMA busy_timeout = 30000")
    return _write_for(seconds, connection, lambda: connection.execute("BEGIN IMMEDIATE"))


def _write_for(
    seconds: float, connection: sqlite3.Connection, begin: Callable[[], object]
) -> list[float]:
    waits = []
    new_id = IdMaker()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now = time.time_ns() // 1_000
        began = time.perf_counter()
        begin()
        waits.append(time.perf_counter() - began)
        connection.execute(_PUT, (new_id(), "q", "t", 1, now, now, now, 2, "{}"))
        connection.execute("COMMIT")
    connection.close()
    return waits
