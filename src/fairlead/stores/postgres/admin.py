"""What people ask of the server: look, count, cancel, revive, delete, pause."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from msgspec.structs import astuple

from fairlead.core.acts import (
    Action,
    AuditLine,
    Cancel,
    Deed,
    Delete,
    Edit,
    Note,
    Pause,
    Resume,
    Revive,
)
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
from fairlead.core.clock import Clock, SystemClock
from fairlead.core.errors import StoreError
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, Gate, JobRecord, State
from fairlead.core.page import Page
from fairlead.core.selection import (
    LIMITS,
    ClaimPlan,
    Head,
    Line,
    Snapshot,
    full,
    parked_for,
)
from fairlead.stores.news import WORK
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.audit import as_told, audit, repair
from fairlead.stores.postgres.condition import condition
from fairlead.stores.postgres.lacking import find_lacking
from fairlead.stores.postgres.lane import AsyncConnection, Lane
from fairlead.stores.postgres.line import to_json
from fairlead.stores.postgres.listing import asked_of, page, record_from
from fairlead.stores.postgres.migrate import applied
from fairlead.stores.postgres.replies import announced_of, attempt_of, in_use_of, touched_of
from fairlead.stores.postgres.replies import record_of as told_record
from fairlead.stores.postgres.session import Session
from fairlead.stores.postgres.statements import statements
from fairlead.stores.records import (
    AttemptRow,
    counts_of,
    running_of,
    waiting_of,
    worker_of,
)
from fairlead.stores.repeat import acted

Answer = TypeVar("Answer")


class PostgresAdmin(Admin):
    """The questions and changes of people, each on the lane for its kind."""

    def __init__(
        self,
        address: Address,
        clock: Clock | None,
        session: Callable[[], Awaitable[Session]],
        level: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        """Begin; `changed` is called when jobs may have come to stand elsewhere."""
        self._address = address
        self._sql = statements(address.quoted_schema)
        self._clock = clock
        self._session = session
        self._level = level
        self._changed = changed

    async def _people(self) -> Lane:
        return (await self._session()).people

    async def _looks(self) -> Lane:
        return (await self._session()).looks

    def _at(self) -> int | None:
        return self._clock.now() if self._clock else None

    def _doc(self, **doc: object) -> str:
        return to_json({"level": self._level(), **doc})

    @asynccontextmanager
    async def _apart(
        self, connection: AsyncConnection, *, one_state: bool = False
    ) -> AsyncIterator[None]:
        """Begin a transaction as `lane.apart` does, if the schema still serves this program.

        All of it may be by one state of the store.
        """
        async with connection.transaction():
            if one_state:
                await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            await connection.execute(self._sql["apart"], [self._doc()])
            yield

    async def _rows(self, statement: str, **values: object) -> list[Any]:
        async def asked(connection: AsyncConnection) -> list[Any]:
            async with self._apart(connection):
                cursor = connection.cursor(binary=True)
                await cursor.execute(self._sql[statement], values)
                return await cursor.fetchall()

        return await (await self._people()).run(asked)

    async def _told(self, lane: Lane, verb: str, **doc: object) -> list[str]:
        return [text for (text,) in await lane.ask(self._sql[verb], self._doc(**doc))]

    # Looking

    async def find(self, job_id: JobId) -> JobRecord | None:
        """Return a job in whatever state."""
        told = await self._told(await self._looks(), "find", id=job_id)
        return record_from(told_record(told[0])) if told else None

    async def page(self, which: Filter = ALL, limit: int = 100, cursor: str | None = None) -> Page:
        """Return the next jobs that the filter means."""

        async def asked(connection: AsyncConnection) -> Page:
            async with self._apart(connection):
                return await page(connection, self._sql, which, limit, cursor, self._at())

        return await (await self._people()).run(asked)

    async def count(self, which: Filter = ALL) -> dict[str, dict[State, int]]:
        """Count jobs by queue and state."""
        return counts_of(await self._rows(_on("count", which), **asked_of(which)))

    async def groups(self, which: Filter) -> list[ErrorGroup]:
        """Return failures by fingerprint."""
        rows = await self._rows(_on("groups", which), **asked_of(which))
        return [
            ErrorGroup(mark, error, message, tuple(sorted(tasks)), *rest)
            for mark, error, message, tasks, *rest in rows
        ]

    async def attempts(self, job_id: JobId) -> list[Attempt]:
        """Return the job's lines of the attempt log."""
        told = await self._told(await self._looks(), "attempts", id=job_id)
        return [attempt_of(each) for each in told]

    async def recent(
        self, since: int, limit: int = 10_000, queue: str | None = None
    ) -> list[Attempt]:
        """Return the last lines of the attempt log."""
        rows = await self._rows("recent", since=since, limit=limit, queue=queue)
        return [AttemptRow(*row).line for row in rows]

    async def stats(self, parts: Collection[Part] = tuple(Part)) -> Stats:
        """Return how the queues are, in the parts that are asked for."""
        told: dict[str, Any] = {}
        if Part.WAITING in parts:
            told["waiting"] = waiting_of(await self._rows("waiting_counts", at=self._at()))
        if Part.RUNNING in parts:
            told["running"] = running_of(await self._rows("running", at=self._at()))
        if Part.UNKNOWN in parts:
            rows = await self._rows("unknown")
            told["unknown"] = {(task, version): number for task, version, number in rows}
        if Part.PAUSED in parts:
            told["paused"] = frozenset(queue for (queue,) in await self._rows("paused"))
        return Stats(**told)

    async def snapshot(self, plan: ClaimPlan, limit: int) -> Snapshot:
        """Return what a claim with this plan would look at, by one state of the store."""

        async def asked(connection: AsyncConnection) -> Snapshot:
            async with self._apart(connection, one_state=True):
                return await self._snapshot(connection, plan, limit)

        return await (await self._people()).run(asked)

    async def _snapshot(self, connection: AsyncConnection, plan: ClaimPlan, limit: int) -> Snapshot:
        async def rows(statement: str, **values: object) -> list[Any]:
            return await (await connection.execute(self._sql[statement], values)).fetchall()

        [(now,)] = await rows("now", at=self._at())
        stopped = {queue for (queue,) in await rows("paused")}
        used = await self._used(connection)
        capable = None if plan.capable is None else to_json(dict(plan.capable))
        shared = {"limit": limit, "now": now, "capable": capable, "full": to_json(full(used))}
        lines = {}
        for queue in plan.queues:
            heads = [Head(*row) for row in await rows("standing", queue=queue.name, **shared)]
            lines[queue.name] = Line(queue, heads, queue.name in stopped)
        return Snapshot(plan, now, lines, used=used)

    async def _used(self, connection: AsyncConnection) -> dict[Gate, Counter[str]]:
        """Return how much of each limit is in use, of those that this program knows."""
        used: dict[Gate, Counter[str]] = {gate: Counter() for gate in LIMITS}
        told = await (await connection.execute(self._sql["used"], [self._doc()])).fetchall()
        for each in (in_use_of(text) for (text,) in told):
            gate = parked_for(each.limit)
            if gate in used:
                used[gate][each.key] = each.number
        return used

    async def ahead(self, job_id: JobId) -> int:
        """Count the due jobs before this one in its queue."""
        [(number,)] = await self._rows("ahead", id=job_id, at=self._at())
        return int(number)

    async def workers(self) -> list[Worker]:
        """Return the workers that are announced and live."""
        told = await self._told(await self._looks(), "workers", at=self._at())
        return [worker_of(astuple(announced_of(each))) for each in told]

    async def audit_log(self, limit: int = 100, job_id: JobId | None = None) -> list[AuditLine]:
        """Return the audit log, newest first."""
        rows = await self._rows("audit_log", limit=limit, job_id=job_id)
        return [AuditLine(*row) for row in rows]

    # Acting

    async def act(self, deed: Deed, by: Action) -> list[str]:
        """Do what a person wants done; again, if there is no answer."""
        verb, doc = told_as(deed)
        text = self._doc(at=self._at(), by=as_told(by), **doc)
        lane = (await self._session()).acts
        if isinstance(deed, Delete):
            await self._lose_entries(lane, doc, by)
        [(answer,)] = await self._surely(lambda: lane.ask(self._sql[verb], text), by)
        if verb == "noted":
            return []
        self._changed()
        return list(touched_of(answer).ids)

    async def _lose_entries(self, lane: Lane, doc: Mapping[str, Any], by: Action) -> None:
        """Remove the entries of jobs that are to be deleted, a bounded number in each call."""
        text = self._doc(at=self._at(), by=as_told(by), **{**doc, "verb": "lose"})
        more = True
        while more:
            [(answer,)] = await self._surely(lambda: lane.ask(self._sql["act"], text), by)
            more = bool(touched_of(answer).ids)

    async def _surely(self, act: Callable[[], Awaitable[Answer]], by: Action) -> Answer:
        return await acted(act, by, self._address.timeout)

    # The store itself

    async def audit(self) -> list[Finding]:
        """Check that every job is in exactly one place and every mark agrees."""
        lane = await self._people()
        lacking = await find_lacking(lane, self._address)
        try:
            return lacking + await audit(
                lane, self._address.quoted_schema, self._at(), self._level()
            )
        except StoreError:
            if not lacking:
                raise
            return lacking  # The tables cannot be looked at without what is missing.

    async def repair(self, by: Action) -> list[str]:
        """Put right what the audit finds."""
        lane, schema = await self._people(), self._address.quoted_schema
        done = await self._surely(lambda: repair(lane, schema, self._at(), self._level(), by), by)
        self._changed()
        return done

    async def condition(self) -> Condition:
        """Return facts about the server, and what is wrong with its set-up."""
        listener = (await self._session()).listen()
        await listener.begin()
        now = (self._clock or SystemClock()).now()
        return await (await self._people()).run(
            lambda connection: condition(connection, self._address, now, hears=listener.hears)
        )

    async def migrations(self) -> list[Migration]:
        """Return the steps of the schema and whether each was applied."""
        return await asyncio.to_thread(applied, self._address, self._level())


def told_as(deed: Deed) -> tuple[str, dict[str, Any]]:
    """Return which function does it, and what is told to that."""
    match deed:
        case Cancel(ids, reason, states):
            doc = {"verb": "cancel", "ids": list(ids), "states": sorted(states), "tell": WORK}
            return "act", {**doc, "reason": reason}
        case Revive(ids, states):
            doc = {"verb": "revive", "ids": list(ids), "states": sorted(states), "tell": WORK}
            return "act", doc
        case Delete(ids, states):
            return "act", {"verb": "delete", "ids": list(ids), "states": sorted(states)}
        case Edit(job_id, was, payload, version):
            new = {"was": was, "payload": payload, "version": version}
            return "act", {"verb": "edit", "ids": [job_id], "states": [], **new}
        case Pause(queue):
            return "act", {"verb": "pause", "ids": [], "states": [], "queue": queue}
        case Resume(queue):
            doc = {"verb": "resume", "ids": [], "states": [], "queue": queue, "tell": WORK}
            return "act", doc
        case Note(count, job_id):
            return "noted", {"count": count, "ids": [job_id] if job_id else []}


def _on(statement: str, which: Filter) -> str:
    """Return the name of the statement that finds what a filter means at the least cost."""
    return statement if which.since is None else f"{statement}_since"
