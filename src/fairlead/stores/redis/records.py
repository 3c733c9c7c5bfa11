"""What is kept under the keys of a queue, as values; what somebody damaged is told, not hidden."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any, TypeVar

import msgspec
from msgspec.structs import asdict

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
    State,
    read,
)
from fairlead.core.selection import parked_for
from fairlead.core.text import escaped
from fairlead.stores.redis.layout import (
    LATEST,
    Announced,
    Body,
    Instant,
    Leased,
    Line,
    Past,
    Run,
    Standing,
)

T = TypeVar("T")

MOST_COUNTED = 2**52
"""How far we count what only grows, as `sound.lua` has it: entries of a log, actions."""
NO_CAPABLE_WORKER = Gate.NO_CAPABLE_WORKER.encode()
"""The gate of jobs whose task no live worker knows, as `tasks.lua` has it."""
_LONGEST_SHOWN = 100

_encode = msgspec.msgpack.Encoder().encode
_body = msgspec.msgpack.Decoder(Body).decode
_run = msgspec.msgpack.Decoder(Run).decode
_leased = msgspec.msgpack.Decoder(Leased).decode
_standing = msgspec.msgpack.Decoder(Standing).decode
_pasts = msgspec.msgpack.Decoder(list[Past]).decode
_past = msgspec.msgpack.Decoder(Past).decode
_lines = msgspec.msgpack.Decoder(list[Line]).decode
_line = msgspec.msgpack.Decoder(Line).decode
_announced = msgspec.msgpack.Decoder(Announced).decode
_shares = msgspec.msgpack.Decoder(tuple[PoolShare, ...]).decode
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
    standing: bytes | None
    errors: bytes | None
    ready_at: bytes | None
    due_at: bytes | None

    def record(self, job_id: str, queue: str) -> JobRecord:
        """Return it as people see it."""
        body, errors = self._body(job_id), _errors_of(self.errors)
        standing = self._standing(job_id, body)
        gate = _gate_of(standing.gate)
        if standing.state is None and not standing.lease_until and self.due_at is not None:
            gate = Gate.NOT_DUE
        return _record(job_id, queue, body, standing, errors, gate)

    def _standing(self, job_id: str, body: Body) -> Standing:
        """Return how it stands; one that was never claimed is told by its place alone."""
        with suppress(DecodeError):
            if self.standing is not None:
                return read(_standing, f"job {job_id}", self.standing)
        head_start = body.priority * SECOND
        if self.due_at is not None:
            return _told_by(score_of(self.due_at) - head_start, body)
        if self.ready_at is not None:
            return _told_by(score_of(self.ready_at), body)
        # One that somebody damaged, and that does not wait, cannot become anything but dead.
        end = (State.DEAD, 0, Reason.UNREADABLE)
        return _told_by(body.enqueued_at - head_start, body, *end)

    def _body(self, job_id: str) -> Body:
        try:
            return body_of(job_id, self.body)
        except DecodeError:
            return _salvaged(self.body)


def _told_by(
    order_at: int,
    body: Body,
    state: State | None = None,
    finished_at: int | None = None,
    reason: str | None = None,
) -> Standing:
    """Return how a job stands of which nothing but its place is known."""
    counts = (0, 0, 0, 0, 0, order_at, None, None, None, None, ())
    end = (state, finished_at, reason, None)
    return Standing(*counts, None, None, None, None, None, *end, body.level, 0)


def _gate_of(gate: str | None) -> Gate | None:
    """Return the gate that a job is parked behind."""
    return None if gate is None else parked_for(gate.partition("\0")[0])


def _record(
    job_id: str,
    queue: str,
    body: Body,
    standing: Standing,
    errors: tuple[PastAttempt, ...],
    gate: Gate | None,
) -> JobRecord:
    running = State.RUNNING if standing.lease_until else State.WAITING
    return JobRecord(
        id=JobId(job_id),
        task=body.task,
        version=body.version,
        queue=queue,
        state=standing.state or running,
        payload=body.payload,
        options=body.options,
        priority=body.priority,
        attempt=standing.attempt,
        crashes=standing.crashes,
        shared_deaths=standing.shared_deaths if standing.state is None else 0,
        fence=standing.fence,
        run_at=standing.order_at + body.priority * SECOND,
        enqueued_at=body.enqueued_at,
        expires_at=body.expires_at,
        gate=gate,
        worker=standing.worker,
        claimed_at=standing.claimed_at,
        lease_until=standing.lease_until or None,
        cancel_requested=standing.cancel is not None,
        finished_at=standing.finished_at,
        result=standing.result,
        reason=standing.reason,
        errors=errors,
        level=body.level,
    )


def _salvaged(text: bytes) -> Body:
    """Return as much of a damaged body as can be read, for people to make sense of."""
    # Where nothing can be read, it is shown as it is.
    damaged = msgspec.json.encode(text.decode(errors="backslashreplace")).decode()
    sound = Body("?", 0, 0, 0, None, 1, None, damaged)
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
    return tuple(
        PastAttempt(
            attempt=past.attempt,
            outcome=past.outcome,
            worker=past.worker,
            claimed_at=past.claimed_at,
            started_at=past.started_at,
            finished_at=past.finished_at,
            error=past.error,
            message=past.message,
            traceback=past.traceback,
            fingerprint=past.fingerprint,
        )
        for past in pasts
    )


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
    return [Attempt(queue=queue, finished_at=finished_at, **asdict(line)) for line in lines]


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


def worker_of(name: str, text: bytes) -> Worker:
    """Return a worker as it announced itself."""
    said = read(_announced, f"worker {name}", text)
    try:
        pools = read(_shares, "its pools", said.pools)
    except DecodeError:
        pools = ()
    return Worker(
        name,
        said.capable,
        pools,
        said.processes,
        said.started_at,
        said.live_until,
        said.level,
    )


def parked_of(member: bytes) -> tuple[bytes, bytes, bool]:
    """Return under which gate and key a job is parked, its id, and whether a run of it was lost."""
    kind, _, rest = member.rpartition(b"\0")
    return kind, rest[1:], rest[:1] == b"r"


def task_of(kind: bytes) -> tuple[str, int] | None:
    """Return the task and version that a job is parked for; None if it is for something else."""
    reason, *key = kind.split(b"\0", 2)
    if reason != NO_CAPABLE_WORKER or not key:
        return None
    task, version = (*key, b"")[:2]
    number = int(version) if version.isdigit() and len(version) <= _VERSION_DIGITS else 0
    return task.decode(errors="replace"), number


def ended_at(batch: bytes) -> int:
    """Return when the runs of a batch of the attempt log ended."""
    digits = batch[:_CLOCK_DIGITS]
    return int(digits) if digits.isdigit() else 0


def kept_of(answer: Sequence[Any]) -> Kept | None:
    """Return what `records.lua` answers for one job; None for one that is not known."""
    return None if answer[0] is None else Kept(*answer)
