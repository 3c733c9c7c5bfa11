"""Entries on SQLite: what a read costs."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.core.entries import Change, Wanted
from fairlead.stores import store_for
from fairlead.stores.sqlite.entries import _read

MANY = 3_000


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted("figure", prefix="2999"), ["2999"]),
        (Wanted("figure", prefix="29", after="2998"), ["2999"]),
        (Wanted("figure", after="2998"), ["2999"]),
        (Wanted("figure", prefix="z"), []),
    ],
    ids=["the beginning", "the beginning, after one", "after one", "none"],
)
async def test_a_range_takes_as_many_steps_as_it_has_entries(
    tmp_path: Path, wanted: Wanted, found: list[str]
) -> None:
    store = store_for(f"sqlite:///{tmp_path}/jobs.db?durability=fast")
    for first in range(0, MANY, 1_000):
        keys = [f"{number:04}" for number in range(first, first + 1_000)]
        await store.entries.write([Change("figure", key, "1") for key in keys])
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        connection.set_progress_handler(step, 1)
        assert [each.key for each in _read(connection, wanted, 0)] == found
    assert steps < 300
    await store.close()
