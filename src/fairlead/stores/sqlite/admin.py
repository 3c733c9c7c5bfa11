"""What people ask of the file: each question on a connection for reading."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from fairlead.core.acts import Action, AuditLine, Deed, Delete
from fairlead.core.admin import (
    ALL,
    Admin,
    Condition,
    ErrorGroup,
    Filter,
    Finding,
    Migration,
    Part,
    Stats,
    Worker,
)
from fairlead.core.ids import JobId
from fairlead.core.job import LATEST, Attempt, JobRecord, State
from fairlead.core.page import Page
from fairlead.core.selection import ClaimPlan, Head, Line, Snapshot
from fairlead.stores.records import (
    AttemptRow,
    attempt_of,
    counts_of,
    group_of,
    line_of,
    record_of,
    running_of,
    text_of,
    waiting_of,
    worker_of,
)
from fairlead.stores.repeat import acted
from fairlead.stores.sqlite.acts import SqliteActs
from fairlead.stores.sqlite.audit import all_damages, audit
from fairlead.stores.sqlite.condition import condition
from fairlead.stores.sqlite.connection import Place
from fairlead.stores.sqlite.limits import gate_of, in_use, parked_full
from fairlead.stores.sqlite.line import SqliteLine
from fairlead.stores.sqlite.listing import asked_of, page, rows_of
from fairlead.stores.sqlite.migrate import applied
from fairlead.stores.sqlite.sound import AT_ONCE
from fairlead.stores.sqlite.statements import statements
from fairlead.stores.sqlite.talk import UNREADABLE, ask, raise_unless_damage, to_json
from fairlead.stores.sqlite.ways import Parked, kind_of

P = ParamSpec("P")
T = TypeVar("T")
Write = Callable[[Any, Sequence[Any]], Awaitable[Sequence[Any]]]

_decode_attempts = msgspec.json.Decoder(list[AttemptRow]).decode


class Read(Protocol):
    """How a question reaches a connection for reading."""

    async def __call__(self, question: Callable[[sqlite3.Connection], T], /) -> T:
        """Ask it."""


def _question(
    ask: Callable[Concatenate["SqliteAdmin", sqlite3.Connection, P], T],
) -> Callable[Concatenate["SqliteAdmin", P], Coroutine[Any, Any, T]]:
    """Make a verb of a question that is asked on a connection."""

    @wraps(ask)
    async def verb(self: "SqliteAdmin", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.read(lambda connection: ask(self, connection, *args, **kwargs))

    return verb


class SqliteAdmin(Admin):
    """Looks at the file, and acts on it through the writer."""

    def __init__(
        self, place: Place, line: SqliteLine, acts: SqliteActs, read: Read, write: Write
    ) -> None:
        self._place = place
        self._line = line
        self._acts = acts
        self.read = read
        self._write = write

    # Looking

    @_question
    def find(self, connection: sqlite3.Connection, job_id: JobId) -> JobRecord | None:
        """Return a job in whatever state."""
        found = rows_of(connection.execute(statements()["find"], {"id": job_id}))
        return record_of(found[0], gate_of(found[0]["parked"])) if found else None

    @_question
    def page(
        self,
        connection: sqlite3.Connection,
        which: Filter = ALL,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Return the next jobs that the filter means."""
        return page(connection, which, limit, cursor, self._line.moment().now)

    @_question
    def count(
        self, connection: sqlite3.Connection, which: Filter = ALL
    ) -> dict[str, dict[State, int]]:
        """Count jobs by queue and state."""
        return counts_of(connection.execute(_statement("count", which), asked_of(which)).fetchall())

    @_question
    def groups(self, connection: sqlite3.Connection, which: Filter) -> list[ErrorGroup]:
        """Return failures by fingerprint."""
        rows = connection.execute(_statement("groups", which), asked_of(which)).fetchall()
        return [group_of(row) for row in rows]

    @_question
    def attempts(self, connection: sqlite3.Connection, job_id: JobId) -> list[Attempt]:
        """Return the job's lines of the attempt log."""
        return _attempts(connection, "attempts", id=job_id)

    @_question
    def recent(
        self,
        connection: sqlite3.Connection,
        since: int,
        limit: int = 10_000,
        queue: str | None = None,
    ) -> list[Attempt]:
        """Return the last lines of the attempt log."""
        return _attempts(connection, "recent", since=since, limit=limit, queue=queue)

    @_question
    def stats(self, connection: sqlite3.Connection, parts: Collection[Part] = tuple(Part)) -> Stats:
        """Return how the queues are, in the parts that are asked for."""
        now = {"now": self._line.moment().now}
        told: dict[str, Any] = {}
        if Part.WAITING in parts:
            rows = connection.execute(statements()["waiting_counts"], now).fetchall()
            told["waiting"] = waiting_of(rows)
        if Part.RUNNING in parts:
            told["running"] = running_of(
                connection.execute(statements()["running"], now).fetchall()
            )
        if Part.UNKNOWN in parts:
            told["unknown"] = _unknown(connection)
        if Part.PAUSED in parts:
            told["paused"] = frozenset(_paused(connection))
        return Stats(**told)

    @_question
    def snapshot(self, connection: sqlite3.Connection, plan: ClaimPlan, limit: int) -> Snapshot:
        """Return what a claim with this plan would look at, by one state of the file."""
        now = self._line.moment().now
        connection.execute("BEGIN")
        try:
            stopped, used = _paused(connection), in_use(connection)
            capable = None if plan.capable is None else to_json(dict(plan.capable))
            shared = {"limit": limit, "now": now, "capable": capable}
            shared["limited"] = to_json(parked_full(used))
            lines = {
                q.name: Line(q, _standing(connection, q.name, shared), q.name in stopped)
                for q in plan.queues
            }
        finally:
            connection.execute("ROLLBACK")
        return Snapshot(plan, now, lines, used=used)

    @_question
    def ahead(self, connection: sqlite3.Connection, job_id: JobId) -> int:
        """Count the due jobs before this one in its queue."""
        return int(ask(connection, "ahead", id=job_id, now=self._line.moment().now))

    @_question
    def workers(self, connection: sqlite3.Connection) -> list[Worker]:
        """Return the workers that are announced and live."""
        live = {"now": self._line.moment().now, "latest": LATEST}
        return [worker_of(row) for row in connection.execute(statements()["workers"], live)]

    @_question
    def audit_log(
        self, connection: sqlite3.Connection, limit: int = 100, job_id: JobId | None = None
    ) -> list[AuditLine]:
        """Return the audit log, newest first."""
        statement = statements()["audit_log" if job_id is None else "audit_log_of"]
        rows = connection.execute(statement, {"limit": limit, "job_id": job_id}).fetchall()
        return [line_of(row) for row in rows]

    # Acting

    async def act(self, deed: Deed, by: Action) -> list[str]:
        """Do what a person wants done; again, if there is no answer."""
        if isinstance(deed, Delete):
            while await self._surely(self._acts.lose_entries, (deed, by), by):
                pass
        touched: list[str] = await self._surely(self._acts.act, (deed, by), by)
        return touched

    async def _surely(self, verb: Any, item: object, by: Action) -> Any:  # noqa: ANN401
        return (await acted(lambda: self._write(verb, [item]), by, self._place.patience))[0]

    # The store itself

    @_question
    def audit(self, connection: sqlite3.Connection) -> list[Finding]:
        """Check that every job is in exactly one place and every mark agrees."""
        return audit(connection, by=self._line.moment())

    async def repair(self, by: Action) -> list[str]:
        """Put right what the audit finds, some at a time.

        What was put right may lay bare what else is wrong, so all is looked at again until
        nothing is left but what SQLite refused to have changed.
        """
        mended: list[str] = []
        refused: dict[tuple[str, object], str] = {}
        look = partial(all_damages, by=self._line.moment())
        while True:
            found = await self.read(look)
            open_ = [damage for damage in found if damage.place not in refused]
            before = len(mended)
            for at in range(0, len(open_), AT_ONCE):
                told = await self._surely(self._acts.repair, (by, open_[at : at + AT_ONCE]), by)
                mended += told.mended
                refused |= told.refused
            if len(mended) == before:
                return [*mended, *refused.values()]

    @_question
    def condition(self, connection: sqlite3.Connection) -> Condition:
        """Return facts about the file, and what is wrong with its set-up."""
        return condition(connection, self._place)

    async def migrations(self) -> list[Migration]:
        """Return the steps of the schema and whether each was applied."""
        return await asyncio.to_thread(applied, self._place, self._line.level)


def _statement(name: str, which: Filter) -> str:
    """Return the statement that finds what a filter means at the least cost."""
    return statements()[name if which.since is None else f"{name}_since"]


def _attempts(connection: sqlite3.Connection, statement: str, **values: object) -> list[Attempt]:
    """Read lines of the attempt log all at once; one by one, if somebody damaged one of them."""
    try:
        return [row.line for row in _decode_attempts(ask(connection, statement, **values))]
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    rows = connection.execute(statements()[f"{statement}_rows"], values).fetchall()
    return [attempt_of(row) for row in rows]


def _standing(
    connection: sqlite3.Connection, queue: str, shared: Mapping[str, object]
) -> list[Head]:
    values = {"queue": queue, **shared}
    heads: list[Head] = []
    for row in connection.execute(statements()["standing"], values).fetchall():
        with suppress(msgspec.ValidationError):  # Somebody damaged it; a claim moves it out.
            heads.append(msgspec.convert((*row[:6], bool(row[6]), *row[7:]), Head))
    return heads


def _unknown(connection: sqlite3.Connection) -> dict[tuple[str, int], int]:
    """Count the jobs that are parked for want of a capable worker, by task and version."""
    parked = {"parked": Parked.NO_CAPABLE_WORKER}
    rows = connection.execute(statements()["park_counts"], parked).fetchall()
    counts: Counter[tuple[str, int]] = Counter()
    for key, number in rows:
        counts[kind_of(text_of(key))] += number
    return dict(counts)


def _paused(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the paused queues."""
    return {text_of(queue) for (queue,) in connection.execute(statements()["paused"]).fetchall()}
