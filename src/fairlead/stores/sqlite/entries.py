"""Small values beside the jobs, in a table of their own."""

import sqlite3
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import closing, suppress
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec
from msgspec.structs import asdict

from fairlead.core.clock import Clock
from fairlead.core.entries import (
    Change,
    Entries,
    Entry,
    Name,
    Wanted,
    change_all,
    check_changes,
    meant,
    name_of,
    past_all,
)
from fairlead.core.errors import LeaseLost
from fairlead.core.ids import JobId
from fairlead.core.job import Attached
from fairlead.core.selection import LOOK
from fairlead.core.store import BATCH
from fairlead.stores.sqlite.sound import exact
from fairlead.stores.sqlite.statements import statements
from fairlead.stores.sqlite.talk import (
    UNREADABLE,
    Hand,
    ask,
    raise_unless_damage,
    tell,
    to_json,
)

Answer = TypeVar("Answer")


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """An entry as a statement answers it, by the names of the columns."""

    kind: str
    key: str
    value: str
    version: int
    owner: JobId | None
    due_at: int | None
    expires_at: int | None

    @property
    def entry(self) -> Entry:
        return Entry(**asdict(self))


_decode = msgspec.json.Decoder(list[_Row]).decode
_decode_ids = msgspec.json.Decoder(list[JobId]).decode
_decode_seqs = msgspec.json.Decoder(list[int]).decode
_decode_pairs = msgspec.json.Decoder(list[tuple[int, int]]).decode
_COLUMNS = ", ".join(_Row.__struct_fields__)


class Request(NamedTuple):
    """What somebody wants written, and under which fence."""

    changes: Sequence[Change]
    fence: tuple[JobId, int] | None


Write = Callable[[Any, Sequence[Request]], Awaitable[Sequence[list[int | None] | None]]]


class Read(Protocol):
    """How a question reaches a connection for reading."""

    async def __call__(self, question: Callable[[sqlite3.Connection], Answer], /) -> Answer:
        """Ask it."""


class SqliteEntries(Entries):
    """Entries in the file; what is written goes through the writer, as everything does."""

    def __init__(self, clock: Clock, read: Read, write: Write, level: Callable[[], int]) -> None:
        self._clock = clock
        self._read = read
        self._write_through = write
        self._level = level

    async def read(self, wanted: Wanted) -> list[Entry]:
        """Return entries that have not expired."""
        now = self._clock.now()
        return await self._read(lambda connection: _read(connection, wanted, now))

    async def write(
        self, changes: Sequence[Change], fence: tuple[JobId, int] | None = None
    ) -> list[int | None]:
        """Write entries, each if the version it expects is there."""
        check_changes(changes)
        [answers] = await self._write_through(self._write, [Request(changes, fence)])
        if answers is None:
            assert fence is not None
            raise LeaseLost(fence[0])
        return answers

    def _write(
        self, connection: sqlite3.Connection, requests: Sequence[Request]
    ) -> list[list[int | None] | None]:
        # One transaction writes at one instant: all of it shares which versions there were.
        step = _Step(self._clock.now(), self._level(), {})
        return [_written(connection, request, step) for request in requests]


class _Step(NamedTuple):
    """What the writes of one transaction share."""

    now: int
    level: int
    seen: dict[Name, int]


def _read(connection: sqlite3.Connection, wanted: Wanted, now: int) -> list[Entry]:
    owner = wanted.owner or ""
    values = {"kind": wanted.kind, "owner": owner, "limit": wanted.limit, "now": now}
    if wanted.keys is not None:
        names = [(wanted.kind, owner, key) for key in wanted.keys]
        found = _entries(connection, "entries_named", names=to_json(names))
    elif wanted.due_before is not None:
        found = _entries(connection, "entries_due", due_before=wanted.due_before, **values)
    else:
        found = _entries(connection, "entry_range", **_span(wanted), **values)
    return meant(wanted, found, now)


def _span(wanted: Wanted) -> dict[str, object]:
    """Return the bounds of a range; no text comes after all others, but every blob does."""
    next_ = f"{wanted.after}\0" if wanted.after else ""  # No key has a NUL in it.
    first = max(wanted.prefix, next_, key=str.encode)
    return {"first": first, "past": past_all(wanted.prefix) or b""}


def _entries(connection: sqlite3.Connection, statement: str, **values: object) -> list[Entry]:
    """Return the entries that a statement finds; damaged ones are passed over."""
    rows = statements()[statement]
    whole = f"SELECT json_group_array(json_array({_COLUMNS})) FROM ({rows})"
    try:
        return [row.entry for row in _decode(connection.execute(whole, values).fetchone()[0])]
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    limit = cast("int | None", values.get("limit"))
    with exact(connection), closing(connection.execute(rows, {**values, "limit": -1})) as all_:
        return list(islice(_readable(all_), limit))


def _readable(rows: Iterable[Sequence[Any]]) -> Iterator[Entry]:
    for row in rows:
        with suppress(msgspec.ValidationError):
            yield msgspec.convert(list(row), _Row).entry


def _written(
    connection: sqlite3.Connection, request: Request, step: _Step
) -> list[int | None] | None:
    if request.fence is not None:
        job_id, fence = request.fence
        if ask(connection, "runs_under", id=job_id, fence=fence) is None:
            return None
    names = {name_of(change) for change in request.changes}
    owners = to_json(sorted({owner for _, owner, _ in names if owner is not None}))
    live = set(_decode_ids(ask(connection, "live_owners", ids=owners, level=step.level)))
    there = _entries(connection, "entries_named", names=_told(names))
    found = {name_of(entry): entry for entry in there}
    answers, written = change_all(request.changes, found, live, step.now, step.seen)
    rows = [
        (
            each.kind,
            each.owner or "",
            each.key,
            each.value,
            each.version,
            each.due_at,
            each.expires_at,
        )
        for each in written.values()
        if each is not None
    ]
    if rows:
        tell(connection, "write_entries", entries=to_json(rows))
        tell(connection, "attach_entries", ids=to_json(sorted({row[1] for row in rows})))
    if gone := [name for name, entry in written.items() if entry is None]:
        tell(connection, "remove_entries", names=_told(gone))
    return answers


def _told(names: Collection[Name]) -> str:
    return to_json([(kind, owner or "", key) for kind, owner, key in names])


def prune(connection: sqlite3.Connection, now: int) -> int:
    """Remove some of what has expired; returns how many."""
    return tell(connection, "prune_entries", now=now, batch=BATCH)


def forget_old(connection: sqlite3.Connection, before: int, level: int) -> int:
    """Remove some entries of jobs that ended before this time.

    Returns how many, or of how many jobs if these are more.
    """
    old = {"before": before, "level": level, "look": LOOK}
    owners = _decode_seqs(ask(connection, "old_owners", **old))
    return max(len(owners), _lose(connection, "finished", owners))


def forget_some(connection: Hand, place: str, which: Mapping[str, object]) -> int:
    """Remove some entries of jobs that a person is about to delete; returns how many."""
    return _lose(connection, place, _decode_seqs(ask(connection, f"owners_meant_{place}", **which)))


def _lose(connection: Hand, place: str, owners: Sequence[int]) -> int:
    """Remove some entries of jobs that have ended; returns how many.

    A job that has lost some does not come back: it would do again what is done.
    """
    if not owners:
        return 0
    seqs = to_json(owners)
    found = _decode_pairs(ask(connection, f"some_entries_{place}", seqs=seqs, batch=BATCH))
    tell(connection, "remove_some", entries=to_json([entry for entry, _ in found]))
    losers = to_json(sorted({owner for _, owner in found}))
    marks = {"losers": losers, "forgetting": Attached.FORGETTING}
    tell(connection, f"detach_entries_{place}", seqs=seqs, **marks)
    return len(found)
