"""What people ask of the server: look, count, cancel, revive, delete, pause."""

from collections.abc import Collection
from typing import Any

from msgspec.structs import astuple
from psycopg.rows import dict_row

from fairlead.core.admin import (
    MOST_LISTED,
    Action,
    AuditLine,
    ErrorGroup,
    Filter,
    Running,
    Waiting,
    Worker,
    check_count,
)
from fairlead.core.clock import Clock
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, JobRecord, State
from fairlead.core.selection import ClaimPlan, Head, Line, Snapshot
from fairlead.stores.postgres.lane import AsyncConnection, Lane, apart
from fairlead.stores.postgres.line import to_json
from fairlead.stores.postgres.replies import announced_of, attempt_of, touched_of
from fairlead.stores.postgres.replies import record_of as told_record
from fairlead.stores.postgres.statements import statements
from fairlead.stores.records import (
    counts_of,
    places_of,
    record_of,
    running_of,
    waiting_of,
    worker_of,
)

_AFTER_ALL_IDS = "\U0010ffff"


class Hand:
    """The questions and changes of people, each on the lane it is given."""

    def __init__(self, schema: str, clock: Clock | None) -> None:
        self._sql = statements(schema)
        self._clock = clock

    def _at(self) -> int | None:
        return self._clock.now() if self._clock else None

    async def _rows(self, lane: Lane, statement: str, **values: object) -> list[Any]:
        async def asked(connection: AsyncConnection) -> list[Any]:
            async with apart(connection):
                cursor = connection.cursor(binary=True)
                await cursor.execute(self._sql[statement], values)
                return await cursor.fetchall()

        return await lane.run(asked)

    async def _told(self, lane: Lane, verb: str, **doc: object) -> list[str]:
        return [text for (text,) in await lane.ask(self._sql[verb], to_json(doc))]

    async def _records(self, lane: Lane, statement: str, **values: object) -> list[JobRecord]:
        async def asked(connection: AsyncConnection) -> list[dict[str, Any]]:
            async with apart(connection):
                cursor = connection.cursor(binary=True, row_factory=dict_row)
                await cursor.execute(self._sql[statement], values)
                return await cursor.fetchall()

        return [record_of(_errors_joined(row)) for row in await lane.run(asked)]

    # Looking

    async def find(self, lane: Lane, job_id: JobId) -> JobRecord | None:
        """Return a job in whatever state."""
        told = await self._told(lane, "find", id=job_id)
        return record_of(_errors_joined(told_record(told[0]))) if told else None

    async def jobs(
        self, lane: Lane, which: Filter, limit: int, before: JobId | None
    ) -> list[JobRecord]:
        """Return jobs that the filter means, newest first."""
        page = {"limit": min(limit, MOST_LISTED), "before": before or _AFTER_ALL_IDS}
        return await self._records(lane, _on("jobs", which), **_asked(which), **page)

    async def count(self, lane: Lane, which: Filter) -> dict[str, dict[State, int]]:
        """Count jobs by queue and state."""
        return counts_of(await self._rows(lane, _on("count", which), **_asked(which)))

    async def groups(self, lane: Lane, which: Filter) -> list[ErrorGroup]:
        """Return failures by fingerprint."""
        rows = await self._rows(lane, _on("groups", which), **_asked(which))
        return [
            ErrorGroup(mark, error, message, tuple(sorted(tasks)), *rest)
            for mark, error, message, tasks, *rest in rows
        ]

    async def attempts(self, lane: Lane, job_id: JobId) -> list[Attempt]:
        """Return the job's lines of the attempt log."""
        return [attempt_of(told) for told in await self._told(lane, "attempts", id=job_id)]

    async def recent(self, lane: Lane, since: int, limit: int, queue: str | None) -> list[Attempt]:
        """Return the last lines of the attempt log."""
        rows = await self._rows(lane, "recent", since=since, limit=limit, queue=queue)
        return [Attempt(*row) for row in rows]

    async def waiting(self, lane: Lane) -> dict[str, Waiting]:
        """Count the waiting jobs of each queue by what they wait for."""
        return waiting_of(await self._rows(lane, "waiting_counts", at=self._at()))

    async def running(self, lane: Lane) -> list[Running]:
        """Count running jobs by worker process, queue and task."""
        return running_of(await self._rows(lane, "running", at=self._at()))

    async def snapshot(self, lane: Lane, plan: ClaimPlan, limit: int) -> Snapshot:
        """Return what a claim with this plan would look at, by one state of the store."""

        async def asked(connection: AsyncConnection) -> Snapshot:
            async with apart(connection):
                await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                return await self._snapshot(connection, plan, limit)

        return await lane.run(asked)

    async def _snapshot(self, connection: AsyncConnection, plan: ClaimPlan, limit: int) -> Snapshot:
        async def rows(statement: str, **values: object) -> list[Any]:
            return await (await connection.execute(self._sql[statement], values)).fetchall()

        [(now,)] = await rows("now", at=self._at())
        stopped = {queue for (queue,) in await rows("paused")}
        capable = None if plan.capable is None else to_json(dict(plan.capable))
        lines = {}
        for queue in plan.queues:
            asked = {"queue": queue.name, "limit": limit, "now": now, "capable": capable}
            heads = [Head(*row) for row in await rows("standing", **asked)]
            lines[queue.name] = Line(queue, heads, queue.name in stopped)
        return Snapshot(plan, now, lines)

    async def ahead(self, lane: Lane, job_id: JobId) -> int:
        """Count the due jobs before this one in its queue."""
        [(number,)] = await self._rows(lane, "ahead", id=job_id, at=self._at())
        return int(number)

    async def unknown(self, lane: Lane) -> dict[tuple[str, int], int]:
        """Count the jobs that are parked for want of a capable worker, by task and version."""
        rows = await self._rows(lane, "unknown")
        return {(task, version): number for task, version, number in rows}

    async def paused(self, lane: Lane) -> set[str]:
        """Return the names of the paused queues."""
        return {queue for (queue,) in await self._rows(lane, "paused")}

    async def workers(self, lane: Lane) -> list[Worker]:
        """Return the workers that are announced and live."""
        told = await self._told(lane, "workers", at=self._at())
        return [worker_of(*astuple(announced_of(each))) for each in told]

    async def audit_log(self, lane: Lane, limit: int, job_id: JobId | None) -> list[AuditLine]:
        """Return the audit log, newest first."""
        rows = await self._rows(lane, "audit_log", limit=limit, job_id=job_id)
        return [AuditLine(*row) for row in rows]

    # Acting

    async def act(
        self,
        lane: Lane,
        verb: str,
        by: Action,
        job_ids: Collection[JobId] = (),
        states: Collection[State] = (),
        **more: object,
    ) -> list[JobId]:
        """Do something to jobs, or to a queue; returns the ids, or the queue, it was done to."""
        doc = {"at": self._at(), "verb": verb, "ids": list(job_ids), "states": sorted(states)}
        [(answer,)] = await lane.ask(self._sql["act"], to_json(doc | {"by": astuple(by)} | more))
        return touched_of(answer).ids

    async def note(self, lane: Lane, by: Action, count: int, job_id: JobId | None) -> None:
        """Add to the audit log something that was done by other verbs."""
        ids = [job_id] if job_id else []
        doc = {"at": self._at(), "by": astuple(by), "count": check_count(count), "ids": ids}
        await lane.ask(self._sql["noted"], to_json(doc))


def _errors_joined(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its past attempts as the one JSON text that records are read from.

    Somebody may have put lists or nothing among them.
    """
    if row["errors"] is not None:
        row["errors"] = f"[{','.join(each for each in row['errors'] if isinstance(each, str))}]"
    return row


def _asked(which: Filter) -> dict[str, object]:
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
    }


def _on(statement: str, which: Filter) -> str:
    """Return the name of the statement that finds what a filter means at the least cost."""
    return statement if which.since is None else f"{statement}_since"
