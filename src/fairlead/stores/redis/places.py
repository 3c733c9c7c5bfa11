"""Where jobs stand, for people: what a claim would see, who is before whom, what waits for what."""

from collections.abc import Collection, Sequence
from typing import Any

from fairlead.core.admin import Part, Running, Stats, Waiting
from fairlead.core.clock import SECOND, Clock
from fairlead.core.ids import JobId
from fairlead.core.job import LONGEST_HEAD_START
from fairlead.core.selection import ClaimPlan, Head, Line, Snapshot, full
from fairlead.stores.records import running_of
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.limits import Limit, in_use
from fairlead.stores.redis.listing import Listing
from fairlead.stores.redis.parked import parked
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import pack, score_of, task_of
from fairlead.stores.redis.talk import (
    Conversation,
    Word,
    call,
    pieces,
    present,
    side_by_side,
    spared,
)

_STANDING_AT_ONCE = 500
_DAY = LONGEST_HEAD_START * SECOND


class Places:
    """Looks at the orders of queues."""

    def __init__(
        self,
        keys: Keys,
        queues: Queues,
        listing: Listing,
        limits: Sequence[Limit],
        clock: Clock | None,
    ) -> None:
        self._keys = keys
        self._queues = queues
        self._listing = listing
        self._limits = limits
        self._clock = clock

    def stats(self, parts: Collection[Part]) -> Conversation[Stats]:
        """Return how the queues are, in the parts that are asked for."""
        told: dict[str, Any] = {}
        if Part.RUNNING in parts:  # First, for it takes the greater right.
            told["running"] = yield from self._running()
        if Part.WAITING in parts:
            told["waiting"] = yield from self._waiting()
        if Part.UNKNOWN in parts:
            told["unknown"] = yield from self._unknown()
        if Part.PAUSED in parts:
            told["paused"] = frozenset((yield from self._paused()))
        return Stats(**told)

    def _running(self) -> Conversation[list[Running]]:
        """Count running jobs by worker process, queue and task."""
        now = yield from present(self._clock)
        names = yield from self._queues.names()
        all_running = yield from side_by_side(map(self._queues.running, names))
        rows = []
        for queue, running in zip(names, all_running, strict=True):
            rows += [
                (run.worker, queue, run.task, 1, run.claimed_at)
                for run in running.values()
                if run.lease_until > now and run.worker is not None
            ]
        return running_of(rows)

    def _unknown(self) -> Conversation[dict[tuple[str, int], int]]:
        """Count the jobs that are parked for want of a capable worker, by task and version."""
        counts: dict[tuple[str, int], int] = {}
        names = yield from self._queues.names()
        for kinds in (yield from parked(self._keys, names)).values():
            for kind, waiting, lost in kinds:
                wanted = task_of(kind)
                if wanted is not None:
                    counts[wanted] = counts.get(wanted, 0) + waiting + lost
        return counts

    def _paused(self) -> Conversation[set[str]]:
        """Return the names of the paused queues."""
        names = yield from self._queues.names()
        answers = yield from spared(
            [("HEXISTS", self._keys.key(name, "paused"), "since") for name in names], 0
        )
        return {name for name, is_paused in zip(names, answers, strict=True) if is_paused}

    def snapshot(self, plan: ClaimPlan, limit: int) -> Conversation[Snapshot]:
        """Return what a claim with this plan would look at now."""
        now = yield from present(self._clock)
        capable: Word = "" if plan.capable is None else pack(dict(plan.capable))
        used = yield from in_use(self._limits)
        asked = (now, limit, capable, pack(full(used)))
        answers = yield from spared(
            [call(self._keys, "look", queue.name, *asked) for queue in plan.queues], (0, [])
        )
        lines = {
            queue.name: Line(queue, [_head(*each) for each in heads], is_paused == 1)
            for queue, (is_paused, heads) in zip(plan.queues, answers, strict=True)
        }
        return Snapshot(plan, now, lines, used=used)

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

    def _waiting(self) -> Conversation[dict[str, Waiting]]:
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
        parked_in = yield from parked(self._keys, names)
        sizes = list(zip(names, pieces(answers, 6), strict=True))
        since = yield from side_by_side(self._oldest(name, each[:3], now) for name, each in sizes)
        delayed = [name for name, each in sizes if each[5]]
        tried = yield from side_by_side(self._listing.retrying(name, now) for name in delayed)
        all_retrying = dict(zip(delayed, tried, strict=True))
        found: dict[str, Waiting] = {}
        for (queue, (*_, ready, due, later)), oldest in zip(sizes, since, strict=True):
            retrying = all_retrying.get(queue, 0)
            aside = sum(waiting for _, waiting, _ in parked_in.get(queue, ()))
            counts = ((ready or 0) + (due or 0), (later or 0) - retrying, retrying, aside)
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
