"""PostgreSQL beside bare `psycopg`: the same rows and batch size, on the same server."""

import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from fairlead.bench.places import Places
from fairlead.bench.put import PutBench, WantedPuts
from fairlead.bench.queues import many_queues
from fairlead.bench.row import table
from fairlead.bench.servers.postgres import PostgresServer
from fairlead.bench.worker import Wanted, WorkerBench
from fairlead.stores.postgres.floor import Floor, drop, seconds_of_drain, settings

PUTS = WantedPuts(bulk=60_000, callers=64, together=10_000, one_by_one=0.7)
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
    schemas = Places(url, "schema", Floor, drop, seconds_of_drain)
    puts = PutBench(schemas, rounds, scale)
    workers = WorkerBench(schemas, rounds, scale, WANTED)
    yield from table(chain(puts.rows(PUTS, "raw by COPY"), workers.rows()))
    yield from many_queues(schemas, rounds, scale)


def own_server(folder: Path) -> PostgresServer:
    """Return a server that keeps what it commits, in a folder."""
    return PostgresServer(durable=True, settings=MEMORY, place=folder)


def described(url: str) -> str:
    """Say what is measured."""
    version, *values = settings(url, ("server_version", *_SHOWN))
    shown = ", ".join(f"{name} {value}" for name, value in zip(_SHOWN, values, strict=True))
    python = sys.version.split()[0]
    return f"postgres, Python {python}, PostgreSQL {version.split()[0]} with {shown}"
