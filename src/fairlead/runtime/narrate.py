"""Tell as events what a settlement meant. Called only after the store said yes."""

from fairlead.core.clock import SECOND
from fairlead.core.errors import DecodeError
from fairlead.core.events import (
    Bus,
    Cancelled,
    Died,
    Finished,
    JobEvent,
    LeaseExpired,
    Parked,
    Retried,
    Returned,
    SettlementRefused,
    Snoozed,
    Started,
)
from fairlead.core.ids import JobId
from fairlead.core.job import Job, State, decode_options
from fairlead.core.outcome import Settlement
from fairlead.core.selection import Unknown


def correlation_id(job: Job | Unknown) -> str | None:
    """Return what the producer said the job belongs to."""
    if job.options is None:
        return None
    try:
        return decode_options(job.options).correlation_id
    except DecodeError:
        return None


def narrate_start(events: Bus, job: Job, now: int) -> None:
    """Tell that a handler begins to run."""
    waited = _wait_seconds(job, now)
    events.emit(Started(*_whose(job), attempt=job.attempt, wait_seconds=waited))


def _wait_seconds(job: Job, started_at: int) -> float:
    return max(0, started_at - max(job.run_at, job.enqueued_at)) / SECOND


def narrate(
    events: Bus, job: Job, settlement: Settlement, started_at: int | None, now: int
) -> None:
    """Tell what became of a job."""
    if settlement.state is State.DONE and not events.wants(Finished):
        return
    if settlement.outcome == "lost":
        events.emit(LeaseExpired(*_whose(job), worker=job.worker))
    event = _event(job, settlement, started_at, now)
    if event is not None:
        events.emit(event)


def _event(job: Job, settlement: Settlement, started_at: int | None, now: int) -> JobEvent | None:
    times = _times(job, started_at, now)
    match settlement.state:
        case State.DONE:
            ran, waited = times or (0.0, 0.0)
            return Finished(*_whose(job), attempt=job.attempt, run_seconds=ran, wait_seconds=waited)
        case State.DEAD:
            reason = settlement.reason or ""
            return Died(*_whose(job), job.attempt, reason, *_failure(settlement), *times)
        case State.CANCELLED:
            return Cancelled(*_whose(job), settlement.reason or "", *times)
    delay = max(0.0, (settlement.run_at - now) / SECOND) if settlement.run_at else 0.0
    match settlement.outcome:
        case "returned":
            return Returned(*_whose(job), attempt=job.attempt)
        case "snoozed":
            return Snoozed(*_whose(job), job.attempt, delay, *times)
        case "lost":
            return None  # LeaseExpired has told it.
    error, detail, message = _failure(settlement)
    return Retried(*_whose(job), job.attempt, delay, error or "", detail, message, *times)


def _times(job: Job, started_at: int | None, now: int) -> tuple[float, float] | tuple[()]:
    """Return how many seconds a run took, and how many its job had waited; nothing without one."""
    if started_at is None:
        return ()
    return (now - started_at) / SECOND, _wait_seconds(job, started_at)


def _failure(settlement: Settlement) -> tuple[str | None, str | None, str | None]:
    """Return the class of a failure, what any log may tell of it, and what it says."""
    failure = settlement.failure
    return (failure.error, failure.detail, failure.message) if failure else (None, None, None)


def narrate_parking(events: Bus, unknown: Unknown) -> None:
    """Tell that no live worker knows a task, and how many of its jobs a claim parked."""
    events.emit(Parked(*_whose(unknown), version=unknown.version, jobs=unknown.jobs))


def narrate_late(events: Bus, job: Job, outcome: str) -> None:
    """Tell that a run came to an end that counts for nothing, because its lease is lost."""
    events.emit(SettlementRefused(*_whose(job), fence=job.fence, outcome=outcome))


def _whose(job: Job | Unknown) -> tuple[JobId, str, str, str | None]:
    return job.id, job.task, job.queue, correlation_id(job)
