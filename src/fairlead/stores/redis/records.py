"""What is kept under the keys of a queue, as values; what somebody damaged is told, not hidden."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from math import isfinite
from typing import Annotated, Any, TypeVar

import msgspec

from fairlead.core.admin import PoolShare, Worker
from fairlead.core.clock import SECOND
from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId
from fairlead.core.job import (
    LONGEST_ID,
    Attempt,
    Gate,
    Job,
    JobRecord,
    PastAttempt,
    Reason,
    Runs,
    State,
    Version,
    read,
)
from fairlead.core.text import escaped

T = TypeVar("T")

LATEST = 2**53 - 1
"""The latest instant and the greatest number: what Lua holds exactly."""
MOST_COUNTED = 2**52
"""How far we count what only grows, as `moves.lua` has it: entries of a log, actions."""
_LONGEST_SHOWN = 100

Instant = Annotated[int, msgspec.Meta(ge=0, le=LATEST)]
Place = Annotated[int, msgspec.Meta(ge=-LATEST, le=LATEST)]


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A job as it was enqueued."""

    task: str
    version: Version
    priority: int
    enqueued_at: Instant
    expires_at: Instant | None
    options: str | None
    payload: str


class Run(msgspec.Struct, frozen=True, array_like=True):
    """A live job's counts, and its lease if it runs."""

    fence: Instant
    lease_until: Instant
    attempt: Runs
    crashes: Runs
    shared_deaths: Runs
    order_at: Place
    parked: bool
    worker: str | None
    claimed_at: Instant | None
    cancel: str | None
    lines: tuple[int, ...]


class Leased(Run, frozen=True, array_like=True):
    """The same with the name of the task, which may be damaged."""

    task: Any = None


class End(Run, frozen=True, array_like=True):
    """How a job was in the end, besides what its last run was."""

    state: State
    finished_at: Instant
    reason: str | None
    result: str | None


class _Past(msgspec.Struct, frozen=True, array_like=True):
    """A failed run."""

    attempt: Runs
    outcome: str
    worker: str | None
    claimed_at: Instant | None
    started_at: Instant | None
    finished_at: Instant
    error: str | None
    message: str | None
    traceback: str | None
    fingerprint: str | None


class _Line(msgspec.Struct, frozen=True, array_like=True):
    """A line of the attempt log."""

    job_id: JobId
    fence: Instant
    attempt: Runs
    task: str
    pool: str | None
    worker: str | None
    ready_at: Instant
    claimed_at: Instant
    started_at: Instant | None
    outcome: str
    fingerprint: str | None


_encode = msgspec.msgpack.Encoder().encode
_body = msgspec.msgpack.Decoder(Body).decode
_run = msgspec.msgpack.Decoder(Run).decode
_leased = msgspec.msgpack.Decoder(Leased).decode
_end = msgspec.msgpack.Decoder(End).decode
_pasts = msgspec.msgpack.Decoder(list[_Past]).decode
_past = msgspec.msgpack.Decoder(_Past).decode
_lines = msgspec.msgpack.Decoder(list[_Line]).decode
_line = msgspec.msgpack.Decoder(_Line).decode
_raws = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_numbers = msgspec.msgpack.Decoder(list[Instant]).decode
_number = msgspec.msgpack.Decoder(int).decode
_CLOCK_DIGITS, _VERSION_DIGITS = 16, 10


def pack(value: object) -> bytes:
    """Return a value as functions read it."""
    return _encode(value)


def body_of(job_id: str, text: bytes) -> Body:
    """Return what was enqueued."""
    return read(_body, f"job {job_id}", text)


def run_of(job_id: str, text: bytes) -> Run:
    """Return how a live job stands."""
    return read(_run, f"job {job_id}", text)


def leased_of(job_id: str, text: bytes) -> Leased:
    """Return the same with the name of its task."""
    return read(_leased, f"job {job_id}", text)


def fence_of(job_id: str, text: bytes) -> int:
    """Return the fence of a run, even if nothing else of it can be read."""
    return _number(read(_raws, f"job {job_id}", text)[0])


def is_id(raw_id: bytes) -> bool:
    """Say whether something can be the id of a job."""
    text = raw_id.decode(errors="replace")
    return 0 < len(text) <= LONGEST_ID and text.isascii() and text.isprintable()


def score_of(raw: bytes | float | None) -> int:
    """Return a score as the number it should be; what is none, or beyond all, is zero."""
    score = float(raw or 0)
    return round(score) if isfinite(score) and abs(score) <= LATEST else 0


def shown(raw: bytes) -> str:
    """Return what was found as people can read it."""
    try:
        return escaped(raw.decode(), _LONGEST_SHOWN) or "''"
    except UnicodeDecodeError:
        return escaped(f"{raw[:_LONGEST_SHOWN]!r}")


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
        run.shared_deaths,
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
            end = self._end(job_id, body)
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
            score_of(self.ready_at)
            if self.due_at is None
            else score_of(self.due_at) - body.priority * SECOND
        )
        # One that somebody damaged, and that does not wait, has a lease that will pass.
        lease_until = int(self.due_at is None and self.ready_at is None)
        return Run(0, lease_until, 0, 0, 0, order_at, False, None, None, None, ())

    def _end(self, job_id: str, body: Body) -> End:
        """Return how it was in the end; one that somebody damaged cannot be anything but dead."""
        with suppress(DecodeError):
            return read(_end, f"job {job_id}", self.end or b"")
        order_at = body.enqueued_at - body.priority * SECOND
        counts = (0, 0, 0, 0, 0, order_at, False, None, None, None, ())
        return End(*counts, State.DEAD, 0, Reason.UNREADABLE, None)

    def _body(self, job_id: str) -> Body:
        try:
            return body_of(job_id, self.body)
        except DecodeError:
            return _salvaged(self.body)


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
        shared_deaths=run.shared_deaths if end is None else 0,
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


def _salvaged(text: bytes) -> Body:
    """Return as much of a damaged body as can be read, for people to make sense of."""
    # Where nothing can be read, it is shown as it is.
    damaged = msgspec.json.encode(text.decode(errors="backslashreplace")).decode()
    sound = Body("?", 0, 0, 0, None, None, damaged)
    for name, raw in zip(Body.__struct_fields__, raws_of(text), strict=False):
        kind = Body.__annotations__[name]
        with suppress(DecodeError):
            value = read(msgspec.msgpack.Decoder(kind).decode, name, raw)
            sound = msgspec.structs.replace(sound, **{name: value})
    return sound


def _errors_of(text: bytes | None) -> tuple[PastAttempt, ...]:
    """Read a job's failed runs, those of them that can be read."""
    if text is None:
        return ()
    pasts = _several(_pasts, _past, text)
    return tuple(PastAttempt(*msgspec.structs.astuple(past)) for past in pasts)


def _several(whole: Callable[[bytes], list[T]], one: Callable[[Any], T], text: bytes) -> list[T]:
    """Read a list, or those of its entries that can be read."""
    with suppress(DecodeError):
        return read(whole, "a list", text)
    sound = []
    for raw in raws_of(text):
        with suppress(DecodeError):
            sound.append(read(one, "an entry", raw))
    return sound


def raws_of(text: bytes) -> list[msgspec.Raw]:
    """Return the entries of a list as they are; none if it is no list."""
    try:
        return read(_raws, "a list", text)
    except DecodeError:
        return []


def lines_of(queue: str, batch: bytes) -> list[Attempt]:
    """Return the lines of a batch of the attempt log, those of them that can be read."""
    lines = _several(_lines, _line, batch[_CLOCK_DIGITS:])
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


def is_batch(batch: bytes, count: int) -> bool:
    """Say whether a batch of the attempt log is sound, of which so many lines can be read."""
    digits, text = batch[:_CLOCK_DIGITS], batch[_CLOCK_DIGITS:]
    try:
        entries = read(_raws, "a batch", text)
    except DecodeError:
        return False
    return digits.isdigit() and len(digits) == _CLOCK_DIGITS and len(entries) == count


def batch_without(batch: bytes, twice: Collection[int], now: int) -> bytes:
    """Return a batch of the attempt log without lines that cannot be read, and without these."""
    sound = []
    for raw in raws_of(batch[_CLOCK_DIGITS:]):
        with suppress(DecodeError):
            read(_line, "a line", raw)
            sound.append(raw)
    kept = [raw for at, raw in enumerate(sound) if at not in twice]
    at = ended_at(batch)
    return b"%0*d" % (_CLOCK_DIGITS, at if 0 < at <= LATEST else now) + pack(kept)


def numbers_of(text: bytes) -> list[int] | None:
    """Return the numbers of batches that lead to the lines of a job; None if they cannot be."""
    try:
        return read(_numbers, "numbers", text)
    except DecodeError:
        return None


class _Announced(msgspec.Struct, frozen=True, array_like=True):
    """A worker as it announced itself; what another version says of its pools may be beyond us."""

    started_at: Instant
    live_until: Instant
    capable: dict[str, Version]
    pools: msgspec.Raw
    processes: Runs


_announced = msgspec.msgpack.Decoder(_Announced).decode
_shares = msgspec.msgpack.Decoder(tuple[PoolShare, ...]).decode


def worker_of(name: str, text: bytes) -> Worker:
    """Return a worker as it announced itself."""
    said = read(_announced, f"worker {name}", text)
    try:
        pools = read(_shares, "its pools", said.pools)
    except DecodeError:
        pools = ()
    return Worker(name, said.capable, pools, said.processes, said.started_at, said.live_until)


def parked_of(member: bytes) -> tuple[str, int, bytes, bool]:
    """Return task, version and id of a parked job, and whether a run of it was lost."""
    task, version, rest = (*member.split(b"\0", 2), b"", b"")[:3]
    number = int(version) if version.isdigit() and len(version) <= _VERSION_DIGITS else 0
    return task.decode(errors="replace"), number, rest[1:], rest[:1] == b"r"


def ended_at(batch: bytes) -> int:
    """Return when the runs of a batch of the attempt log ended."""
    digits = batch[:_CLOCK_DIGITS]
    return int(digits) if digits.isdigit() else 0


def kept_of(answer: Sequence[Any]) -> Kept | None:
    """Return what `records.lua` answers for one job; None for one that is not known."""
    return None if answer[0] is None else Kept(*answer)
