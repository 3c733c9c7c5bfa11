"""Read the jobs that a claim may give, in the order of their queue.

They are read many at a time. If that fails, somebody damaged one of them: they are read one by
one, and what cannot be read becomes a dead letter, while the others go on.
"""

import sqlite3
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from fairlead.core.ids import JobId
from fairlead.core.job import LONGEST_ID, Instant, Place, Runs, Version
from fairlead.core.selection import Head
from fairlead.core.store import BATCH
from fairlead.stores.sqlite.repair import move_out
from fairlead.stores.sqlite.sound import Size, is_id
from fairlead.stores.sqlite.talk import UNREADABLE, ask, raise_unless_damage, to_json

LARGE = 4_096
"""What is large of a job that has more bytes is read only when the job is chosen."""


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
    seq: int
    payload: str | None
    options: str | None
    attempt: Runs
    crashes: Runs
    suspect: bool
    fence: Instant
    enqueued_at: Instant
    claimed_at: Instant | None
    worker: str | None


_decode = msgspec.json.Decoder(list[Row]).decode
_decode_large = msgspec.json.Decoder(list[tuple[int, str, str | None, bool]]).decode


class Body(NamedTuple):
    """What is large of a job, or stands behind it in the file."""

    payload: str
    options: str | None
    suspect: bool


def read_heads(
    connection: sqlite3.Connection, queue: str, after: tuple[int, str], limit: int, now: int
) -> list[Row]:
    """Read the next jobs after a place. Those that cannot be read become dead letters."""
    where = {"queue": queue, "order_at": after[0], "id": after[1], "now": now, "large": LARGE}
    try:
        return _rows(ask(connection, "heads", limit=limit, **where))
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    # One by one, to find the row that somebody damaged.
    rows: list[Row] = []
    moved = 0
    while len(rows) < limit and moved < BATCH:
        try:
            found = _rows(ask(connection, "heads", limit=1, **where))
        except UNREADABLE as problem:
            raise_unless_damage(problem)
            move_out(connection, ask(connection, "next_seq", **where), now, str(problem))
            moved += 1
            continue
        if not found:
            break
        rows += found
        where |= {"order_at": found[0].order_at, "id": found[0].id}
    return rows


def _rows(text: str) -> list[Row]:
    rows = _decode(text)
    if not is_id("".join([row.id for row in rows])):
        raise msgspec.ValidationError("an id has ASCII characters only")
    return rows


def read_bodies(
    connection: sqlite3.Connection, rows: Sequence[tuple[str, Row]], now: int
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
            move_out(connection, seq, now, str(problem))
            found[seq] = None
    return found


def _bodies(connection: sqlite3.Connection, seqs: list[int]) -> dict[int, Body | None]:
    found = _decode_large(ask(connection, "large", seqs=to_json(seqs)))
    return {seq: Body(payload, options, suspect) for seq, payload, options, suspect in found}
