"""The Redis of `fairlead bench`, with a hand for the tests, and a cluster of them."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self
from urllib.parse import urlencode

from redis import Connection
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from fairlead.bench.servers import redis
from fairlead.bench.servers.server import HOST, PATIENCE

BATCH = 100
NODES = 3


class RedisServer(redis.RedisServer):
    """The same; it also takes commands."""

    def execute(self, *words: Any, database: int = 0, user: str = "", password: str = "") -> Any:
        """Run a command on a connection of its own; returns the bare reply, with text decoded."""
        connection = Connection(
            host=HOST,
            port=self.port,
            db=database,
            username=user or None,
            password=password or (None if user else self.password) or None,
            protocol=3,
            decode_responses=True,
            encoding_errors="surrogateescape",
            socket_timeout=10,
        )
        try:
            connection.connect()
            connection.send_command(*words)
            return connection.read_response()
        finally:
            connection.disconnect()


class RedisCluster:
    """Three masters without replicas, which share the slots.

    A node is killed, frozen and started by itself: `cluster.nodes[0].kill()`. `start`
    brings back whoever is missing. A node that fails is noticed after `timeout`
    milliseconds; unless `full_coverage`, the others go on without it.
    """

    def __init__(
        self,
        *,
        size: int = NODES,
        timeout: int = 2000,
        full_coverage: bool = True,
        acl: Sequence[str] = (),
        settings: dict[str, str] | None = None,
    ) -> None:
        ours = {
            "cluster-node-timeout": str(timeout),
            "cluster-require-full-coverage": "yes" if full_coverage else "no",
        }
        self._size = size
        self._options: dict[str, Any] = {"acl": acl, "settings": ours | (settings or {})}
        self.nodes: list[RedisServer] = []
        self._stack = ExitStack()

    # Up and down

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start and thaw all nodes, and return when each says that all is well."""
        try:
            if not self.nodes:
                self._create()
            for node in self.nodes:
                node.thaw()
                node.start()
            self.wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop all for good."""
        self.nodes = []
        self._stack.close()

    def wait(self) -> None:
        """Wait until each node knows all others, and all slots are served."""
        end = time.monotonic() + PATIENCE
        while not all(_well(node, self._size) for node in self.nodes):
            if time.monotonic() > end:
                told = "\n".join(self.execute("CLUSTER", "NODES"))
                raise TimeoutError(f"the cluster is not well:\n{told}")
            time.sleep(0.02)

    def _create(self) -> None:
        servers = [RedisServer(cluster=True, **self._options) for _ in range(self._size)]
        for number, server in enumerate(servers):
            self.nodes.append(self._stack.enter_context(server))
            first, last = (REDIS_CLUSTER_HASH_SLOTS * n // self._size for n in (number, number + 1))
            server.execute("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
            # Two that claim to know best of the slots would have to settle that first.
            server.execute("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for other in self.nodes[:-1]:
                server.execute("CLUSTER", "MEET", HOST, other.port, other.bus)

    # Who serves what

    @staticmethod
    def slot_of(key: str) -> int:
        return key_slot(key.encode())

    def owner(self, slot: int) -> RedisServer:
        """Return the node that serves a slot, as the first one sees it that runs."""
        rows = next(node for node in self.nodes if node.running).execute("CLUSTER", "SLOTS")
        [port] = [served[1] for first, last, served, *_ in rows if first <= slot <= last]
        return next(node for node in self.nodes if node.port == port)

    def execute(self, *words: Any) -> list[Any]:
        """Run a command on each node that runs; returns their replies."""
        return [node.execute(*words) for node in self.nodes if node.running]

    def url(self, node: int = 0, **options: object) -> str:
        """Return the URL by which a client finds all nodes, from one of them."""
        query = f"?{urlencode(options)}" if options else ""
        return f"redis+cluster://{HOST}:{self.nodes[node].port}{query}"

    # Slots that move

    def move_slot(self, slot: int, to: RedisServer) -> None:
        """Move a slot with all its keys to another node, while clients use them."""
        if self.owner(slot) is to:
            return
        self.open_slot(slot, to)
        while self.move_keys(slot, to):
            pass
        self.hand_over(slot, to)

    def open_slot(self, slot: int, to: RedisServer) -> None:
        """Begin a move: the owner sends clients who ask for a key that it lacks to the other."""
        source = self.owner(slot)
        to.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(source))
        source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(to))

    def move_keys(self, slot: int, to: RedisServer, limit: int = BATCH) -> int:
        """Move some keys of a slot that was opened; returns how many."""
        source = self.owner(slot)
        keys = source.execute("CLUSTER", "GETKEYSINSLOT", slot, limit)
        if keys:
            source.execute("MIGRATE", HOST, to.port, "", 0, 10_000, "KEYS", *keys)
        return len(keys)

    def hand_over(self, slot: int, to: RedisServer) -> None:
        """End a move: the other node is the owner now, and all know it."""
        # It must be the first to know: told before it, the old owner would send clients in circles.
        rest = [node for node in self.nodes if node is not to]
        for node in (to, *rest):
            node.execute("CLUSTER", "SETSLOT", slot, "NODE", _id(to))


def _well(node: RedisServer, size: int) -> bool:
    told = node.execute("CLUSTER", "INFO").split()
    slots = f"cluster_slots_ok:{REDIS_CLUSTER_HASH_SLOTS}"
    return {"cluster_state:ok", f"cluster_known_nodes:{size}", slots} <= set(told)


def _id(node: RedisServer) -> str:
    return str(node.execute("CLUSTER", "MYID"))
