"""A job as its producer sees it: aware datetimes, and values instead of stored JSON."""

from datetime import datetime
from typing import Any

import msgspec

from fairlead.core.clock import FAR_FUTURE, as_datetime
from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId
from fairlead.core.job import (
    Gate,
    JobOptions,
    JobRecord,
    PastAttempt,
    State,
    decode_options,
    read,
)
from fairlead.core.task import Registry


class FailedRun(msgspec.Struct, frozen=True):
    """A run of a job that did not succeed."""

    attempt: int
    outcome: str
    worker: str | None
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime
    error: str | None
    message: str | None
    traceback: str | None
    fingerprint: str | None


class JobDetails(msgspec.Struct, frozen=True):
    """Everything the store knows about a job, as `job.record()` returns it.

    `arguments` are those of the call by name, as JSON has them. `result` is what the task
    returned, of the type that its signature says if this program has the task. Times are aware
    datetimes in UTC. `priority` is a head start in seconds.
    """

    id: JobId
    task: str
    version: int
    queue: str
    state: State
    arguments: Any
    result: Any
    reason: str | None
    gate: Gate | None
    attempt: int
    crashes: int
    fence: int
    priority: int
    enqueued_at: datetime
    run_at: datetime
    expires_at: datetime | None
    claimed_at: datetime | None
    lease_until: datetime | None
    finished_at: datetime | None
    worker: str | None
    cancel_requested: bool
    tags: tuple[str, ...]
    headers: dict[str, str]
    correlation_id: str | None
    errors: tuple[FailedRun, ...]

    def __repr__(self) -> str:
        """Name the job; its arguments may be nobody's business."""
        gate = f" ({self.gate})" if self.gate else ""
        return f"<job {self.id} of task {self.task!r} on queue {self.queue!r}, {self.state}{gate}>"


def details_of(job: JobRecord, tasks: Registry) -> JobDetails:
    """Read a stored job; what cannot be read is None, so that all else can be looked at."""
    options = _options(job)
    return JobDetails(
        id=job.id,
        task=job.task,
        version=job.version,
        queue=job.queue,
        state=job.state,
        arguments=_json(job.payload),
        result=_result(job, tasks),
        reason=job.reason,
        gate=job.gate,
        attempt=job.attempt,
        crashes=job.crashes,
        fence=job.fence,
        priority=job.priority,
        enqueued_at=_time(job.enqueued_at),
        run_at=_time(job.run_at),
        expires_at=_time_or_none(job.expires_at),
        claimed_at=_time_or_none(job.claimed_at),
        lease_until=_time_or_none(job.lease_until),
        finished_at=_time_or_none(job.finished_at),
        worker=job.worker,
        cancel_requested=job.cancel_requested,
        tags=options.tags,
        headers=dict(options.headers),
        correlation_id=options.correlation_id,
        errors=tuple(map(_failed, job.errors)),
    )


def _failed(run: PastAttempt) -> FailedRun:
    return FailedRun(
        run.attempt,
        run.outcome,
        run.worker,
        _time_or_none(run.claimed_at),
        _time_or_none(run.started_at),
        _time(run.finished_at),
        run.error,
        run.message,
        run.traceback,
        run.fingerprint,
    )


def _options(job: JobRecord) -> JobOptions:
    try:
        return decode_options(job.options)
    except DecodeError:
        return JobOptions()


def _json(text: str | None) -> Any:  # noqa: ANN401 (whatever JSON holds)
    try:
        return None if text is None else read(msgspec.json.decode, "the JSON", text)
    except DecodeError:
        return None


def _result(job: JobRecord, tasks: Registry) -> Any:  # noqa: ANN401 (what the task returned)
    if job.state is not State.DONE:
        return None
    try:
        return tasks[job.task].signature.decode_result(job.result)
    except (LookupError, DecodeError):
        return _json(job.result)


def _time(at: int) -> datetime:
    """Return an instant as a datetime; the nearest one, if somebody damaged it."""
    return as_datetime(min(max(at, 0), FAR_FUTURE))


def _time_or_none(at: int | None) -> datetime | None:
    return None if at is None else _time(at)
