"""PostgreSQL beside bare `psycopg`: the same rows and batch size, on the same server."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from statistics import median
from urllib.parse import parse_qsl, urlencode, urlsplit

from fairlead.bench.put import PutBench
from fairlead.bench.row import Row, paired, table
from fairlead.bench.servers.postgres import PostgresServer
from fairlead.bench.worker import Wanted, WorkerBench
from fairlead.stores.postgres.floor import Floor, drop, seconds_of_drain, settings

CALLERS = 64
WANTED = Wanted(drain={1: 0.40, 2: 0.50}, p99=8)
MEMORY = {"shared_buffers": "1GB", "max_wal_size": "8GB"}
_SHOWN = ("fsync", "synchronous_commit", "shared_buffers", "max_wal_size")


def report(folder: Path, rounds: int, scale: float, url: str | None = None) -> Iterator[str]:
    """Measure a server, our own if no other is named; yields line by line what to print."""
    if url is None:
        with own_server(folder) as server:
            yield from report(folder, rounds, scale, server.url())
        return
    yield f"{described(url)}, median of {rounds} rounds"
    schemas = Schemas(url)
    workers = WorkerBench(schemas, rounds, scale, WANTED)
    yield from table(chain(put_rows(schemas, rounds, scale), workers.rows()))


def own_server(folder: Path) -> PostgresServer:
    """Return a server that keeps what it commits, in a folder."""
    return PostgresServer(durable=True, settings=MEMORY, place=folder)


def described(url: str) -> str:
    """Say what is measured."""
    version, *values = settings(url, ("server_version", *_SHOWN))
    shown = ", ".join(f"{name} {value}" for name, value in zip(_SHOWN, values, strict=True))
    python = sys.version.split()[0]
    return f"postgres, Python {python}, PostgreSQL {version.split()[0]} with {shown}"


class Schemas:
    """Empty schemas in a database, which are dropped after use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._number = count(1)

    @contextmanager
    def place(self) -> Iterator[str]:
        """Name one by its URL."""
        parts = urlsplit(self._url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        options["schema"] = f"fairlead_bench_{os.getpid()}_{next(self._number)}"
        url = parts._replace(query=urlencode(options)).geturl()
        try:
            yield url
        finally:
            drop(url)

    @contextmanager
    def floor(self) -> Iterator[Floor]:
        """Let bare `psycopg` work in one."""
        with self.place() as url:
            floor = Floor(url)
            try:
                yield floor
            finally:
                floor.close()

    def seconds_of_drain(self, url: str, jobs: int) -> float:
        """Ask the attempt log in a schema."""
        return seconds_of_drain(url, jobs)


def put_rows(schemas: Schemas, rounds: int, scale: float) -> Iterator[Row]:
    """Measure puts; the raw engine puts many by COPY."""
    puts = PutBench(schemas, rounds, scale)
    floor, ours = puts.bulk()
    yield Row(
        "bulk put, raw by COPY", "jobs/s", median(ours), median(floor), target=60_000, best="most"
    )
    rates = puts.together(CALLERS)
    yield Row(f"{CALLERS} aenqueue callers", "jobs/s", median(rates), target=10_000)
    yield paired("enqueue one by one", *puts.one_by_one(), 0.7)
