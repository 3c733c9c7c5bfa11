"""The hot verbs, inside the writer's open transaction.

Each verb takes a list and returns an answer per item. Rows travel as JSON, many
at a time: every step of a statement lets go of the interpreter lock, and beside
a busy handler each step can cost 5 ms. A verb takes a handful of steps however
long the list is.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from fairlead.core.admin import Worker
from fairlead.core.clock import Clock
from fairlead.core.ids import JobId
from fairlead.core.job import HIGHEST, LATEST, LEVEL, NewJob, Reason, State
from fairlead.core.outcome import Settlement, overrule
from fairlead.core.selection import LOOK, Claim, ClaimPlan
from fairlead.core.store import BATCH, Extended, Upkeep
from fairlead.stores.foreign import commits_itself
from fairlead.stores.records import known_tasks
from fairlead.stores.sqlite.claim import Claims
from fairlead.stores.sqlite.entries import forget_old as forget_old_entries
from fairlead.stores.sqlite.entries import prune
from fairlead.stores.sqlite.foreign import Shared
from fairlead.stores.sqlite.repair import move_out
from fairlead.stores.sqlite.sound import exact
from fairlead.stores.sqlite.statements import statements
from fairlead.stores.sqlite.talk import (
    UNREADABLE,
    Hand,
    ask,
    raise_unless_damage,
    tell,
    to_json,
)
from fairlead.stores.sqlite.ways import (
    End,
    Moment,
    Refused,
    apart,
    bring_back_due,
    bring_back_known,
    enter,
    forget_old,
    leave,
    wait_again,
)

_decode_seqs = msgspec.json.Decoder(list[int]).decode
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


_LONG_LOOK = 50 * LOOK
"""How far upkeep looks for jobs that expired, past running ones and those of newer programs."""
_decode_current = msgspec.json.Decoder(list[_Current]).decode


def complete(connection: Shared, settlement: Settlement, by: Moment) -> Settlement | None:
    """Write a done run inside a transaction on any connection to the file; never commits.

    Returns the settlement, or how it was overruled, or None if the fence has moved on.
    """
    tell(connection, "take_write_lock")
    if not connection.in_transaction:
        raise commits_itself()
    current = _current(connection, [settlement.id], by.level)
    job = current.get((settlement.id, settlement.fence))
    if job is None:
        return None
    if job.cancel is not None:
        return overrule(settlement, job.cancel)
    for problem in _write_settlements(connection, [(job, settlement)], by.now).values():
        raise problem
    return settlement


class SqliteLine:
    """Put, claim, extend, settle, announce and upkeep, as the writer runs them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._claims = Claims()
        self.level = LEVEL

    def moment(self) -> Moment:
        """Return what a verb goes by that runs now."""
        return Moment(self._clock.now(), self.level)

    def put(self, connection: sqlite3.Connection, jobs: Sequence[NewJob]) -> list[bool]:
        """Add jobs."""
        now = self._clock.now()
        self._claims.arrived(jobs, now)
        return enter(connection, jobs, now)

    def look_again(self) -> None:
        """Take note that jobs may have come back to their old places."""
        self._claims.look_again()

    def claim(self, connection: sqlite3.Connection, plans: Sequence[ClaimPlan]) -> list[Claim]:
        """Lease what the selection rule chooses for each plan."""
        return [self._claim(connection, plan) for plan in plans]

    def _claim(self, connection: sqlite3.Connection, plan: ClaimPlan) -> Claim:
        by = self.moment()
        return self._claims.claim(connection, plan, self._prepare(connection, plan, by), by.now)

    def _prepare(self, connection: sqlite3.Connection, plan: ClaimPlan, by: Moment) -> set[str]:
        """Look after jobs that are due, known again or expired; returns the paused queues."""
        due, unknown, expired, paused = _pending(connection, by)
        if due:
            bring_back_due(connection, by.now)
            self.look_again()
        if unknown:
            self._bring_back_known(connection, plan.capable)
        if expired:
            _expire(connection, by, LOOK)
        return paused

    def extend(
        self, connection: sqlite3.Connection, leases: Sequence[tuple[JobId, int, int]]
    ) -> list[Extended | None]:
        """Renew leases; None for those that are lost. Items are (id, fence, lease)."""
        now = self._clock.now()
        current = _current(connection, (job_id for job_id, _, _ in leases), HIGHEST)
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
        by = self.moment()
        broken: set[JobId] = set()
        ids = (settlement.id for settlement in settlements)
        current = _current(connection, ids, by.level, broken)
        answers: list[Settlement | None] = []
        valid: list[tuple[_Current, Settlement]] = []
        for settlement in settlements:
            job = current.pop((settlement.id, settlement.fence), None)
            if job is None:
                if settlement.id in broken:
                    _move_out_broken(connection, settlement, by)
                answers.append(None)
                continue
            ruled = settlement if job.cancel is None else overrule(settlement, job.cancel)
            answers.append(ruled)
            valid.append((job, ruled))
        refused = _write_settlements(connection, valid, by.now) if valid else {}
        if any(ruled.state is State.WAITING for _, ruled in valid):
            self.look_again()
        if not refused:
            return answers
        for seq, problem in refused.items():
            move_out(connection, seq, by, str(problem))
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
            told |= {"level": worker.level, "now": now, "until": now + lease}
            tell(connection, "announce", id=worker.id, **told)
            self._bring_back_known(connection, worker.capable)
        return [None] * len(items)

    def _bring_back_known(
        self, connection: sqlite3.Connection, capable: Mapping[str, int] | None
    ) -> int:
        """Bring back the jobs that were parked for want of a worker that knows their task."""
        back = bring_back_known(connection, capable)
        if back:
            self.look_again()
        return back

    def upkeep(self, connection: sqlite3.Connection, keeps: Sequence[int]) -> list[Upkeep]:
        """Do one bounded round of housekeeping for each request."""
        return [self._upkeep(connection, keep) for keep in keeps]

    def _upkeep(self, connection: sqlite3.Connection, keep: int) -> Upkeep:
        by = self.moment()
        known: dict[str, int] = {}
        live = {"now": by.now, "latest": LATEST}
        for (capable,) in connection.execute(statements()["known"], live).fetchall():
            for task, version in known_tasks(capable).items():
                known[task] = max(version, known.get(task, 0))
        before = by.now - keep
        tell(connection, "prune_workers", before=before)
        forgotten = forget_old_entries(connection, before, by.level)
        done = Upkeep(
            promoted=bring_back_due(connection, by.now),
            brought_back=self._bring_back_known(connection, known),
            expired=_expire(connection, by, _LONG_LOOK),
            pruned_jobs=forget_old(connection, before, by.level),
            pruned_attempts=tell(connection, "prune_attempts", before=before, batch=BATCH),
            pruned_entries=forgotten + prune(connection, by.now),
        )
        if done.promoted:
            self.look_again()
        return done


def _pending(connection: sqlite3.Connection, by: Moment) -> tuple[int, int, int, set[str]]:
    """Say what has to be looked after before a claim, and which queues are paused."""
    try:
        return _decode_pending(ask(connection, "pending", now=by.now, level=by.level, look=LOOK))
    except UNREADABLE as problem:
        raise_unless_damage(problem)
    # Somebody damaged the name of a paused queue; no queue has it.
    with exact(connection):
        paused = connection.execute(statements()["paused"]).fetchall()
    return 1, 1, 1, {queue for (queue,) in paused if isinstance(queue, str)}


def _current(
    connection: Hand, ids: Iterable[JobId], level: int, broken: set[JobId] | None = None
) -> dict[tuple[JobId, int], _Current]:
    """Return the running jobs among these by id and fence: the only fence check there is.

    Jobs above the level are not told. The ids of those that cannot be read are added to `broken`.
    """
    wanted = list(ids)
    try:
        running = _decode_current(ask(connection, "current", ids=to_json(wanted), level=level))
    except UNREADABLE as problem:
        raise_unless_damage(problem)
        if len(wanted) == 1:
            if broken is not None:
                broken.update(wanted)
            return {}
        parts = (_current(connection, [job_id], level, broken) for job_id in wanted)
        return {pair: job for part in parts for pair, job in part.items()}
    return {(job.id, job.fence): job for job in running}


def _move_out_broken(connection: sqlite3.Connection, settlement: Settlement, by: Moment) -> None:
    """Make a dead letter of a job whose run has ended, and whose row cannot be read."""
    seq = ask(connection, "runs_under", id=settlement.id, fence=settlement.fence)
    if seq is not None:
        move_out(connection, seq, by)


def _write_settlements(
    connection: Hand, valid: list[tuple[_Current, Settlement]], now: int
) -> Refused:
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
    refused: Refused = {}
    for (outcome, pool, mark), started in runs.items():
        run: dict[str, object] = {"outcome": outcome, "pool": pool, "fingerprint": mark, "now": now}
        refused |= apart(partial(_log, connection, run), started)
    if failed:
        tell(connection, "remember", runs=to_json(failed))
    for end, jobs in ended.items():
        whole = {seq: jobs[seq] for seq in jobs.keys() - refused} if refused else jobs
        if end[0] is State.WAITING:
            refused |= wait_again(connection, End(*end), whole, now)
        else:
            refused |= leave(connection, End(*end), whole, now)
    return refused


def _log(connection: Hand, run: dict[str, object], started: Mapping[int, object]) -> None:
    tell(connection, "log", runs=to_json(started), **run)


def _expire(connection: sqlite3.Connection, by: Moment, look: int) -> int:
    values = {"now": by.now, "level": by.level, "batch": BATCH, "look": look}
    seqs = _decode_seqs(ask(connection, "expired", **values))
    cancel_waiting(connection, seqs, Reason.EXPIRED, by)
    return len(seqs)


def cancel_waiting(
    connection: sqlite3.Connection, seqs: list[int], reason: str, by: Moment
) -> set[int]:
    """Move waiting jobs to the finished ones as cancelled, their counts as they are.

    One whose id has ended already becomes a dead letter; the sequence numbers of such are returned.
    """
    if not seqs:
        return set()
    end = End(State.CANCELLED, reason=reason)
    refused = leave(connection, end, dict.fromkeys(seqs), by.now)
    for seq, problem in refused.items():
        move_out(connection, seq, by, str(problem))
    return set(refused)
