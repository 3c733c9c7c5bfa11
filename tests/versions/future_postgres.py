"""How a newer program shares a schema: it adds columns, and replaces all verbs by ones that answer more."""

import json
import re
from contextlib import closing
from typing import Any

import psycopg
import pytest

from fairlead.core.admin import Migration
from fairlead.core.ids import JobId
from fairlead.stores.postgres import catalog
from fairlead.stores.postgres import migrate as migrating
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lane import connect
from fairlead.stores.postgres.migrate import migrate, newest
from tests.versions.future import BEYOND, Future

TABLES = {
    "job": "id",
    "finished": "id",
    "dead": "id",
    "entry": "kind || ' ' || owner || ' ' || key",
    "attempt": "seq::text",
    "worker": "id",
    "paused": "queue",
    "audit": "id",
    "queue": "name",
}
"""Every table, with what its rows are known by."""
WITH_HISTORY = ("job", "finished", "dead")

ADDED = [
    statement
    for name in TABLES
    for statement in (
        f"ALTER TABLE {name} ADD COLUMN colour text",
        f"ALTER TABLE {name} ADD COLUMN size_2 integer NOT NULL DEFAULT 7",
    )
]
HISTORY = """
UPDATE {table} SET errors = ARRAY(
    SELECT (past::jsonb || '{"mood": "bad"}')::text FROM unnest(errors) WITH ORDINALITY AS a(past, n) ORDER BY n
)
WHERE EXISTS (SELECT FROM unnest(errors) AS past WHERE NOT past::jsonb ? 'mood')
"""
MOODS = """
SELECT coalesce(sum((past::jsonb->>'mood' = 'bad')::integer), 0) FROM (
    SELECT unnest(errors) AS past FROM job WHERE id = %(id)s
    UNION ALL SELECT unnest(errors) FROM finished WHERE id = %(id)s
    UNION ALL SELECT unnest(errors) FROM dead WHERE id = %(id)s
) AS all_of_them
"""
# An answer is a JSON list or document; a leased job is a list, a line break and plain text.
GROWN = """
CREATE OR REPLACE FUNCTION grown(answer text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN answer ~ '^\\[[^\\n]*\\]\\n[^ ]' THEN regexp_replace(answer, '\\]\\n', E',{"new":[1]}]\\n')
        WHEN answer LIKE '{%}' THEN left(answer, -1) || ',"new":[1]}'
        ELSE left(answer, -1) || ',{"new":[1]}]'
    END
$$;
"""
VERB = re.compile(
    r"CREATE OR REPLACE FUNCTION (\w+)\(batch text\) RETURNS (SETOF )?text LANGUAGE \w+( STABLE)?"
)
ANSWERS = """
CREATE OR REPLACE FUNCTION {name}(batch text) RETURNS {kind}text LANGUAGE sql
SECURITY DEFINER SET search_path = {{schema}}, pg_temp
AS $$ SELECT grown(answer) FROM {name}_1(batch) AS answer $$;
"""


def text_that_answers_more(name: str) -> str:
    """Return the text of a file as the newer program has it."""
    text = catalog.text_of(name)
    found = VERB.search(text) if name.startswith("verbs/") else None
    if found is None:
        return text
    verb, kind = found[1], found[2] or ""
    inner = text.replace(f"FUNCTION {verb}(batch text)", f"FUNCTION {verb}_1(batch text)")
    return inner + ANSWERS.format(name=verb, kind=kind)


class PostgresFuture(Future):
    """A newer program in a schema, as its owner."""

    def __init__(self, url: str) -> None:
        self._address = Address.of(url)
        self._raw: psycopg.Connection[Any] = psycopg.connect(url.partition("?")[0], autocommit=True)
        self._raw.execute(f"SET search_path = {self._address.quoted_schema}".encode())
        self._coloured: dict[str, set[Any]] = {table: set() for table in TABLES}
        self._moods: dict[str, int] = {}

    def arrive(self) -> None:
        for statement in ADDED:
            self._raw.execute(statement.encode())
        self._raw.execute("INSERT INTO migration VALUES (%s, 0, 1)", [newest() + 1])
        texts = {"functions/grown": GROWN}
        texts |= {name: text_that_answers_more(name) for name in catalog.ORDER}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "ORDER", tuple(texts))
            patch.setattr(catalog, "text_of", texts.__getitem__)
            for module in (catalog, migrating):
                patch.setattr(module, "REVISION", catalog.REVISION + 1)
            migrate(self._address)
        [(answer,)] = self._raw.execute("SELECT due('{}')").fetchall()
        assert json.loads(answer)[-1] == {"new": [1]}

    def step(self, serves: int) -> None:
        # The first of them is there already if the newer program is.
        steps = [
            Migration(newest() + 1, "next", "SELECT 1"),
            Migration(newest() + 2, "later", "SELECT 1", serves=serves),
        ]
        with closing(connect(self._address)) as connection:
            for step in steps:
                migrating._apply_step(connection, self._address, step)

    def take_back(self) -> None:
        self._raw.execute("DELETE FROM migration WHERE number > %s", [newest() + 1])
        self._raw.execute(f"COMMENT ON TABLE migration IS 'up to step {newest()}'".encode())
        self._raw.execute(
            "CREATE OR REPLACE FUNCTION least_level() RETURNS integer LANGUAGE sql STABLE "
            "AS 'SELECT 1'"
        )

    def grow(self) -> None:
        for table in TABLES:
            self._raw.execute(f"UPDATE {table} SET colour = 'red' WHERE colour IS NULL".encode())
            self._coloured[table] = set(self._colours(table))
        for table in WITH_HISTORY:
            self._raw.execute(HISTORY.replace("{table}", table).encode())
            asked = f"SELECT id, cardinality(errors) FROM {table} WHERE errors IS NOT NULL"
            self._moods.update(self._raw.execute(asked.encode()).fetchall())
        for name, pools in self._raw.execute("SELECT id, pools FROM worker").fetchall():
            told = [{**pool, "mood": "good"} for pool in json.loads(pools)]
            self._raw.execute(
                "UPDATE worker SET pools = %s WHERE id = %s", [json.dumps(told), name]
            )

    def park(self, job_id: JobId, *, lost: bool = False) -> None:
        park = "UPDATE job SET parked = 9, park_key = 'stripe' WHERE id = %s"
        assert self._raw.execute(park, [job_id]).rowcount == 1

    def lost(self) -> list[str]:
        told = []
        for table, coloured in self._coloured.items():
            colours = self._colours(table)
            # The newer program's own functions would take it along: older ones call these.
            coloured &= colours.keys()
            told += [f"{table} {name}" for name in coloured if colours[name] != "red"]
        for job_id, number in self._moods.items():
            [(kept,)] = self._raw.execute(MOODS, {"id": job_id}).fetchall()
            if kept < number and self._exists(job_id):
                told.append(f"history of {job_id}")
        return told

    def _colours(self, table: str) -> dict[Any, str | None]:
        asked = f"SELECT {TABLES[table]}, colour FROM {table}"
        return dict(self._raw.execute(asked.encode()).fetchall())

    def _exists(self, job_id: str) -> bool:
        return any(job_id in self._colours(table) for table in WITH_HISTORY)

    def overstep(self, job_id: JobId) -> None:
        for table in WITH_HISTORY:
            change = f"UPDATE {table} SET attempt = %s WHERE id = %s"
            self._raw.execute(change.encode(), [BEYOND, job_id])

    def content(self, job_id: JobId) -> object:
        asked = (f"SELECT * FROM {table} WHERE id = %s".encode() for table in WITH_HISTORY)
        return [self._raw.execute(each, [job_id]).fetchall() for each in asked]

    def close(self) -> None:
        self._raw.close()
