"""A waiting or running job in memory, and the values it is told as."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.job import (
    ALONE,
    LONGEST_ID,
    Attempt,
    Gate,
    Job,
    JobRecord,
    NewJob,
    PastAttempt,
    State,
    size_of,
)
from fairlead.core.outcome import Settlement
from fairlead.core.selection import LONGEST_TOLD, Head, Unknown


class End(NamedTuple):
    """How a job leaves the line, and when."""

    state: State
    at: int
    reason: str | None = None
    result: str | None = None


class LiveJob(msgspec.Struct):
    """A job in the line. `parked` is the gate it waits behind, outside the order."""

    new: NewJob
    run_at: int
    order_at: int
    enqueued_at: int
    expires_at: int | None
    parked: Gate | None = None
    attempt: int = 0
    crashes: int = 0
    shared_deaths: int = 0
    fence: int = 0
    lease_until: int = 0
    worker: str | None = None
    claimed_at: int | None = None
    cancel: str | None = None
    errors: tuple[PastAttempt, ...] = ()

    @property
    def place(self) -> tuple[int, JobId]:
        """Where it stands in its queue's order."""
        return self.order_at, self.new.id

    @property
    def is_aside(self) -> bool:
        """Whether it is parked for something else than its time."""
        return self.parked not in (None, Gate.NOT_DUE)

    @property
    def unknown_task(self) -> bool:
        """Whether it is parked because no live worker knows its task."""
        return self.parked is Gate.NO_CAPABLE_WORKER

    @property
    def head(self) -> Head:
        """What the selection rule sees of it."""
        new = self.new
        return Head(
            new.id,
            new.task,
            new.version,
            self.order_at,
            self.run_at,
            self.expires_at,
            self.lease_until > 0,
            size_of(new),
            new.level,
        )

    def unknown(self, jobs: int) -> Unknown:
        """What a claim tells when it parks so many jobs like it."""
        new = self.new
        options = new.options if len(new.options or "") <= LONGEST_TOLD else None
        return Unknown(
            id=new.id,
            task=new.task,
            version=new.version,
            queue=new.queue,
            options=options,
            jobs=jobs,
        )

    def job(self, *, lost: bool) -> Job:
        """What its worker gets."""
        new = self.new
        assert self.worker is not None
        assert self.claimed_at is not None
        return Job(
            new.id,
            new.task,
            new.version,
            new.queue,
            new.payload,
            new.options,
            self.attempt,
            self.crashes,
            self.fence,
            self.run_at,
            self.enqueued_at,
            self.expires_at,
            self.claimed_at,
            self.lease_until,
            self.worker,
            lost,
            self.shared_deaths,
        )

    def record(self, end: End | None = None) -> JobRecord:
        """What people see of it; with an end, what is kept of it then."""
        new, live = self.new, end is None
        state = State.RUNNING if self.lease_until else State.WAITING
        return JobRecord(
            new.id,
            new.task,
            new.version,
            new.queue,
            end.state if end else state,
            new.payload,
            new.options,
            new.priority,
            self.attempt,
            self.crashes,
            self.fence,
            self.run_at,
            self.enqueued_at,
            self.expires_at,
            self.parked if live else None,
            self.worker,
            self.claimed_at,
            self.lease_until or None if live else None,
            live and self.cancel is not None,
            end.at if end else None,
            end.result if end else None,
            end.reason if end else None,
            self.errors,
            self.shared_deaths if live else 0,
            new.level,
        )

    def end_run(self, settlement: Settlement, now: int) -> Attempt:
        """Remember how a run ended, and return its line for the attempt log."""
        new = self.new
        assert self.claimed_at is not None
        past = settlement.remembered(self.attempt, self.worker, self.claimed_at, now)
        if past is not None:
            self.errors += (past,)
        return Attempt(
            new.id,
            self.fence,
            self.attempt,
            new.task,
            new.queue,
            settlement.pool,
            self.worker,
            max(self.run_at, self.enqueued_at),
            self.claimed_at,
            settlement.started_at,
            now,
            settlement.outcome,
            past.fingerprint if past else None,
        )

    def problems(self) -> Iterator[str]:
        """Say where it does not agree with itself."""
        running = self.lease_until > 0
        if running != (self.worker is not None) or running != (self.claimed_at is not None):
            yield f"job {self.new.id} does not agree with itself about running"
        if running and self.parked is Gate.NOT_DUE:
            yield f"job {self.new.id} runs and waits for its time at once"
        if self.order_at != self.run_at - self.new.priority * SECOND:
            yield f"job {self.new.id} has lost its head start"
        if len(self.new.id) > LONGEST_ID or not self.new.id.isascii():
            yield f"job {self.new.id!r:.100} has an id with which no worker takes it in hand"
        if running and not self.fence:
            yield f"job {self.new.id} runs without a fence"


def revived(record: JobRecord, now: int) -> LiveJob:
    """Return a job as it stands in the line when a person lets it run again.

    Its crashes are forgotten, but not that there were some: it begins alone.
    """
    new = NewJob(
        record.id,
        record.task,
        record.queue,
        record.payload,
        version=record.version,
        priority=record.priority,
        options=record.options,
        level=record.level,
    )
    expires_at = record.expires_at
    return LiveJob(
        new=new,
        run_at=now,
        order_at=now - record.priority * SECOND,
        enqueued_at=record.enqueued_at,
        expires_at=None if expires_at is not None and expires_at <= now else expires_at,
        shared_deaths=max(record.shared_deaths, ALONE if record.crashes else 0),
        fence=record.fence,
        errors=record.errors,
    )
