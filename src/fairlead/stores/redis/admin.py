"""What people ask of the queues: look, count, cancel, revive, delete, pause; as conversations."""

from collections.abc import Collection, Sequence
from typing import Any

from fairlead.core.admin import (
    Action,
    AuditLine,
    ErrorGroup,
    Filter,
    Running,
    Waiting,
    Worker,
    check_count,
)
from fairlead.core.clock import SECOND, Clock
from fairlead.core.errors import StoreRefused
from fairlead.core.ids import JobId
from fairlead.core.job import LONGEST_HEAD_START, Attempt, JobRecord, State
from fairlead.core.selection import ClaimPlan, Head, Line, Snapshot
from fairlead.stores.news import ENDED, WORK
from fairlead.stores.records import running_of
from fairlead.stores.redis.acts import Acts
from fairlead.stores.redis.crew import live
from fairlead.stores.redis.history import History
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.listing import Listing
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import kept_of, pack, score_of, task_of
from fairlead.stores.redis.talk import (
    Command,
    Conversation,
    Tried,
    Word,
    call,
    moment,
    pieces,
    present,
    raise_outage,
    spared,
)
from fairlead.stores.redis.wake import told_of

_MOST_AT_ONCE = 200
"""How many jobs one call may touch: it keeps everybody else waiting."""
_STANDING_AT_ONCE = 500
_DAY = LONGEST_HEAD_START * SECOND


class Hand:
    """The questions and changes of people."""

    def __init__(self, keys: Keys, queues: Queues, clock: Clock | None) -> None:
        self._keys = keys
        self._queues = queues
        self._clock = clock
        self._listing = Listing(keys, queues)
        self._history = History(keys, queues)
        self._acts = Acts(keys, queues, clock)

    def _at(self) -> Word:
        return moment(self._clock.now() if self._clock else None)

    # Looking

    def find(self, job_id: JobId) -> Conversation[JobRecord | None]:
        """Return a job in whatever state."""
        return self._listing.find(job_id)

    def jobs(
        self, which: Filter, limit: int, before: JobId | None
    ) -> Conversation[list[JobRecord]]:
        """Return jobs that the filter means, newest first."""
        return self._listing.jobs(which, limit, before)

    def count(self, which: Filter) -> Conversation[dict[str, dict[State, int]]]:
        """Count jobs by queue and state."""
        return self._listing.count(which)

    def groups(self, which: Filter) -> Conversation[list[ErrorGroup]]:
        """Return failures by fingerprint."""
        return self._listing.groups(which)

    def attempts(self, job_id: JobId) -> Conversation[list[Attempt]]:
        """Return the job's lines of the attempt log."""
        return self._history.attempts(job_id)

    def recent(self, since: int, limit: int, queue: str | None) -> Conversation[list[Attempt]]:
        """Return the last lines of the attempt log."""
        return self._history.recent(since, limit, queue)

    def audit_log(self, limit: int, job_id: JobId | None) -> Conversation[list[AuditLine]]:
        """Return the audit log, newest first."""
        return self._acts.log(limit, job_id)

    def running(self) -> Conversation[list[Running]]:
        """Count running jobs by worker process, queue and task."""
        now = yield from present(self._clock)
        rows = []
        for queue in (yield from self._queues.names()):
            running = yield from self._queues.running(queue)
            rows += [
                (run.worker, queue, run.task, 1, run.claimed_at)
                for run in running.values()
                if run.lease_until > now and run.worker is not None
            ]
        return running_of(rows)

    def unknown(self) -> Conversation[dict[tuple[str, int], int]]:
        """Count the jobs that are parked for want of a capable worker, by task and version."""
        counts: dict[tuple[str, int], int] = {}
        for queue in (yield from self._queues.names()):
            for kind, waiting, lost in (yield from self._listing.parked(queue)):
                wanted = task_of(kind)
                if wanted is not None:
                    counts[wanted] = counts.get(wanted, 0) + waiting + lost
        return counts

    def paused(self) -> Conversation[set[str]]:
        """Return the names of the paused queues."""
        names = yield from self._queues.names()
        answers = yield from spared(
            [("HEXISTS", self._keys.key(name, "paused"), "since") for name in names], 0
        )
        return {name for name, is_paused in zip(names, answers, strict=True) if is_paused}

    def workers(self) -> Conversation[list[Worker]]:
        """Return the workers that are announced and live."""
        now = yield from present(self._clock)
        return (yield from live(self._keys, now))

    # Looking at the order

    def snapshot(self, plan: ClaimPlan, limit: int) -> Conversation[Snapshot]:
        """Return what a claim with this plan would look at now."""
        now = yield from present(self._clock)
        capable: Word = "" if plan.capable is None else pack(dict(plan.capable))
        answers = yield from spared(
            [call(self._keys, "look", queue.name, now, limit, capable) for queue in plan.queues],
            (0, []),
        )
        lines = {
            queue.name: Line(queue, [_head(*each) for each in heads], is_paused == 1)
            for queue, (is_paused, heads) in zip(plan.queues, answers, strict=True)
        }
        return Snapshot(plan, now, lines)

    def ahead(self, job_id: JobId) -> Conversation[int]:
        """Count the due jobs before this one in its queue."""
        now = yield from present(self._clock)
        for queue in (yield from self._queues.where([job_id])):
            [answer] = yield from spared([call(self._keys, "ahead", queue, now, job_id)], None)
            if not answer:
                return 0
            order_at, is_apart, number = answer
            if not is_apart:
                return int(number)
            return int(number) + (yield from self._before(queue, order_at, job_id, now, number))
        return 0

    def _before(
        self, queue: str, order_at: int, job_id: JobId, now: int, start: int
    ) -> Conversation[int]:
        """Count due jobs before a place, one by one: their head starts tell who is due."""
        place = (order_at, job_id.encode())
        number = 0
        for part, first in (("ready", start), ("due", 0)):
            rank, looked = first, 1
            while looked:
                looked, jobs = yield from self._standing(queue, part, rank)
                number += sum(at <= now and each < place for each, at in jobs)
                if _is_past(part, jobs, order_at, now):
                    break
                rank += looked
        return number

    def _standing(
        self, queue: str, part: str, rank: int
    ) -> Conversation[tuple[int, list[tuple[tuple[int, bytes], int]]]]:
        """Return how many jobs from a rank on were looked at, and the place and run_at of those."""
        asked = call(self._keys, "places", queue, part, rank, _STANDING_AT_ONCE)
        [[looked, found]] = yield from spared([asked], (0, []))
        jobs = zip(found[::3], found[1::3], found[2::3], strict=True)
        return looked, [((order_at, raw_id), run_at) for raw_id, order_at, run_at in jobs]

    def waiting(self) -> Conversation[dict[str, Waiting]]:
        """Count the waiting jobs of each queue by what they wait for."""
        now = yield from present(self._clock)
        names = yield from self._queues.names()
        asked = [
            command
            for queue in names
            for command in (
                ("ZRANGE", self._keys.key(queue, "ready"), 0, 0, "WITHSCORES"),
                ("ZRANGE", self._keys.key(queue, "due"), 0, 0, "WITHSCORES"),
                ("HEXISTS", self._keys.key(queue, "settings"), "apart"),
                ("ZCARD", self._keys.key(queue, "ready")),
                ("ZCOUNT", self._keys.key(queue, "due"), "-inf", now),
                ("ZCOUNT", self._keys.key(queue, "due"), f"({now}", "+inf"),
            )
        ]
        answers = yield from spared(asked, None)
        found: dict[str, Waiting] = {}
        for queue, (*firsts, ready, due, later) in zip(names, pieces(answers, 6), strict=True):
            oldest = yield from self._oldest(queue, firsts, now)
            retrying = (yield from self._listing.retrying(queue, now)) if later else 0
            parked = sum(waiting for _, waiting, _ in (yield from self._listing.parked(queue)))
            counts = ((ready or 0) + (due or 0), (later or 0) - retrying, retrying, parked)
            if any(counts):
                found[queue] = Waiting(*counts, oldest if oldest <= now else None)
        return found

    def _oldest(self, queue: str, answers: Sequence[Any], now: int) -> Conversation[int]:
        """Return since when the first job of a queue is due; a time to come if none is."""
        ready, due, is_apart = answers
        times = [now + 1]
        if due:
            times.append(score_of(due[1]))
        if ready and is_apart:
            times.append((yield from self._first(queue, now)))
        elif ready:
            times.append(score_of(ready[1]))
        return min(times)

    def _first(self, queue: str, now: int) -> Conversation[int]:
        """Return since when the first of the ready jobs is due; a time to come if none is."""
        first, rank, looked = now + 1, 0, 1
        while looked:
            looked, jobs = yield from self._standing(queue, "ready", rank)
            first = min((first, *(run_at for _, run_at in jobs)))
            # Nobody's head start is longer than a day, nor is anybody put back further.
            if jobs and jobs[-1][0][0] - _DAY > first:
                break
            rank += looked
        return first

    # Acting

    def cancel(
        self,
        job_ids: Collection[JobId],
        reason: str,
        by: Action,
        states: Collection[State],
        level: int,
    ) -> Conversation[dict[JobId, JobRecord]]:
        """Cancel waiting jobs at once, and mark running ones."""
        values = (level, pack(sorted(states)), reason)
        answers = yield from self._act("cancel", job_ids, by, values, ENDED)
        touched: dict[JobId, JobRecord] = {}
        for queue, ids, several in answers:
            for raw_id, answer in zip(ids, several, strict=True):
                kept = kept_of(answer)
                assert kept is not None
                touched[JobId(raw_id.decode())] = kept.record(raw_id.decode(), queue)
        return touched

    def revive(
        self, job_ids: Collection[JobId], states: Collection[State], by: Action, level: int
    ) -> Conversation[list[JobId]]:
        """Let jobs run again, or sooner."""
        answers = yield from self._act("revive", job_ids, by, (level, pack(sorted(states))), WORK)
        return _in_order(job_ids, answers)

    def edit(
        self, job_id: JobId, was: str, payload: str, version: int, by: Action, level: int
    ) -> Conversation[bool]:
        """Replace the payload of a dead letter, if it still is `was`."""
        self._queues.drop([job_id])
        for queue in (yield from self._queues.where([job_id])):
            told = yield from self._acts.told(by, [job_id])
            values = (self._at(), job_id, level, was, payload, version, told)
            [is_done] = yield [call(self._keys, "edit", queue, *values)]
            return bool(is_done)
        return False

    def delete(
        self, job_ids: Collection[JobId], states: Collection[State], by: Action, level: int
    ) -> Conversation[list[JobId]]:
        """Forget final jobs for good."""
        answers = yield from self._act("delete", job_ids, by, (level, pack(sorted(states))), None)
        for queue, ids, _ in answers:
            yield from self._queues.strike([each.decode() for each in ids], queue)
        return _in_order(job_ids, answers)

    def _act(
        self,
        verb: str,
        job_ids: Collection[JobId],
        by: Action,
        values: tuple[Word, ...],
        word: str | None,
    ) -> Conversation[list[tuple[str, list[bytes], Any]]]:
        """Do something to jobs; returns what each queue answered, some of them several times.

        That is the ids of those that it was done to, and what is told of them. A call that has read
        enough leaves the rest to another. Damage in one queue does not keep us from the others.
        """
        told = yield from self._acts.told(by, job_ids)
        where = yield from self._queues.meant(job_ids)
        parts = [
            (queue, some) for queue, ids in where.items() for some in pieces(ids, _MOST_AT_ONCE)
        ]
        if not parts:
            yield from self._acts.write(told, 0)
            return []
        done: list[tuple[str, list[bytes], Any]] = []
        refused: list[StoreRefused] = []
        while parts:
            answers = yield [
                Tried(self._call(verb, queue, pack(some), *values, told, *self._news(word, queue)))
                for queue, some in parts
            ]
            raise_outage(answers)
            rest = []
            for (queue, some), answer in zip(parts, answers, strict=True):
                if isinstance(answer, StoreRefused):
                    refused.append(answer)
                    continue
                touched, looked, *more = answer
                done.append((queue, touched, more[0] if more else None))
                if looked < len(some):
                    rest.append((queue, some[looked:]))
            parts = rest
        if refused and not done:
            raise refused[0]
        return done

    def pause(self, queue: str, by: Action) -> Conversation[bool]:
        """Let no further job of this queue start."""
        return (yield from self._pause(queue, "1", by, ""))

    def resume(self, queue: str, by: Action) -> Conversation[bool]:
        """Let jobs of this queue start again."""
        return (yield from self._pause(queue, "0", by, WORK))

    def _pause(self, queue: str, how: str, by: Action, word: str) -> Conversation[bool]:
        yield from self._queues.register([queue])
        told = yield from self._acts.told(by)
        news = self._news(word, queue)
        [is_new] = yield [self._call("pause", queue, how, told, *news)]
        return bool(is_new)

    def _call(self, verb: str, queue: str, *values: Word) -> Command:
        return call(self._keys, verb, queue, self._at(), *values)

    def _news(self, word: str | None, queue: str) -> tuple[Word, ...]:
        """Return the channel and what is told there; nothing for functions that tell nothing."""
        if word is None:
            return ()
        return self._keys.news, told_of(word, queue) if word == WORK else word

    def note(self, by: Action, count: int, job_id: JobId | None) -> Conversation[None]:
        """Add to the audit log something that was done by other verbs."""
        told = yield from self._acts.told(by, [job_id] if job_id else [])
        yield from self._acts.write(told, check_count(count))


def _head(
    raw_id: bytes,
    task: bytes,
    version: int,
    order_at: int,
    run_at: int,
    expires_at: int | None,
    lost: int,
    level: int,
    size: int,
) -> Head:
    """Return a job as `look.lua` tells of it."""
    name = JobId(raw_id.decode())
    known_as = task.decode(errors="replace")
    return Head(name, known_as, version, order_at, run_at, expires_at, lost == 1, size, level)


def _is_past(
    part: str, jobs: Sequence[tuple[tuple[int, bytes], int]], order_at: int, now: int
) -> bool:
    """Say whether no job after these can be due and before a place."""
    if not jobs:
        return False
    (last_order_at, _), last_run_at = jobs[-1]
    return last_order_at > order_at if part == "ready" else last_run_at > now


def _in_order(
    job_ids: Collection[JobId], answers: Sequence[tuple[str, Sequence[bytes], Any]]
) -> list[JobId]:
    """Return those of these ids that were touched, each once."""
    touched = {raw_id.decode() for _, ids, _ in answers for raw_id in ids}
    return [job_id for job_id in dict.fromkeys(job_ids) if job_id in touched]
