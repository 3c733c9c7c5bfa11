"""How the server is: what it does with our jobs in an outage, and what in its set-up will hurt."""

from collections.abc import Iterator, Sequence

import msgspec
import redis

from fairlead.core.admin import Condition, Finding, Migration
from fairlead.core.clock import SECOND
from fairlead.core.errors import SchemaOutdated, StoreUnavailable
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.nodes import Nodes
from fairlead.stores.redis.talk import Conversation, Tried

VERSION = 1
"""The version of the layout of our keys, and of the scripts that know it."""
_OLDEST = (7, 0)
_KEYS_TOLD = "-- nothing to do: keys come into being as they are used"


class Server(msgspec.Struct, frozen=True):
    """What a server says of itself, as far as it matters to jobs."""

    place: str
    version: tuple[int, ...]
    named: str
    policy: str
    maxmemory: int
    used: int
    aof: bool
    fsync: str | None
    """How often it writes for good; None if it does not tell."""
    role: str
    replicas: int
    now: int

    @property
    def durability(self) -> str:
        """The class of what it accepts, as `Store.durability` names it."""
        if not self.aof:
            return "memory"
        return "durable" if self.fsync == "always" else "fast"

    @property
    def survives(self) -> str:
        """What an accepted job survives, in words."""
        if not self.aof:
            return "appendonly no: an accepted job is lost with the server"
        if self.fsync == "always":
            return "appendfsync always: an accepted job survives kill -9 and power cuts"
        if self.fsync == "no":
            return (
                "appendfsync no: an accepted job survives kill -9; a power cut takes what the "
                "system has not written yet"
            )
        return (
            "appendfsync everysec: a power cut may take the last second of accepted jobs, and so "
            "may kill -9 of a server whose disk is slow"
        )


def servers(nodes: Nodes, keys: Keys) -> Conversation[list[Server]]:
    """Ask each node what it is, and find out who they are first."""
    newest = max((yield from applied(keys)), default=VERSION)
    if newest > VERSION:
        raise SchemaOutdated(newest, VERSION)
    places = nodes.all
    answers = yield [
        command
        for node in places
        for command in (
            (node, "INFO"),
            (node, "TIME"),
            Tried((node, "CONFIG", "GET", "appendfsync")),
        )
    ]
    pieces = zip(answers[::3], answers[1::3], answers[2::3], strict=True)
    return [_server(str(node), *piece) for node, piece in zip(places, pieces, strict=True)]


def _server(place: str, info: bytes, time: Sequence[bytes], fsync: object) -> Server:
    said = dict(
        line.split(":", 1) for line in info.decode(errors="replace").splitlines() if ":" in line
    )
    version = said.get("redis_version", "0")
    return Server(
        place=place,
        version=tuple(int(part) for part in version.split(".") if part.isdigit()),
        named=f"{said.get('server_name', 'redis').capitalize()} "
        f"{said.get('valkey_version', version)}",
        policy=said.get("maxmemory_policy", "noeviction"),
        maxmemory=int(said.get("maxmemory", 0)),
        used=int(said.get("used_memory", 0)),
        aof=said.get("aof_enabled") == "1",
        fsync=fsync[1].decode() if isinstance(fsync, list) and len(fsync) == 2 else None,
        role=said.get("role", "master"),
        replicas=int(said.get("connected_slaves", 0)),
        now=int(time[0]) * SECOND + int(time[1]),
    )


def weakest(found: Sequence[Server]) -> Server:
    """Return the server that keeps least of what it accepts."""
    return min(found, key=lambda server: ("memory", "fast", "durable").index(server.durability))


def begin(nodes: Nodes, keys: Keys, address: Address) -> Conversation[list[Server]]:
    """Raise if a server would lose jobs, or cannot run them; else say that we are here."""
    found = yield from servers(nodes, keys)
    for server in found:
        for problem, remedy in _unfit(server, address):
            raise StoreUnavailable(address.url, f"{server.place} {problem}; {remedy}")
    # A full server would not take it, and must be worked off all the same.
    if VERSION not in (yield from applied(keys)):
        yield [("HSETNX", keys.schema, VERSION, found[0].now)]
    return found


def applied(keys: Keys) -> Conversation[dict[int, int]]:
    """Return when which version of our keys came into use."""
    [found] = yield [("HGETALL", keys.schema)]
    return {int(number): int(at) for number, at in zip(found[::2], found[1::2], strict=True)}


def migrations(keys: Keys) -> Conversation[list[Migration]]:
    """Return the versions of our keys, and since when they are in use."""
    since = yield from applied(keys)
    return [Migration(VERSION, "keys", _KEYS_TOLD, since.get(VERSION))]


def _unfit(server: Server, address: Address) -> Iterator[tuple[str, str]]:
    if server.version < _OLDEST:
        yield f"is {server.named}", "Fairlead needs Redis 7.0 or Valkey: upgrade it"
    if server.role != "master":
        yield "is a replica", "name the primary in the store's URL"
    if server.policy.startswith("allkeys"):
        yield (
            f"may evict jobs when its memory is full (maxmemory-policy {server.policy})",
            "run CONFIG SET maxmemory-policy noeviction, and CONFIG REWRITE to keep it",
        )
    if not server.aof and not address.fast:
        yield (
            "keeps no append-only file, so a restart loses accepted jobs",
            (
                "run CONFIG SET appendonly yes, and CONFIG REWRITE to keep it (CONFIG SET "
                "appendfsync always to survive a power cut too); or add durability=fast to the "
                "store's URL, if jobs may be lost"
            ),
        )


def condition(
    servers: Sequence[Server], address: Address, now: int | None, *, hears: bool
) -> Condition:
    """Tell how the servers are, and what will hurt."""
    first = servers[0]
    room = f" of {_size(first.maxmemory)}" if first.maxmemory else ""
    facts = {
        "server": first.named if len(servers) == 1 else f"{first.named}, {len(servers)} nodes",
        "driver": f"redis-py {redis.__version__}",
        "user": address.options.get("username", "default"),
        "durability": weakest(servers).survives,
        "keys": f"{address.prefix}:…, version {VERSION}",
        "memory": f"{_size(sum(each.used for each in servers))}{room}",
        "replicas": str(sum(each.replicas for each in servers)),
        "tls": "on" if address.tls else "off",
        "news": "heard" if hears else "not heard",
    }
    findings = [finding for server in servers for finding in _findings(server, address, now)]
    if not address.tls and not address.is_local:
        findings.append(_OPEN)
    if not hears:
        findings.append(_DEAF)
    return Condition(facts, findings)


_OPEN = Finding(
    "jobs and the password go over the network in the clear",
    "use rediss:// with a server that has tls-port set",
    grave=False,
)
_DEAF = Finding(
    "news of jobs are not heard, so workers ask for them five times a second",
    "let the user subscribe to our channel; see docs/redis.md",
    grave=False,
)


def _findings(server: Server, address: Address, now: int | None) -> Iterator[Finding]:
    for problem, remedy in _unfit(server, address):
        yield Finding(f"{server.place} {problem}", remedy)
    if server.durability != "durable":
        yield Finding(
            f"{server.place}: {server.survives}",
            "run CONFIG SET appendfsync always if that must not be"
            if server.aof
            else "run CONFIG SET appendonly yes if that must not be",
            grave=False,
        )
    if server.fsync is None and server.aof:
        yield Finding(
            f"{server.place} does not tell its appendfsync; it is taken for everysec",
            "let the user run CONFIG GET (+config|get)",
            grave=False,
        )
    if server.replicas:
        yield Finding(
            f"{server.place} has replicas, which follow a moment later: a failover can lose that",
            "know it; jobs that came back run again, under a later fence",
            grave=False,
        )
    if server.maxmemory and server.used > server.maxmemory * 0.9:
        yield Finding(
            f"{server.place} uses {_size(server.used)} of {_size(server.maxmemory)}; "
            "at its maxmemory no job is accepted",
            "raise maxmemory, or keep finished jobs for a shorter time",
        )
    apart = abs(server.now - now) / SECOND if now is not None else 0
    if apart > 60:
        yield Finding(
            f"this machine's clock and that of {server.place} are {apart:,.0f} s apart; leases "
            "and due times go by the server's",
            "run a time service on both",
            grave=False,
        )


def _size(amount: int) -> str:
    value = float(amount)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
