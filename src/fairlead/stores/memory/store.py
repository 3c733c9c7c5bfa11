"""The store of `memory://`: the line, and what people ask of it."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from fairlead.core.admin import (
    ALL,
    LIVE,
    MOST_LISTED,
    Action,
    AuditLine,
    Condition,
    ErrorGroup,
    Filter,
    Finding,
    Migration,
    Running,
    Waiting,
    Worker,
    check_count,
    matches,
    reused,
    wait_of,
)
from fairlead.core.answers import answer_in, mark_of, with_answer
from fairlead.core.clock import Clock
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, Gate, JobRecord, State
from fairlead.core.selection import ClaimPlan, Line, Snapshot, can_run
from fairlead.core.store import Backend
from fairlead.stores.memory.line import MemoryLine
from fairlead.stores.memory.live import LiveJob, revived
from fairlead.stores.records import running_of, waiting_of

T = TypeVar("T")


class _Noted(msgspec.Struct):
    """A line of the audit log, which calls of the same action add to."""

    line: AuditLine
    job_id: JobId | None
    answers: str = ""


class MemoryStore(MemoryLine, Backend):
    """Jobs in this process's memory."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._audit_log: dict[str, _Noted] = {}

    # Looking

    async def find(self, job_id: JobId) -> JobRecord | None:
        """Return a job in whatever state."""
        with self._lock:
            return self._record(job_id)

    def _meant(self, which: Filter) -> list[JobRecord]:
        """Return the jobs that the filter means, newest first."""
        with self._lock:
            records = [live.record() for live in self._live.values()]
            records += [*self._finished.values(), *self._dead.values()]
        found = [record for record in records if matches(which, record)]
        return sorted(found, key=lambda record: record.id, reverse=True)

    async def jobs(
        self, which: Filter, limit: int = 100, before: JobId | None = None
    ) -> list[JobRecord]:
        """Return jobs that the filter means, newest first."""
        found = [job for job in self._meant(which) if before is None or job.id < before]
        return found[: min(limit, MOST_LISTED)]

    async def count(self, which: Filter = ALL) -> dict[str, dict[State, int]]:
        """Count jobs by queue and state."""
        counts: dict[str, dict[State, int]] = {}
        for (queue, state), n in Counter((r.queue, r.state) for r in self._meant(which)).items():
            counts.setdefault(queue, {})[state] = n
        return counts

    async def groups(self, which: Filter) -> list[ErrorGroup]:
        """Return failures by fingerprint."""
        by_mark: defaultdict[str | None, list[JobRecord]] = defaultdict(list)
        for job in self._meant(which):
            by_mark[job.errors[-1].fingerprint if job.errors else None].append(job)
        return sorted(map(_group, by_mark.values()), key=lambda g: (g.count, g.job), reverse=True)

    async def attempts(self, job_id: JobId) -> list[Attempt]:
        """Return the job's lines of the attempt log."""
        with self._lock:
            return [attempt for attempt in self._log if attempt.job_id == job_id]

    async def recent(
        self, since: int, limit: int = 10_000, queue: str | None = None
    ) -> list[Attempt]:
        """Return the last lines of the attempt log."""
        with self._lock:
            lines = [
                line
                for line in reversed(self._log)
                if line.finished_at >= since and queue in (None, line.queue)
            ]
        return sorted(lines, key=lambda line: line.finished_at, reverse=True)[:limit]

    async def waiting(self) -> dict[str, Waiting]:
        """Count the waiting jobs of each queue by what they wait for."""
        with self._lock:
            now = self._clock.now()
            jobs = [live.record() for live in self._live.values() if not live.lease_until]
        return waiting_of((job.queue, wait_of(job, now), 1, job.run_at) for job in jobs)

    async def running(self) -> list[Running]:
        """Count running jobs by worker process, queue and task."""
        with self._lock:
            now = self._clock.now()
            jobs = [live.record() for live in self._live.values() if live.lease_until > now]
        return running_of(
            (job.worker, job.queue, job.task, 1, job.claimed_at) for job in jobs if job.worker
        )

    async def snapshot(self, plan: ClaimPlan, limit: int) -> Snapshot:
        """Return what a claim with this plan would look at now."""
        with self._lock:
            now = self._clock.now()
            standing = [
                live
                for live in sorted(self._live.values(), key=lambda live: live.place)
                if live.lease_until <= now
                and live.run_at <= now
                and (
                    not live.unknown_task or can_run(plan.capable, live.new.task, live.new.version)
                )
            ]
            lines = {
                queue.name: Line(
                    queue,
                    [e.head for e in standing if e.new.queue == queue.name][:limit],
                    queue.name in self._paused,
                )
                for queue in plan.queues
            }
        return Snapshot(plan, now, lines)

    async def ahead(self, job_id: JobId) -> int:
        """Count the due jobs before this one in its queue."""
        with self._lock:
            job = self._live.get(job_id)
            if job is None:
                return 0
            return sum(live.place < job.place for live in self._in_order(job.new.queue))

    def _due_jobs(self) -> list[LiveJob]:
        now = self._clock.now()
        return [e for e in self._live.values() if not e.lease_until and e.run_at <= now]

    def _in_order(self, queue: str) -> list[LiveJob]:
        """Return the due jobs of a queue that stand in its order, or will with the next look."""
        return [e for e in self._due_jobs() if e.new.queue == queue and not e.unknown_task]

    async def unknown(self) -> dict[tuple[str, int], int]:
        """Count the jobs parked for want of a capable worker, by task and version."""
        with self._lock:
            parked = [self._live[job_id].new for job_id in self._unknown]
        return dict(Counter((new.task, new.version) for new in parked))

    async def paused(self) -> set[str]:
        """Return the names of the paused queues."""
        return set(self._paused)

    async def workers(self) -> list[Worker]:
        """Return the workers that are announced and live."""
        now = self._clock.now()
        return sorted(
            (worker for worker in self._workers.values() if worker.live_until > now),
            key=lambda worker: worker.id,
        )

    async def audit_log(self, limit: int = 100, job_id: JobId | None = None) -> list[AuditLine]:
        """Return the audit log, newest first."""
        with self._lock:
            noted = [
                each.line
                for each in self._audit_log.values()
                if job_id is None or each.job_id == job_id
            ]
        return noted[::-1][:limit]

    # Acting

    async def cancel(
        self,
        job_ids: Collection[JobId],
        reason: str,
        by: Action,
        states: Collection[State] = LIVE,
    ) -> dict[JobId, JobRecord]:
        """Cancel waiting jobs at once, and mark running ones."""
        touched = {}
        mark = mark_of("cancel", list(job_ids), sorted(states), reason)
        with self._lock:
            past = self._past(by, mark, job_ids)
            if past is not None:
                return {job_id: record for job_id in past if (record := self._record(job_id))}
            now = self._clock.now()
            for job_id in job_ids:
                live = self._live.get(job_id)
                if live is None or live.cancel or live.record().state not in states:
                    continue
                if live.new.level > self.level:
                    continue
                if live.lease_until:
                    live.cancel = reason
                    touched[job_id] = live.record()
                else:
                    self._displace(live)
                    self._finish(live, State.CANCELLED, now, reason)
                    touched[job_id] = self._finished[job_id]
            self._add(by, mark, job_ids, touched, job_id=_only(job_ids))
        self._notify()
        return touched

    async def revive(
        self, job_ids: Collection[JobId], states: Collection[State], by: Action
    ) -> list[JobId]:
        """Let jobs run again, or sooner."""
        mark = mark_of("revive", list(job_ids), sorted(states))
        with self._lock:
            past = self._past(by, mark, job_ids)
            if past is not None:
                return past
            now = self._clock.now()
            done = [job_id for job_id in job_ids if self._revive(job_id, states, now)]
            self._add(by, mark, job_ids, done, job_id=_only(job_ids))
        self._notify()
        return done

    def _revive(self, job_id: JobId, states: Collection[State], now: int) -> bool:
        live = self._live.get(job_id)
        if live is not None:
            if live.lease_until or live.run_at <= now or State.WAITING not in states:
                return False
            if live.new.level > self.level:
                return False
            parked = live.parked
            self._displace(live)
            live = revived(live.record(), now)
            self._live[job_id] = live
            if parked is Gate.NO_CAPABLE_WORKER:
                live.parked = parked
                self._unknown.add(job_id)
                return True
        else:
            place = self._place_of(job_id, states)
            if place is None:
                return False
            self._enter(revived(place.pop(job_id), now), now)
            return True
        self._place(live, now)
        return True

    def _place_of(self, job_id: JobId, states: Collection[State]) -> dict[JobId, JobRecord] | None:
        """Return where a final job is, if it is in one of these states and not above our level."""
        for place in (self._finished, self._dead):
            job = place.get(job_id)
            if job is not None and job.state in states and job.level <= self.level:
                return place
        return None

    async def edit(self, job_id: JobId, was: str, payload: str, version: int, by: Action) -> bool:
        """Replace the payload of a dead letter, if it still is `was`."""
        mark = mark_of("edit", job_id, was, payload, version)
        with self._lock:
            job = self._dead.get(job_id)
            if self._is_repeat(by, mark):
                return True
            if job is None or job.payload != was or job.level > self.level:
                return False
            self._past(by, mark, [job_id], was)
            self._dead[job_id] = replace(job, payload=payload, version=version)
            self._add(by, mark, [job_id], [job_id], was, job_id=job_id)
            return True

    async def delete(
        self, job_ids: Collection[JobId], states: Collection[State], by: Action
    ) -> list[JobId]:
        """Forget final jobs for good."""
        mark = mark_of("delete", list(job_ids), sorted(states))
        with self._lock:
            past = self._past(by, mark, job_ids)
            if past is not None:
                return past
            deleted: list[JobId] = []
            for job_id in job_ids:
                place = self._place_of(job_id, states)
                if place is not None:
                    del place[job_id]
                    self.entries.forget(job_id)
                    deleted.append(job_id)
            self._add(by, mark, job_ids, deleted, job_id=_only(job_ids))
        return deleted

    async def pause(self, queue: str, by: Action) -> bool:
        """Let no further job of this queue start."""
        return self._switch("pause", queue, by, to=True)

    async def resume(self, queue: str, by: Action) -> bool:
        """Let jobs of this queue start again."""
        return self._switch("resume", queue, by, to=False)

    def _switch(self, verb: str, queue: str, by: Action, *, to: bool) -> bool:
        mark = mark_of(verb, queue)
        with self._lock:
            past = self._past(by, mark, [queue])
            if past is not None:
                return bool(past)
            is_new = (queue in self._paused) != to
            self._paused.add(queue) if to else self._paused.discard(queue)
            self._add(by, mark, [queue], [queue] if is_new else [])
        self._notify()
        return is_new

    async def note(self, by: Action, count: int, job_id: JobId | None = None) -> None:
        """Add to the audit log something that was done by other verbs."""
        mark = mark_of("note", check_count(count), job_id)
        with self._lock:
            if self._past(by, mark, ()) is None:
                self._add(by, mark, (), (), count=count, job_id=job_id)

    def _record(self, job_id: JobId) -> JobRecord | None:
        live = self._live.get(job_id)
        if live is not None:
            return live.record()
        return self._finished.get(job_id) or self._dead.get(job_id)

    def _past(
        self, by: Action, mark: str, asked: Iterable[T], before: str | None = None
    ) -> list[T] | None:
        """Return to which of these the call was done, if it is a repeat.

        Raises if another action has this id; before anything is changed.
        """
        noted = self._audit_log.get(by.id)
        if noted is None:
            return None
        past = answer_in(noted.answers, mark, asked)
        replaces = noted.line.before is not None or before is not None
        if not _is_of(noted.line, by) or (past is None and replaces):
            raise reused(by)
        return past

    def _is_repeat(self, by: Action, mark: str) -> bool:
        noted = self._audit_log.get(by.id)
        is_known = noted is not None and answer_in(noted.answers, mark, ()) is not None
        return is_known and noted is not None and _is_of(noted.line, by)

    def _add(
        self,
        by: Action,
        mark: str,
        asked: Collection[T],
        done: Collection[T],
        before: str | None = None,
        count: int | None = None,
        job_id: JobId | None = None,
    ) -> None:
        """Add a call to the line of its action, with its answer."""
        count = len(done) if count is None else count
        now = self._clock.now()
        noted = self._audit_log.get(by.id)
        if noted is None:
            line = AuditLine(now, by.who, by.verb, by.target, 0, before)
            noted = self._audit_log[by.id] = _Noted(line, job_id)
        noted.line = replace(noted.line, count=noted.line.count + count, done_at=now)
        noted.answers = with_answer(noted.answers, mark, list(asked), done)

    # The store itself

    async def repair(self, by: Action) -> list[str]:
        """Put right what the audit finds."""
        return []

    async def condition(self) -> Condition:
        """Say that there is nothing to say."""
        return Condition({"kept": "in this program's memory, and gone with it"})

    async def migrations(self) -> list[Migration]:
        """Return nothing: memory has no schema."""
        return []

    async def audit(self) -> list[Finding]:
        """Check that every job is in exactly one place and every mark agrees."""
        with self._lock:
            problems = [
                *(f"job {i} is in two places" for i in self._live.keys() & self._finished.keys()),
                *(f"job {i} is in two places" for i in self._live.keys() & self._dead.keys()),
                *(f"job {i} is in two places" for i in self._finished.keys() & self._dead.keys()),
                *self._audit_order(),
                *(problem for live in self._live.values() for problem in live.problems()),
            ]
        return [
            Finding(problem, "report it: the memory store is inconsistent") for problem in problems
        ]

    def _audit_order(self) -> Iterator[str]:
        placed = {(queue, *place) for queue, order in self._order.items() for place in order}
        standing = {
            (live.new.queue, *live.place) for live in self._live.values() if live.parked is None
        }
        for _, _, job_id in placed ^ standing:
            yield f"job {job_id} and the order of its queue disagree"
        for queue, order in self._order.items():
            if order != sorted(order):
                yield f"the order of queue {queue!r} is broken"
        due = {job_id for _, job_id in self._due}
        for job_id, live in self._live.items():
            if live.parked is Gate.NOT_DUE and job_id not in due:
                yield f"job {job_id} waits for a time that nobody watches"
            if (live.parked is Gate.NO_CAPABLE_WORKER) != (job_id in self._unknown):
                yield f"job {job_id} and the list of unknown tasks disagree"


def _group(jobs: list[JobRecord]) -> ErrorGroup:
    """Describe jobs with one fingerprint, newest first."""
    newest = jobs[0]
    last = newest.errors[-1] if newest.errors else None
    times = [job.finished_at or job.enqueued_at for job in jobs]
    return ErrorGroup(
        fingerprint=last.fingerprint if last else None,
        error=last.error if last else None,
        message=last.message if last else None,
        tasks=tuple(sorted({job.task for job in jobs})),
        count=len(jobs),
        first_at=min(times),
        last_at=max(times),
        job=newest.id,
    )


def _only(job_ids: Collection[JobId]) -> JobId | None:
    """Return the id of a job that is alone."""
    return next(iter(job_ids)) if len(job_ids) == 1 else None


def _is_of(line: AuditLine, by: Action) -> bool:
    """Say whether a line of the audit log is that of an action."""
    return (line.who, line.verb, line.target) == (by.who, by.verb, by.target)
