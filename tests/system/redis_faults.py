"""A shop on a Redis, or on a cluster of them, that tests may break."""

from collections import Counter
from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import Any

from fairlead import State
from fairlead.core.ids import JobId
from fairlead.core.job import Job
from fairlead.core.queue import Queue
from fairlead.core.store import Store
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.records import worker_of
from tests.conftest import LOAD, rights
from tests.servers.redis import RedisCluster, RedisServer
from tests.system.faults import ServerShop
from tests.words import claim

CREW = f"crew on >rope {' '.join(rights('s_*:'))}"
"""A user who may do no more than he must, and is still there after a restart."""
SETTINGS = {"enable-debug-command": "local"}
LOOP = Queue("loop")
PREFIXES = count(1)


class RedisShop(ServerShop):
    """A shop with a prefix of its own, for a user who may do no more than he must."""

    def __init__(self, folder: Path, server: RedisServer | RedisCluster) -> None:
        self.server = server
        self.prefix = f"s_{next(PREFIXES)}"
        self.keys = Keys(self.prefix)
        server.start()
        server.execute(*LOAD)
        super().__init__(folder, self.url_with())

    @property
    def owner_url(self) -> str:
        return self.server.url(prefix=self.prefix)

    @property
    def nodes(self) -> list[RedisServer]:
        """The servers that run."""
        all_of_them = [self.server] if isinstance(self.server, RedisServer) else self.server.nodes
        return [node for node in all_of_them if node.running]

    def url_with(self, port: int | None = None, **options: Any) -> str:
        """Return the URL of the store, perhaps by way of another port."""
        query = {"prefix": self.prefix} | options
        url = self.server.url(**query).replace("://", "://crew:rope@")
        if port is None:
            return url
        assert isinstance(self.server, RedisServer)
        return url.replace(f":{self.server.port}/", f":{port}/")

    def do(self, *words: Any) -> Any:
        """Run a command as the owner of the server."""
        assert isinstance(self.server, RedisServer)
        return self.server.execute(*words)

    def key(self, queue: str, part: str) -> str:
        return self.keys.key(queue, part)

    def check_done_once(self) -> None:
        """Every job is done, and was started once."""
        started = Counter(line.job for line in self.starts())
        assert started == Counter(self.accepted)
        assert {self.record(job).state for job in self.accepted} == {State.DONE}

    # What the server sees of us

    def clients(self, kind: str = "normal") -> list[dict[str, str]]:
        """Return our connections, or those who listen with `kind="pubsub"`."""
        found = []
        for node in self.nodes:
            for line in node.execute("CLIENT", "LIST", "TYPE", kind).splitlines():
                words = dict(word.partition("=")[::2] for word in line.split())
                found += [words] if words["user"] == "crew" else []
        return found

    def listeners(self) -> list[str]:
        """Return the connections of those who listen for news."""
        return [client["id"] for client in self.clients("pubsub")]

    def kick(self, kind: str) -> int:
        """End connections as an administrator would; returns how many."""
        return sum(
            node.execute("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes") for node in self.nodes
        )

    def beats(self) -> dict[str, int]:
        """Return until when each worker said it lives."""
        found: dict[str, int] = {}
        for node in self.nodes:
            if isinstance(self.server, RedisServer) or node is self._keeper(self.keys.workers):
                told = node.execute("HGETALL", self.keys.workers)
                for name, text in told.items():
                    said = text.encode("utf-8", "surrogateescape")
                    found[name] = worker_of(name, said).live_until
        return found

    def _keeper(self, key: str) -> RedisServer:
        """Return the node of a cluster that keeps a key."""
        assert isinstance(self.server, RedisCluster)
        return self.server.owner(self.server.slot_of(key))

    def node_of(self, queue: str) -> RedisServer:
        """Return the node of a cluster that keeps a queue."""
        return self._keeper(self.key(queue, "bodies"))


async def claim_all(store: Store, ids: Collection[JobId], **options: Any) -> list[Job]:
    """Claim until all of these were given."""
    found: list[Job] = []
    while len(found) < len(ids):
        found += await claim(store, LOOP, **options)
    assert {job.id for job in found} == set(ids)
    return found
