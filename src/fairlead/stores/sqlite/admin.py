"""What people ask of the file: look, count, cancel, pause."""

import sqlite3
from collections.abc import Sequence

import msgspec

from fairlead.core.clock import SECOND, Clock
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, Gate, Job, JobRecord, State, decode_errors
from fairlead.core.store import Worker
from fairlead.stores.sqlite.line import ask, cancel_waiting, decode_seqs, tell, to_json
from fairlead.stores.sqlite.statements import statements

GATES = {0: None, 1: Gate.NOT_DUE, 2: Gate.NO_CAPABLE_WORKER}
"""What the numbers in the `parked` column mean."""

_decode_attempts = msgspec.json.Decoder(list[Attempt]).decode


def find(connection: sqlite3.Connection, job_id: JobId) -> JobRecord | None:
    """Return a job in whatever state."""
    cursor = connection.execute(statements()["find"], {"id": job_id})
    row = cursor.fetchone()
    if row is None:
        return None
    values = dict(zip((column[0] for column in cursor.description), row, strict=True))
    values["state"] = State(values["state"])
    values["gate"] = GATES[values.pop("parked")]
    values["priority"] = (values["run_at"] - values.pop("order_at")) // SECOND
    values["cancel_requested"] = bool(values["cancel_requested"])
    values["errors"] = decode_errors(values["errors"])
    return JobRecord(**values)


def attempts(connection: sqlite3.Connection, job_id: JobId) -> list[Attempt]:
    """Return the job's lines of the attempt log."""
    return _decode_attempts(ask(connection, "attempts", id=job_id))


def held(connection: sqlite3.Connection, worker: str) -> list[Job]:
    """Return the running jobs that this worker claimed."""
    rows = msgspec.json.decode(ask(connection, "held", worker=worker))
    return [Job(*row) for row in rows]


def count(connection: sqlite3.Connection) -> dict[str, dict[State, int]]:
    """Count jobs by queue and state."""
    counts: dict[str, dict[State, int]] = {}
    for queue, state, number in connection.execute(statements()["count"]).fetchall():
        counts.setdefault(queue, {})[State(state)] = number
    return counts


def paused(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the paused queues."""
    return {queue for (queue,) in connection.execute(statements()["paused"]).fetchall()}


def workers(connection: sqlite3.Connection, now: int) -> list[Worker]:
    """Return the workers that are announced and live."""
    rows = connection.execute(statements()["workers"], {"now": now}).fetchall()
    return [Worker(name, msgspec.json.decode(capable), until) for name, capable, until in rows]


class SqliteDesk:
    """The changes people make, as the writer runs them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def cancel(
        self, connection: sqlite3.Connection, items: Sequence[tuple[JobId, str]]
    ) -> list[JobRecord | None]:
        """Cancel waiting jobs, mark running ones; returns each as it is then."""
        now = self._clock.now()
        by_reason: dict[str, list[JobId]] = {}
        for job_id, reason in items:
            by_reason.setdefault(reason, []).append(job_id)
        for reason, ids in by_reason.items():
            wanted = to_json(ids)
            waiting = decode_seqs(ask(connection, "waiting", ids=wanted))
            tell(connection, "ask_cancel", ids=wanted, reason=reason)
            cancel_waiting(connection, waiting, reason, now)
        return [find(connection, job_id) for job_id, _ in items]

    def pause(self, connection: sqlite3.Connection, queues: Sequence[str]) -> list[None]:
        """Pause queues."""
        for queue in queues:
            tell(connection, "pause", queue=queue)
        return [None] * len(queues)

    def resume(self, connection: sqlite3.Connection, queues: Sequence[str]) -> list[None]:
        """Resume queues."""
        for queue in queues:
            tell(connection, "resume", queue=queue)
        return [None] * len(queues)
