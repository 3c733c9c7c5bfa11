"""What somebody with the rights of one role can do to a Redis store: by plain commands, and by verbs.

Redis lets a role write every key that it may put into, so each damage that the owner can do is tried
with the role's rights. Beside that, calls that the program itself makes are recorded; each damage changes
one value in one of them, and makes it as that role, about a job that is there. What the server
refuses harms nobody.

What a role may do anyway is no damage: a worker may hold jobs for as long as it likes, so its claims are
short, and an operator may delete jobs.
"""

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any, NamedTuple, cast

import msgspec
import pytest
import redis

from fairlead.core.acts import Action
from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.job import Gate, Job, NewJob
from fairlead.core.queue import Queue
from fairlead.core.selection import ClaimPlan
from fairlead.stores import store_for
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.entries import SLOTS
from fairlead.stores.redis.functions import FUNCTIONS
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.store import RedisStore
from fairlead.stores.redis.talk import Command, Conversation
from fairlead.stores.redis.wire import Wire
from tests.fuzz.documents import VALUES, Path, changed, places
from tests.fuzz.redis import QUEUE, RedisVictim, pack
from tests.fuzz.rounds import exercise
from tests.fuzz.victim import Damage
from tests.words import new_id

VERBS = {
    role: tuple(verb for verb, each in FUNCTIONS.items() if each.role == role)
    for role in ("producer", "worker", "operator")
}
"""The functions that are for each role."""
_TIME = re.compile(r"call\.\w+\.0")
"""Where every verb of the line is told the time, by a test's clock."""
_CALLS = ("FCALL", "FCALL_RO")
_ID = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}")
_LEASE = 2
"""Where a claim tells its lease."""
_FENCED = {"settle": (3, 1), "extend": (2, 1), "refuse": (2, 2)}
"""Where a verb tells jobs with their fences, and where of each it tells its fence."""


class Call(NamedTuple):
    """A verb, the keys it gets, and the values; what is packed in one of them is open here."""

    verb: str
    keys: tuple[str, ...]
    values: list[Any]
    packed: frozenset[int]


def recorded(url: str) -> list[Call]:
    """Let the program do everything once on an empty store; returns its calls."""
    calls: list[Call] = []
    verbs = {function.name: verb for verb, function in FUNCTIONS.items()}
    real = Wire.ask

    async def ask(wire: Wire, commands: Sequence[Command]) -> list[Any]:
        for each in commands:
            if each[0] in _CALLS:
                calls.extend(_opened(verbs[each[1]], each))
        return await real(wire, commands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Wire, "ask", ask)
        asyncio.run(exercise(url))
        asyncio.run(_refuse(url))
        asyncio.run(_mend(url))
    assert {call.verb for call in calls} == set(FUNCTIONS), "some function is called by nobody"
    return calls


class _Refusing:
    """A limit that refuses everybody, and has room afterwards."""

    gate = cast(Gate, "limit")

    def with_room(self) -> Conversation[Sequence[str]]:
        yield from ()
        return ["key"]

    def refuse(self, jobs: Sequence[Job]) -> Conversation[Mapping[JobId, str]]:
        yield from ()
        return {job.id: "key" for job in jobs}


async def _refuse(url: str) -> None:
    """Let a limit refuse a job, and let it come back."""
    store = store_for(url)
    assert isinstance(store, RedisStore)
    await store.put([NewJob(new_id("limited"), "t", "limited", "{}")])
    store.limits.append(_Refusing())
    for _ in range(2):
        assert (await store.claim(ClaimPlan("fuzz", (Queue("limited"),), 1, SECOND))).jobs == []
    await store.close()


async def _mend(url: str) -> None:
    """Damage a job, a line of the attempt log and all entries, and let them be mended."""
    keys, [node] = Keys(Address.of(url).prefix), Address.of(url).nodes
    owner: Any = redis.Redis(host=node.host, port=node.port)
    owner.hset(
        keys.key(QUEUE, "standings"), owner.zrange(keys.key(QUEUE, "done"), 0, 0)[0], "damaged"
    )
    owner.lset(keys.key(QUEUE, "log"), 0, "damaged")
    small = [*(keys.key(slot, "loose") for slot in SLOTS), keys.key(QUEUE, "entries")]
    for key in small:
        for field in owner.hkeys(key):
            owner.hset(key, field, "damaged")
    store = store_for(url)
    assert len(await store.admin.repair(Action(str(new_id()), "fuzz", "repair", "the fuzz"))) >= 2
    await store.close()


def _opened(verb: str, command: Command) -> Iterator[Call]:
    """Return a call with its packed values open; one for several queues is as many calls."""
    number, parts = command[2], len(FUNCTIONS[verb].parts)
    keys, values = command[3 : 3 + number], list(command[3 + number :])
    if not parts or number <= parts:
        yield _open_values(verb, keys, values)
        return
    common, own = values[1 : 1 + values[0]], values[1 + values[0] :]
    size = len(own) * parts // number
    for at in range(number // parts):
        own_keys, own_values = keys[at * parts :][:parts], own[at * size :][:size]
        yield _open_values(verb, own_keys, [*common, *own_values])


def _open_values(verb: str, keys: tuple[str, ...], values: list[Any]) -> Call:
    packed = set()
    for at, value in enumerate(values):
        with suppress(msgspec.DecodeError):
            if isinstance(value, bytes):
                values[at] = msgspec.msgpack.decode(value)
                packed.add(at)
    return Call(verb, keys, values, frozenset(packed))


def _name(call: Call, path: Path) -> str:
    """Return what a place is called: of jobs and runs that are alike, one is enough."""
    is_list = path[0] in call.packed and isinstance(call.values[int(path[0])], list)
    steps = ["*" if at == 1 and is_list else str(step) for at, step in enumerate(path)]
    return ".".join(["call", call.verb, *steps])


class RoleVictim(RedisVictim):
    """One role of a server, with the program's own words in its mouth."""

    at_once = 5  # Much of it is refused.

    def __init__(self, kind: str, url: str, writer: Any, calls: Sequence[Call]) -> None:
        super().__init__(url, writer)
        self._kind = kind
        self._prefix = Address.of(url).prefix
        self._calls: dict[str, tuple[Call, Path]] = {}
        for call in calls:
            if call.verb in VERBS[kind]:
                for path in places(call.values):
                    self._calls.setdefault(_name(call, path), (call, path))

    @property
    def damages(self) -> Sequence[Damage]:
        """What the owner can damage, and each value of each call."""
        said = [Damage(field, kind) for field in sorted(self._calls) for kind in VALUES]
        return [*super().damages, *said]

    def may_remove(self, damages: Collection[Damage]) -> bool:
        """Say whether jobs may be gone: an operator has the right, and so has upkeep.

        A worker that tells a wrong time ends jobs so long ago that they are forgotten.
        """
        is_right = self._kind == "operator" or any(
            "upkeep" in each.field or _TIME.fullmatch(each.field) for each in damages
        )
        return is_right or super().may_remove(damages)

    def inflict(self, damage: Damage, job_id: JobId, random: Random) -> str | None:
        """Do it, or say it to the server, about this job where a job is named."""
        if not damage.field.startswith("call."):
            return super().inflict(damage, job_id, random)
        call, path = self._calls[damage.field]
        if (call.verb, path) == ("claim", (_LEASE,)):
            return None  # A worker may keep jobs for as long as it likes.
        if call.verb == "put" and random.random() < 0.7:
            job_id = new_id(QUEUE)
        about = self._about(call, job_id)
        words = self._words(call, changed(about, path, VALUES[damage.kind]))
        keys = [self._here(key) for key in call.keys]
        function = FUNCTIONS[call.verb]
        try:
            done = self._do(function.command, function.name, len(keys), *keys, *words)
        except redis.exceptions.ResponseError:
            return None
        return f"{damage.field} is {damage.kind}" if done else None

    def _here(self, key: str) -> str:
        return self._prefix + key[key.index(":") :]

    def _about(self, call: Call, job_id: JobId) -> list[Any]:
        """Return the values with this job in them, and with its fence, which a worker can know."""
        values: list[Any] = _with_id(deepcopy(call.values), job_id)
        if call.verb == "claim":
            values[_LEASE] = 1
        runs, at = _FENCED.get(call.verb, (None, 0))
        for run in () if runs is None else values[runs]:
            run[at] = self._fence(job_id)
        return values

    def _fence(self, job_id: JobId) -> int:
        text = self._redis.hget(self._key("standings"), job_id)
        try:
            fence = msgspec.msgpack.decode(text or b"\x91\x00")[0]
        except (ValueError, LookupError, TypeError, RecursionError):
            return 0
        return fence if isinstance(fence, int) else 0

    def _words(self, call: Call, values: list[Any]) -> list[Any]:
        """Return the words of a call: packed where they are, and plain where they are plain."""
        return [
            pack(value) if at in call.packed else self._plain(value)
            for at, value in enumerate(values)
        ]

    def _plain(self, value: Any) -> str | bytes | int | float:
        if isinstance(value, str) and value.endswith(":news"):
            return self._here(value)
        return value if type(value) in (str, bytes, int, float) else ""


def _with_id(value: Any, job_id: JobId) -> Any:
    """Return a value with this job wherever there is one."""
    if isinstance(value, list):
        return [_with_id(part, job_id) for part in value]
    if isinstance(value, dict):
        return {key: _with_id(part, job_id) for key, part in value.items()}
    return job_id if isinstance(value, str) and _ID.fullmatch(value) else value
