"""Lists of jobs by the indexes of the SQL stores: which statement, from where, and what counts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fairlead.core.admin import LEAST_LOOKED
from fairlead.core.job import JobRecord
from fairlead.core.page import Key
from fairlead.stores.listing import Answer, Asked, Met, Order, due_between

SQL_RUNNING = (Order.FRONT, Order.BEHIND, Order.LOST_PARKED)
"""Running jobs stand in the order of their queue, and a claim writes nothing that an index holds.

Claims go along that order, so nearly all of them are found at the front of it, before the first
stretch of jobs that nobody ever claimed. The others come after those of all queues. Lost runs may
be parked.
"""
SQL_APART = frozenset({Order.LATER, Order.CANCELLED, Order.DEAD})
SQL_IDS = (Order.LIVE_IDS, Order.FINISHED_IDS, Order.DEAD_IDS)
_STRETCH = LEAST_LOOKED
"""How many jobs that nobody ever claimed stand behind the front of a queue."""
_LAST = (2**63 - 1, "\U0010ffff")
"""Behind every place in the order of a queue."""


_STATEMENTS = {Order.FRONT: "ready", Order.BEHIND: "ready", Order.LOST_PARKED: "parked"}
_TABLES = {
    **dict.fromkeys((Order.DONE, Order.CANCELLED, Order.FINISHED_IDS), "finished"),
    **dict.fromkeys((Order.DEAD, Order.DEAD_IDS), "dead"),
}
_FIRST = -(2**63)


class Ends(NamedTuple):
    """What comes after all texts and all numbers that a store keeps."""

    last_text: str | bytes
    last_number: int | bytes


class Row(NamedTuple):
    """A job as the statement of an order tells of it: where it is, and whether it is meant."""

    row_id: Any
    is_meant: bool
    is_fresh: bool
    key: Key


def looked_at(asked: Asked, rows: Iterable[Sequence[Any]]) -> tuple[list[Row], bool]:
    """Return the rows that count, up to the last that may be told; and whether no more follow."""
    found = [Row(row[0], bool(row[1]), bool(row[2]), tuple(row[3:])) for row in rows]
    ends = len(found) < asked.look
    if asked.order is Order.FRONT:
        found, ends = _front(found, asked.after, ends=ends)
    elif asked.order is Order.BEHIND:
        found = list(_behind(found, asked.after))
    meant = [at for at, row in enumerate(found) if row.is_meant]
    if len(meant) > asked.most:
        return found[: meant[asked.most - 1] + 1], False
    return found, ends


def _front(rows: list[Row], after: Key | None, *, ends: bool) -> tuple[list[Row], bool]:
    """Return the rows up to the end of a queue's front; from there it goes on in the next queue."""
    found: list[Row] = []
    for row, fresh in _counted(rows, after):
        queue = row.key[0]
        if fresh == _STRETCH:
            return [*found, row._replace(key=(queue, *_LAST, 0))], False
        found.append(row._replace(key=(*row.key, fresh)))
    return found, ends


def _behind(rows: list[Row], after: Key | None) -> Iterable[Row]:
    """Return the same rows, of which those at the front of a queue are not meant."""
    for row, fresh in _counted(rows, after):
        meant = row.is_meant and fresh == _STRETCH
        yield row._replace(key=(*row.key, fresh), is_meant=meant)


def _counted(rows: Iterable[Row], after: Key | None) -> Iterable[tuple[Row, int]]:
    """Count before each row the jobs in a row that nobody claimed, up to the end of the front."""
    queue, fresh = (after[0], _whole(after[-1])) if after else (None, 0)
    for row in rows:
        if row.key[0] != queue:
            queue, fresh = row.key[0], 0
        if fresh < _STRETCH:
            fresh = fresh + 1 if row.is_fresh else 0
        yield row, fresh


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def answered(rows: Iterable[Row], jobs: Mapping[Any, JobRecord], *, ends: bool) -> Answer:
    """Return what was met, with the jobs that are meant; one that moved on meanwhile is none."""
    return Answer([Met(row.key, jobs.get(row.row_id)) for row in rows], ends)


def statement_of(asked: Asked) -> str:
    """Return the name of the statement that goes along an order."""
    return f"list_{_STATEMENTS.get(asked.order, asked.order)}"


def table_of(asked: Asked) -> str:
    """Return the name of the table that has the jobs of an order."""
    return _TABLES.get(asked.order, "job")


def values_of(asked: Asked, ends: Ends) -> dict[str, Any]:
    """Return what a statement takes besides the filter: the key before, and how far to go."""
    begin, upto = _bounds(asked, ends)
    key = begin if asked.after is None else asked.after
    values = {"look": asked.look, "upto": upto, "but": ""}
    if asked.order in SQL_IDS and asked.after is not None:
        values["but"] = key[0]
    return values | {f"key{number}": value for number, value in enumerate(key)}


def _bounds(asked: Asked, ends: Ends) -> tuple[Key, object]:
    """Return the key before all that is asked for, and until where it may be."""
    match asked.order:
        case Order.READY | Order.FRONT | Order.BEHIND:
            return (asked.queue or "", _FIRST, ""), asked.queue or ends.last_text
        case Order.LATER:
            after, until = due_between(asked.which)
            over = _FIRST if after is None else after
            return (over, ends.last_text), ends.last_number if until is None else until
        case Order.PARKED | Order.LOST_PARKED:
            return (-1, "", _FIRST, ""), None
        case Order.LIVE_IDS | Order.FINISHED_IDS | Order.DEAD_IDS:
            begins = asked.which.begins or ""
            return (begins,), begins + "\U0010ffff"
    since = asked.which.since
    return (ends.last_number, ends.last_text), _FIRST if since is None else since
