"""Lines of the attempt log and records, as tests write them."""

from typing import Any

from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, JobRecord, PastAttempt, State


def line(job: str, **changes: Any) -> Attempt:
    """A run of a job that was claimed and started at once; times in seconds."""
    values: dict[str, Any] = {
        "attempt": 1,
        "queue": "mail",
        "worker": "w/1",
        "ready_at": 0,
        "claimed_at": 0,
        "started_at": changes.get("claimed_at", 0),
        "finished_at": 1,
        "outcome": "done",
    } | changes
    for name in ("ready_at", "claimed_at", "started_at", "finished_at"):
        if values[name] is not None:
            values[name] = round(values[name] * SECOND)
    return Attempt(
        job_id=JobId(job), fence=1, task="task", pool="default", fingerprint=None, **values
    )


def record(state: State, reason: str | None = None, message: str | None = None) -> JobRecord:
    error = PastAttempt(1, "failed", "w/1", 0, 0, 1, "Permanent", message)
    return JobRecord(
        id=JobId("a"),
        task="charge",
        version=1,
        queue="payments",
        state=state,
        payload="{}",
        options=None,
        priority=0,
        attempt=1,
        crashes=0,
        fence=1,
        run_at=0,
        enqueued_at=0,
        reason=reason,
        errors=(error,) if message else (),
    )
