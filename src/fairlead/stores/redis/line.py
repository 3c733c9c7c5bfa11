"""The line: put, claim, extend, settle, and what keeps it going, as conversations."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from msgspec.structs import astuple

from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, Clock
from fairlead.core.errors import DecodeError, EnqueueError, StoreError, StoreRefused
from fairlead.core.ids import JobId
from fairlead.core.job import LONGEST_ID, Job, NewJob
from fairlead.core.outcome import Settlement, overrule
from fairlead.core.selection import (
    LONGEST_TOLD,
    Claim,
    ClaimPlan,
    Unknown,
    can_run,
)
from fairlead.core.store import BATCH, Extended, Upkeep
from fairlead.stores.redis.crew import announced, live
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.listing import kept_in
from fairlead.stores.redis.queues import Queues, is_stray
from fairlead.stores.redis.records import (
    body_of,
    is_id,
    job_of,
    pack,
    score_of,
)
from fairlead.stores.redis.shares import MOST_AT_ONCE, Shares
from fairlead.stores.redis.talk import (
    Command,
    Conversation,
    Tried,
    Word,
    call,
    call_on,
    moment,
    pieces,
    present,
    raise_outage,
    spared,
)

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
    """The verbs of the line. Remembers where jobs are, and where claims stopped."""

    def __init__(self, keys: Keys, queues: Queues, clock: Clock | None) -> None:
        self._keys = keys
        self._queues = queues
        self._clock = clock
        self._served: set[str] = set()
        self._stopped: dict[tuple[str, str], tuple[Word, Word]] = {}
        self._silent_since: dict[str, float] = {}

    def _at(self) -> Word:
        return moment(self._clock.now() if self._clock else None)

    def _call(self, verb: str, queue: str, *values: Word) -> Command:
        return call(self._keys, verb, queue, *values)

    # Put

    def put(self, jobs: Sequence[NewJob], word: str | None) -> Conversation[list[bool]]:
        """Accept new jobs, all of them or none."""
        _check_ids(jobs)
        now, news = self._at(), (self._keys.news, word or "")
        if len(jobs) == 1 and self._queues.leads_to(jobs[0].id, jobs[0].queue):
            # What most callers do, one after the other, is worth a short way.
            values = pack([astuple(jobs[0])])
            [[is_new]] = yield [self._call("put", jobs[0].queue, now, values, *news)]
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
        answers = yield [
            self._call("put", queue, now, pack([astuple(job) for job in some]), *news)
            for queue, some in wanted
        ]
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

    # Claim

    def claim(self, plan: ClaimPlan) -> Conversation[Claim]:
        """Give the worker what the selection rule chooses.

        Each queue is asked for its share as if all of them had enough. What is left
        then, because some had not, is shared among the others in another round.
        """
        self._served.update(queue.name for queue in plan.queues)
        asked, room = Shares(plan), plan.room()
        has_room = {queue.name for queue in plan.queues if room.for_queue(queue)}
        capable: Word = "" if plan.capable is None else pack(plan.capable)
        stepped: dict[str, list[list[Any]]] = {}
        # All are asked at least once: a claim also moves on what waits for its time.
        shares = dict.fromkeys((queue.name for queue in plan.queues), 0) | asked.shares()
        while shares:
            room_each = asked.bytes_each(len(shares))
            answers = yield [
                Tried(self._ask(plan, queue, wanted, capable, room_each, look=queue in has_room))
                for queue, wanted in shares.items()
            ]
            for (queue, wanted), answer in zip(shares.items(), answers, strict=True):
                if isinstance(answer, StoreError):
                    asked.give_up(queue, answer)
                else:
                    asked.take(queue, wanted, answer)
                    self._note(plan.worker, queue, answer, stepped)
            shares = asked.shares()
        parked: list[Unknown] = []
        with suppress(StoreError):  # What is left undone is met again; what is claimed is not lost.
            if asked.damaged:
                yield from self.settle(asked.damaged, None)
            if stepped:
                parked = yield from self._park(stepped, asked.now)
        jobs, credits = asked.chosen()
        return Claim(jobs, credits, asked.now, parked, cut=asked.is_cut)

    def _note(
        self, worker: str, queue: str, answer: list[Any], stepped: dict[str, list[list[Any]]]
    ) -> None:
        """Take note of what a claim came by: jobs, a place to go on from, jobs for others."""
        ids, stop, over = answer[1], answer[5], answer[6]
        self._queues.remember((each.decode() for each in ids), queue)
        if stop:
            self._stopped[worker, queue] = tuple(stop)
        if over:
            stepped.setdefault(queue, []).extend(over)

    def _ask(
        self,
        plan: ClaimPlan,
        queue: str,
        share: int,
        capable: Word,
        most_bytes: int,
        *,
        look: bool,
    ) -> Command:
        after = self._stopped.pop((plan.worker, queue), ("", ""))
        spare = "1" if plan.spare_lost else "0"
        asked_at: Word = "" if plan.asked_at is None else plan.asked_at
        return self._call(
            "claim",
            queue,
            *(self._at(), plan.worker, plan.lease, share, capable, spare, asked_at),
            *after,
            "1" if look else "0",
            most_bytes,
        )

    def _park(
        self, stepped: Mapping[str, list[list[Any]]], now: int
    ) -> Conversation[list[Unknown]]:
        """Park those of these jobs whose task no live worker knows."""
        workers = yield from live(self._keys, now)
        commands = []
        for queue, over in stepped.items():
            unknown, unreadable = [], []
            for raw_id, raw_task, version in over:
                try:
                    task = raw_task.decode()
                except UnicodeDecodeError:
                    unreadable.append(raw_id.decode())
                    continue
                if not any(can_run(worker.capable, task, version) for worker in workers):
                    unknown.append(raw_id.decode())
            if unknown or unreadable:
                ids = (pack(unknown), pack(unreadable))
                commands.append((queue, self._call("park", queue, self._at(), *ids)))
        if not commands:
            return []
        answers = yield from spared([command for _, command in commands], ())
        parked = []
        for (queue, _), answer in zip(commands, answers, strict=True):
            for raw_id, text in zip(answer[::2], answer[1::2], strict=True):
                job_id = raw_id.decode()
                with suppress(DecodeError):  # It is told when somebody comes to claim it.
                    body = body_of(job_id, text)
                    options = body.options if len(body.options or "") <= LONGEST_TOLD else None
                    known = (body.task, body.version, queue, options)
                    parked.append(Unknown(JobId(job_id), *known))
        return sorted(parked, key=lambda each: each.id)

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
        answers = yield [
            Tried(self._call("extend", queue, self._at(), lease, pack(some)))
            for queue, some in wanted
        ]
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
        self, settlements: Sequence[Settlement], word: str | None
    ) -> Conversation[dict[JobId, Settlement]]:
        """Write what became of running jobs, under their current fence."""
        grouped = yield from self._grouped(settlements, [each.id for each in settlements])
        wanted = [
            end
            for queue, each in grouped.items()
            for some in pieces(each, MOST_AT_ONCE)
            for end in self._ends(queue, some, word)
        ]
        if not wanted:
            return {}
        answers = yield [command for _, command in wanted]
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
        # Who settles a job a second time is refused, wherever it is: to remember costs nothing.
        self._queues.drop(written)
        return {each.id: written[each.id] for each in settlements if each.id in written}

    def _ends(
        self, queue: str, some: Sequence[Settlement], word: str | None
    ) -> Iterator[tuple[Sequence[Settlement], Command]]:
        """Return settlements with the calls that write them; large ones are several calls."""
        values = pack([astuple(settlement) for settlement in some])
        if len(values) > _MOST_BYTES and len(some) > 1:
            half = len(some) // 2
            yield from self._ends(queue, some[:half], word)
            yield from self._ends(queue, some[half:], word)
        else:
            news = (self._keys.news, word or "")
            yield some, Tried(self._call("settle", queue, self._at(), values, *news))

    def held(self, worker: str) -> Conversation[list[Job]]:
        """Return the running jobs that this worker claimed."""
        names = yield from self._queues.names()
        jobs: list[Job] = []
        for queue in names:
            running = yield from self._queues.running(queue)
            mine = [job_id for job_id, run in running.items() if run.worker == worker]
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
        at = self._at()
        said = pack([dict(worker.capable), worker.pools, worker.processes])
        said_so = call_on("announce", self._keys.workers, at, worker.id, lease, said)
        yield from spared([said_so], None)
        yield from self._bring_back(at, worker.capable)

    def _bring_back(self, at: Word, capable: Mapping[str, int]) -> Conversation[None]:
        names = yield from self._queues.names()
        if not names:
            return
        counts = yield [Tried(("ZCARD", self._keys.key(name, "unknown"))) for name in names]
        parked = [name for name, count in zip(names, counts, strict=True) if _number(count)]
        if parked:
            known = pack(dict(capable))
            yield [Tried(self._call("bring_back", name, at, known, BATCH)) for name in parked]

    def due(self, *, for_work: bool) -> Conversation[tuple[int | None, int]]:
        """Return when the next parked job falls due, and what time it is there.

        Who waits for a job's end does not ask: a producer has no right to, for its answer
        would come from other people's jobs.
        """
        if not for_work:
            return None, 0
        names = sorted(self._served) or (yield from self._queues.names())
        if not names:
            return None, 0
        answers = yield [Tried(self._call("due", name, self._at())) for name in names]
        told = [answer for answer in answers if not isinstance(answer, StoreError)]
        if not told:
            raise answers[0]
        # Each by the clock of its own node.
        waits = [(score_of(at[0]), now) for now, *at in told if at]
        return min(waits, key=lambda each: each[0] - each[1], default=(None, 0))

    def upkeep(self, keep: int) -> Conversation[Upkeep]:
        """Do one bounded round of housekeeping."""
        yield from self._queues.register({*self._queues.forget(), *self._served})
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
            answers = yield [
                Tried(self._call("upkeep", name, at, keep, pack(known), _STEP)) for name in names
            ]
            unfinished = []
            for name, answer in zip(names, answers, strict=True):
                if isinstance(answer, StoreError):
                    continue
                promoted, back, expired, lines, old = answer
                counts = (promoted, back, expired, len(old), lines)
                total.update(dict(zip(Upkeep.__struct_fields__, counts, strict=True)))
                ids = [each.decode() for each in old if is_id(each)]
                yield from self._queues.strike(ids, name)
                if max(counts) >= _STEP:
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
