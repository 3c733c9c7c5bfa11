"""How a newer program shares a Redis: it appends fields to every array, and adds names to our hashes.

Most hashes have what is stored by an id or a name of somebody's. Those that a program itself names
the fields of are `NAMED`.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import redis

from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.keys import SLOTS, Keys
from fairlead.stores.redis.layout import LAYOUTS
from fairlead.stores.redis.served import VERSION
from tests.versions.future import BEYOND, DAY, Future

pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
EXTRAS: dict[str, list[Any]] = {
    "one": ["new"],
    "nothing": [None],
    "several": [None, {"a": [1, None]}, "x"],
    "many": [None] * 20 + [2**40],
}
"""What may stand behind the fields that are known."""
NAMED = ("paused", "settings")
"""The hashes of a queue whose fields have names of ours; the schema is such a hash, too."""
NEW_NAME, NEW_VALUE = b"colour", b"red"
Place = tuple[str, bytes]
"""A key, and a field of the hash under it."""


class RedisFuture(Future):
    """A newer program at a server. Its jobs are in the queue "mail"."""

    def __init__(self, url: str, extra: list[Any], queues: Iterable[str] = ("mail",)) -> None:
        self.keys = Keys(Address.of(url).prefix)
        self.server: Any = redis.Redis.from_url(url.partition("?")[0])
        self._extra = extra
        key = self.keys.key
        parts = {"bodies": "BODY", "standings": "STANDING", "acted": "ACT", "entries": "ENTRY"}
        self._values = {
            **{key(queue, part): parts[part] for queue in queues for part in parts},
            **{key(slot, "loose"): "ENTRY" for slot in SLOTS},
            self.keys.workers: "WORKER",
        }
        """Hashes of arrays."""
        self._lists = {key(queue, "errors"): "PAST" for queue in queues}
        """Hashes of lists of arrays."""
        self._logs = [key(queue, "log") for queue in queues]
        self._named = [self.keys.schema, *(key(queue, part) for queue in queues for part in NAMED)]
        self._has_named = False
        self._grown: set[Place] = set()
        self._counts: dict[Place, int] = {}

    def arrive(self) -> None:
        self._note(VERSION + 1, 1)

    def step(self, serves: int) -> None:
        self._note(VERSION + 2, serves)

    def _note(self, number: int, serves: int) -> None:
        for before in range(1, number):  # What stands after a gap is taken for somebody else's.
            self.server.hsetnx(self.keys.schema, before, "0 1")
        self.server.hset(self.keys.schema, number, f"0 {serves} new")

    def take_back(self) -> None:
        self.server.hdel(self.keys.schema, VERSION + 2)

    def grow(self) -> None:
        for key, layout in self._values.items():
            self._rewrite(key, partial(self._with_more, layout))
            self._grown |= {(key, field) for field in self.server.hkeys(key)}
        for key, layout in self._lists.items():
            self._rewrite(key, partial(self._all_with_more, layout))
            lists = self.server.hgetall(key).items()
            self._counts |= {(key, field): len(unpack(text)) for field, text in lists}
        for log in self._logs:
            for at, batch in enumerate(self.server.lrange(log, 0, -1)):
                lines = self._all_with_more("LINE", unpack(batch[16:]))
                self.server.lset(log, at, batch[:16] + pack(lines))
        for key in self._named:
            self.server.hset(key, NEW_NAME, NEW_VALUE)
        self._has_named = True

    def _rewrite(self, key: str, change: Callable[[Any], Any]) -> None:
        """Change every value of a hash, in one step: others may be at work."""

        def inside(pipeline: Any) -> None:
            values = pipeline.hgetall(key)
            pipeline.multi()
            for field, text in values.items():
                pipeline.hset(key, field, pack(change(unpack(text))))

        self.server.transaction(inside, key)

    def _all_with_more(self, layout: str, values: list[Any]) -> list[Any]:
        return [self._with_more(layout, value) for value in values]

    def _with_more(self, layout: str, fields: list[Any]) -> list[Any]:
        return [*fields[: len(LAYOUTS[layout])], *self._extra]

    def park(self, job_id: JobId, *, lost: bool = False) -> None:
        standings, parked = (self.keys.key("mail", part) for part in ("standings", "parked"))
        standing = unpack(self.server.hget(standings, job_id))
        gate = standing[LAYOUTS["STANDING"].index("gate")] = "stripe\0key"
        assert self.server.zrem(self.keys.key("mail", "leases" if lost else "ready"), job_id) == 1
        self.server.hset(standings, job_id, pack(standing))
        self.server.zadd(parked, {f"{gate}\0{'r' if lost else 'w'}{job_id}": 0})

    def lost(self) -> list[str]:
        told = [
            f"{key} {NEW_NAME!r}"
            for key in self._named
            if self._has_named and self.server.hget(key, NEW_NAME) != NEW_VALUE
        ]
        for key, field in set(self._grown):
            text = self.server.hget(key, field)
            if text is None:
                self._grown.discard((key, field))
            elif not self._has_more(unpack(text), self._values[key]):
                told.append(f"{key} {field!r}")
        for (key, field), number in self._counts.copy().items():
            text = self.server.hget(key, field)
            if text is None:
                del self._counts[key, field]
                continue
            kept = [self._has_more(value, self._lists[key]) for value in unpack(text)]
            if sum(kept) < min(number, len(kept)):
                told.append(f"{key} {field!r}")
        return told

    def _has_more(self, fields: list[Any], layout: str) -> bool:
        return fields[len(LAYOUTS[layout]) :] == self._extra

    def overstep(self, job_id: JobId) -> None:
        self.change(self._stored("bodies"), "BODY", job_id, priority=2 * DAY)
        runs = {"attempt": BEYOND, "head_start": 2 * DAY * SECOND}
        self.change(self._stored("standings"), "STANDING", job_id, **runs)

    def change(self, key: str, layout: str, job_id: JobId, **values: object) -> None:
        """Write other values into fields of an array."""
        text = self.server.hget(key, job_id)
        if text is not None:
            fields = unpack(text)
            for name, value in values.items():
                fields[LAYOUTS[layout].index(name)] = value
            self.server.hset(key, job_id, pack(fields))

    def content(self, job_id: JobId) -> object:
        parts = ("bodies", "standings", "errors")
        texts = [self.server.hget(self._stored(part), job_id) for part in parts]
        return [*texts, self.server.zscore(self._stored("expiring"), job_id)]

    def _stored(self, part: str) -> str:
        return self.keys.key("mail", part)

    def close(self) -> None:
        self.server.close()
