"""What people ask of `memory://`."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from fairlead.core.acts import (
    Action,
    AuditLine,
    Cancel,
    Deed,
    Delete,
    Edit,
    Note,
    Pause,
    Resume,
    Revive,
    reused,
)
from fairlead.core.admin import (
    ALL,
    Admin,
    Condition,
    ErrorGroup,
    Filter,
    Finding,
    Migration,
    Part,
    Stats,
    Worker,
    matches,
    wait_of,
)
from fairlead.core.answers import answer_in, mark_of, with_answer
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, Gate, JobRecord, State
from fairlead.core.page import Page
from fairlead.core.selection import LIMITS, ClaimPlan, Line, Snapshot, Used, can_run, limit_of
from fairlead.stores.memory.line import MemoryLine
from fairlead.stores.memory.listing import MemoryListing
from fairlead.stores.memory.live import End, LiveJob, revived
from fairlead.stores.records import running_of, waiting_of

T = TypeVar("T")


class _Noted(msgspec.Struct):
    """A line of the audit log, which calls of the same action add to."""

    line: AuditLine
    job_id: JobId | None
    answers: str = ""


class MemoryAdmin(Admin):
    """Looks at a line of jobs, and acts on it."""

    def __init__(self, line: MemoryLine) -> None:
        self._line = line
        self._audit_log: dict[str, _Noted] = {}

    # Looking

    async def find(self, job_id: JobId) -> JobRecord | None:
        """Return a job in whatever state."""
        with self._line.lock:
            return self._record(job_id)

    def _meant(self, which: Filter) -> list[JobRecord]:
        """Return the jobs that the filter means, newest first."""
        with self._line.lock:
            records = [live.record() for live in self._line.live.values()]
            records += [*self._line.finished.values(), *self._line.dead.values()]
        found = [record for record in records if matches(which, record)]
        return sorted(found, key=lambda record: record.id, reverse=True)

    async def page(self, which: Filter = ALL, limit: int = 100, cursor: str | None = None) -> Page:
        """Return the next jobs that the filter means."""
        return MemoryListing(self._line).page(which, limit, cursor)

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
        with self._line.lock:
            return [attempt for attempt in self._line.log if attempt.job_id == job_id]

    async def recent(
        self, since: int, limit: int = 10_000, queue: str | None = None
    ) -> list[Attempt]:
        """Return the last lines of the attempt log."""
        with self._line.lock:
            lines = [
                line
                for line in reversed(self._line.log)
                if line.finished_at >= since and queue in (None, line.queue)
            ]
        return sorted(lines, key=lambda line: line.finished_at, reverse=True)[:limit]

    async def stats(self, parts: Collection[Part] = tuple(Part)) -> Stats:
        """Return how the queues are."""
        with self._line.lock:
            now = self._line.clock.now()
            jobs = [live.record() for live in self._line.live.values()]
            aside = [self._line.live[job_id] for job_id in self._line.aside]
            parked = [live.new for live in aside if live.unknown_task]
            paused = frozenset(self._line.paused)
        waiting = [job for job in jobs if job.state is State.WAITING]
        running = [job for job in jobs if (job.lease_until or 0) > now]
        told = Stats(
            waiting_of((job.queue, wait_of(job, now), 1, job.run_at) for job in waiting),
            running_of((job.worker, job.queue, job.task, 1, job.claimed_at) for job in running),
            dict(Counter((new.task, new.version) for new in parked)),
            paused,
        )
        return told.only(parts)

    async def snapshot(self, plan: ClaimPlan, limit: int) -> Snapshot:
        """Return what a claim with this plan would look at now."""
        with self._line.lock:
            now, used = self._line.clock.now(), self._line.in_use()
            standing = [
                live
                for live in sorted(self._line.live.values(), key=lambda live: live.place)
                if live.lease_until <= now and live.run_at <= now and _comes_back(live, plan, used)
            ]
            lines = {
                queue.name: Line(
                    queue,
                    [e.head for e in standing if e.new.queue == queue.name][:limit],
                    queue.name in self._line.paused,
                )
                for queue in plan.queues
            }
        return Snapshot(plan, now, lines, used=used)

    async def ahead(self, job_id: JobId) -> int:
        """Count the due jobs before this one in its queue."""
        with self._line.lock:
            job = self._line.live.get(job_id)
            if job is None:
                return 0
            return sum(live.place < job.place for live in self._in_order(job.new.queue))

    def _due_jobs(self) -> list[LiveJob]:
        now = self._line.clock.now()
        return [e for e in self._line.live.values() if not e.lease_until and e.run_at <= now]

    def _in_order(self, queue: str) -> list[LiveJob]:
        """Return the due jobs of a queue that stand in its order, or will with the next look."""
        return [e for e in self._due_jobs() if e.new.queue == queue and not e.is_aside]

    async def workers(self) -> list[Worker]:
        """Return the workers that are announced and live."""
        now = self._line.clock.now()
        return sorted(
            (worker for worker in self._line.workers.values() if worker.live_until > now),
            key=lambda worker: worker.id,
        )

    async def audit_log(self, limit: int = 100, job_id: JobId | None = None) -> list[AuditLine]:
        """Return the audit log, newest first."""
        with self._line.lock:
            noted = [
                each.line
                for each in self._audit_log.values()
                if job_id is None or each.job_id == job_id
            ]
        return noted[::-1][:limit]

    # Acting

    async def act(self, deed: Deed, by: Action) -> list[str]:
        """Do what a person wants done, once."""
        with self._line.lock:
            done = self._act(deed, by)
        self._line.notify()
        return done

    def _act(self, deed: Deed, by: Action) -> list[str]:
        match deed:
            case Cancel(ids, reason, states):
                mark = mark_of("cancel", list(ids), sorted(states), reason)
                do = partial(self._cancel, reason=reason, states=states)
                return self._once(by, mark, ids, do, _only(ids))
            case Revive(ids, states):
                mark = mark_of("revive", list(ids), sorted(states))
                return self._once(by, mark, ids, partial(self._revive, states=states), _only(ids))
            case Delete(ids, states):
                mark = mark_of("delete", list(ids), sorted(states))
                return self._once(by, mark, ids, partial(self._delete, states=states), _only(ids))
            case Edit():
                return self._edit(deed, by)
            case Pause(queue):
                return self._once(by, mark_of("pause", queue), [queue], self._pause)
            case Resume(queue):
                return self._once(by, mark_of("resume", queue), [queue], self._resume)
            case Note(count, job_id):
                mark = mark_of("note", count, job_id)
                if self._past(by, mark, ()) is None:
                    self._add(by, mark, (), (), count=count, job_id=job_id)
                return []

    def _once(
        self,
        by: Action,
        mark: str,
        asked: Collection[str],
        do: Callable[[Any], bool],
        about: JobId | None = None,
    ) -> list[str]:
        """Do something to each of these, and write it down; of a repeat, say what it came to."""
        past = self._past(by, mark, asked)
        if past is None:
            past = [each for each in asked if do(each)]
            self._add(by, mark, asked, past, job_id=about)
        return past

    def _cancel(self, job_id: JobId, reason: str, states: Collection[State]) -> bool:
        live = self._line.live.get(job_id)
        if live is None or live.cancel or live.record().state not in states:
            return False
        if live.new.level > self._line.level:
            return False
        if live.lease_until:
            live.cancel = reason
        else:
            self._line.displace(live)
            self._line.leave(live, End(State.CANCELLED, self._line.clock.now(), reason))
        return True

    def _revive(self, job_id: JobId, states: Collection[State]) -> bool:
        now = self._line.clock.now()
        live = self._line.live.get(job_id)
        if live is None:
            place = self._place_of(job_id, states)
            if place is None:
                return False
            self._line.enter(revived(place.pop(job_id), now), now)
            return True
        if live.lease_until or live.run_at <= now or State.WAITING not in states:
            return False
        if live.new.level > self._line.level:
            return False
        parked = live.parked
        self._line.displace(live)
        live = self._line.live[job_id] = revived(live.record(), now)
        self._line.place(live, now)
        if parked not in (None, Gate.NOT_DUE):
            self._line.park(live, parked)
        return True

    def _delete(self, job_id: JobId, states: Collection[State]) -> bool:
        place = self._place_of(job_id, states)
        if place is None:
            return False
        del place[job_id]
        self._line.entries.forget(job_id)
        return True

    def _place_of(self, job_id: JobId, states: Collection[State]) -> dict[JobId, JobRecord] | None:
        """Return where a final job is, if it is in one of these states and not above our level."""
        for place in (self._line.finished, self._line.dead):
            job = place.get(job_id)
            if job is not None and job.state in states and job.level <= self._line.level:
                return place
        return None

    def _edit(self, edit: Edit, by: Action) -> list[str]:
        mark = mark_of("edit", edit.id, edit.was, edit.payload, edit.version)
        if self._is_repeat(by, mark):
            return [edit.id]
        job = self._line.dead.get(edit.id)
        if job is None or job.payload != edit.was or job.level > self._line.level:
            return []
        self._past(by, mark, [edit.id], edit.was)
        self._line.dead[edit.id] = replace(job, payload=edit.payload, version=edit.version)
        self._add(by, mark, [edit.id], [edit.id], edit.was, job_id=edit.id)
        return [edit.id]

    def _pause(self, queue: str) -> bool:
        is_new = queue not in self._line.paused
        self._line.paused.add(queue)
        return is_new

    def _resume(self, queue: str) -> bool:
        is_new = queue in self._line.paused
        self._line.paused.discard(queue)
        return is_new

    def _record(self, job_id: JobId) -> JobRecord | None:
        live = self._line.live.get(job_id)
        if live is not None:
            return live.record()
        return self._line.finished.get(job_id) or self._line.dead.get(job_id)

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
        now = self._line.clock.now()
        noted = self._audit_log.get(by.id)
        if noted is None:
            line = AuditLine(now, by.who, by.verb, by.target, 0, before)
            noted = self._audit_log[by.id] = _Noted(line, job_id)
        last = max(noted.line.done_at, now)
        noted.line = replace(noted.line, count=noted.line.count + count, done_at=last)
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
        with self._line.lock:
            problems = [
                *(
                    f"job {i} is in two places"
                    for i in self._line.live.keys() & self._line.finished.keys()
                ),
                *(
                    f"job {i} is in two places"
                    for i in self._line.live.keys() & self._line.dead.keys()
                ),
                *(
                    f"job {i} is in two places"
                    for i in self._line.finished.keys() & self._line.dead.keys()
                ),
                *self._audit_order(),
                *(problem for live in self._line.live.values() for problem in live.problems()),
            ]
        return [
            Finding(problem, "report it: the memory store is inconsistent") for problem in problems
        ]

    def _audit_order(self) -> Iterator[str]:
        placed = {(queue, *place) for queue, order in self._line.order.items() for place in order}
        standing = {
            (live.new.queue, *live.place)
            for live in self._line.live.values()
            if live.parked is None
        }
        for _, _, job_id in placed ^ standing:
            yield f"job {job_id} and the order of its queue disagree"
        for queue, order in self._line.order.items():
            if order != sorted(order):
                yield f"the order of queue {queue!r} is broken"
        due = {job_id for _, job_id in self._line.due}
        for job_id, live in self._line.live.items():
            if live.parked is Gate.NOT_DUE and job_id not in due:
                yield f"job {job_id} waits for a time that nobody watches"
            if live.is_aside != (job_id in self._line.aside):
                yield f"job {job_id} and the list of parked jobs disagree"


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


def _comes_back(live: LiveJob, plan: ClaimPlan, used: Used) -> bool:
    """Say whether a claim with this plan would find a job in its order, if it is parked by now."""
    if live.unknown_task:
        return can_run(plan.capable, live.new.task, live.new.version)
    if live.parked in LIMITS:
        return limit_of(live.head, used) is None
    return not live.is_aside
