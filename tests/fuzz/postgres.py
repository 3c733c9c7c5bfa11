"""The PostgreSQL store as its owner can damage it: every column of every table, and what is beside.

Columns of numbers and of texts get the whole catalogue; the server refuses what its types cannot
hold. The rest are shapes that no single column has: rows in two places, rows that are missing.
"""

from collections.abc import Collection, Sequence
from random import Random

import psycopg
from psycopg import sql

from fairlead.core.ids import JobId
from fairlead.stores.postgres.address import Address
from tests.fuzz.victim import DEEP, GREATEST, LEAST, NUMBERS, TEXTS, Damage, Victim

_NUMBERS: dict[str, tuple[str, ...]] = {
    "job": (
        *("version", "parked", "run_at", "order_at", "expires_at", "enqueued_at", "attempt"),
        *("crashes", "shared_deaths", "fence", "lease_until", "claimed_at", "level", "attached"),
    ),
    "finished": (
        *("version", "run_at", "order_at", "expires_at", "enqueued_at", "attempt", "crashes"),
        *("fence", "claimed_at", "finished_at", "level", "attached"),
    ),
    "entry": ("version", "due_at", "expires_at"),
    "dead": (
        *("version", "run_at", "order_at", "expires_at", "enqueued_at", "attempt", "crashes"),
        *("fence", "claimed_at", "finished_at", "level", "attached"),
    ),
    "attempt": (
        *("seq", "fence", "attempt", "ready_at", "claimed_at", "started_at", "finished_at"),
    ),
    "queue": ("mark", "next_look"),
    "worker": ("processes", "started_at", "live_until", "level"),
    "audit": ("seq", "done_at", "count"),
    "day": ("first",),
    "retention": ("before", "keep"),
    "migration": ("applied_at", "serves"),
    "verbs": ("revision", "applied_at"),
}
_TEXTS: dict[str, tuple[str, ...]] = {
    "job": ("id", "queue", "task", "payload", "options", "worker", "cancel", "put_by", "park_key"),
    "finished": (
        "id",
        "queue",
        "task",
        "state",
        "payload",
        "options",
        "worker",
        "reason",
        "result",
        "put_by",
    ),
    "entry": ("kind", "owner", "key", "value"),
    "dead": ("id", "queue", "task", "payload", "options", "worker", "reason", "put_by"),
    "attempt": ("job_id", "task", "queue", "pool", "worker", "outcome", "fingerprint"),
    "queue": ("name",),
    "worker": ("id", "pools"),
    "paused": ("queue",),
    "audit": ("id", "who", "verb", "target", "job_id", "before", "by_user", "answers"),
    "verbs": ("functions", "views"),
}
_OF_A_JOB = {"job": "id", "finished": "id", "dead": "id", "attempt": "job_id"}
_LISTS: dict[str, object] = {
    "empty": [],
    "nothing": None,
    "no json": ['{"a":'],
    "other json": ['{"a":{"b":[1,null,"x"]}}'],
    "deep": [DEEP],
    "deeper": ["[" * 100_000 + "]" * 100_000],
    "hole": [None, "{}"],
    "lists": [["{}", "{}"], ["{}", "{}"]],
}
_FLAGS: dict[str, object] = {"true": True, "false": False, "nothing": None}
_TASKS: dict[str, object] = {
    "list": "[1, 2]",
    "text": '"t"',
    "number": "7",
    "null": "null",
    "texts in it": '{"t": "one", "u": "1"}',
    "fractions in it": '{"t": 1.5, "u": 1e400}',
    "far too much": f'{{"t": {GREATEST}}}',
    "below": f'{{"t": {LEAST}}}',
    "deep": f'{{"t": {DEEP}}}',
    "nothing": None,
}

_OTHERS = {
    **dict.fromkeys(("job.errors", "finished.errors", "dead.errors"), _LISTS),
    **dict.fromkeys(("verbs.made", "verbs.left_over"), _LISTS),
    "job.lost": _FLAGS,
    "worker.capable": _TASKS,
}

_COPY = (
    "id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options, "
    "attempt, crashes, fence, worker, claimed_at, errors"
)
_SHAPES: dict[Damage, str] = {
    Damage("job", "a dead letter too"): (
        f"INSERT INTO dead ({_COPY}, finished_at, reason) "
        f"SELECT {_COPY}, enqueued_at, 'poison' FROM job WHERE id = %(id)s"
    ),
    Damage("job", "finished too"): (
        f"INSERT INTO finished ({_COPY}, finished_at, state) "
        f"SELECT {_COPY}, (SELECT max(first) FROM day), 'done' FROM job WHERE id = %(id)s"
    ),
    Damage("dead", "live too"): (
        f"INSERT INTO job ({_COPY}) SELECT {_COPY} FROM dead WHERE id = %(id)s"
    ),
    Damage("dead", "finished too"): (
        f"INSERT INTO finished ({_COPY}, finished_at, state) "
        f"SELECT {_COPY}, (SELECT max(first) FROM day), 'done' FROM dead WHERE id = %(id)s"
    ),
    Damage("finished", "live too"): (
        f"INSERT INTO job ({_COPY}) SELECT {_COPY} FROM finished WHERE id = %(id)s LIMIT 1"
    ),
    Damage("finished", "twice"): (
        "INSERT INTO finished SELECT * FROM finished WHERE id = %(id)s LIMIT 1"
    ),
    Damage("attempt", "twice"): (
        "INSERT INTO attempt SELECT * FROM attempt WHERE job_id = %(id)s LIMIT 1"
    ),
    Damage("job", "a lease without a beginning"): (
        "UPDATE job SET lease_until = 1, claimed_at = NULL WHERE id = %(id)s"
    ),
    Damage("job", "a lease without a worker"): (
        "UPDATE job SET lease_until = 1, worker = NULL WHERE id = %(id)s"
    ),
    Damage("job", "a worker without a lease"): (
        "UPDATE job SET lease_until = 0, worker = 'w', claimed_at = 1 WHERE id = %(id)s"
    ),
    Damage("job", "parked by a newer program"): (
        "UPDATE job SET parked = 9, park_key = 'k' WHERE id = %(id)s"
    ),
    Damage("job", "parked by nobody"): (
        "UPDATE job SET parked = -9, park_key = 'k' WHERE id = %(id)s"
    ),
    Damage("job", "gone"): "DELETE FROM job WHERE id = %(id)s",
    Damage("queue", "gone"): "DELETE FROM queue",
    Damage("day", "gone"): "DELETE FROM day",
    Damage("day", "too many"): (
        "INSERT INTO day SELECT max(first) + 172800000000 * n FROM day, generate_series(1, 3) AS n"
    ),
    Damage("retention", "gone"): "DELETE FROM retention",
    Damage("retention", "twice"): "INSERT INTO retention SELECT * FROM retention",
    Damage("worker", "gone"): "DELETE FROM worker",
    Damage("attempt_seq", "at its end"): (
        f"SELECT setval('attempt_seq', {GREATEST}) FROM (SELECT %(id)s) AS each"
    ),
    Damage("migration.number", "below"): (
        "UPDATE migration SET number = -number WHERE number = (SELECT max(number) FROM migration)"
    ),
    Damage("migration", "gone"): "DELETE FROM migration",
    Damage("verbs", "gone"): "DELETE FROM verbs",
}


def damaged_columns() -> set[str]:
    """Return the columns that are damaged one by one, each as table.column."""
    plain = {
        f"{table}.{name}"
        for columns in (_NUMBERS, _TEXTS)
        for table, names in columns.items()
        for name in names
    }
    return {*plain, *_OTHERS, *(each.field for each in _SHAPES if "." in each.field)}


class PostgresVictim(Victim):
    """A schema of a PostgreSQL database, by its owner's URL."""

    never_sound = {
        *("greatest", "least", "below", "deeper", "hole", "lists", "twice", "live too"),
        *("finished too", "a dead letter too", "parked by nobody", "a worker without a lease"),
        *("a lease without a worker", "a lease without a beginning"),
    }
    anything_goes = ("attempt.seq", "verbs.made", "verbs.left_over", "migration.serves")

    def __init__(self, url: str) -> None:
        self._address = Address.of(url)
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None
        self._values: dict[Damage, object] = {}
        for columns, values in ((_NUMBERS, NUMBERS), (_TEXTS, TEXTS)):
            for table, names in columns.items():
                for name in names:
                    self._add(f"{table}.{name}", values)
        for field, kinds in _OTHERS.items():
            self._add(field, kinds)
        # Numbers that are sound by themselves, but not for parked jobs.
        self._add("job.parked", {str(number): number for number in (1, 2, 3, 4, 32_767)})

    def _add(self, field: str, values: dict[str, object]) -> None:
        self._values |= {Damage(field, kind): value for kind, value in values.items()}

    @property
    def damages(self) -> Sequence[Damage]:
        """Every column with every kind, and the shapes."""
        return [*self._values, *_SHAPES]

    def may_remove(self, damages: Collection[Damage]) -> bool:
        """Say whether a job may be gone: also if its row was deleted, which leaves no trace."""
        return Damage("job", "gone") in damages or super().may_remove(damages)

    def inflict(self, damage: Damage, job_id: JobId, random: Random) -> str | None:
        """Damage the row of a job, or all rows of a table that knows no jobs."""
        try:
            if damage in _SHAPES:
                touched = self._opened().execute(_SHAPES[damage], {"id": job_id}).rowcount
            else:
                touched = self._write(damage, job_id)
        except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, OverflowError):
            return None  # The server, or its driver, cannot hold that.
        except psycopg.errors.ProgramLimitExceeded:
            return None  # Too long for an index.
        return f"{damage.field}: {damage.kind}, {touched} rows of {job_id}" if touched else None

    def _opened(self) -> psycopg.Connection[tuple[object, ...]]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(**self._address.parameters, autocommit=True)
            self._connection.execute(
                sql.SQL("SET search_path = {}").format(sql.Identifier(self._address.schema))
            )
        return self._connection

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()

    def _write(self, damage: Damage, job_id: JobId) -> int:
        table, _, column = damage.field.partition(".")
        lists = dict.fromkeys(("errors", "made", "left_over"), "text[]")
        cast = (lists | {"capable": "jsonb"}).get(column)
        value = sql.SQL("%(value)s::" + cast) if cast else sql.SQL("%(value)s")
        statement = sql.SQL("UPDATE {} SET {} = {}").format(
            sql.Identifier(table), sql.Identifier(column), value
        )
        if table in _OF_A_JOB:
            statement += sql.SQL(" WHERE {} = %(id)s").format(sql.Identifier(_OF_A_JOB[table]))
        else:  # One row, for names are unique.
            statement += sql.SQL(
                " WHERE ctid = (SELECT ctid FROM {} ORDER BY ctid LIMIT 1)"
            ).format(sql.Identifier(table))
        value_ = self._values[damage]
        if column in _TEXTS.get(table, ()) and isinstance(value_, int):
            value_ = str(value_)
        return self._opened().execute(statement, {"value": value_, "id": job_id}).rowcount
