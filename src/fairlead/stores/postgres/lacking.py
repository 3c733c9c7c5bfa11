"""What somebody dropped from the schema: its scripts say what there should be.

Functions and views are made again by who opens the store as their owner. A migration that is
listed as applied is not applied again, so of tables and indexes this is all that tells.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from fairlead.core.admin import Finding
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.catalog import ORDER, text_of
from fairlead.stores.postgres.lane import AsyncConnection, Lane, apart
from fairlead.stores.postgres.statements import migrations

_MADE = re.compile(
    r"^CREATE (?:OR REPLACE )?(TABLE|VIEW|SEQUENCE|FUNCTION|TYPE) (\w+)", re.MULTILINE
)
_INDEX = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+)\s+ON (\w+)[^;]*", re.MULTILINE)
_TABLE = re.compile(
    r"^CREATE TABLE (\w+) \((.*?)\)(?: WITH| PARTITION|;)", re.MULTILINE | re.DOTALL
)
_KEY = re.compile(r"(\w+)\s+\w+[^,]* (PRIMARY KEY|UNIQUE)")
_THERE = """
SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s)
UNION ALL
SELECT proname::text FROM pg_proc WHERE pronamespace = to_regnamespace(%(schema)s)
"""


class Part(NamedTuple):
    """Something that there should be: an index has its table, and what makes it again."""

    kind: str
    table: str = ""
    again: str = ""


@cache
def expected() -> dict[str, Part]:
    """Return everything that there should be, by its name."""
    scripts = "\n".join([*(step.sql for step in migrations()), *map(text_of, ORDER)])
    found = {"migration_pkey": _key("migration", "number", "PRIMARY KEY")}
    found["least_level"] = Part("function")  # See sql/apply.sql.
    for made in _MADE.finditer(scripts):
        found[made[2]] = Part(made[1].lower())
    for index in _INDEX.finditer(scripts):
        found[index[1]] = Part("index", index[2], index[0])
    for table, columns in _TABLE.findall(scripts):
        for column, kind in _KEY.findall(columns):
            name = f"{table}_pkey" if kind == "PRIMARY KEY" else f"{table}_{column}_key"
            found[name] = _key(table, column, kind)
    return found


def _key(table: str, column: str, kind: str) -> Part:
    return Part("index", table, f"ALTER TABLE {table} ADD {kind} ({column})")


async def find_lacking(lane: Lane, address: Address) -> list[Finding]:
    """Return what is missing, with what to do about it."""

    async def asked(connection: AsyncConnection) -> set[str]:
        async with apart(connection):
            rows = await connection.execute(_THERE, {"schema": address.quoted_schema})
            return {name for (name,) in await rows.fetchall()}

    return list(_lacking(await lane.run(asked), address))


def _lacking(there: set[str], address: Address) -> Iterator[Finding]:
    for name, part in expected().items():
        if name not in there and (part.table in there or not part.table):
            problem = f"{part.kind} {name} of schema {address.schema} is missing"
            yield Finding(problem, _remedy(part, address))


def _remedy(part: Part, address: Address) -> str:
    if part.again:
        return f"let the owner run SET search_path = {address.quoted_schema}; {part.again}"
    if part.kind in ("function", "view"):
        return "let the owner run `fairlead migrate up`, which makes it again"
    return (
        "let the owner make it again, as `fairlead migrate sql` prints it, or restore "
        "a backup; `fairlead migrate up` does not, because its step is listed as applied"
    )
