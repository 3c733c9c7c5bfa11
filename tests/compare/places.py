"""Where the two builds work: each in a place of its own, because their schemas may differ."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Protocol

from fairlead.bench.servers.postgres import PostgresServer
from fairlead.bench.servers.redis import RedisServer
from fairlead.stores.postgres.floor import create_database
from tests.compare.wire import counted_postgres, counted_redis
from tests.servers.proxy import Proxy


class Places(Protocol):
    """Empty places on one store."""

    counts: "Counter[str]"
    """What passed the wire to places that were named with `counted`."""

    def url(self, *, counted: bool = False) -> str:
        """Name a new one. All names are equally long, so that bytes can be compared."""
        ...


class Memory:
    """The memory of the process."""

    counts: "Counter[str]" = Counter()

    def url(self, *, counted: bool = False) -> str:
        return "memory://"


class Files:
    """Files of SQLite. They are `fast`: how long a disk takes is not ours to compare."""

    counts: "Counter[str]" = Counter()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = count(1000)

    def url(self, *, counted: bool = False) -> str:
        return f"sqlite:///{self._folder}/{next(self._number)}.db?durability=fast"


class Databases:
    """Databases of a PostgreSQL, reached by way of a proxy if they are counted."""

    def __init__(self, server: PostgresServer, proxy: Proxy, counts: "Counter[str]") -> None:
        self._server = server
        self._proxy = proxy
        self.counts = counts
        self._number = count(1000)

    def url(self, *, counted: bool = False) -> str:
        name = f"compare_{next(self._number)}"
        create_database(self._server.url(), name)
        url = self._server.url(name)
        return self._proxy.through(url) if counted else url


class Prefixes:
    """Prefixes of a Redis, reached by way of a proxy if they are counted."""

    def __init__(self, server: RedisServer, proxy: Proxy, counts: "Counter[str]") -> None:
        self._server = server
        self._proxy = proxy
        self.counts = counts
        self._number = count(1000)

    def url(self, *, counted: bool = False) -> str:
        url = self._server.url(prefix=f"compare_{next(self._number)}")
        return self._proxy.through(url) if counted else url


@contextmanager
def places(store: str, folder: Path) -> Iterator[Places]:
    """Open the places of a store; servers run as long as the block lasts."""
    counts: Counter[str] = Counter()
    match store:
        case "postgres":
            # It would come when it likes, to one of the two.
            quiet = {"autovacuum": "off", "max_wal_size": "4GB"}
            with (
                PostgresServer(settings=quiet) as database,
                Proxy(database.port, lambda: counted_postgres(counts)) as proxy,
            ):
                yield Databases(database, proxy, counts)
        case "redis":
            with (
                RedisServer() as redis,
                Proxy(redis.port, lambda: counted_redis(counts)) as proxy,
            ):
                yield Prefixes(redis, proxy, counts)
        case "sqlite":
            yield Files(folder)
        case _:
            yield Memory()
