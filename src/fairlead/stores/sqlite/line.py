"""The hot verbs, inside the writer's open transaction.

Each verb takes a list and returns an answer per item. Rows travel as JSON, many
at a time: every step of a statement lets go of the interpreter lock, and beside
a busy handler each step can cost 5 ms. A verb takes a handful of steps however
long the list is.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, Clock
from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId
from fairlead.core.job import LATEST, NewJob, Reason, State, read
from fairlead.core.outcome import Settlement, overrule
from fairlead.core.selection import (
    Claim,
    ClaimPlan,
    can_run,
)
from fairlead.core.store import BATCH, Extended, Upkeep
from fairlead.stores.foreign import commits_itself
from fairlead.stores.sqlite.claim import Claims
from fairlead.stores.sqlite.foreign import Shared
from fairlead.stores.sqlite.repair import move_out
from fairlead.stores.sqlite.sound import decode_capable, exact
from fairlead.stores.sqlite.statements import put_statement, statements
from fairlead.stores.sqlite.talk import (
    UNREADABLE,
    Hand,
    ask,
    raise_unless_damage,
    tell,
    to_json,
)

_PUT_SIZES = (1_000, 256, 64, 16, 4, 1)

_decode_ids = msgspec.json.Decoder(set[JobId]).decode
decode_seqs = msgspec.json.Decoder(list[int]).decode
_decode_pairs = msgspec.json.Decoder(list[tuple[str, int]]).decode
_Refused = dict[int, sqlite3.IntegrityError]
_decode_pending = msgspec.json.Decoder(tuple[int, int, int, set[str]]).decode


class _Current(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A running job, as far as its settlement needs it."""

    seq: int
    id: JobId
    fence: int
    cancel: str | None
    attempt: int
    worker: str | None
    claimed_at: int | None


_decode_current = msgspec.json.Decoder(list[_Current]).decode


def put_rows(connection: Hand, jobs: Sequence[NewJob], now: int) -> list[bool]:
    """Add jobs on any connection to the file; says for each whether it is new."""
    fresh: list[bool] = []
    start = 0
    for size in _PUT_SIZES:
        while len(jobs) - start >= size:
            fresh += _put_some(connection, jobs[start : start + size], now)
            start += size
    return fresh


def _put_some(connection: Hand, jobs: Sequence[NewJob], now: int) -> list[bool]:
    values: list[object] = []
    for job in jobs:
        due = job.due_at(now)
        size = len(job.payload) if job.payload.isascii() else len(job.payload.encode())
        if job.options is not None:
            size += len(job.options.encode())
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
            size,
            job.payload,
            job.options,
        )
    put = connection.execute(put_statement(len(jobs)), values)
    count = put.rowcount
    if count == len(jobs):
        return [True] * len(jobs)
    if not count:
        return [False] * len(jobs)
    upto = put.lastrowid or 0
    added = _decode_ids(ask(connection, "added", after=upto - count, upto=upto))
    if len(added) < count:
        ids = to_json([job.id for job in jobs])
        added = _decode_ids(ask(connection, "added_now", ids=ids, now=now))
    fresh = []
    for job in jobs:
        fresh.append(job.id in added)
        added.discard(job.id)  # An id that stands twice in the batch is new only once.
    return fresh


def complete(connection: Shared, settlement: Settlement, now: int) -> Settlement | None:
    """Write a done run inside a transaction on any connection to the file; never commits.

    Returns the settlement, or how it was overruled, or None if the fence has moved on.
    """
    tell(connection, "take_write_lock")
    if not connection.in_transaction:
        raise commits_itself()
    job = _current(connection, [settlement.id]).get((settlement.id, settlement.fence))
    if job is None:
        return None
    if job.cancel is not None:
        return overrule(settlement, job.cancel)
    for problem in _write_settlements(connection, [(job, settlement)], now).values():
        raise problem
    return settlement


class SqliteLine:
    """Put, claim, extend, settle, announce and upkeep, as the writer runs them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._claims = Claims()

    def put(self, connection: sqlite3.Connection, jobs: Sequence[NewJob]) -> list[bool]:
        """Add jobs."""
        now = self._clock.now()
        self._claims.arrived(jobs, now)
        return put_rows(connection, jobs, now)

    def look_again(self) -> None:
        """Take note that jobs may have come back to their old places."""
        self._claims.look_again()

    def claim(self, connection: sqlite3.Connection, plans: Sequence[ClaimPlan]) -> list[Claim]:
        """Lease what the selection rule chooses for each plan."""
        return [self._claim(connection, plan) for plan in plans]

    def _claim(self, connection: sqlite3.Connection, plan: ClaimPlan) -> Claim:
        now = self._clock.now()
        return self._claims.claim(connection, plan, self._prepare(connection, plan, now), now)

    def _prepare(self, connection: sqlite3.Connection, plan: ClaimPlan, now: int) -> set[str]:
        """Look after jobs that are due, known again or expired; returns the paused queues."""
        due, unknown, expired, paused = _pending(connection, now)
        if due:
            tell(connection, "promote", now=now, batch=BATCH)
            self.look_again()
        if unknown and _bring_back(connection, partial(can_run, plan.capable)):
            self.look_again()
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
        broken: set[JobId] = set()
        current = _current(connection, (settlement.id for settlement in settlements), broken)
        answers: list[Settlement | None] = []
        valid: list[tuple[_Current, Settlement]] = []
        for settlement in settlements:
            job = current.pop((settlement.id, settlement.fence), None)
            if job is None:
                if settlement.id in broken:
                    _move_out_broken(connection, settlement, now)
                answers.append(None)
                continue
            ruled = settlement if job.cancel is None else overrule(settlement, job.cancel)
            answers.append(ruled)
            valid.append((job, ruled))
        refused = _write_settlements(connection, valid, now) if valid else {}
        if any(ruled.state is State.WAITING for _, ruled in valid):
            self.look_again()
        if not refused:
            return answers
        for seq, problem in refused.items():
            move_out(connection, seq, now, str(problem))
        gone = {job.id for job, _ in valid if job.seq in refused}
        return [None if each is None or each.id in gone else each for each in answers]

    def announce(
        self, connection: sqlite3.Connection, items: Sequence[tuple[Worker, int]]
    ) -> list[None]:
        """Note which workers live, and which tasks they know. Items are (worker, lease)."""
        now = self._clock.now()
        for worker, lease in items:
            told: dict[str, object] = {"capable": to_json(dict(worker.capable))}
            told |= {"pools": to_json(worker.pools), "processes": worker.processes}
            tell(connection, "announce", id=worker.id, now=now, until=now + lease, **told)
            if _bring_back(connection, partial(can_run, worker.capable)):
                self.look_again()
        return [None] * len(items)

    def upkeep(self, connection: sqlite3.Connection, keeps: Sequence[int]) -> list[Upkeep]:
        """Do one bounded round of housekeeping for each request."""
        return [self._upkeep(connection, keep) for keep in keeps]

    def _upkeep(self, connection: sqlite3.Connection, keep: int) -> Upkeep:
        now = self._clock.now()
        known: dict[str, int] = {}
        live = {"now": now, "latest": LATEST}
        for (capable,) in connection.execute(statements()["known"], live).fetchall():
            with suppress(DecodeError):  # The audit tells of it; what the others know counts.
                for task, version in read(decode_capable, "what a worker knows", capable).items():
                    known[task] = max(version, known.get(task, 0))
        old = {"before": now - keep, "batch": BATCH}
        tell(connection, "prune_workers", before=now - keep)
        done = Upkeep(
            promoted=tell(connection, "promote", now=now, batch=BATCH),
            brought_back=_bring_back(connection, partial(can_run, known)),
            expired=_expire(connection, now),
            pruned_jobs=tell(connection, "prune_finished", **old),
            pruned_attempts=tell(connection, "prune_attempts", **old),
        )
        if done.promoted or done.brought_back:
            self.look_again()
        return done


def _pending(connection: sqlite3.Connection, now: int) -> tuple[int, int, int, set[str]]:
    """Say what has to be looked after before a claim, and which queues are paused."""
    try:
        return _decode_pending(ask(connection, "pending", now=now))
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    # Somebody damaged the name of a paused queue; no queue has it.
    with exact(connection):
        paused = connection.execute(statements()["paused"]).fetchall()
    return 1, 1, 1, {queue for (queue,) in paused if isinstance(queue, str)}


def _current(
    connection: Hand, ids: Iterable[JobId], broken: set[JobId] | None = None
) -> dict[tuple[JobId, int], _Current]:
    """Return the running jobs among these by id and fence: the only fence check there is.

    The ids of those that cannot be read are added to `broken`.
    """
    wanted = list(ids)
    try:
        running = _decode_current(ask(connection, "current", ids=to_json(wanted)))
    except UNREADABLE as problem:
        raise_unless_damage(problem)
        if len(wanted) == 1:
            if broken is not None:
                broken.update(wanted)
            return {}
        parts = (_current(connection, [job_id], broken) for job_id in wanted)
        return {pair: job for part in parts for pair, job in part.items()}
    return {(job.id, job.fence): job for job in running}


def _move_out_broken(connection: sqlite3.Connection, settlement: Settlement, now: int) -> None:
    """Make a dead letter of a job whose run has ended, and whose row cannot be read."""
    seq = ask(connection, "runs_under", id=settlement.id, fence=settlement.fence)
    if seq is not None:
        move_out(connection, seq, now)


def _write_settlements(
    connection: Hand, valid: list[tuple[_Current, Settlement]], now: int
) -> _Refused:
    """Write a batch with one statement for each kind of end there is in it, mostly one.

    Returns what could not be written, by sequence number, and why: such a job has ended already.
    """
    ended: defaultdict[tuple[State, bool, bool, int, str | None], dict[int, object]]
    ended = defaultdict(dict)
    runs: defaultdict[tuple[str, str | None, str | None], dict[int, object]] = defaultdict(dict)
    failed: dict[int, str] = {}
    for job, s in valid:
        mark = None
        if s.failure is not None:
            mark = s.failure.fingerprint
            past = s.remembered(job.attempt, job.worker, job.claimed_at or now, now)
            failed[job.seq] = to_json(past)
        runs[s.outcome, s.pool, mark][job.seq] = s.started_at
        end = (s.state, s.counts, s.crashed, s.shared_deaths, s.reason)
        ended[end][job.seq] = s.run_at if s.state is State.WAITING else s.result
    refused: _Refused = {}
    for (outcome, pool, mark), started in runs.items():
        run: dict[str, object] = {"outcome": outcome, "pool": pool, "fingerprint": mark, "now": now}
        refused |= _apart(partial(_log, connection, run), started)
    if failed:
        tell(connection, "remember", runs=to_json(failed))
    for end, jobs in ended.items():
        whole = {seq: jobs[seq] for seq in jobs.keys() - refused} if refused else jobs
        refused |= _End(*end).write(connection, whole, now)
    return refused


def _log(connection: Hand, run: dict[str, object], started: dict[int, object]) -> None:
    tell(connection, "log", runs=to_json(started), **run)


def _apart(write: Callable[[dict[int, object]], None], jobs: dict[int, object]) -> _Refused:
    """Write for these jobs; for each alone, if the engine refuses one of them."""
    try:
        write(jobs)
    except sqlite3.IntegrityError as problem:
        if len(jobs) == 1:
            return dict.fromkeys(jobs, problem)
        parts = (_apart(write, {seq: value}) for seq, value in jobs.items())
        return {seq: problem for part in parts for seq, problem in part.items()}
    return {}


class _End(NamedTuple):
    """One kind of end: jobs that share it are written together."""

    state: State
    counts: bool = True
    crashed: bool = False
    shared_deaths: int = 0
    reason: str | None = None

    def write(self, connection: Hand, jobs: dict[int, object], now: int) -> _Refused:
        """Write it for these jobs: sequence numbers with their results, or new due times.

        Returns those that the engine refused, which are left as they are.
        """
        return _apart(partial(self._write, connection, now), jobs)

    def _write(self, connection: Hand, now: int, jobs: dict[int, object]) -> None:
        counts = {"uncounted": not self.counts, "crashed": self.crashed, "now": now}
        if self.state is State.WAITING:
            counts["shared_deaths"] = self.shared_deaths
            tell(connection, "requeue", times=to_json(jobs), **counts)
            return
        if self.state is State.DEAD:
            tell(connection, "bury", results=to_json(jobs), reason=self.reason, **counts)
        else:
            told = {"state": self.state, "reason": self.reason, **counts}
            tell(connection, "finish", results=to_json(jobs), **told)
        tell(connection, "remove", seqs=to_json(list(jobs)))


def _bring_back(connection: sqlite3.Connection, known: Callable[[str, int], bool]) -> int:
    pairs = [pair for pair in _parked_tasks(connection) if known(*pair)]
    return tell(connection, "bring_back", known=to_json(pairs), batch=BATCH) if pairs else 0


def _parked_tasks(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Return the tasks that jobs are parked for."""
    try:
        return _decode_pairs(ask(connection, "unknown"))
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    # Somebody damaged the name of one; no worker knows it.
    with exact(connection):
        rows = connection.execute(statements()["unknown_counts"]).fetchall()
    return [(t, v) for t, v, _ in rows if isinstance(t, str) and isinstance(v, int)]


def _expire(connection: sqlite3.Connection, now: int) -> int:
    seqs = decode_seqs(ask(connection, "expired", now=now, batch=BATCH))
    cancel_waiting(connection, seqs, Reason.EXPIRED, now)
    return len(seqs)


def cancel_waiting(
    connection: sqlite3.Connection, seqs: list[int], reason: str, now: int
) -> set[int]:
    """Move waiting jobs to the finished ones as cancelled, their counts as they are.

    One whose id has ended already becomes a dead letter; the sequence numbers of such are returned.
    """
    if not seqs:
        return set()
    end = _End(State.CANCELLED, reason=reason)
    refused = end.write(connection, dict.fromkeys(seqs), now)
    for seq, problem in refused.items():
        move_out(connection, seq, now, str(problem))
    return set(refused)
