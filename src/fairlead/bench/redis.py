"""Redis beside bare `redis.Redis`: the same values and batch size, on the same server."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path

from fairlead.bench.places import Places
from fairlead.bench.put import PutBench, WantedPuts
from fairlead.bench.queues import many_queues
from fairlead.bench.row import Row, paired, table
from fairlead.bench.servers.redis import RedisServer
from fairlead.bench.work import drain_all, fill, opened, prepared, rate_of_drain, size, timed
from fairlead.bench.worker import Wanted, WorkerBench
from fairlead.stores.redis.floor import Floor, drop, seconds_of_drain, server_of, used_memory

PUTS = WantedPuts(bulk=60_000, callers=64, together=15_000, one_by_one=0.75)
WANTED = Wanted(drain={1: 0.40, 2: 0.50}, p50=1.5, p99=8)
BYTES = 450
FILL = 100_000
CHUNK = 5_000
TURNS = 4
"""How many small chunks a round has: they are over before the machine's mood changes."""
CYCLE = 40_000


def report(folder: Path, rounds: int, scale: float, url: str | None = None) -> Iterator[str]:
    """Measure a server, our own if no other is named; yields line by line what to print."""
    if url is None:
        with RedisServer(place=folder) as server:
            yield from report(folder, rounds, scale, server.url())
        yield from aof_table(folder, rounds, scale)
        return
    places = Places(url, "prefix", Floor, drop, seconds_of_drain)
    with places.place() as place:
        yield f"{described(place)}, median of {rounds} rounds"
    puts = PutBench(places, rounds, scale)
    workers = WorkerBench(places, rounds, scale, WANTED)
    memory = memory_rows(places, scale)
    yield from table(chain(puts.rows(PUTS, "batches of 1,000"), memory, workers.rows()))
    yield from depth_table(places, rounds, scale)
    yield from many_queues(places, rounds, scale)


def described(url: str) -> str:
    """Say what is measured."""
    server = server_of(url)
    aof = f"AOF, appendfsync {server.fsync or 'unknown'}" if server.aof else "no AOF"
    return f"redis, Python {sys.version.split()[0]}, {server.named} with {aof}"


def memory_rows(places: Places, scale: float) -> Iterator[Row]:
    """Measure how much more the server uses with many jobs, each with 84 bytes of payload."""
    jobs = size(200_000, scale)
    with places.place() as url, closing(Floor(url)) as floor:
        empty = used_memory(url)
        floor.put(prepared(jobs), batch=1_000)
        theirs = (used_memory(url) - empty) / jobs
    with places.place() as url:
        app, task = opened(url)
        empty = used_memory(url)
        fill(app, task, jobs)
        ours = (used_memory(url) - empty) / jobs
        app.close()
    yield Row("a waiting job", "bytes", ours, theirs, target=BYTES, best="low")


def depth_table(places: Places, rounds: int, scale: float) -> Iterator[str]:
    """Claim and settle with a few jobs waiting and with many, in turns."""
    few, many = size(20_000, scale), size(2_000_000, scale)
    chunk = size(CHUNK, scale)
    rates: dict[int, list[float]] = {few: [], many: []}
    with ExitStack() as stack:
        cases = []
        for waiting in rates:
            url = stack.enter_context(places.place())
            floor = stack.enter_context(closing(Floor(url)))
            for first in range(0, waiting, FILL):
                floor.put(prepared(min(FILL, waiting - first)), batch=1_000)
            app, _ = opened(url)
            stack.callback(app.close)
            cases.append((waiting, floor, app))
        for turn in range(TURNS * rounds + 1):
            for waiting, floor, app in cases:
                floor.put(prepared(chunk), batch=1_000)
                rate = rate_of_drain(app, chunk)
                if turn:  # The first chunk warms up: connections, scripts, caches.
                    rates[waiting].append(rate)
    row = paired("claim + settle, so many waiting", rates[few], rates[many], 0.8)
    yield from table([row], f"{few:,}", f"{many:,}")


def aof_table(folder: Path, rounds: int, scale: float) -> Iterator[str]:
    """Put, claim and settle on servers that keep nothing, the last second or everything safe."""
    jobs = size(CYCLE, scale)
    with ExitStack() as stack:
        cases = {}
        for kept in ("nothing", "everysec", "always"):
            aof = "no" if kept == "nothing" else "yes"
            fsync = "everysec" if kept == "nothing" else kept
            server = RedisServer(appendonly=aof, appendfsync=fsync, place=folder)
            url = stack.enter_context(server).url(durability="fast")
            cases[kept] = Places(url, "prefix", Floor, drop, seconds_of_drain)
        rates: dict[str, list[float]] = {kept: [] for kept in cases}
        for _ in range(rounds):
            for kept, places in cases.items():
                with places.place() as url:
                    rates[kept].append(jobs / _seconds_of_cycle(url, jobs))
    none = rates.pop("nothing")
    rows = [paired(f"put + claim + settle, {kept}", none, each) for kept, each in rates.items()]
    yield from table(rows, "no AOF", "AOF")


def _seconds_of_cycle(url: str, jobs: int) -> float:
    app, task = opened(url)
    seconds = timed(fill, app, task, jobs) + timed(drain_all, app)
    app.close()
    return seconds
