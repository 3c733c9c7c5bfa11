"""Everything that the Redis store keeps, and how each part of it can be damaged (F75).

Values are MessagePack arrays, so a field is damaged by writing the array anew with another value in
it. Beside them there are scores, members, whole values, and the types of keys. A key of another type
may stop its own queue, so these are keys of a queue that has no healthy job, and keys of no queue.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import msgspec
import redis

from fairlead.core.ids import JobId
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.entries import slot_of
from fairlead.stores.redis.keys import HASHES, PARTS, Keys
from tests.fuzz.victim import NUMBERS, TEXTS, Damage, Victim

QUEUE, STOPPED = "mail", "stopped"
pack = msgspec.msgpack.encode

BODY = {
    "task": "text",
    "version": "number",
    "priority": "number",
    "enqueued_at": "number",
    "expires_at": "number",
    "level": "level",
    "options": "text",
    "payload": "text",
}
STANDING = {
    "fence": "number",
    "lease_until": "number",
    "attempt": "number",
    "crashes": "number",
    "shared_deaths": "number",
    "order_at": "number",
    "gate": "text",
    "worker": "text",
    "claimed_at": "number",
    "cancel": "text",
    "lines": "list",
    "task": "text",
    "version": "number",
    "head_start": "number",
    "enqueued_at": "number",
    "expires_at": "number",
    "state": "text",
    "finished_at": "number",
    "reason": "text",
    "result": "text",
    "level": "level",
    "attached": "number",
}
OF_THE_BODY = ("task", "version", "head_start", "enqueued_at", "expires_at")
"""What a standing repeats of the body. When the job has ended, nobody reads it any more."""
PAST = {
    "attempt": "number",
    "outcome": "text",
    "worker": "text",
    "claimed_at": "number",
    "started_at": "number",
    "finished_at": "number",
    "error": "text",
    "message": "text",
    "traceback": "text",
    "fingerprint": "text",
}
LINE = {
    "job_id": "text",
    "fence": "number",
    "attempt": "number",
    "task": "text",
    "pool": "text",
    "worker": "text",
    "ready_at": "number",
    "claimed_at": "number",
    "started_at": "number",
    "outcome": "text",
    "fingerprint": "text",
}
WORKER = {
    "started_at": "number",
    "live_until": "number",
    "capable": "map",
    "pools": "list",
    "processes": "number",
    "level": "level",
}
ACT = {
    "done_at": "number",
    "who": "text",
    "verb": "text",
    "target": "text",
    "count": "number",
    "before": "text",
    "job_id": "text",
    "answers": "text",
}
ENTRY = {
    "kind": "text",
    "key": "text",
    "version": "number",
    "due_at": "number",
    "expires_at": "number",
    "value": "text",
}
ARRAYS = {
    "entry": ENTRY,
    "loose": ENTRY,
    "body": BODY,
    "standing": STANDING,
    "past": PAST,
    "line": LINE,
    "worker": WORKER,
    "act": ACT,
}
ENTRY_MARKS = ("owned", "listed", "awaited", "passing")
SCORED = ("ready", "due", "leases", "lost", "parked", "expiring", "done", "cancelled", "dead")

NESTED = b"\x91" * 3_000 + b"\xc0"
NOT_UTF8 = b"\xa3\xff\xfe\x80"
"""A text of MessagePack that is none."""
LEVELS: dict[str, object] = {
    "nothing": None,
    "text": "1",
    "zero": 0,
    "fraction": 1.5,
    "huge": 2**40,
}
LISTS: dict[str, object] = {
    "nothing": None,
    "number": 7,
    "text": "x",
    "map": {"a": 1},
    "hole": [1, None, 3],
    "texts": ["a", "b"],
    "fractions": [0.5],
    "greatest": [2**63 - 1],
    "below": [-5],
}
MAPS: dict[str, object] = {
    "nothing": None,
    "list": [1, 2],
    "texts": {"good": "one"},
    "fractions": {"good": 1.5},
    "greatest": {"good": 2**63 - 1},
    "below": {"good": -1},
    "names": {b"\xff": 1},
}
VALUES: dict[str, Mapping[str, object]] = {
    "number": NUMBERS,
    "text": TEXTS,
    "level": LEVELS,
    "list": LISTS,
    "map": MAPS,
}
RAW = {"nested": NESTED, "not utf-8": NOT_UTF8}
WHOLE: dict[str, bytes | None] = {
    "garbage": b"\xc1garbage",
    "empty": b"",
    "number": pack(5),
    "map": pack({"a": 1}),
    "too short": pack([1]),
    "nothings": pack([None] * 22),
    "texts": pack(["x"] * 22),
    "no list": pack("[]"),
    "cut": b"\xdc\x00\x10\x01",
    "nested": NESTED,
    "missing": None,
}
SCORES = {
    "inf": "inf",
    "minus inf": "-inf",
    "fraction": "0.5",
    "late fraction": "1799999999999999.5",
    "huge": "1e300",
    "below": "-1e300",
    "minus one": "-1",
    "zero": "0",
    "past the exact": "9007199254740993",
    "far": "9007199254740991",
}
MEMBERS: dict[str, bytes | None] = {
    "not utf-8": b"ab\xff\xfe\x80",
    "empty": b"",
    "too long": b"x" * 37,
    "long": b"x" * 100_000,
    "not ascii": "jöb".encode(),
    "short": b"j",
    "nul": b"a\0b",
    "zeros": b"\0\0\0",
    "control": b"a\x1b[2J",
    "missing": None,
}
COUNTS = {
    "text": b"soon",
    "empty": b"",
    "fraction": b"0.5",
    "minus one": b"-1",
    "inf": b"inf",
    "digits": b"9" * 5_000,
    "greatest": b"9223372036854775807",
    "last that is exact": b"9007199254740991",
    "half of that": b"4503599627370496",
    "many": b"1000000000000000",
    "not utf-8": b"\xff\xfe",
}
TYPES: dict[str, tuple[Any, ...]] = {
    "string": ("SET", "x"),
    "list": ("RPUSH", "x"),
    "set": ("SADD", "x"),
    "hash": ("HSET", "x", "x"),
    "zset": ("ZADD", 1, "x"),
    "stream": ("XADD", "*", "x", "x"),
}
SHARED = {
    "queues": "set",
    "strays": "hash",
    "workers": "hash",
    "schema": "hash",
    "number": "string",
}
OWN = {**dict.fromkeys(PARTS, "zset"), "log": "list"}
OWN |= dict.fromkeys(HASHES, "hash")


class RedisVictim(Victim):
    """The keys of one prefix, as whoever may write them sees them.

    `writer` is a connection of who does the damage, if that is not the owner.
    """

    never_sound = {
        *("greatest", "least", "past the exact", "digits", "fraction", "infinite", "bytes"),
        *("not utf-8", "nested", "other", "garbage", "cut", "no list", "a mark", "text"),
        *("inf", "minus inf", "late fraction", "huge"),
        *("string", "set", "hash", "zset", "stream"),
    }
    anything_goes = ("worker.pools", "paused.since", "settings.later", "act.answers")

    def __init__(self, url: str, writer: Any = None) -> None:
        address = Address.of(url)
        self._keys = Keys(address.prefix)
        [node] = address.nodes
        self._redis: Any = redis.Redis(host=node.host, port=node.port)
        self._writer = writer or self._redis

    @property
    def damages(self) -> Sequence[Damage]:
        """Every field with every value; whole values, scores, members and types."""
        return [*self._in_values(), *self._in_orders(), *self._in_names()]

    def _in_values(self) -> Iterator[Damage]:
        for name, fields in ARRAYS.items():
            for field, kind in fields.items():
                for each in (*VALUES[kind], *RAW):
                    yield Damage(f"{name}.{field}", each)
            yield from (Damage(f"{name}.whole", kind) for kind in WHOLE)

    def _in_orders(self) -> Iterator[Damage]:
        for part in SCORED:
            # Whoever ended long ago is forgotten.
            field = "finished_at" if part in ("done", "cancelled") else "score"
            yield from _of_member(part, field)
            yield Damage(f"{part}.twice", "a mark")
        for part in ("acts", *ENTRY_MARKS):
            yield from _of_member(part)

    def _in_names(self) -> Iterator[Damage]:
        for field in ("queues.member", "strays.id", "workers.id", "bodies.id"):
            yield from (Damage(field, kind) for kind in MEMBERS)
        yield from (Damage("strays.queue", kind) for kind in MEMBERS if MEMBERS[kind] is not None)
        for field in ("log_start", "apart", "later"):
            yield from (Damage(f"settings.{field}", kind) for kind in COUNTS)
        yield from (Damage("paused.since", kind) for kind in COUNTS)
        for field in ("schema.version", "schema.at", "number.value", "batch.time"):
            yield from (Damage(field, kind) for kind in COUNTS)
        for field in ("errors.whole", "batch.whole"):
            yield from (Damage(field, kind) for kind in WHOLE)
        yield from (Damage("gone.whole", kind) for kind in WHOLE if kind != "missing")
        for names, wanted in ((OWN, "own"), (SHARED, "shared")):
            for name, right in names.items():
                yield from (Damage(f"{wanted}.{name}", kind) for kind in TYPES if kind != right)

    def must_be_named(self, damage: Damage) -> bool:
        """Say whether the audit has to find it: a name among ours may be a newer program's."""
        is_a_name = damage.field == "schema.version" and not COUNTS[damage.kind].isdigit()
        return not is_a_name and super().must_be_named(damage)

    def inflict(self, damage: Damage, job_id: JobId, random: Random) -> str | None:
        """Write it into the server, past the store."""
        place, _, field = damage.field.partition(".")
        ways: dict[str, Callable[..., bool]] = {
            "own": self._type,
            "shared": self._type,
            "settings": self._setting,
            "paused": self._setting,
            "schema": self._schema,
            "number": self._number,
            "gone": self._gone,
            "queues": self._queue,
            "strays": self._stray,
            "workers": self._worker_name,
            "bodies": self._rename,
            "errors": self._errors,
            "batch": self._batch,
            **dict.fromkeys(SCORED, self._mark),
            "acts": self._acts,
            **dict.fromkeys(ENTRY_MARKS, self._entry_mark),
            **dict.fromkeys(ARRAYS, self._array),
        }
        try:
            done = ways[place](place, field, damage.kind, job_id.encode(), random)
        except redis.exceptions.ResponseError:
            return None  # Another damage made the key one of another type.
        return f"{damage.field} of job {job_id}: {damage.kind}" if done else None

    def _key(self, part: str, queue: str = QUEUE) -> str:
        return self._keys.key(queue, part)

    def _do(self, *command: Any) -> bool:
        """Change something; False says that whoever does it has no right to."""
        try:
            self._writer.execute_command(*command)
        except redis.exceptions.NoPermissionError:
            return False
        return True

    # Fields of arrays

    def _array(self, place: str, field: str, kind: str, job_id: bytes, random: Random) -> bool:
        if place == "line":
            return self._line(field, kind, job_id)
        key, name = self._where(place, job_id, random)
        text = self._redis.hget(key, name) if name else None
        if text is None:
            return False
        if place == "standing" and field in OF_THE_BODY and self._has_ended(job_id):
            return False
        if field == "whole" and place != "past":
            return self._write(key, name, WHOLE[kind])
        if place == "past":
            pasts = split(text)
            if not pasts:
                return False
            pasts[0] = (
                (WHOLE[kind] or b"\xc0")
                if field == "whole"
                else changed(pasts[0], PAST, field, kind)
            )
            return self._write(key, name, joined(pasts))
        return self._write(key, name, changed(text, ARRAYS[place], field, kind))

    def _has_ended(self, job_id: bytes) -> bool:
        ends = ("done", "cancelled", "dead")
        return any(self._redis.zscore(self._key(part), job_id) is not None for part in ends)

    def _where(self, place: str, job_id: bytes, random: Random) -> tuple[str, bytes]:
        """Return the hash and the field that such a value is in."""
        if place == "worker":
            return self._keys.workers, b"ghost"
        if place == "act":
            key = self._key("acted", random.choice([QUEUE, STOPPED]))
            return key, random.choice(sorted(self._redis.hkeys(key)) or [b""])
        if place in ("entry", "loose"):
            name = random.choice("ab")
            part, queue = (
                ("entries", QUEUE) if place == "entry" else ("loose", slot_of("kind", name))
            )
            fields = self._redis.hkeys(self._key(part, queue))
            names = [each for each in fields if b"healthy" not in each]
            return self._key(part, queue), random.choice(sorted(names) or [b""])
        parts = {"body": "bodies", "standing": "standings", "past": "errors"}
        return self._key(parts[place]), job_id

    def _write(self, key: str, name: bytes, text: bytes | None) -> bool:
        if text is None:
            return bool(self._redis.hexists(key, name)) and self._do("HDEL", key, name)
        return self._do("HSET", key, name, text)

    def _line(self, field: str, kind: str, job_id: bytes) -> bool:
        log = self._key("log")
        for at, batch in enumerate(self._redis.lrange(log, 0, -1)):
            lines = split(batch[16:])
            for n, line in enumerate(lines):
                if job_id in line:
                    lines[n] = (
                        (WHOLE[kind] or b"\xc0")
                        if field == "whole"
                        else changed(line, LINE, field, kind)
                    )
                    return self._do("LSET", log, at, batch[:16] + joined(lines))
        return False

    def _batch(self, _place: str, field: str, kind: str, job_id: bytes, _random: Random) -> bool:
        log = self._key("log")
        for at, batch in enumerate(self._redis.lrange(log, 0, -1)):
            if job_id in batch:
                head, rest = batch[:16], batch[16:]
                whole = WHOLE[kind] or b"" if field == "whole" else rest
                time = COUNTS[kind][:16].ljust(16, b"0") if field == "time" else head
                return self._do("LSET", log, at, time + whole)
        return False

    def _errors(self, _place: str, _field: str, kind: str, job_id: bytes, _random: Random) -> bool:
        if not self._redis.hexists(self._key("errors"), job_id):
            return False
        return self._write(self._key("errors"), job_id, WHOLE[kind])

    def _gone(self, _place: str, _field: str, kind: str, job_id: bytes, _random: Random) -> bool:
        return self._write(self._key("gone"), job_id, WHOLE[kind])

    # Scores and members

    def _mark(self, place: str, field: str, kind: str, job_id: bytes, _random: Random) -> bool:
        key = self._key(place)
        member = job_id
        if place == "parked":
            found = [each for each in self._redis.zrange(key, 0, -1) if each.endswith(job_id)]
            member = found[0] if found else b"no_capable_worker\x00good\x000000000001\x00w" + job_id
        score = self._redis.zscore(key, member)
        if field == "twice":
            return score is None and self._do("ZADD", key, 0, member)
        if score is None:
            return False
        if field in ("score", "finished_at"):
            return self._do("ZADD", key, SCORES[kind], member)
        return self._renamed(key, member, MEMBERS[kind], score)

    def _renamed(self, key: str, member: bytes, name: bytes | None, score: float) -> bool:
        """Give a member another name; who may only add or only remove does that."""
        is_gone = self._do("ZREM", key, member)
        return (name is not None and self._do("ZADD", key, score, name)) or is_gone

    def _acts(self, _place: str, field: str, kind: str, _job_id: bytes, random: Random) -> bool:
        key = self._key("acts", random.choice([QUEUE, STOPPED]))
        actions = sorted(self._redis.zrange(key, 0, -1))
        if not actions:  # Another damage was to remove the last of them.
            return False
        action = random.choice(actions)
        if field == "score":
            return self._do("ZADD", key, SCORES[kind], action)
        return self._renamed(key, action, MEMBERS[kind], 1)

    def _entry_mark(self, place: str, field: str, kind: str, _job: bytes, random: Random) -> bool:
        """Damage where an entry stands, one of a job or one of nobody."""
        queue = QUEUE if place == "owned" else slot_of("kind", random.choice("ab"))
        key = self._key(place, queue)
        members = [each for each in self._redis.zrange(key, 0, -1) if b"healthy" not in each]
        if not members:
            return False
        member = random.choice(sorted(members))
        if field == "score":
            return self._do("ZADD", key, SCORES[kind], member)
        return self._renamed(key, member, MEMBERS[kind], 0)

    def _rename(self, _place: str, _field: str, kind: str, job_id: bytes, _random: Random) -> bool:
        """Give the body of a job to another id, or to another one as well."""
        body = self._redis.hget(self._key("bodies"), job_id)
        if body is None or MEMBERS[kind] is None:
            return False
        is_done = self._do("HDEL", self._key("bodies"), job_id)
        is_done |= self._do("HSET", self._key("bodies"), MEMBERS[kind], body)
        for part in ("ready", "due", "leases", "lost", "done", "cancelled", "dead"):
            score = self._redis.zscore(self._key(part), job_id)
            if score is not None:
                is_done |= self._do("ZADD", self._key(part), score, MEMBERS[kind])
        return is_done

    # What is of no job

    def _setting(self, place: str, field: str, kind: str, _job: bytes, random: Random) -> bool:
        queue = STOPPED if place == "paused" else QUEUE
        return self._do("HSET", self._key(place, queue), field, COUNTS[kind])

    def _schema(self, _place: str, field: str, kind: str, _job: bytes, _random: Random) -> bool:
        pair = (COUNTS[kind], 1) if field == "version" else (1, COUNTS[kind])
        return self._do("HSET", self._keys.schema, *pair)

    def _number(self, _place: str, _field: str, kind: str, _job: bytes, _random: Random) -> bool:
        return self._do("SET", self._keys.number, COUNTS[kind])

    def _queue(self, _place: str, _field: str, kind: str, _job: bytes, _random: Random) -> bool:
        if MEMBERS[kind] is None:
            return self._do("SREM", self._keys.queues, QUEUE)
        return self._do("SADD", self._keys.queues, MEMBERS[kind])

    def _stray(self, _place: str, field: str, kind: str, job_id: bytes, _random: Random) -> bool:
        member = MEMBERS[kind]
        if member is None:
            return False
        pair = (member, QUEUE) if field == "id" else (job_id, member)
        return self._do("HSET", self._keys.strays, *pair)

    def _worker_name(
        self, _place: str, _field: str, kind: str, _job: bytes, _random: Random
    ) -> bool:
        text = self._redis.hget(self._keys.workers, "ghost")
        if text is None:
            return False
        is_done = self._do("HDEL", self._keys.workers, "ghost")
        if MEMBERS[kind] is not None:
            is_done |= self._do("HSET", self._keys.workers, MEMBERS[kind], text)
        return is_done

    def _type(self, place: str, name: str, kind: str, _job: bytes, _random: Random) -> bool:
        key = getattr(self._keys, name) if place == "shared" else self._key(name, STOPPED)
        command, *words = TYPES[kind]
        is_gone = self._do("DEL", key)
        return self._do(command, key, *words) or is_gone


def _of_member(part: str, field: str = "score") -> Iterator[Damage]:
    yield from (Damage(f"{part}.{field}", kind) for kind in SCORES)
    yield from (Damage(f"{part}.member", kind) for kind in MEMBERS)


def split(text: bytes) -> list[bytes]:
    """Return the entries of an array as they are packed; none if it is no array."""
    try:
        return [bytes(each) for each in msgspec.msgpack.decode(text, type=list[msgspec.Raw])]
    except (msgspec.MsgspecError, RecursionError):
        return []


def joined(entries: Sequence[bytes]) -> bytes:
    """Return the array that has these entries."""
    count = len(entries)
    head = bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    return head + b"".join(entries)


def changed(text: bytes, fields: Mapping[str, str], field: str, kind: str) -> bytes:
    """Return an array with another value in one of its fields."""
    entries = split(text)
    at = list(fields).index(field)
    if at < len(entries):
        value = VALUES[fields[field]].get(kind)
        entries[at] = RAW[kind] if kind in RAW else pack(value)
    return joined(entries)
