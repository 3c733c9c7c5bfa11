"""Pages of jobs: each list in an order that an index keeps, from a key on.

What travels of a job that is only looked at is its key; payloads are read of those that the page
tells of.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace
from psycopg.rows import dict_row

from fairlead.core.admin import Filter
from fairlead.core.job import JobRecord
from fairlead.core.page import Page
from fairlead.core.selection import parked_for
from fairlead.stores.listing import Answer, Asked, Order, Orders, held_async, paged
from fairlead.stores.postgres.lane import AsyncConnection
from fairlead.stores.records import places_of, record_of
from fairlead.stores.sql_lists import (
    SQL_APART,
    SQL_IDS,
    SQL_RUNNING,
    Ends,
    Row,
    answered,
    looked_at,
    statement_of,
    table_of,
    values_of,
)

_ORDERS = Orders("postgresql", SQL_RUNNING, SQL_IDS, SQL_APART)
_ENDS = Ends("\U0010ffff", 2**63 - 1)


async def page(
    connection: AsyncConnection,
    sql: dict[str, str],
    which: Filter,
    limit: int,
    cursor: str | None,
    at: int | None,
) -> Page:
    """Return a page, inside a transaction of its own."""
    [(now,)] = await (await connection.execute(sql["now"], {"at": at})).fetchall()
    walk = paged(_ORDERS, which, limit, cursor, now)
    await connection.execute(sql["by_index"])
    return await held_async(walk, _Answers(connection, sql).answer)


class _Answers(NamedTuple):
    connection: AsyncConnection
    sql: dict[str, str]

    async def answer(self, asked: Asked) -> Answer:
        """Return what comes next in an order."""
        if asked.order is Order.DONE:
            await self.connection.execute(self.sql["by_moment"], ["on"])
        told = self.connection.cursor(binary=True)
        values = asked_of(asked.which) | values_of(asked, _ENDS)
        await told.execute(self.sql[statement_of(asked)], values)
        if asked.order is Order.DONE:
            await self.connection.execute(self.sql["by_moment"], ["off"])
        found, ends = looked_at(asked, await told.fetchall())
        meant = [row for row in found if row.is_meant]
        return answered(found, await self._records(asked, meant) if meant else {}, ends=ends)

    async def _records(self, asked: Asked, rows: Sequence[Row]) -> dict[str, JobRecord]:
        told = self.connection.cursor(binary=True, row_factory=dict_row)
        ids = [row.row_id for row in rows]
        await told.execute(self.sql[f"listed_{table_of(asked)}"], {"ids": ids})
        return {row["id"]: record_from(row) for row in await told.fetchall()}


def record_from(row: dict[str, Any]) -> JobRecord:
    """Return a row of the record views as the job that it tells of."""
    name = row["gate"]
    gate = None if name is None else parked_for(name)
    return replace(record_of(_errors_joined(row), gate), level=row["level"])


def _errors_joined(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its past attempts as the one JSON text that records are read from.

    Somebody may have put lists or nothing among them.
    """
    if row["errors"] is not None:
        row["errors"] = f"[{','.join(each for each in row['errors'] if isinstance(each, str))}]"
    return row


def asked_of(which: Filter) -> dict[str, Any]:
    """Return a filter as the statements take it; a list that asks nothing is NULL."""
    return {
        **places_of(which),
        "queues": list(which.queues) or None,
        "tasks": list(which.tasks) or None,
        "states": list(which.states) or None,
        "tags": list(which.tags) or None,
        "since": which.since,
        "error": which.error,
        "waits": list(which.waits) or None,
        "at": which.at,
        "begins": which.begins,
    }
