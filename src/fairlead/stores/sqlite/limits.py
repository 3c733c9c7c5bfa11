"""Gates that count, on SQLite: what of them is in use, and who waits for room.

A new kind of limit is an entry of `core.selection.LIMITS`, and one here: claims, lists, counts
and `explain` know it by these.
"""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from fairlead.core.job import Gate
from fairlead.core.selection import LIMITS, Head, Used, full
from fairlead.stores.sqlite.heads import Row
from fairlead.stores.sqlite.sound import LAST_REASON
from fairlead.stores.sqlite.ways import Parked, bring_back, park


class Limited(NamedTuple):
    """A limit: the number that its parked jobs have, and what tells the keys that are in use.

    `in_use` is a SELECT of keys and numbers. A job uses what it does until its run is settled.
    """

    parked: int
    in_use: str


LIMITED: dict[Gate, Limited] = {}


def gate_of(parked: object) -> Gate | None:
    """Return the gate that a job is parked for, by the number in its row.

    A number that this program does not know is that of a newer program's gate.
    """
    if not isinstance(parked, int) or not 0 < parked <= LAST_REASON:
        return None
    known = {int(each): Gate[each.name] for each in Parked}
    known |= {limited.parked: gate for gate, limited in LIMITED.items()}
    return known.get(parked, Gate.NEWER_PROGRAM)


def in_use(connection: sqlite3.Connection) -> dict[Gate, Counter[str]]:
    """Return how much of each limit is in use."""
    return {
        gate: Counter(dict(connection.execute(limited.in_use).fetchall()))
        for gate, limited in LIMITED.items()
    }


def parked_full(used: Used) -> dict[int, list[str]]:
    """Return the keys of each limit that have no room, by the number that its parked jobs have."""
    return {LIMITED[gate].parked: keys for gate, keys in full(used).items()}


def bring_back_limited(connection: sqlite3.Connection, used: Used) -> int:
    """Bring back jobs under keys that have room; returns how many."""
    back = 0
    for gate, limited in LIMITED.items():
        counter, most = used[gate], LIMITS[gate].most
        back += bring_back(connection, limited.parked, lambda key: counter[key] < most)  # noqa: B023
    return back


def park_refused(connection: sqlite3.Connection, refused: Mapping[Gate, Sequence[Head]]) -> None:
    """Park the jobs that limits refused."""
    for gate, heads in refused.items():
        rows = cast("Sequence[Row]", heads)
        keys = {row.seq: LIMITS[gate].uses(row) or "" for row in rows}
        park(connection, LIMITED[gate].parked, keys)
