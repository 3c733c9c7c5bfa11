"""Every column of every table of the SQLite store, and how each can be damaged (F75).

SQLite has no strict types, so nearly everything can be written by plain SQL. A NULL where there may
be none needs more: the owner of a file may edit its schema, write, and put the schema back.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from random import Random

from fairlead.core.ids import JobId
from tests.fuzz.victim import NUMBERS, TEXTS, Damage, Victim

# Columns that hold numbers; all others hold texts.
NUMERIC = {
    *(
        "seq",
        "version",
        "level",
        "attached",
        "parked",
        "run_at",
        "order_at",
        "expires_at",
        "enqueued_at",
        "attempt",
    ),
    *("crashes", "fence", "lease_until", "claimed_at", "size", "shared_deaths", "finished_at"),
    *(
        "ready_at",
        "started_at",
        "live_until",
        "processes",
        "done_at",
        "count",
        "applied_at",
        "serves",
        "due_at",
    ),
}
TABLES = {
    "job": (
        *("seq", "id", "queue", "task", "version", "level", "attached", "parked", "park_key"),
        *("run_at", "order_at", "expires_at", "enqueued_at", "attempt", "crashes"),
        *("shared_deaths", "fence", "lease_until", "worker", "claimed_at", "cancel", "size"),
        *("options", "payload", "errors", "more"),
    ),
    "finished": (
        *(
            "seq",
            "id",
            "queue",
            "task",
            "version",
            "level",
            "attached",
            "state",
            "run_at",
            "order_at",
            "expires_at",
        ),
        *("enqueued_at", "payload", "options", "attempt", "crashes", "fence", "worker"),
        *("claimed_at", "errors", "finished_at", "reason", "result", "more"),
    ),
    "dead": (
        *(
            "seq",
            "id",
            "queue",
            "task",
            "version",
            "level",
            "attached",
            "run_at",
            "order_at",
            "expires_at",
        ),
        *("enqueued_at", "payload", "options", "attempt", "crashes", "fence", "worker"),
        *("claimed_at", "errors", "finished_at", "reason", "more"),
    ),
    "entry": ("seq", "kind", "owner", "key", "version", "due_at", "expires_at", "value"),
    "attempt": (
        *("seq", "job_id", "fence", "attempt", "task", "queue", "pool", "worker", "ready_at"),
        *("claimed_at", "started_at", "finished_at", "outcome", "fingerprint"),
    ),
    "worker": ("id", "capable", "pools", "processes", "started_at", "live_until", "level"),
    "paused": ("queue",),
    "audit": (
        "seq",
        "id",
        "done_at",
        "who",
        "verb",
        "target",
        "count",
        "job_id",
        "before",
        "answers",
    ),
    "migration": ("version", "applied_at", "serves"),
}
NEVER_SOUND = {
    *("greatest", "fraction", "infinite", "text", "digits", "bytes", "not utf-8"),
    *("live and finished", "live and dead", "by nobody"),
}
IDS = {
    "too long": "x" * 37,
    "not ascii": "jöb",
    "short": "j",
}
# JSON of the right shape, with numbers and names that nobody of ours writes.
SHAPED = {
    "job.options": {
        "no time": '{"timeout":-1e308,"attempts":-1}',
        "no names": '{"tags":["","\\u0000"],"headers":{"":"\\u001b"},"correlation_id":""}',
    },
    "worker.capable": {
        "versions out of range": '{"good":-1,"bad":99999999999999999999,"":0}',
    },
    "worker.pools": {
        "no weight": '[{"name":"","slots":-1,"queues":[{"name":"mail","weight":0}]}]',
        "too many slots": '[{"name":"p","slots":9223372036854775807,'
        '"queues":[{"name":"mail","weight":-5,"reserved":9223372036854775807}]}]',
    },
}
# By which column a job's own rows are found; of tables without one, any row will do.
BY_JOB = {"job": "id", "finished": "id", "dead": "id", "attempt": "job_id"}
# Which rows of a table are damaged; what is healthy must stay so.
VICTIMS = {"entry": "key IS NOT 'healthy'"}
NOT_UTF8 = "not utf-8"
TWICE = {
    "live and finished": "finished",
    "live and dead": "dead",
}
# A number and a key; whoever knows the number finds the job by the key.
PARKED = {"by a newer program": 9, "by nobody": -9}


class SqliteVictim(Victim):
    """A file, as whoever may write it sees it."""

    never_sound = NEVER_SOUND

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix("sqlite:///").partition("?")[0]

    @property
    def damages(self) -> Sequence[Damage]:
        """Every column with every value; jobs that are there twice; and parked ones."""
        twice = (Damage("job.twice", kind) for kind in TWICE)
        return [*self._columns(), *twice, *(Damage("job.gate", kind) for kind in PARKED)]

    def _columns(self) -> Iterator[Damage]:
        for table, columns in TABLES.items():
            for column in columns:
                field = f"{table}.{column}"
                kinds = NUMBERS if column in NUMERIC else TEXTS
                yield from (Damage(field, kind) for kind in kinds)
                if column not in NUMERIC:
                    yield Damage(field, NOT_UTF8)
                if column in ("id", "job_id"):
                    yield from (Damage(field, kind) for kind in IDS)
                yield from (Damage(field, kind) for kind in SHAPED.get(field, ()))

    def inflict(self, damage: Damage, job_id: JobId, random: Random) -> str | None:
        """Write it into the file, past the store."""
        table, _, column = damage.field.partition(".")
        with closing(sqlite3.connect(self._path, timeout=30)) as raw:
            try:
                if column == "twice":
                    changed = _twice(raw, TWICE[damage.kind], job_id)
                elif column == "gate":
                    park = "UPDATE fairlead_job SET parked = ?, park_key = 'k' WHERE id = ?"
                    changed = _done(raw, park, [PARKED[damage.kind], job_id])
                else:
                    changed = _write(raw, table, column, damage.kind, job_id, random)
            except sqlite3.IntegrityError:
                return None  # The engine holds no such value.
        return f"{damage.field} of job {job_id}: {damage.kind}" if changed else None


def _write(
    raw: sqlite3.Connection, table: str, column: str, kind: str, job_id: JobId, random: Random
) -> int:
    name = f"fairlead_{table}"
    value = _value(table, column, kind)
    which: object
    what = "CAST(? AS TEXT)" if kind == NOT_UTF8 else "?"
    where, which = f"{BY_JOB.get(table)} = ?", job_id
    if table not in BY_JOB:
        key = TABLES[table][0]
        rows = f"FROM {name} WHERE {VICTIMS.get(table, 'TRUE')}"
        where = f"{key} IS (SELECT {key} {rows} ORDER BY 1 LIMIT 1 OFFSET ?)"
        which = random.randrange(raw.execute(f"SELECT count(*) {rows}").fetchone()[0] or 1)
    statement = f"UPDATE {name} SET {column} = {what} WHERE {where}"
    if value is None:
        with _without_not_null(raw, name):
            return _done(raw, statement, [value, which])
    return _done(raw, statement, [value, which])


def _value(table: str, column: str, kind: str) -> object:
    shaped = SHAPED.get(f"{table}.{column}", {})
    if kind in shaped:
        return shaped[kind]
    if kind == NOT_UTF8:
        return b"ab\xff\xfe\x80"
    if column in NUMERIC:
        return NUMBERS[kind]
    return IDS[kind] if kind in IDS else TEXTS[kind]


def _done(raw: sqlite3.Connection, statement: str, values: Sequence[object]) -> int:
    with raw:
        return raw.execute(statement, values).rowcount


@contextmanager
def _without_not_null(raw: sqlite3.Connection, name: str) -> Iterator[None]:
    """Let a table hold NULL anywhere, for a moment."""
    [before] = raw.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
    if "WITHOUT ROWID" not in before:
        _rewrite(raw, name, before.replace("NOT NULL", ""))
    try:
        yield
    finally:
        if "WITHOUT ROWID" not in before:
            _rewrite(raw, name, before)


def _rewrite(raw: sqlite3.Connection, name: str, sql: str) -> None:
    [version] = raw.execute("PRAGMA schema_version").fetchone()
    raw.execute("PRAGMA writable_schema = ON")
    with raw:
        raw.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, name))
        raw.execute(f"PRAGMA schema_version = {version + 1}")
    raw.execute("PRAGMA writable_schema = RESET")


def _twice(raw: sqlite3.Connection, place: str, job_id: JobId) -> int:
    """Copy a live job to where jobs are that have ended."""
    more = {"state": "'done'", "finished_at": "enqueued_at", "reason": "'odd'", "result": "NULL"}
    columns = [name for name in TABLES[place] if name != "seq"]
    values = ", ".join(more.get(name, name) for name in columns)
    return _done(
        raw,
        f"INSERT INTO fairlead_{place} ({', '.join(columns)}) "
        f"SELECT {values} FROM fairlead_job WHERE id = ?",
        [job_id],
    )
