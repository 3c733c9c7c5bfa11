"""How the server is: what it does with our jobs in an outage, and what in its set-up will hurt."""

from collections.abc import Iterator, Sequence
from typing import Any

import hiredis
import msgspec

from fairlead.core.admin import Condition, Finding, Migration
from fairlead.core.clock import SECOND
from fairlead.core.errors import StoreUnavailable
from fairlead.stores.redis.address import Address, Node
from fairlead.stores.redis.functions import FUNCTIONS, LIBRARY
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.nodes import Nodes
from fairlead.stores.redis.served import STEPS, VERSION, Served, applied, note
from fairlead.stores.redis.talk import Conversation, Tried, spared

_OLDEST = (7, 0)
_KEYS_TOLD = "-- nothing to do: keys come into being as they are used"


class Server(msgspec.Struct, frozen=True):
    """What a server says of itself, as far as it matters to jobs; None for what it does not tell.

    A user needs a right to ask, and most have no need for it. `promised` is what the URL says.
    """

    place: Node
    now: int
    promised: str | None
    version: tuple[int, ...] | None = None
    named: str = "Redis"
    policy: str = ""
    maxmemory: int = 0
    used: int = 0
    aof: bool | None = None
    fsync: str | None = None
    """How often it writes for good."""
    role: str = "master"
    replicas: int = 0

    @property
    def durability(self) -> str:
        """The class of what it accepts, as `Store.durability` names it."""
        if self.aof is False:
            return "memory"
        if self.fsync is None:
            return self.promised or "fast"
        return "durable" if self.fsync == "always" else "fast"

    @property
    def survives(self) -> str:
        """What an accepted job survives, in words."""
        if self.aof is False:
            return "appendonly no: an accepted job is lost with the server"
        return _SURVIVES.get(self.fsync or "", "") or _TAKEN[self.durability]


_SURVIVES = {
    "always": "appendfsync always: an accepted job survives kill -9 and power cuts",
    "everysec": "appendfsync everysec: a power cut may take the last second of accepted jobs, and "
    "so may kill -9 of a server whose disk is slow",
    "no": "appendfsync no: an accepted job survives kill -9; a power cut takes what the system "
    "has not written yet",
}
_TAKEN = {
    "durable": "the server does not tell, the URL says durable: an accepted job survives kill -9 "
    "and power cuts if that is so",
    "fast": "the server does not tell, so it is taken for fast: a power cut or kill -9 may take "
    "the last second of accepted jobs, or more",
}


def servers(nodes: Nodes, served: Served, address: Address) -> Conversation[list[Server]]:
    """Ask each node what it is, and find out who they are first."""
    yield from served.ask()
    places = nodes.all
    here = FUNCTIONS["here"]
    answers = yield [
        command
        for node in places
        for command in (
            (node, here.command, here.name, 0),
            # Whoever answered the question before and not these does not want to.
            Tried((node, "INFO")),
            Tried((node, "CONFIG", "GET", "appendfsync")),
            Tried((node, "CLUSTER", "SLOTS")),
        )
    ]
    for node, time, slots in zip(places, answers[::4], answers[3::4], strict=True):
        if isinstance(slots, list) and not address.is_cluster:
            raise StoreUnavailable(
                address.url,
                f"{node} is a node of a cluster; write redis+cluster:// in the store's URL",
            )
        if not isinstance(time, list):
            raise StoreUnavailable(
                address.url,
                f"{node} has functions under our names that somebody else made; let an "
                "administrator look at FUNCTION LIST, remove them with FUNCTION DELETE, and run "
                "`fairlead migrate up`",
            )
    pieces = zip(answers[::4], answers[1::4], answers[2::4], strict=True)
    return [
        _server(node, address.durability, *piece)
        for node, piece in zip(places, pieces, strict=True)
    ]


def _server(
    place: Node, promised: str | None, time: Sequence[bytes], info: object, fsync: object
) -> Server:
    server = Server(place, int(time[0]) * SECOND + int(time[1]), promised)
    if isinstance(info, bytes):
        server = msgspec.structs.replace(server, **_told(info.decode(errors="replace")))
    if isinstance(fsync, list) and len(fsync) == 2:
        server = msgspec.structs.replace(server, fsync=fsync[1].decode(errors="replace"))
    return server


def _told(info: str) -> dict[str, Any]:
    """Read the answer to INFO."""
    said = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    version = said.get("redis_version", "0")
    name = said.get("server_name", "redis").capitalize()
    return {
        "version": tuple(int(part) for part in version.split(".") if part.isdigit()),
        "named": f"{name} {said.get('valkey_version', version)}",
        "policy": said.get("maxmemory_policy", "noeviction"),
        "maxmemory": int(said.get("maxmemory", 0)),
        "used": int(said.get("used_memory", 0)),
        "aof": said.get("aof_enabled") == "1",
        "role": said.get("role", "master"),
        "replicas": int(said.get("connected_slaves", 0)),
    }


def weakest(found: Sequence[Server]) -> Server:
    """Return the server that keeps least of what it accepts."""
    return min(found, key=lambda server: ("memory", "fast", "durable").index(server.durability))


def begin(nodes: Nodes, keys: Keys, served: Served, address: Address) -> Conversation[list[Server]]:
    """Raise if a server would lose jobs, or cannot run them; else say that we are here."""
    found = yield from servers(nodes, served, address)
    for server in found:
        for problem, remedy in _unfit(server):
            raise StoreUnavailable(address.url, f"{server.place} {problem}; {remedy}")
    if VERSION not in (yield from applied(keys)):
        yield note(keys, found[0].now)
    return found


def migrations(nodes: Nodes, keys: Keys) -> Conversation[list[Migration]]:
    """Return what there is to bring to a server, and since when it is there."""
    noted = (yield from applied(keys)).get(VERSION)
    since = noted.at if noted else None
    if since is None:
        [names] = yield from spared([("SMEMBERS", keys.queues)], ["damaged"])
        since = 0 if names else None  # They are in use, though somebody took the note away.
    answers = yield [
        Tried((node, "FUNCTION", "LIST", "LIBRARYNAME", LIBRARY.name)) for node in nodes.all
    ]
    # Who may not ask finds out by calling them.
    are_missing = any(answer == [] for answer in answers)
    return [
        Migration(VERSION, "keys", _KEYS_TOLD, since, STEPS[-1].serves),
        Migration(VERSION + 1, "functions", LIBRARY.code, None if are_missing else since),
    ]


def _unfit(server: Server) -> Iterator[tuple[str, str]]:
    if server.version is not None and server.version < _OLDEST:
        yield f"is {server.named}", "Fairlead needs Redis 7.0 or Valkey: upgrade it"
    if server.role != "master":
        yield "is a replica", "name the primary in the store's URL"
    if server.policy.startswith("allkeys"):
        yield (
            f"may evict jobs when its memory is full (maxmemory-policy {server.policy})",
            "run CONFIG SET maxmemory-policy noeviction, and CONFIG REWRITE to keep it",
        )
    if server.aof is False and server.promised != "fast":
        yield (
            "keeps no append-only file, so a restart loses accepted jobs",
            (
                "run CONFIG SET appendonly yes, and CONFIG REWRITE to keep it (CONFIG SET "
                "appendfsync always to survive a power cut too); or add durability=fast to the "
                "store's URL, if jobs may be lost"
            ),
        )
    elif server.promised == "durable" and server.fsync not in (None, "always"):
        yield (
            f"has appendfsync {server.fsync}, but the store's URL says durability=durable",
            (
                "run CONFIG SET appendfsync always, and CONFIG REWRITE to keep it; or take "
                "durability=durable out of the URL, if a power cut may cost jobs"
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
        "driver": f"hiredis {hiredis.__version__}",
        "user": address.options.get("username", "default"),
        "durability": weakest(servers).survives,
        "keys": f"{address.prefix}:…, version {VERSION}",
        "memory": f"{_size(sum(each.used for each in servers))}{room}",
        "replicas": str(sum(each.replicas for each in servers)),
        "tls": "on" if address.tls else "off",
        "news": "heard" if hears else "not heard",
    }
    findings = [finding for server in servers for finding in _findings(server, now)]
    if any(address.is_open_to(server.place) for server in servers):
        findings.append(OPEN)
    if not hears:
        findings.append(_DEAF)
    return Condition(facts, findings)


OPEN = Finding(
    "jobs and the password go over the network in the clear",
    "use rediss:// with a server that has tls-port set",
    grave=False,
)
_DEAF = Finding(
    "news of jobs are not heard, so workers ask for them five times a second",
    "let the user subscribe to our channel; see docs/redis.md",
    grave=False,
)


def _findings(server: Server, now: int | None) -> Iterator[Finding]:
    for problem, remedy in _unfit(server):
        yield Finding(f"{server.place} {problem}", remedy)
    if server.durability != "durable" and server.fsync is not None:
        yield Finding(
            f"{server.place}: {server.survives}",
            "run CONFIG SET appendfsync always if that must not be"
            if server.aof
            else "run CONFIG SET appendonly yes if that must not be",
            grave=False,
        )
    if server.version is None or server.fsync is None:
        question = "INFO" if server.version is None else "CONFIG GET"
        why = "as the URL says" if server.promised else "for the URL has no durability="
        yield Finding(
            f"{server.place} does not tell this user its settings ({question}), so Fairlead takes "
            f"it for {server.durability}, {why}",
            "run `fairlead doctor` once as an administrator of the server",
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
