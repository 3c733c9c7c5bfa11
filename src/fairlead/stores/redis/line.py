"""The line: put, extend, settle, and what keeps it going, as conversations."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, Clock
from fairlead.core.errors import DecodeError, EnqueueError, StoreError, StoreRefused
from fairlead.core.ids import JobId
from fairlead.core.job import LONGEST_ID, Job, NewJob, State
from fairlead.core.outcome import Settlement, overrule
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.core.store import BATCH, Extended, Upkeep
from fairlead.stores.redis.claims import Claims
from fairlead.stores.redis.crew import announced
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.layout import put_of, settlement_of
from fairlead.stores.redis.limits import Limit
from fairlead.stores.redis.pages import kept_in
from fairlead.stores.redis.queues import Queues, is_stray
from fairlead.stores.redis.records import (
    body_of,
    is_id,
    job_of,
    pack,
)
from fairlead.stores.redis.served import Served
from fairlead.stores.redis.talk import (
    MOST_AT_ONCE,
    Command,
    Conversation,
    Part,
    Tried,
    Word,
    ask_each,
    both,
    call,
    call_on,
    moment,
    pieces,
    present,
    raise_outage,
    side_by_side,
    spared,
)
from fairlead.stores.redis.wake import Bell

T = TypeVar("T")

_STEP = 200
_MOST_BYTES = 1_000_000
"""How many bytes of settlements one call may bring: it keeps everybody else waiting."""


def _check_ids(jobs: Sequence[NewJob]) -> None:
    """Refuse what cannot be an id before anything is written, and where that takes no time."""
    ids = [job.id for job in jobs]
    text = "".join(ids)
    is_short = all(ids) and len(max(ids, key=len)) <= LONGEST_ID
    if not (is_short and text.isascii() and text.isprintable()):
        raise EnqueueError("the store refuses this job: an id has 1 to 36 ASCII characters")


class RedisLine:
    """The verbs of the line; `claims` remembers what concerns claims."""

    def __init__(
        self,
        keys: Keys,
        queues: Queues,
        limits: Sequence[Limit],
        clock: Clock | None,
        served: Served,
    ) -> None:
        self._keys = keys
        self._queues = queues
        self._clock = clock
        self._served = served
        self.claims = Claims(keys, queues, limits, clock)
        self._silent_since: dict[str, float] = {}

    def _at(self) -> Word:
        return moment(self._clock.now() if self._clock else None)

    def _call(self, verb: str, queue: str, *values: Word) -> Command:
        return call(self._keys, verb, queue, *values)

    # Put

    def put(self, jobs: Sequence[NewJob], bell: Bell) -> Conversation[list[bool]]:
        """Accept new jobs, all of them or none."""
        _check_ids(jobs)
        yield from self._served.check()
        fresh = yield from self._enter(jobs, bell)
        if self._served.is_due():
            yield from self._served.look()
        return fresh

    def _enter(self, jobs: Sequence[NewJob], bell: Bell) -> Conversation[list[bool]]:
        if len(jobs) == 1 and self._queues.leads_to(jobs[0].id, jobs[0].queue):
            # What most callers do, one after the other, is worth a short way.
            [[is_new]] = yield [self._put(jobs[0].queue, jobs, bell)]
            self.claims.put(jobs)
            return [is_new == 1]
        by_queue: dict[str, list[NewJob]] = {}
        for job in jobs:
            by_queue.setdefault(job.queue, []).append(job)
        yield from self._queues.register(by_queue)
        strays = [job for job in jobs if is_stray(job.id, job.queue)]
        places = (yield from self._queues.reserve(strays)) if strays else {}
        wanted = [
            (queue, some)
            for queue, all_of_queue in by_queue.items()
            for some in pieces(
                [job for job in all_of_queue if places.get(job.id, queue) == queue], MOST_AT_ONCE
            )
        ]
        if not wanted:
            return [False] * len(jobs)
        answers = yield [self._put(queue, some, bell) for queue, some in wanted]
        self.claims.put(jobs)
        if len(wanted) == 1 and len(answers[0]) == len(jobs):
            return [is_new == 1 for is_new in answers[0]]
        # One that is named twice is new at most once, whichever of the two is told so.
        new = Counter(
            (job.id, queue)
            for (queue, some), answer in zip(wanted, answers, strict=True)
            for job, is_new in zip(some, answer, strict=True)
            if is_new
        )
        return [_taken(new, (job.id, job.queue)) for job in jobs]

    def _put(self, queue: str, some: Sequence[NewJob], bell: Bell) -> Command:
        values = pack([put_of(job) for job in some])
        return self._call("put", queue, self._at(), values, self._keys.news, bell.work(queue))

    # Claim

    def claim(self, plan: ClaimPlan, *, hears: bool) -> Conversation[Claim]:
        """Give the worker what the selection rule chooses; `hears` says whether we hear news."""
        yield from self._served.check()
        claim, damaged = yield from self.claims.claim(plan, hears=hears)
        if damaged:
            with suppress(StoreError):  # They are met again when their leases pass.
                yield from self.settle(damaged, plan.level)
        return claim

    # Extend and settle

    def extend(
        self, leases: Sequence[tuple[JobId, int]], lease: int
    ) -> Conversation[list[Extended]]:
        """Renew leases under their current fence."""
        grouped = yield from self._grouped(leases, [job_id for job_id, _ in leases])
        wanted = [
            (queue, some)
            for queue, pairs in grouped.items()
            for some in pieces(pairs, MOST_AT_ONCE)
        ]
        if not wanted:
            return []
        parts = [Part(queue, (pack(some),), len(some)) for queue, some in wanted]
        answers = yield from ask_each(self._keys, "extend", (self._at(), lease), parts)
        problems = [answer for answer in answers if isinstance(answer, StoreError)]
        if len(problems) == len(wanted):
            raise problems[0]
        renewed: list[Extended] = []
        for (queue, some), answer in zip(wanted, answers, strict=True):
            if not isinstance(answer, StoreError):
                self._silent_since.pop(queue, None)
                pairs = zip(some, answer, strict=True)
                renewed += [Extended(job_id, said == 2) for (job_id, _), said in pairs if said]
            elif self._may_come_back(queue, lease):
                renewed += [Extended(job_id, False) for job_id, _ in some]
        return renewed

    def _may_come_back(self, queue: str, lease: int) -> bool:
        """Say whether jobs of a queue that is out of reach, while others are not, have a lease."""
        since = self._silent_since.setdefault(queue, time.monotonic())
        return time.monotonic() - since < lease / SECOND / 2

    def _grouped(
        self, items: Sequence[T], job_ids: Sequence[JobId]
    ) -> Conversation[dict[str, list[T]]]:
        """Return what is about jobs, by the queues these are in."""
        found = yield from self._queues.where(list(dict.fromkeys(job_ids)))
        queue_of = {job_id: queue for queue, ids in found.items() for job_id in ids}
        grouped: dict[str, list[T]] = {}
        for item, job_id in zip(items, job_ids, strict=True):
            if job_id in queue_of:
                grouped.setdefault(queue_of[job_id], []).append(item)
        return grouped

    def settle(
        self, settlements: Sequence[Settlement], level: int, bell: Bell | None = None
    ) -> Conversation[dict[JobId, Settlement]]:
        """Write what became of running jobs, under their current fence."""
        grouped = yield from self._grouped(settlements, [each.id for each in settlements])
        wanted = [
            end
            for queue, each in reversed(grouped.items())
            for some in pieces(each, MOST_AT_ONCE)
            for end in self._ends(queue, some, bell)
        ][::-1]  # That jobs ended is told with the last call, when they have.
        if not wanted:
            return {}
        shared = (self._at(), self._keys.news, level)
        answers = yield from ask_each(self._keys, "settle", shared, [part for _, part in wanted])
        raise_outage(answers)
        written: dict[JobId, Settlement] = {}
        refused: list[StoreRefused] = []
        for (some, _), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, StoreRefused):
                refused.append(answer)
            else:
                written |= _ended(some, answer)
        if refused:  # What was written is found in the attempt log.
            raise refused[0]
        for queue, each in grouped.items():
            self.claims.settled(queue, each)
        # Who settles a job a second time is refused, wherever it is: to remember costs nothing.
        self._queues.drop(written)
        return {each.id: written[each.id] for each in settlements if each.id in written}

    def _ends(
        self, queue: str, some: Sequence[Settlement], bell: Bell | None
    ) -> Iterator[tuple[Sequence[Settlement], Part]]:
        """Return settlements with what their queue is told; large ones are told in parts."""
        values = pack([settlement_of(settlement) for settlement in some])
        if len(values) > _MOST_BYTES and len(some) > 1:
            half = len(some) // 2
            yield from self._ends(queue, some[:half], bell)
            yield from self._ends(queue, some[half:], bell)
        else:
            again = any(settlement.state is State.WAITING for settlement in some)
            word = (bell.work(queue) if again else bell.ended()) if bell else ""
            weight = max(len(some), len(values) * MOST_AT_ONCE // _MOST_BYTES)
            yield some, Part(queue, (values, word), weight)

    def held(self, worker: str) -> Conversation[list[Job]]:
        """Return the running jobs that this worker claimed."""
        names = yield from self._queues.names()
        found = yield from side_by_side(self._held_in(name, worker) for name in names)
        return [job for jobs in found for job in jobs]

    def _held_in(self, queue: str, worker: str) -> Conversation[list[Job]]:
        running = yield from self._queues.running(queue)
        mine = [job_id for job_id, run in running.items() if run.worker == worker]
        jobs: list[Job] = []
        for some in pieces(mine, MOST_AT_ONCE):
            for (job_id, _), kept in (yield from kept_in(self._keys, {queue: some})).items():
                with suppress(DecodeError):  # A claim puts it aside, when its lease passes.
                    body = body_of(job_id, kept.body)
                    jobs.append(job_of(job_id, queue, body, running[job_id], lost=False))
        self._queues.remember(mine, queue)
        return jobs

    # Upkeep

    def announce(self, worker: Worker, lease: int) -> Conversation[None]:
        """Say that a worker lives, and which tasks it knows."""
        _, names = yield from both(self._served.ask(), self._queues.names())
        at = self._at()
        said = b"".join(
            pack(each)
            for each in (dict(worker.capable), worker.pools, worker.processes, worker.level)
        )
        said_so = call_on("announce", self._keys.workers, at, worker.id, lease, said)
        counts = [Tried(("ZCARD", self._keys.key(name, "parked"))) for name in names]
        first, *counted = yield [Tried(said_so), *counts]
        raise_outage([first])
        parked = [name for name, count in zip(names, counted, strict=True) if _number(count)]
        if parked:
            words = (at, pack(dict(worker.capable)), BATCH, worker.level)
            yield [Tried(self._call("bring_back", name, *words)) for name in parked]
            for name in parked:
                self.claims.placed(name)

    def due(self, *, for_work: bool) -> Conversation[tuple[int | None, int]]:
        """Return when the next parked job falls due, and what time it is there.

        Who waits for a job's end does not ask: a producer has no right to, for its answer
        would come from other people's jobs.
        """
        if not for_work:
            return None, 0
        return (yield from self.claims.due())

    def upkeep(self, keep: int, level: int) -> Conversation[Upkeep]:
        """Do one bounded round of housekeeping."""
        yield from self._queues.register({*self._queues.forget(), *self.claims.seen.served})
        names = yield from self._queues.names()
        at = self._at()
        now = yield from present(self._clock)
        workers = yield from announced(self._keys)
        silent = [worker.id for worker in workers if worker.live_until < now - keep]
        if silent:
            yield from spared([("HDEL", self._keys.workers, *silent)], None)
        known: dict[str, int] = {}
        for worker in (each for each in workers if each.live_until > now):
            for task, version in worker.capable.items():
                known[task] = max(version, known.get(task, 0))
        total: Counter[str] = Counter()
        for _ in range(BATCH // _STEP):
            if not names:
                break
            shared = (at, keep, pack(known), _STEP, level)
            parts = [Part(name, jobs=_STEP) for name in names]
            answers = yield from ask_each(self._keys, "upkeep", shared, parts)
            unfinished = []
            for name, answer in zip(names, answers, strict=True):
                if isinstance(answer, StoreError):
                    continue
                promoted, back, expired, lines, old, entries = answer
                counts = {
                    "promoted": promoted,
                    "brought_back": back,
                    "expired": expired,
                    "pruned_jobs": len(old),
                    "pruned_attempts": lines,
                }
                total.update(counts, pruned_entries=entries)
                ids = [each.decode() for each in old if is_id(each)]
                yield from self._queues.strike(ids, name)
                if promoted or back:
                    self.claims.placed(name)
                if max(counts.values()) >= _STEP:
                    unfinished.append(name)
            names = unfinished
        return Upkeep(**total)


def _ended(some: Sequence[Settlement], answer: Sequence[Any]) -> dict[JobId, Settlement]:
    """Return what `settle.lua` wrote, as it answers."""
    written: dict[JobId, Settlement] = {}
    for settlement, said in zip(some, answer, strict=True):
        if said == 1:
            written[settlement.id] = settlement
        elif said != 0:
            written[settlement.id] = overrule(settlement, said.decode(errors="replace"))
    return written


def _taken(new: Counter[tuple[JobId, str]], job: tuple[JobId, str]) -> bool:
    """Say whether a job is new, the first time it is asked."""
    is_new = new[job] > 0
    new[job] = 0
    return is_new


def _number(answer: Any) -> int:  # noqa: ANN401 (any answer)
    """Return a count; what is out of reach has none."""
    return answer if isinstance(answer, int) else 0
