"""The layout of every value that is stored or sent to functions: the number of each field.

Values are MessagePack arrays. This file says which field stands where, for Python and for Lua:
functions.py writes its numbers and names into the code that a server loads. Who makes a new value
lists its fields in this order. Each value is
read as "at least these fields". So a field may be added after the last one, with a default, and
never be moved, removed or given another meaning: programs of other versions pass over what they do
not know, and keep it when they write the value back (lua/arrays.lua). What was written before
there was such a field is read without it. The last field that has no default must never be
nothing: it tells that the others are there.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from fairlead.core.entries import Change
from fairlead.core.ids import JobId
from fairlead.core.job import Level, NewJob, Runs, State, Version
from fairlead.core.outcome import Settlement

LATEST = 2**53 - 1
"""The latest instant and the greatest number: what Lua holds exactly."""

Instant = Annotated[int, msgspec.Meta(ge=0, le=LATEST)]
Place = Annotated[int, msgspec.Meta(ge=-LATEST, le=LATEST)]

# What is stored


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job as it was enqueued; what claims look at stands first, before what may be large."""

    task: str
    version: Version
    priority: int
    enqueued_at: Instant
    expires_at: Instant | None
    level: Level
    options: str | None
    payload: str


class Run(msgspec.Struct, frozen=True, array_like=True):
    """The counts of a job, and its lease if it runs; lease_until is 0 if not.

    `gate` is why the job is parked and under which key of that gate, with a NUL between them.
    """

    fence: Instant
    lease_until: Instant
    attempt: Runs
    crashes: Runs
    shared_deaths: Runs
    order_at: Place
    gate: str | None
    worker: str | None
    claimed_at: Instant | None
    cancel: str | None
    lines: tuple[int, ...]


class Leased(Run, frozen=True, array_like=True):
    """The same with the name of the task, which may be damaged."""

    task: Any


class Standing(Leased, frozen=True, array_like=True):
    """How a job stands that was claimed before, is parked, or has ended.

    As long as it is live it has what its body tells, so that to settle it the body need not be
    read; and from its end on, how that was. `attached` has the bits of core.job.Attached.
    """

    version: Any
    head_start: Any
    enqueued_at: Any
    expires_at: Any
    state: State | None
    finished_at: Instant | None
    reason: str | None
    result: str | None
    level: Level
    attached: Instant


class Past(msgspec.Struct, frozen=True, array_like=True):
    """A failed run, as kept with its job."""

    attempt: Runs
    outcome: str
    worker: str | None
    claimed_at: Instant | None
    started_at: Instant | None
    finished_at: Instant
    error: str | None
    message: str | None
    traceback: str | None
    fingerprint: str | None


class Line(msgspec.Struct, frozen=True, array_like=True):
    """A line of the attempt log."""

    job_id: JobId
    fence: Instant
    attempt: Runs
    task: str
    pool: str | None
    worker: str | None
    ready_at: Instant
    claimed_at: Instant
    started_at: Instant | None
    outcome: str
    fingerprint: str | None


class Announced(msgspec.Struct, frozen=True, array_like=True):
    """A worker as it announced itself; what another version says of its pools may be beyond us."""

    started_at: Instant
    live_until: Instant
    capable: dict[str, Version]
    pools: msgspec.Raw
    processes: Runs
    level: Level


class Act(msgspec.Struct, frozen=True, array_like=True):
    """What a queue keeps of an action."""

    done_at: Instant
    who: str
    verb: str
    target: str
    count: Runs
    before: str | None
    job_id: str | None
    answers: Any


class Small(msgspec.Struct, frozen=True, array_like=True):
    """An entry, of a job or of nobody."""

    kind: str
    key: str
    version: Instant
    due_at: Instant | None
    expires_at: Instant | None
    value: str


# What is sent


class _Named:
    """Tells the name of whatever it is asked for: what a function reads of it is a layout."""

    def __getattr__(self, name: str) -> str:
        return name


_NAMED: Any = _Named()


def put_of(job: NewJob) -> tuple[Any, ...]:
    """Return a job as put.lua reads it."""
    return (
        job.id,
        job.task,
        job.payload,
        job.version,
        job.run_at,
        job.delay,
        job.priority,
        job.expires_at,
        job.expires_in,
        job.options,
        job.level,
    )


def settlement_of(settlement: Settlement) -> tuple[Any, ...]:
    """Return a settlement as settle.lua reads it."""
    return (
        settlement.id,
        settlement.fence,
        settlement.state,
        settlement.outcome,
        settlement.counts,
        settlement.crashed,
        settlement.shared_deaths,
        settlement.run_at,
        settlement.result,
        settlement.reason,
        settlement.failure,
        settlement.started_at,
        settlement.pool,
    )


def change_of(change: Change) -> tuple[Any, ...]:
    """Return a change as entries.lua reads it."""
    return (
        change.kind,
        change.key,
        change.value,
        change.expect,
        change.owner,
        change.due_at,
        change.expires_at,
    )


# The same for Lua

_STORED: Mapping[str, type[msgspec.Struct]] = {
    "BODY": Body,
    "STANDING": Standing,
    "PAST": Past,
    "LINE": Line,
    "WORKER": Announced,
    "ACT": Act,
    "ENTRY": Small,
}
LAYOUTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{name: stored.__struct_fields__ for name, stored in _STORED.items()},
        "PUT": put_of(_NAMED),
        "SETTLEMENT": settlement_of(_NAMED),
        "PAIR": ("id", "fence"),
        "CHANGE": change_of(_NAMED),
        "BY": ("id", "number", "who", "verb", "target", "job_id"),
    }
)
_LEAST = {
    name: sum(field.required for field in msgspec.structs.fields(stored))
    for name, stored in _STORED.items()
}
"""How many fields a stored value has at the least: those that have no default."""
_SHORT, _NIL = 16, 0xC0
"""How many fields an array of MessagePack has that is not short, and what is nothing there."""
_ANY = "|".join(LAYOUTS)
_NUMBER = re.compile(rf"\b({_ANY})\.([A-Z_]+)\b")
_COUNT = re.compile(rf"#({_ANY})\b")
_OLDEST = re.compile(rf"&({_ANY})\b")
_HEAD = re.compile(rf"@({_ANY})\b")
_NAMES = re.compile(rf"(nil)?<({_ANY})(?: (\w+)\.\.(\w+))?>")


def in_lua(code: str) -> str:
    """Return code with numbers and names instead of what lua/keys.lua says stands for them."""
    code = _NAMES.sub(_names, code)
    code = _HEAD.sub(lambda found: _head(len(LAYOUTS[found[1]])), code)
    code = _OLDEST.sub(lambda found: str(_LEAST[found[1]]), code)
    code = _COUNT.sub(lambda found: str(len(LAYOUTS[found[1]])), code)
    return _NUMBER.sub(lambda found: str(_number(found[1], found[2].lower())), code)


def _number(layout: str, field: str) -> int:
    return LAYOUTS[layout].index(field) + 1


def _names(found: re.Match[str]) -> str:
    are_nothing, layout, first, last = found.groups()
    fields = LAYOUTS[layout]
    if first:
        fields = fields[_number(layout, first) - 1 : _number(layout, last)]
    return _text([_NIL] * len(fields)) if are_nothing else ", ".join(fields)


def _head(count: int) -> str:
    """Return the text of Lua that an array of so many fields begins with."""
    head = (0x90 | count,) if count < _SHORT else (0xDC, *count.to_bytes(2, "big"))
    return _text(head)


def _text(parts: Sequence[int]) -> str:
    return "'" + "".join(f"\\{part}" for part in parts) + "'"
