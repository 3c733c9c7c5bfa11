"""Read the jobs that a claim may give, in the order of their queue.

They are read many at a time. If that fails, somebody damaged one of them: they are read one by
one, and what cannot be read becomes a dead letter, while the others go on. Where there are many
of them a claim moves out some, and the next one looks on behind those that it left.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from fairlead.core.ids import JobId
from fairlead.core.job import LONGEST_ID, Instant, Job, Level, Place, Runs, Version
from fairlead.core.selection import Head
from fairlead.stores.sqlite.repair import move_out
from fairlead.stores.sqlite.sound import NotUtf8, Size, exact, is_id
from fairlead.stores.sqlite.statements import head_statement, heads_statement
from fairlead.stores.sqlite.talk import UNREADABLE, ask, raise_unless_damage, to_json
from fairlead.stores.sqlite.ways import Moment

LARGE = 4_096
"""What is large of a job that has more bytes is read only when the job is chosen."""

LOOKED = 2_000
"""How many jobs are looked at one by one, if one of the next is damaged."""

MOVED = 250
"""How many damaged ones of these are moved out by one claim."""


class After(NamedTuple):
    """A place in the order of a queue, as it is stored; a damaged job has one too."""

    order_at: Any
    id: Any


FRONT = After(-(2**63), "")
"""The place before all others."""

_PLACE = "SELECT order_at, id FROM fairlead_job WHERE seq = ?"


class Row(Head, frozen=True, array_like=True, gc=False, kw_only=True):
    """A waiting job with all that its claim needs; what is large is still to be read."""

    id: Annotated[JobId, msgspec.Meta(min_length=1, max_length=LONGEST_ID)]
    task: str
    version: Version
    order_at: Place
    run_at: Instant
    expires_at: Instant | None
    lost: bool
    size: Size
    level: Level
    seq: int
    payload: str | None
    options: str | None
    attempt: Runs
    crashes: Runs
    shared_deaths: Runs
    fence: Instant
    enqueued_at: Instant
    claimed_at: Instant | None
    worker: str | None


_decode = msgspec.json.Decoder(list[Row]).decode
_decode_many = msgspec.json.Decoder(list[list[Row]]).decode
_decode_seqs = msgspec.json.Decoder(list[int]).decode
_decode_large = msgspec.json.Decoder(list[tuple[int, str, str | None]]).decode


class Body(NamedTuple):
    """What is large of a job."""

    payload: str
    options: str | None


class Found(NamedTuple):
    """The next jobs of a queue, and the place where the look ended because of damage."""

    rows: list[Row]
    stopped: After | None = None


def read_many(
    connection: sqlite3.Connection, places: Mapping[str, After], limit: int, now: int
) -> dict[str, list[Row]]:
    """Read the next jobs of several queues, each after a place."""
    asked = to_json([(name, *place) for name, place in places.items()])
    values = {"asked": asked, "limit": limit, "large": LARGE, "now": now}
    [text] = connection.execute(heads_statement(), values).fetchone()
    found = dict(zip(places, _decode_many(text), strict=True))
    _check_ids(row for rows in found.values() for row in rows)
    return found


def read_heads(
    connection: sqlite3.Connection, queue: str, after: After, limit: int, by: Moment
) -> Found:
    """Read the next jobs after a place. Those that cannot be read become dead letters."""
    where = {"queue": queue, "now": by.now, **after._asdict()}
    try:
        return Found(_rows(ask(connection, "heads", limit=limit, large=LARGE, **where)))
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    seqs = _decode_seqs(ask(connection, "next_seqs", limit=LOOKED, **where))
    return _read_one_by_one(connection, seqs, limit, by)


def _read_one_by_one(
    connection: sqlite3.Connection, seqs: list[int], limit: int, by: Moment
) -> Found:
    """Find the sound jobs among many; of the others some are moved out, and all stepped over.

    To move one out takes ten times as long as to step over it, and sound jobs behind a hundred
    thousand of them are not to wait for that.
    """
    rows: list[Row] = []
    moved: set[int] = set()
    for seq in seqs:
        try:
            rows += _rows(connection.execute(head_statement(), _head(seq)).fetchone()[0])
        except UNREADABLE as problem:
            raise_unless_damage(problem)
            if len(moved) < MOVED and move_out(connection, seq, by, str(problem)):
                moved.add(seq)
        if len(rows) == limit:
            return Found(rows)
    if len(seqs) < LOOKED:
        return Found(rows)
    for seq in reversed(seqs):
        if seq in moved:
            continue
        if (place := _place(connection, seq)) is not None:
            return Found(rows, place)
        move_out(connection, seq, by)
    return Found(rows)


def _head(seq: int) -> dict[str, int]:
    return {"seq": seq, "large": LARGE}


def _place(connection: sqlite3.Connection, seq: int) -> After | None:
    """Return where a job stands, if a statement can be told so."""
    with exact(connection):
        place = After(*connection.execute(_PLACE, (seq,)).fetchone())
    return None if NotUtf8 in map(type, place) else place


def _rows(text: str) -> list[Row]:
    rows = _decode(text)
    _check_ids(rows)
    return rows


def _check_ids(rows: Iterable[Row]) -> None:
    if not is_id("".join([row.id for row in rows])):
        raise msgspec.ValidationError("an id has ASCII characters only")


def read_bodies(
    connection: sqlite3.Connection, rows: Sequence[tuple[str, Row]], by: Moment
) -> dict[int, Body | None]:
    """Read what is large of the chosen jobs; None stands for one that became a dead letter."""
    seqs = [row.seq for _, row in rows if row.payload is None]
    if not seqs:
        return {}
    try:
        return _bodies(connection, seqs)
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    found: dict[int, Body | None] = {}
    for seq in seqs:
        try:
            found |= _bodies(connection, [seq])
        except UNREADABLE as problem:
            raise_unless_damage(problem)
            move_out(connection, seq, by, str(problem))
            found[seq] = None
    return found


def _bodies(connection: sqlite3.Connection, seqs: list[int]) -> dict[int, Body | None]:
    found = _decode_large(ask(connection, "large", seqs=to_json(seqs)))
    return {seq: Body(payload, options) for seq, payload, options in found}


class _Held(Job, frozen=True, array_like=True, gc=False):
    """A running job as its row tells it."""


_decode_held = msgspec.json.Decoder(list[_Held]).decode


def held(connection: sqlite3.Connection, worker: str) -> list[Job]:
    """Return the running jobs that this worker claimed."""
    try:
        return _held(connection, worker, None)
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    jobs: list[Job] = []
    for seq in _decode_seqs(ask(connection, "held_seqs", worker=worker)):
        try:
            jobs += _held(connection, worker, seq)
        except UNREADABLE as problem:  # It is found out when its lease passes.
            raise_unless_damage(problem)
    return jobs


def _held(connection: sqlite3.Connection, worker: str, seq: int | None) -> list[Job]:
    rows = _decode_held(ask(connection, "held", worker=worker, seq=seq))
    return [Job(*msgspec.structs.astuple(row)) for row in rows]
