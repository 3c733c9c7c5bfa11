"""The raw engine, for benchmarks to be compared with.

The same values under the same keys on the same server, by the plainest fast scripts: no
fences, no rule, no gates, nothing checked, nobody told. Jobs are only ever put, claimed
and done here. What Fairlead takes longer than this is the price of what it promises.
"""

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import redis
from redis import connection as blocking

from fairlead.core.clock import SECOND
from fairlead.core.errors import ConfigError, StoreError
from fairlead.core.job import LEVEL, NewJob
from fairlead.stores.redis.address import Address, Node
from fairlead.stores.redis.condition import Server, begin
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.lane import BlockingLanes
from fairlead.stores.redis.layout import Body, in_lua
from fairlead.stores.redis.nodes import Nodes
from fairlead.stores.redis.problems import typed
from fairlead.stores.redis.records import lines_of, pack
from fairlead.stores.redis.served import Served

BATCH = 100
_QUEUE = "default"
_PARTS = ("bodies", "standings", "ready", "leases", "done", "log")
_KEYS = """
local bodies, standings, ready = KEYS[1], KEYS[2], KEYS[3]
local leases, done, log = KEYS[4], KEYS[5], KEYS[6]
local call, pack, unpack_some = redis.call, cmsgpack.pack, cmsgpack.unpack_limit
"""
# Takes when they were enqueued, then id and body of each.
_PUT = f"""{_KEYS}
local turns = {{}}
for n = 2, #ARGV, 2 do
  turns[n - 1], turns[n] = ARGV[1], ARGV[n]
end
call('HSET', bodies, unpack(ARGV, 2))
call('ZADD', ready, unpack(turns))
"""
# Takes how many at most; answers ids and bodies. What all standings of a batch have in common is
# packed once.
_CLAIM = in_lua(rf"""{_KEYS}
local found = call('ZPOPMIN', ready, ARGV[1])
if #found == 0 then return {{ {{}}, {{}} }} end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local ids, written, until_when = {{}}, {{}}, {{}}
for n = 1, #found, 2 do ids[#ids + 1] = found[n] end
local texts = call('HMGET', bodies, unpack(ids))
local first = @STANDING .. pack(now, now + 20000000, 1, 0, 0)
local then_same = pack(nil, 'raw-worker-of-benchmark', now, nil, {{}})
local last = nil<STANDING state..result> .. pack(1, 0)
for n = 1, #ids do
  local _, task, version, priority, enqueued_at = unpack_some(texts[n], 4, 1)
  written[n * 2 - 1] = ids[n]
  written[n * 2] = first .. pack(tonumber(found[n * 2])) .. then_same
    .. pack(task, version, priority, enqueued_at, nil) .. last
  until_when[n * 2 - 1], until_when[n * 2] = now + 20000000, ids[n]
end
call('HSET', standings, unpack(written))
call('ZADD', leases, unpack(until_when))
return {{ ids, texts }}
""")
# Takes ids.
_SETTLE = in_lua(rf"""{_KEYS}
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local texts = call('HMGET', standings, unpack(ARGV))
local last = '\145' .. pack(call('LLEN', log)) .. nil<STANDING task..expires_at>
  .. pack('done', now, nil, nil, 1, 0)
local logged, endings, when_done = {{}}, {{}}, {{}}
for n = 1, #ARGV do
  local _, <STANDING fence..task> = unpack_some(texts[n], STANDING.TASK, 3)
  logged[n] = @LINE .. pack(ARGV[n], fence, attempt, task, 'default', worker, order_at,
    claimed_at, claimed_at, 'done', nil)
  endings[n * 2 - 1] = ARGV[n]
  endings[n * 2] = @STANDING .. pack(fence, 0, attempt, 0, 0, order_at, nil, worker,
    claimed_at, nil) .. last
  when_done[n * 2 - 1], when_done[n * 2] = now, ARGV[n]
end
call('ZREM', leases, unpack(ARGV))
call('HSET', standings, unpack(endings))
call('ZADD', done, unpack(when_done))
local count = '\220' .. string.char(math.floor(#logged / 256), #logged % 256)
call('RPUSH', log, string.format('%016.0f', now) .. count .. table.concat(logged))
""")
_PATIENCE = 10.0


class Floor:
    """Our keys under a prefix, and bare `redis.Redis` at work on them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = connected(url)
        self._keys = _keys(url)

    def put(self, jobs: Sequence[NewJob], batch: int) -> float:
        """Add prepared values, a script for each batch; returns the seconds it took."""
        seconds, rest = self._client.execute_command("TIME")
        now = seconds * SECOND + rest
        words = []
        for job in jobs:
            body = Body(
                *(job.task, job.version, job.priority, now, None),
                *(job.level, job.options, job.payload),
            )
            words += [job.id, pack(body)]
        pieces = [words[first : first + 2 * batch] for first in range(0, len(words), 2 * batch)]
        put = self._client.script_load(_PUT)
        began = time.perf_counter()
        for piece in pieces:
            self._client.evalsha(put, len(self._keys), *self._keys, now, *piece)
        return time.perf_counter() - began

    def drain(self, jobs: int, processes: int) -> float:
        """Claim and settle all jobs, in processes; returns the seconds it took."""
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            pool.map(_drain, [self._url] * processes, chunksize=1)
        return seconds_of_drain(self._url, jobs)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def _keys(url: str) -> list[str]:
    prefix = Address.of(url).prefix
    return [f"{prefix}:{{{_QUEUE}}}:{part}" for part in _PARTS]


def _address(url: str) -> Address:
    address = Address.of(url)
    if address.is_cluster:
        raise ConfigError("one server is measured, not a cluster; name one that stands alone")
    return address


def _settings(address: Address, node: Node) -> dict[str, Any]:
    """Return what redis-py needs to connect to a node."""
    place = {"path": node.path} if node.path else {"host": node.host, "port": node.port}
    keepalive = {} if node.path else {"socket_keepalive": True}
    trust = {"ssl_cert_reqs": "required", "ssl_check_hostname": True} if address.tls else {}
    return {
        **place,
        **keepalive,
        **trust,
        **address.options,
        "db": address.database,
        "socket_connect_timeout": min(2.0, address.timeout),
        "protocol": 2,
        "client_name": "fairlead",
        "driver_info": None,
    }


def connected(url: str) -> Any:  # noqa: ANN401 (the driver's own, whose answers have no types)
    """Connect to the one server that a URL names."""
    address = _address(url)
    [node] = address.nodes
    tcp = blocking.SSLConnection if address.tls else blocking.Connection
    pool = redis.ConnectionPool(
        connection_class=blocking.UnixDomainSocketConnection if node.path else tcp,
        **_settings(address, node),
        socket_timeout=address.timeout,
    )
    client: Any = redis.Redis.from_pool(pool)
    try:
        client.execute_command("PING")
    except (redis.RedisError, OSError) as problem:
        raise typed(problem, address, address.timeout) from problem
    return client


def _drain(url: str) -> None:
    """Claim and settle in batches, until there is nothing to claim."""
    keys = _keys(url)
    with _client(url) as client:
        claim, settle = client.script_load(_CLAIM), client.script_load(_SETTLE)
        while True:
            ids, _ = client.evalsha(claim, len(keys), *keys, BATCH)
            if not ids:
                return
            client.evalsha(settle, len(keys), *keys, *ids)


def seconds_of_drain(url: str, jobs: int) -> float:
    """Return how long this many jobs took, from the first claim to the last settlement."""
    keys = Keys(Address.of(url).prefix)
    with _client(url) as client:
        names = [name.decode() for name in client.smembers(keys.queues)] or [_QUEUE]
        logs = [client.lrange(keys.key(name, "log"), 0, -1) for name in names]
    lines = [line for batches in logs for batch in batches for line in lines_of(_QUEUE, batch)]
    done = sum(line.outcome == "done" for line in lines)
    if done != jobs:
        raise StoreError(f"{done:,} of {jobs:,} jobs were done; the figure would mean nothing")
    began = min(line.claimed_at for line in lines)
    return (max(line.finished_at for line in lines) - began) / SECOND


def server_of(url: str) -> Server:
    """Return what a server says of itself; raises if a store would not have it."""
    address = _address(url)
    nodes = Nodes(address)
    with closing(BlockingLanes(address, nodes)) as lanes:
        keys = Keys(address.prefix)
        [server] = lanes.hold(begin(nodes, keys, Served(keys, lambda: LEVEL), address))
    return server


def used_memory(url: str) -> int:
    """Return how many bytes a server uses."""
    with _client(url) as client:
        return int(client.info("memory")["used_memory"])


def drop(url: str) -> None:
    """Remove all keys under a prefix, and wait until their memory is free again."""
    with _client(url) as client:
        for key in client.scan_iter(match=f"{Address.of(url).prefix}:*", count=1_000):
            client.unlink(key)
        end = time.monotonic() + _PATIENCE
        while client.info("memory")["lazyfree_pending_objects"] and time.monotonic() < end:
            time.sleep(0.01)


@contextmanager
def _client(url: str) -> Iterator[Any]:
    client = connected(url)
    try:
        yield client
    finally:
        client.close()
