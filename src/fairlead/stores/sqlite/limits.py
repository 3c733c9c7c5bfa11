"""Gates that count, on SQLite: what of them is in use, and who waits for room.

A new kind of limit is an entry of `core.selection.LIMITS`, and one here.
"""

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from fairlead.core.job import Gate
from fairlead.core.selection import LIMITS, Head, Used
from fairlead.stores.sqlite.heads import Row
from fairlead.stores.sqlite.ways import bring_back, park


class Limited(NamedTuple):
    """A limit: the number that its parked jobs have, and what tells the keys that are in use.

    `in_use` is a SELECT of keys and numbers. A job uses what it does until its run is settled.
    """

    parked: int
    in_use: str


LIMITED: dict[Gate, Limited] = {}


def in_use(connection: sqlite3.Connection) -> dict[Gate, Counter[str]]:
    """Return how much of each limit is in use."""
    return {
        gate: Counter(dict(connection.execute(limited.in_use).fetchall()))
        for gate, limited in LIMITED.items()
    }


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
