"""Which rows are measured on which store, with how many jobs."""

from collections.abc import Sequence
from typing import NamedTuple

# So many that a slice takes a fiftieth of a second or so: less than a busy machine's mood lasts.
JOBS = {
    "core": {"encode and decode": 8_000},
    "memory": {
        "put one by one": 2_000,
        "put in bulk": 4_000,
        "claim and settle": 2_000,
        "extend leases": 10_000,
        "embedded worker": 1_500,
    },
    "sqlite": {
        "put one by one": 400,
        "put in bulk": 3_000,
        "claim and settle": 1_000,
        "extend leases": 4_000,
        "embedded worker": 1_500,
    },
    "postgres": {
        "put one by one": 100,
        "put in bulk": 2_000,
        "claim and settle": 500,
        "extend leases": 1_000,
        "embedded worker": 1_000,
    },
    "redis": {
        "put one by one": 200,
        "put in bulk": 2_000,
        "claim and settle": 500,
        "extend leases": 2_000,
        "embedded worker": 1_000,
    },
}
STORES = tuple(JOBS)
COUNTED_JOBS = {
    "put one by one": 100,
    "put in bulk": 1_000,
    "claim and settle": 500,
    "extend leases": 500,
}
"""Not the worker's: how many jobs it takes at a time depends on how quick it is."""
WITH_COUNTS = ("sqlite", "postgres", "redis")


class Row(NamedTuple):
    """Something that is measured, with so many jobs in a slice."""

    store: str
    what: str
    jobs: int


def rows(store: str, named: Sequence[str], scale: float) -> list[Row]:
    """Return the rows of a store whose names have one of those words, or all."""
    return [
        Row(store, what, max(100, round(jobs * scale)))
        for what, jobs in JOBS[store].items()
        if not named or any(word in what for word in named)
    ]
