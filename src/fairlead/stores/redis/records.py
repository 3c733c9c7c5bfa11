"""What is kept under the keys of a queue, as values; what somebody damaged is told, not hidden."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from fairlead.core.admin import PoolShare, Worker
from fairlead.core.clock import SECOND
from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, Gate, Job, JobRecord, PastAttempt, State

T = TypeVar("T")


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job as it was enqueued."""

    task: str
    version: int
    priority: int
    enqueued_at: int
    expires_at: int | None
    options: str | None
    payload: str


class Run(msgspec.Struct, frozen=True, array_like=True):
    """A live job's counts, and its lease if it runs."""

    fence: int
    lease_until: int
    attempt: int
    crashes: int
    suspect: bool
    order_at: int
    parked: bool
    worker: str | None
    claimed_at: int | None
    cancel: str | None
    lines: tuple[int, ...]


class End(Run, frozen=True, array_like=True):
    """How a job was in the end, besides what its last run was."""

    state: State
    finished_at: int
    reason: str | None
    result: str | None


class _Past(msgspec.Struct, frozen=True, array_like=True):
    """A failed run."""

    attempt: int
    outcome: str
    worker: str | None
    claimed_at: int | None
    started_at: int | None
    finished_at: int
    error: str | None
    message: str | None
    traceback: str | None
    fingerprint: str | None


class _Line(msgspec.Struct, frozen=True, array_like=True):
    """A line of the attempt log."""

    job_id: JobId
    fence: int
    attempt: int
    task: str
    pool: str | None
    worker: str | None
    ready_at: int
    claimed_at: int
    started_at: int | None
    outcome: str
    fingerprint: str | None


_encode = msgspec.msgpack.Encoder().encode
_body = msgspec.msgpack.Decoder(Body).decode
_run = msgspec.msgpack.Decoder(Run).decode
_end = msgspec.msgpack.Decoder(End).decode
_pasts = msgspec.msgpack.Decoder(list[_Past]).decode
_lines = msgspec.msgpack.Decoder(list[_Line]).decode
_CLOCK_DIGITS = 16


def pack(value: object) -> bytes:
    """Return a value as scripts read it."""
    return _encode(value)


def body_of(job_id: str, text: bytes) -> Body:
    """Return what was enqueued."""
    try:
        return _body(text)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise DecodeError(f"job {job_id}", str(problem)) from None


def run_of(job_id: str, text: bytes) -> Run:
    """Return how a live job stands."""
    try:
        return _run(text)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise DecodeError(f"job {job_id}", str(problem)) from None


def job_of(job_id: str, queue: str, body: Body, run: Run, *, lost: bool) -> Job:
    """Return a job as its worker gets it."""
    return Job(
        JobId(job_id),
        body.task,
        body.version,
        queue,
        body.payload,
        body.options,
        run.attempt,
        run.crashes,
        run.fence,
        run.order_at + body.priority * SECOND,
        body.enqueued_at,
        body.expires_at,
        run.claimed_at or 0,
        run.lease_until,
        run.worker or "",
        lost,
        run.suspect,
    )


class Kept(msgspec.Struct, frozen=True):
    """Everything that is kept of one job, as `records.lua` answers."""

    body: bytes
    run: bytes | None
    end: bytes | None
    errors: bytes | None
    ready_at: bytes | None
    due_at: bytes | None

    def record(self, job_id: str, queue: str) -> JobRecord:
        """Return it as people see it."""
        body, errors = self._body(job_id), _errors_of(self.errors)
        if self.end is not None:
            end = _decoded(_end, job_id, self.end)
            return _record(job_id, queue, body, end, errors, end)
        run = self._run(job_id, body)
        gate = Gate.NO_CAPABLE_WORKER if run.parked else None
        if not run.lease_until and self.due_at is not None:
            gate = Gate.NOT_DUE
        return _record(job_id, queue, body, run, errors, None, gate)

    def _run(self, job_id: str, body: Body) -> Run:
        """Return how it stands; one that was never claimed is told by its place alone."""
        with suppress(DecodeError):
            if self.run is not None:
                return run_of(job_id, self.run)
        order_at = (
            round(float(self.ready_at or 0))
            if self.due_at is None
            else round(float(self.due_at)) - body.priority * SECOND
        )
        # One that somebody damaged, and that does not wait, has a lease that will pass.
        lease_until = int(self.due_at is None and self.ready_at is None)
        return Run(0, lease_until, 0, 0, False, order_at, False, None, None, None, ())

    def _body(self, job_id: str) -> Body:
        try:
            return body_of(job_id, self.body)
        except DecodeError:
            # What somebody damaged is shown as it is, for people to make sense of.
            damaged = msgspec.json.encode(self.body.decode(errors="backslashreplace")).decode()
            return Body("?", 0, 0, 0, None, None, damaged)


def _record(
    job_id: str,
    queue: str,
    body: Body,
    run: Run | End,
    errors: tuple[PastAttempt, ...],
    end: End | None,
    gate: Gate | None = None,
) -> JobRecord:
    running = State.RUNNING if run.lease_until else State.WAITING
    return JobRecord(
        id=JobId(job_id),
        task=body.task,
        version=body.version,
        queue=queue,
        state=running if end is None else end.state,
        payload=body.payload,
        options=body.options,
        priority=body.priority,
        attempt=run.attempt,
        crashes=run.crashes,
        fence=run.fence,
        run_at=run.order_at + body.priority * SECOND,
        enqueued_at=body.enqueued_at,
        expires_at=body.expires_at,
        gate=gate,
        worker=run.worker,
        claimed_at=run.claimed_at,
        lease_until=run.lease_until or None,
        cancel_requested=run.cancel is not None,
        finished_at=end.finished_at if end else None,
        result=end.result if end else None,
        reason=end.reason if end else None,
        errors=errors,
    )


def _decoded(decode: Any, job_id: str, text: bytes) -> Any:  # noqa: ANN401 (each decoder's own)
    try:
        return decode(text)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise DecodeError(f"job {job_id}", str(problem)) from None


def _errors_of(text: bytes | None) -> tuple[PastAttempt, ...]:
    """Read a job's failed runs; what somebody damaged reads as none."""
    if text is None:
        return ()
    try:
        return tuple(PastAttempt(*msgspec.structs.astuple(past)) for past in _pasts(text))
    except (msgspec.MsgspecError, ValueError):
        return ()


def lines_of(queue: str, batch: bytes) -> list[Attempt]:
    """Return the lines of a batch of the attempt log; what somebody damaged has none."""
    try:
        lines = _lines(batch[_CLOCK_DIGITS:])
    except (msgspec.MsgspecError, ValueError):
        return []
    finished_at = ended_at(batch)
    return [
        Attempt(
            line.job_id,
            line.fence,
            line.attempt,
            line.task,
            queue,
            line.pool,
            line.worker,
            line.ready_at,
            line.claimed_at,
            line.started_at,
            finished_at,
            line.outcome,
            line.fingerprint,
        )
        for line in lines
    ]


class _Announced(msgspec.Struct, frozen=True, array_like=True):
    """A worker as it announced itself; what another version says of its pools may be beyond us."""

    started_at: int
    live_until: int
    capable: dict[str, int]
    pools: msgspec.Raw
    processes: int


_announced = msgspec.msgpack.Decoder(_Announced).decode
_shares = msgspec.msgpack.Decoder(tuple[PoolShare, ...]).decode


def worker_of(name: str, text: bytes) -> Worker:
    """Return a worker as it announced itself."""
    try:
        said = _announced(text)
    except (msgspec.MsgspecError, ValueError) as problem:
        raise DecodeError(f"worker {name}", str(problem)) from None
    try:
        pools = _shares(said.pools)
    except (msgspec.MsgspecError, ValueError):
        pools = ()
    return Worker(name, said.capable, pools, said.processes, said.started_at, said.live_until)


def parked_of(member: bytes) -> tuple[str, int, bytes, bool]:
    """Return task, version and id of a parked job, and whether a run of it was lost."""
    task, version, rest = (*member.split(b"\0", 2), b"", b"")[:3]
    number = int(version) if version.isdigit() else 0
    return task.decode(errors="replace"), number, rest[1:], rest[:1] == b"r"


def ended_at(batch: bytes) -> int:
    """Return when the runs of a batch of the attempt log ended."""
    digits = batch[:_CLOCK_DIGITS]
    return int(digits) if digits.isdigit() else 0


def kept_of(answer: Sequence[Any]) -> Kept | None:
    """Return what `records.lua` answers for one job; None for one that is not known."""
    return None if answer[0] is None else Kept(*answer)
