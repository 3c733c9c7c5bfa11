"""The hot verbs, inside the writer's open transaction.

Each verb takes a list and returns an answer per item. Rows travel as JSON, many
at a time: every step of a statement lets go of the interpreter lock, and beside
a busy handler each step can cost 5 ms. A verb takes a handful of steps however
long the list is.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, Clock
from fairlead.core.errors import ConfigError
from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import (
    Gate,
    Job,
    NewJob,
    PastAttempt,
    Reason,
    State,
    next_fence,
)
from fairlead.core.outcome import Settlement, overrule
from fairlead.core.queue import Served
from fairlead.core.selection import (
    Claim,
    ClaimPlan,
    Head,
    Line,
    Snapshot,
    Unknown,
    can_run,
    select,
)
from fairlead.core.store import BATCH, Extended, Upkeep
from fairlead.stores.sqlite.statements import put_statement, statements

_PUT_SIZES = (1_000, 256, 64, 16, 4, 1)
_FIRST = -(2**63)

_encode = msgspec.json.Encoder().encode
_decode_ids = msgspec.json.Decoder(set[JobId]).decode
decode_seqs = msgspec.json.Decoder(list[int]).decode
_decode_pairs = msgspec.json.Decoder(list[tuple[str, int]]).decode
_decode_pending = msgspec.json.Decoder(tuple[int, int, int, set[str]]).decode


class _Current(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A running job, as far as its settlement needs it."""

    seq: int
    id: JobId
    fence: int
    cancel: str | None
    attempt: int
    worker: str | None
    claimed_at: int


class _Row(Head, frozen=True, array_like=True, gc=False, kw_only=True):
    """A waiting job with all that its claim needs."""

    seq: int
    payload: str
    options: str | None
    attempt: int
    crashes: int
    suspect: bool
    fence: int
    enqueued_at: int
    claimed_at: int | None
    worker: str | None


_decode_rows = msgspec.json.Decoder(list[_Row]).decode
_decode_current = msgspec.json.Decoder(list[_Current]).decode


def to_json(value: object) -> str:
    """Return a value as the JSON text that statements take for a list of rows."""
    return _encode(value).decode()


Hand = sqlite3.Connection | sqlite3.Cursor
"""What statements go through: on connections that are not ours a plain cursor, see `_plain`."""


def _plain(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """Return a cursor that gives rows as they are; the application may have set factories."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def ask(connection: Hand, statement: str, **values: object) -> Any:  # noqa: ANN401
    """Run a statement that returns one value."""
    return connection.execute(statements()[statement], values).fetchone()[0]


def tell(connection: Hand, statement: str, **values: object) -> int:
    """Run a statement that changes rows; returns how many."""
    return connection.execute(statements()[statement], values).rowcount


def put_rows(connection: sqlite3.Connection, jobs: Sequence[NewJob], now: int) -> list[bool]:
    """Add jobs on any connection to the file; says for each whether it is new."""
    cursor = _plain(connection)
    fresh: list[bool] = []
    start = 0
    for size in _PUT_SIZES:
        while len(jobs) - start >= size:
            fresh += _put_some(cursor, jobs[start : start + size], now)
            start += size
    return fresh


def _put_some(cursor: sqlite3.Cursor, jobs: Sequence[NewJob], now: int) -> list[bool]:
    values: list[object] = []
    for job in jobs:
        due = job.due_at(now)
        values += (
            job.id,
            job.queue,
            job.task,
            job.version,
            int(due > now),
            due,
            due - job.priority * SECOND,
            job.ends_at(now),
            now,
            job.payload,
            job.options,
        )
    count = cursor.execute(put_statement(len(jobs)), values).rowcount
    if count == len(jobs):
        return [True] * len(jobs)
    if not count:
        return [False] * len(jobs)
    upto = cursor.lastrowid or 0
    cursor.execute(statements()["added"], {"after": upto - count, "upto": upto})
    added = _decode_ids(cursor.fetchone()[0])
    fresh = []
    for job in jobs:
        fresh.append(job.id in added)
        added.discard(job.id)  # An id that stands twice in the batch is new only once.
    return fresh


def complete(connection: sqlite3.Connection, settlement: Settlement, now: int) -> Settlement | None:
    """Write a done run inside a transaction on any connection to the file; never commits.

    Returns the settlement, or how it was overruled, or None if the fence has moved on.
    """
    cursor = _plain(connection)
    tell(cursor, "take_write_lock")
    if not connection.in_transaction:
        raise ConfigError(
            "job.commit(conn) needs a transaction on the connection, and it commits each "
            'statement by itself; conn.execute("BEGIN IMMEDIATE") before the block'
        )
    job = _current(cursor, [settlement.id]).get((settlement.id, settlement.fence))
    if job is None:
        return None
    if job.cancel is not None:
        return overrule(settlement, job.cancel)
    _write_settlements(cursor, [(job, settlement)], now)
    return settlement


class SqliteLine:
    """Put, claim, extend, settle, announce and upkeep, as the writer runs them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Where claims of a worker stopped in a queue they could not look through.
        self._stopped: dict[tuple[str, str], Head] = {}

    def put(self, connection: sqlite3.Connection, jobs: Sequence[NewJob]) -> list[bool]:
        """Add jobs."""
        return put_rows(connection, jobs, self._clock.now())

    def claim(self, connection: sqlite3.Connection, plans: Sequence[ClaimPlan]) -> list[Claim]:
        """Lease what the selection rule chooses for each plan."""
        return [self._claim(connection, plan) for plan in plans]

    def _claim(self, connection: sqlite3.Connection, plan: ClaimPlan) -> Claim:
        now = self._clock.now()
        paused = self._prepare(connection, plan, now)
        lines = [
            Line(queue, self._heads(connection, plan, queue, now), queue.name in paused)
            for queue in plan.queues
        ]
        selection = select(Snapshot(plan, now, lines))
        for name, head in selection.stopped.items():
            self._stopped[plan.worker, name] = head
        unknown = [
            job_id for job_id, gate in selection.held.items() if gate is Gate.NO_CAPABLE_WORKER
        ]
        parked = _park_unknown(connection, unknown, now) if unknown else []
        rows = cast("list[tuple[str, _Row]]", selection.chosen)
        jobs = _lease(connection, rows, plan, now) if rows else []
        return Claim(jobs, selection.credits, now, parked, selection.cut)

    def _heads(
        self, connection: sqlite3.Connection, plan: ClaimPlan, queue: Served, now: int
    ) -> Iterator[Head]:
        """Go along a queue's order, reading about as many jobs at a time as its share will take."""
        weights = sum(other.weight for other in plan.queues)
        chunk = plan.slots * queue.weight // weights + queue.reserved + 2
        last = self._stopped.pop((plan.worker, queue.name), None)
        while True:
            after = (last.order_at, last.id) if last else (_FIRST, "")
            found = _read_heads(connection, queue.name, after, chunk, now)
            yield from found
            if len(found) < chunk:
                return
            last = found[-1]

    def _prepare(self, connection: sqlite3.Connection, plan: ClaimPlan, now: int) -> set[str]:
        """Look after jobs that are due, known again or expired; returns the paused queues."""
        due, unknown, expired, paused = _decode_pending(ask(connection, "pending", now=now))
        if due:
            tell(connection, "promote", now=now, batch=BATCH)
        if unknown:
            _bring_back(connection, partial(can_run, plan.capable))
        if expired:
            _expire(connection, now)
        return paused

    def extend(
        self, connection: sqlite3.Connection, leases: Sequence[tuple[JobId, int, int]]
    ) -> list[Extended | None]:
        """Renew leases; None for those that are lost. Items are (id, fence, lease)."""
        now = self._clock.now()
        current = _current(connection, (job_id for job_id, _, _ in leases))
        answers: list[Extended | None] = []
        renewed: dict[int, list[int]] = {}
        for job_id, fence, lease in leases:
            job = current.get((job_id, fence))
            answers.append(None if job is None else Extended(job_id, job.cancel is not None))
            if job is not None:
                renewed.setdefault(lease, []).append(job.seq)
        for lease, seqs in renewed.items():
            tell(connection, "extend", seqs=to_json(seqs), until=now + lease)
        return answers

    def settle(
        self, connection: sqlite3.Connection, settlements: Sequence[Settlement]
    ) -> list[Settlement | None]:
        """Write what became of running jobs; None for those whose fence has moved on."""
        now = self._clock.now()
        current = _current(connection, (settlement.id for settlement in settlements))
        answers: list[Settlement | None] = []
        valid: list[tuple[_Current, Settlement]] = []
        for settlement in settlements:
            job = current.pop((settlement.id, settlement.fence), None)
            if job is None:
                answers.append(None)
                continue
            ruled = settlement if job.cancel is None else overrule(settlement, job.cancel)
            answers.append(ruled)
            valid.append((job, ruled))
        if valid:
            _write_settlements(connection, valid, now)
        return answers

    def announce(
        self, connection: sqlite3.Connection, items: Sequence[tuple[Worker, int]]
    ) -> list[None]:
        """Note which workers live, and which tasks they know. Items are (worker, lease)."""
        now = self._clock.now()
        for worker, lease in items:
            told: dict[str, object] = {"capable": to_json(dict(worker.capable))}
            told |= {"pools": to_json(worker.pools), "processes": worker.processes}
            tell(connection, "announce", id=worker.id, now=now, until=now + lease, **told)
            _bring_back(connection, partial(can_run, worker.capable))
        return [None] * len(items)

    def upkeep(self, connection: sqlite3.Connection, keeps: Sequence[int]) -> list[Upkeep]:
        """Do one bounded round of housekeeping for each request."""
        return [self._upkeep(connection, keep) for keep in keeps]

    def _upkeep(self, connection: sqlite3.Connection, keep: int) -> Upkeep:
        now = self._clock.now()
        known: dict[str, int] = {}
        for _, capable, *_ in connection.execute(statements()["workers"], {"now": now}).fetchall():
            for task, version in msgspec.json.decode(capable, type=dict[str, int]).items():
                known[task] = max(version, known.get(task, 0))
        old = {"before": now - keep, "batch": BATCH}
        tell(connection, "prune_workers", before=now - keep)
        return Upkeep(
            promoted=tell(connection, "promote", now=now, batch=BATCH),
            brought_back=_bring_back(connection, partial(can_run, known)),
            expired=_expire(connection, now),
            pruned_jobs=tell(connection, "prune_finished", **old),
            pruned_attempts=tell(connection, "prune_attempts", **old),
        )


def _read_heads(
    connection: sqlite3.Connection, queue: str, after: tuple[int, str], limit: int, now: int
) -> list[_Row]:
    """Read the next jobs after a place. Those that cannot be read become dead letters."""
    where = {"queue": queue, "order_at": after[0], "id": after[1], "now": now}
    try:
        return _decode_rows(ask(connection, "heads", limit=limit, **where))
    except _UNREADABLE as problem:
        _raise_unless_damage(problem)
    # One by one, to find the row that somebody damaged.
    rows: list[_Row] = []
    while len(rows) < limit:
        try:
            found = _decode_rows(ask(connection, "heads", limit=1, **where))
        except _UNREADABLE as problem:
            _raise_unless_damage(problem)
            _quarantine(connection, ask(connection, "next_seq", **where), str(problem), now)
            continue
        if not found:
            break
        rows += found
        where |= {"order_at": found[0].order_at, "id": found[0].id}
    return rows


def _lease(
    connection: sqlite3.Connection, rows: list[tuple[str, _Row]], plan: ClaimPlan, now: int
) -> list[Job]:
    """Write the leases and return the jobs as they are then, in the order of the rows."""
    until = now + plan.lease
    jobs: list[Job] = []
    alike: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
    for queue, row in rows:
        lost = row.lost
        fence = next_fence(row.fence, now)
        alike[lost, fence].append(row.seq)
        jobs.append(
            Job(
                row.id,
                row.task,
                row.version,
                queue,
                row.payload,
                row.options,
                row.attempt if lost else row.attempt + 1,
                row.crashes,
                fence,
                row.run_at,
                row.enqueued_at,
                row.expires_at,
                row.claimed_at or now,
                until,
                row.worker or plan.worker,
                lost,
                row.suspect,
            )
        )
    for (lost, fence), seqs in alike.items():
        values: dict[str, object] = {"fence": fence, "until": until, "seqs": to_json(seqs)}
        if lost:
            tell(connection, "take_over", **values)
        else:
            tell(connection, "lease", worker=plan.worker, now=now, **values)
    return jobs


def _park_unknown(connection: sqlite3.Connection, ids: list[JobId], now: int) -> list[Unknown]:
    """Park those of these jobs that no live worker knows."""
    values = {"ids": to_json(ids), "now": now}
    rows = connection.execute(statements()["park_unknown"], values).fetchall()
    return [Unknown(*row) for row in sorted(rows)]


_UNREADABLE = (sqlite3.OperationalError, msgspec.MsgspecError, UnicodeError)
"""What a row raises that somebody damaged: not text, not UTF-8, not a number."""


def _raise_unless_damage(problem: Exception) -> None:
    """Let through what is not the row's fault: a failing disk, a full one."""
    if getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_ERROR) != sqlite3.SQLITE_ERROR:
        raise problem


def _quarantine(connection: sqlite3.Connection, seq: int, problem: str, now: int) -> None:
    """Make a dead letter of a job that cannot be read; the others go on."""
    failure = described("Unreadable", f"the stored row cannot be read: {problem}")
    past = PastAttempt(
        attempt=0,
        outcome="failed",
        worker=None,
        claimed_at=None,
        started_at=None,
        finished_at=now,
        error=failure.error,
        message=failure.message,
        fingerprint=failure.fingerprint,
    )
    tell(connection, "remember", runs=to_json({seq: to_json(past)}))
    _End(State.DEAD, reason=Reason.UNREADABLE).write(connection, {seq: None}, now)


def _current(connection: Hand, ids: Iterable[JobId]) -> dict[tuple[JobId, int], _Current]:
    """Return the running jobs among these by id and fence: the only fence check there is."""
    wanted = list(ids)
    try:
        running = _decode_current(ask(connection, "current", ids=to_json(wanted)))
    except _UNREADABLE as problem:
        _raise_unless_damage(problem)
        if len(wanted) == 1:
            return {}  # A damaged row cannot be settled; it is found out when its lease passes.
        parts = (_current(connection, [job_id]) for job_id in wanted)
        return {pair: job for part in parts for pair, job in part.items()}
    return {(job.id, job.fence): job for job in running}


def _write_settlements(
    connection: Hand, valid: list[tuple[_Current, Settlement]], now: int
) -> None:
    """Write a batch with one statement for each kind of end there is in it, mostly one."""
    ended: defaultdict[tuple[State, bool, bool, bool, str | None], dict[int, object]]
    ended = defaultdict(dict)
    runs: defaultdict[tuple[str, str | None, str | None], dict[int, object]] = defaultdict(dict)
    failed: dict[int, str] = {}
    for job, s in valid:
        mark = None
        if s.failure is not None:
            mark = s.failure.fingerprint
            past = s.remembered(job.attempt, job.worker, job.claimed_at, now)
            failed[job.seq] = to_json(past)
        runs[s.outcome, s.pool, mark][job.seq] = s.started_at
        end = (s.state, s.counts, s.crashed, s.suspect, s.reason)
        ended[end][job.seq] = s.run_at if s.state is State.WAITING else s.result
    for (outcome, pool, mark), started in runs.items():
        run = {"outcome": outcome, "pool": pool, "fingerprint": mark, "now": now}
        tell(connection, "log", runs=to_json(started), **run)
    if failed:
        tell(connection, "remember", runs=to_json(failed))
    for end, jobs in ended.items():
        _End(*end).write(connection, jobs, now)


class _End(NamedTuple):
    """One kind of end: jobs that share it are written together."""

    state: State
    counts: bool = True
    crashed: bool = False
    suspect: bool = False
    reason: str | None = None

    def write(self, connection: Hand, jobs: dict[int, object], now: int) -> None:
        """Write it for these jobs: sequence numbers with their results, or new due times."""
        counts = {"uncounted": not self.counts, "crashed": self.crashed, "now": now}
        if self.state is State.WAITING:
            tell(connection, "requeue", times=to_json(jobs), suspect=self.suspect, **counts)
            return
        if self.state is State.DEAD:
            tell(connection, "bury", results=to_json(jobs), reason=self.reason, **counts)
        else:
            told = {"state": self.state, "reason": self.reason, **counts}
            tell(connection, "finish", results=to_json(jobs), **told)
        tell(connection, "remove", seqs=to_json(list(jobs)))


def _bring_back(connection: sqlite3.Connection, known: Callable[[str, int], bool]) -> int:
    parked = _decode_pairs(ask(connection, "unknown"))
    pairs = [pair for pair in parked if known(*pair)]
    return tell(connection, "bring_back", known=to_json(pairs), batch=BATCH) if pairs else 0


def _expire(connection: sqlite3.Connection, now: int) -> int:
    seqs = decode_seqs(ask(connection, "expired", now=now, batch=BATCH))
    cancel_waiting(connection, seqs, Reason.EXPIRED, now)
    return len(seqs)


def cancel_waiting(connection: sqlite3.Connection, seqs: list[int], reason: str, now: int) -> None:
    """Move waiting jobs to the finished ones as cancelled, their counts as they are."""
    if seqs:
        _End(State.CANCELLED, reason=reason).write(connection, dict.fromkeys(seqs), now)
