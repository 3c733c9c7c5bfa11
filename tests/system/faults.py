"""Shops on servers that tests may break, and what must hold after every fault.

Whatever was done to the server, the network or the sessions: no accepted job is
lost, no job runs twice at once, the audit is clean, and every part is back within
five seconds of the store's return, without anybody's help (I1, I3, I5, L2, P6).
"""

import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Self

import psycopg

from fairlead.core.errors import StoreError
from fairlead.core.ids import JobId
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.migrate import migrate
from tests.conftest import CREW, KINDS
from tests.servers.postgres import PostgresServer
from tests.system.tree import Shop, until

BACK_SECONDS = 5.0 + 10.0
"""What the promise says, and what a busy machine may add."""

SCHEMAS = count(1)
OURS = "application_name = 'fairlead' AND datname = current_database()"

LISTENS = "query LIKE 'LISTEN%'"


class ServerShop(Shop):
    """A shop whose store is on a server, which sees who is there."""

    @abstractmethod
    def listeners(self) -> Sequence[object]:
        """Return those who listen for news."""

    @abstractmethod
    def beats(self) -> Mapping[str, int]:
        """Return until when each worker said it lives, which it says after each heartbeat."""

    def until_up(self, processes: int = 1) -> None:
        """Wait for workers that are up and listen."""
        until(lambda: len(self.listeners()) >= processes, 20, "workers that listen")

    def check_back(self, processes: int = 1) -> None:
        """The store is back since now: so is every part that needs it, within seconds (L2, P6)."""
        end, before = time.monotonic() + BACK_SECONDS, self.beats()
        job = self.put("quick")
        until(lambda: self.record(job).state.final, BACK_SECONDS, "claim, run and settle")
        until(lambda: self._beaten(before), end - time.monotonic(), "a heartbeat of every worker")
        until(lambda: len(self.listeners()) >= processes, end - time.monotonic(), "news")

    def _beaten(self, before: Mapping[str, int]) -> bool:
        now = self.beats()
        running = sum(tree.process.poll() is None for tree in self.trees)
        return sum(now[name] > before.get(name, 0) for name in now) >= running


class PostgresShop(ServerShop):
    """A shop in a schema of its own, with a user who may do no more than he must."""

    def __init__(
        self,
        folder: Path,
        server: PostgresServer,
        role: str = "crew",
        database: str = "postgres",
    ) -> None:
        self.server = server
        self.role = role
        self.database = database
        self.schema = f"s_{next(SCHEMAS)}"
        server.thaw()
        server.start()
        migrate(Address.of(self.owner_url))
        self.admit(role)
        super().__init__(folder, self.url_with())

    @property
    def owner_url(self) -> str:
        return self.server.url(self.database, schema=self.schema)

    def url_with(self, port: int | None = None, **options: Any) -> str:
        """Return the URL of the store, perhaps by way of another port."""
        options = {"user": self.role, "password": "rope", "schema": self.schema} | options
        url = self.server.url(self.database, **options)
        return url.replace(f":{self.server.port}/", f":{port}/") if port else url

    def admit(self, role: str) -> None:
        grants = "; ".join(f"SELECT {self.schema}.allow('{role}', '{kind}')" for kind in KINDS)
        self.server.execute(f"{CREW.replace('crew', role)}; {grants}", database=self.database)

    def sql(self, statement: str) -> list[Any]:
        """Run a statement as the owner of the schema."""
        url = self.server.url(self.database, options=f"-csearch_path={self.schema}")
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    # What the server sees of us

    def sessions(self, which: str = "true") -> list[int]:
        """Return the backends that serve us."""
        rows = self.sql(f"SELECT pid FROM pg_stat_activity WHERE {OURS} AND {which}")
        return [pid for (pid,) in rows]

    def listeners(self) -> list[int]:
        """Return the backends of those who listen for news."""
        return self.sessions(f"{LISTENS} AND state = 'idle'")

    def terminate(self, which: str = "true") -> int:
        """End sessions as an administrator would; returns how many."""
        query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS} AND {which}"
        return len(self.sql(query))

    def beats(self) -> dict[str, int]:
        """Return until when each worker said it lives."""
        return dict(self.sql("SELECT id, live_until FROM worker"))


class Producer:
    """Puts jobs all the time, some from threads, some on a loop; what got no answer is repeated.

    Notes every job that was acknowledged.
    """

    def __init__(self, shop: ServerShop, task: str = "quick", pause: float = 0.01) -> None:
        self._shop = shop
        self._task = getattr(shop.module, task)
        self._pause = pause
        self._enough = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(put,))
            for put in (self._put_blocking, self._put_on_loop)
        ]
        self.acknowledged: list[JobId] = []
        self.repeated = 0
        self.disturbed = 0
        """How many puts failed or took long; the store repeats what got no answer."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(40)
            assert not thread.is_alive(), "a put neither succeeds nor fails"
        self._shop.accepted += self.acknowledged

    def until_more(self, number: int = 10) -> None:
        """Wait until so many more were acknowledged."""
        goal = len(self.acknowledged) + number
        until(lambda: len(self.acknowledged) >= goal, BACK_SECONDS, "puts")

    def _produce(self, put: Any) -> None:
        while not self._enough.wait(self._pause):
            call = self._task.call()
            while not self._enough.is_set():
                began = time.monotonic()
                try:
                    put(call)
                except StoreError:
                    self.repeated += 1
                    self.disturbed += 1
                    self._enough.wait(0.05)
                    continue
                self.disturbed += time.monotonic() - began > 0.1
                self.acknowledged.append(call.id)
                break

    def _put_blocking(self, call: Any) -> None:
        self._shop.app.enqueue_many([call])

    def _put_on_loop(self, call: Any) -> None:
        self._shop.app.bridge.run(self._shop.app.store.put([call.job]))


@contextmanager
def transaction(url: str, *statements: str) -> Iterator["psycopg.Connection[Any]"]:
    """Hold a transaction open, with what it has locked."""
    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement)
        yield connection
        connection.rollback()
