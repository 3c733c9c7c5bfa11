"""Pages of jobs: each list in an order that an index keeps, from a key on.

What is read of a job that is only looked at is its numbers; payloads are read of those that the
page tells of.
"""

import sqlite3
from functools import partial
from typing import Any

from fairlead.core.admin import Filter
from fairlead.core.job import JobRecord
from fairlead.core.page import Page
from fairlead.stores.listing import Answer, Asked, Orders, held, paged
from fairlead.stores.records import places_of, record_of
from fairlead.stores.sql_lists import (
    SQL_APART,
    SQL_IDS,
    SQL_RUNNING,
    Ends,
    answered,
    looked_at,
    statement_of,
    table_of,
    values_of,
)
from fairlead.stores.sqlite.limits import gate_of
from fairlead.stores.sqlite.statements import statements
from fairlead.stores.sqlite.talk import to_json

_ORDERS = Orders("sqlite", SQL_RUNNING, SQL_IDS, SQL_APART)
_LAST = b"\xff" * 64
"""Bytes come after numbers and texts, whatever somebody wrote in their place."""
_ENDS = Ends(_LAST, _LAST)


def page(
    connection: sqlite3.Connection, which: Filter, limit: int, cursor: str | None, now: int
) -> Page:
    """Return a page, as one state of the file has it."""
    walk = paged(_ORDERS, which, limit, cursor, now)
    connection.execute("BEGIN")
    try:
        return held(walk, partial(_answer, connection))
    finally:
        connection.execute("ROLLBACK")


def asked_of(which: Filter) -> dict[str, Any]:
    """Return a filter as the statements take it; a list that asks nothing is NULL."""
    return places_of(which) | {
        "queues": to_json(which.queues) if which.queues else None,
        "tasks": to_json(which.tasks) if which.tasks else None,
        "states": to_json(which.states) if which.states else None,
        "tags": to_json(which.tags) if which.tags else None,
        "since": which.since,
        "error": which.error,
        "waits": to_json(which.waits) if which.waits else None,
        "at": which.at,
        "begins": which.begins,
    }


def rows_of(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    """Return rows by the names of their columns."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _answer(connection: sqlite3.Connection, asked: Asked) -> Answer:
    values = asked_of(asked.which) | values_of(asked, _ENDS)
    rows = connection.execute(statements()[statement_of(asked)], values).fetchall()
    found, ends = looked_at(asked, rows)
    meant = [row.row_id for row in found if row.is_meant]
    jobs = _records(connection, table_of(asked), meant) if meant else {}
    return answered(found, jobs, ends=ends)


def _records(connection: sqlite3.Connection, table: str, rows: list[int]) -> dict[int, JobRecord]:
    cursor = connection.execute(statements()[f"listed_{table}"], {"rows": to_json(rows)})
    return {row["seq"]: record_of(row, gate_of(row["parked"])) for row in rows_of(cursor)}
