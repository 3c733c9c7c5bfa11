"""The raw engine, for benchmarks to be compared with.

The same rows in the same tables on the same server, by the plainest fast SQL: no
fences, no rule, nothing checked, nobody told. A claim remembers nothing either: it
begins at the beginning of the order, which is quick as long as nobody holds an old
snapshot. What Fairlead takes longer than this is the price of what it promises.
"""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from fairlead.core.clock import SECOND
from fairlead.core.errors import StoreError
from fairlead.core.job import NewJob
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lane import Connection, connect, finish
from fairlead.stores.postgres.migrate import migrate
from fairlead.stores.postgres.problems import typed

BATCH = 100
_ROW = (
    "id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, payload, options"
)
_PUT = f"INSERT INTO job ({_ROW}) VALUES (%s, %s, %s, %s, 0, %s, %s, NULL, %s, %s, NULL)"
_COPY = f"COPY job ({_ROW}) FROM STDIN"
_CLAIM = """
UPDATE job
SET fence = now.at, attempt = attempt + 1, worker = 'raw', claimed_at = now.at,
    lease_until = now.at + 20000000
FROM (SELECT stamp() AS at) AS now
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM job
    WHERE parked = 0 AND queue = 'default' AND lease_until = 0
    ORDER BY order_at, id LIMIT %s FOR UPDATE SKIP LOCKED
))
RETURNING id, task, payload
"""
_SETTLE = """
WITH gone AS (
    DELETE FROM job WHERE id = ANY (%s) RETURNING *
), now AS MATERIALIZED (
    SELECT stamp() AS at
), logged AS (
    INSERT INTO attempt
        (job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
         finished_at, outcome, fingerprint)
    SELECT id, fence, attempt, task, queue, NULL, worker, run_at, claimed_at, NULL, at, 'done', NULL
    FROM gone CROSS JOIN now
)
INSERT INTO finished
    (id, queue, task, version, state, run_at, order_at, expires_at, enqueued_at, payload, options,
     attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, result)
SELECT id, queue, task, version, 'done', run_at, order_at, expires_at, enqueued_at, payload,
       options, attempt, crashes, fence, worker, claimed_at, errors, at, NULL, NULL
FROM gone CROSS JOIN now
"""
_DRAINED = """
SELECT count(*), min(claimed_at), max(finished_at) FROM attempt WHERE outcome = 'done'
"""
_SETTINGS = """
SELECT current_setting(name) FROM unnest(%s::text[]) WITH ORDINALITY AS asked(name, ord)
ORDER BY ord
"""
# Ids as our producers make them, ten for each millisecond.
_MADE = """
SELECT left(hex, 8) || '-' || right(hex, 4) || '-7' || lpad(to_hex(n & 4095), 3, '0') || '-8000-'
           || lpad(to_hex(n), 12, '0') AS id, 'default' AS queue, 'notify' AS task, 1 AS version,
       at, %(payload)s AS payload
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
CROSS JOIN LATERAL (SELECT %(began)s + n * 100 AS at) AS time
CROSS JOIN LATERAL (SELECT lpad(to_hex(at / 1000), 12, '0') AS hex) AS digits
"""
_FILL_WAITING = f"""
INSERT INTO job (id, queue, task, version, run_at, order_at, enqueued_at, payload)
SELECT id, queue, task, version, at, at, at, payload FROM ({_MADE}) AS made
"""
_FILL_FINISHED = f"""
INSERT INTO finished
    (id, queue, task, version, state, run_at, order_at, enqueued_at, payload, attempt, crashes,
     fence, worker, claimed_at, finished_at)
SELECT id, queue, task, version, 'done', at, at, at, payload, 1, 0, at, 'raw', at, %(now)s
FROM ({_MADE}) AS made
"""
_FILL_LOG = f"""
INSERT INTO attempt
    (job_id, fence, attempt, task, queue, worker, ready_at, claimed_at, finished_at, outcome)
SELECT id, at, 1, task, queue, 'raw', at, at, %(now)s, 'done' FROM ({_MADE}) AS made
"""
_PER_FILL = 500_000
_INDEXES_ONLY = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off"


class Floor:
    """A schema with our tables, and bare `psycopg` at work on it."""

    def __init__(self, url: str) -> None:
        migrate(Address.of(url))
        self._url = url
        self._connection = connected(url)

    def put(self, jobs: Sequence[NewJob], batch: int) -> float:
        """Add prepared rows, many with a COPY, one with an INSERT; returns the seconds it took."""
        now = time.time_ns() // 1_000
        if batch == 1:
            rows = [(j.id, j.queue, j.task, j.version, now, now, now, j.payload) for j in jobs]
            began = time.perf_counter()
            for row in rows:
                self._connection.execute(_PUT, row, prepare=True)
            return time.perf_counter() - began
        full = [
            (j.id, j.queue, j.task, j.version, 0, now, now, None, now, j.payload, None)
            for j in jobs
        ]
        began = time.perf_counter()
        for start in range(0, len(full), batch):
            with self._connection.cursor().copy(_COPY) as copy:
                for each in full[start : start + batch]:
                    copy.write_row(each)
        return time.perf_counter() - began

    def drain(self, jobs: int, processes: int) -> float:
        """Claim and settle all jobs, in processes; returns the seconds it took."""
        self._connection.execute("SELECT open_day(stamp())")
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            pool.map(_drain, [self._url] * processes, chunksize=1)
        return seconds_of_drain(self._url, jobs)

    def close(self) -> None:
        """Let go of the connection."""
        finish(self._connection)


def connected(url: str) -> Connection:
    """Connect to a schema."""
    address = Address.of(url)
    try:
        connection = connect(address)
    except psycopg.Error as problem:
        raise typed(problem, address) from problem
    connection.execute("SELECT set_config('search_path', %s, false)", [address.schema])
    return connection


def _drain(url: str) -> None:
    """Claim and settle in batches, two commits a batch, until there is nothing to claim."""
    with _connection(url) as connection:
        connection.execute(_INDEXES_ONLY)
        while rows := connection.execute(_CLAIM, [BATCH], prepare=True).fetchall():
            connection.execute(_SETTLE, [[row[0] for row in rows]], prepare=True)


def seconds_of_drain(url: str, jobs: int) -> float:
    """Return how long this many jobs took, from the first claim to the last settlement."""
    with _connection(url) as connection:
        [(done, began, ended)] = connection.execute(_DRAINED).fetchall()
    if done != jobs:
        raise StoreError(f"{done:,} of {jobs:,} jobs were done; the figure would mean nothing")
    return float(ended - began) / SECOND


def settings(url: str, names: Sequence[str]) -> list[str]:
    """Return how a server is set up."""
    with _connection(url) as connection:
        return [row[0] for row in connection.execute(_SETTINGS, [list(names)]).fetchall()]


def drop(url: str) -> None:
    """Remove a schema and all that is in it."""
    with _connection(url) as connection:
        connection.execute("SET client_min_messages = warning")
        name = sql.Identifier(Address.of(url).schema)
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))


def create_database(url: str, name: str) -> None:
    """Add a database to the server of a URL."""
    with _connection(url) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def fill(url: str, waiting: int, finished: int, payload: str) -> None:
    """Put that many jobs there, and let the server tidy up as it would by and by."""
    with _connection(url) as connection:
        connection.execute("SELECT open_day(stamp())")
        for statement, jobs in (
            (_FILL_FINISHED, finished),
            (_FILL_LOG, finished),
            (_FILL_WAITING, waiting),
        ):
            now = time.time_ns() // 1_000
            for first in range(1, jobs + 1, _PER_FILL):
                values = {
                    "payload": payload,
                    "now": now,
                    "began": now - jobs * 100,
                    "first": first,
                    "last": min(jobs, first + _PER_FILL - 1),
                }
                connection.execute(statement, values)
        connection.execute("VACUUM (ANALYZE) job, finished, attempt")
        connection.execute("CHECKPOINT")


@contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    """Keep a transaction open that may still see all there is now, as a report or a backup does."""
    with _connection(url) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute("SELECT FROM job LIMIT 1")
        yield


@contextmanager
def _connection(url: str) -> Iterator[Connection]:
    connection = connected(url)
    try:
        yield connection
    finally:
        finish(connection)
