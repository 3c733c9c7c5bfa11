"""How a newer program shares a file: it adds columns, tables, indexes and views, and keys to JSON texts.

What has to go with a job it writes into `more`.
"""

import sqlite3
from pathlib import Path
from typing import Any

from fairlead.core.ids import JobId
from fairlead.stores.sqlite.migrate import newest
from tests.versions.future import BEYOND, Future

TABLES = {
    "job": "id",
    "finished": "id",
    "dead": "id",
    "entry": "kind || ' ' || owner || ' ' || key",
    "attempt": "seq",
    "worker": "id",
    "paused": "queue",
    "audit": "id",
    "migration": "version",
}
"""Every table, with what its rows are known by."""
JOBS = ("job", "finished", "dead")
STAYING = tuple(name for name in TABLES if name not in JOBS)
"""The tables whose rows never go to another one."""

ADDED = [
    *(f"ALTER TABLE fairlead_{name} ADD COLUMN colour TEXT" for name in TABLES),
    *(
        f"ALTER TABLE fairlead_{name} ADD COLUMN size_2 INTEGER NOT NULL DEFAULT 7"
        for name in TABLES
    ),
    "CREATE TABLE fairlead_permit (kind TEXT, key TEXT, PRIMARY KEY (kind, key))",
    "CREATE INDEX fairlead_job_colour ON fairlead_job (colour)",
    "CREATE VIEW fairlead_permit_record AS SELECT * FROM fairlead_permit",
]

# A run that the job remembers, with a key more.
HISTORY = """
UPDATE fairlead_{table} SET errors = (
    SELECT json_group_array(json(iif(
        json_extract(past.value, '$.mood') IS NULL, json_set(past.value, '$.mood', 'bad'), past.value
    ))) FROM json_each(errors) AS past
)
WHERE errors IS NOT NULL
"""
POOLS = """
UPDATE fairlead_worker SET pools = json_set(pools, '$[0].mood', 'good', '$[0].queues[0].mood', 'bad')
WHERE json_array_length(pools) > 0
"""
MORE = '{"colour":"red","parts":[1,{"a":null}]}'
"""What it writes into `more`, whose text is kept letter by letter."""
MORE_OF_JOBS = " UNION ALL ".join(f"SELECT id, more FROM fairlead_{name}" for name in JOBS)
MOODS = """
SELECT count(*) FROM fairlead_{table}, json_each(errors) AS past
WHERE {table}.id = ? AND json_extract(past.value, '$.mood') = 'bad'
""".replace("{table}.id", "fairlead_{table}.id")


class SqliteFuture(Future):
    """A newer program at a file, on a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._raw = sqlite3.connect(path, timeout=20, isolation_level=None)
        self._coloured: dict[str, set[Any]] = {table: set() for table in STAYING}
        self._more: set[JobId] = set()
        """The jobs that were given more."""
        self._moods: dict[str, int] = {}
        """How many runs of each job were given a mood."""

    def arrive(self) -> None:
        self._apply(newest() + 1, 1, *ADDED)

    def step(self, serves: int) -> None:
        self._apply(newest() + 2, serves, "CREATE TABLE fairlead_edge (parent TEXT, child TEXT)")

    def _apply(self, number: int, serves: int, *statements: str) -> None:
        self._raw.execute("BEGIN IMMEDIATE")
        for statement in statements:
            self._raw.execute(statement)
        note = "INSERT INTO fairlead_migration (version, applied_at, serves) VALUES (?, 1, ?)"
        self._raw.execute(note, (number, serves))
        self._raw.execute("COMMIT")

    def take_back(self) -> None:
        self._raw.execute("DELETE FROM fairlead_migration WHERE version > ?", [newest() + 1])

    def grow(self) -> None:
        for table in TABLES:
            self._raw.execute(f"UPDATE fairlead_{table} SET colour = 'red' WHERE colour IS NULL")
        self._coloured = {table: set(self._colours(table)) for table in STAYING}
        for table in JOBS:
            self._raw.execute(f"UPDATE fairlead_{table} SET more = ? WHERE more IS NULL", [MORE])
        self._more = {job for job, more in self._rows(MORE_OF_JOBS).items() if more is not None}
        self._raw.execute(POOLS)
        for table in JOBS:
            self._raw.execute(HISTORY.format(table=table))
            asked = f"SELECT id, json_array_length(errors) FROM fairlead_{table} WHERE errors IS NOT NULL"
            self._moods.update(self._raw.execute(asked).fetchall())

    def park(self, job_id: JobId, *, lost: bool = False) -> None:
        park = "UPDATE fairlead_job SET parked = 9, park_key = 'stripe' WHERE id = ?"
        assert self._raw.execute(park, [job_id]).rowcount == 1

    def lost(self) -> list[str]:
        told = []
        for table, coloured in self._coloured.items():
            colours = self._colours(table)
            coloured &= colours.keys()  # What was removed may come anew.
            told += [f"{table} {name}" for name in coloured if colours[name] != "red"]
        more = self._rows(MORE_OF_JOBS)
        self._more &= more.keys()
        told += [f"more of {job}" for job in self._more if more[job] != MORE]
        for job_id, number in self._moods.items():
            if self._exists(job_id) and self._kept_moods(job_id) < number:
                told.append(f"history of {job_id}")
        return told

    def _colours(self, table: str) -> dict[Any, str | None]:
        return self._rows(f"SELECT {TABLES[table]}, colour FROM fairlead_{table}")

    def _rows(self, asked: str) -> dict[Any, Any]:
        return dict(self._raw.execute(asked).fetchall())

    def _exists(self, job_id: str) -> bool:
        return job_id in self._rows(MORE_OF_JOBS)

    def _kept_moods(self, job_id: str) -> int:
        asked = (self._raw.execute(MOODS.format(table=name), [job_id]) for name in JOBS)
        return sum(rows.fetchone()[0] for rows in asked)

    def overstep(self, job_id: JobId) -> None:
        for table in JOBS:
            change = f"UPDATE fairlead_{table} SET attempt = ? WHERE id = ?"
            self._raw.execute(change, (BEYOND, job_id))

    def content(self, job_id: JobId) -> object:
        asked = (f"SELECT * FROM fairlead_{table} WHERE id = ?" for table in JOBS)
        return [self._raw.execute(each, [job_id]).fetchall() for each in asked]

    def close(self) -> None:
        self._raw.close()
