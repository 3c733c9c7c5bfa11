"""The line: put, claim, extend, settle, and what keeps it going, as conversations."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, TypeVar

from msgspec.structs import astuple

from fairlead.core.admin import Worker
from fairlead.core.clock import Clock
from fairlead.core.errors import DecodeError
from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import Job, NewJob, Reason, State
from fairlead.core.outcome import Settlement, overrule
from fairlead.core.selection import (
    Claim,
    ClaimPlan,
    Unknown,
    can_run,
    share,
)
from fairlead.core.store import BATCH, Extended, Upkeep
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.queues import Queues, is_stray
from fairlead.stores.redis.records import (
    Body,
    Run,
    body_of,
    job_of,
    pack,
    parked_of,
    run_of,
    worker_of,
)
from fairlead.stores.redis.talk import Command, Conversation, Word, moment, run, script

T = TypeVar("T")

MOST_AT_ONCE = 500
"""How many jobs one script may touch: it keeps everybody else waiting."""
_STEP = 200


class RedisLine:
    """The verbs of the line. Remembers where jobs are, and where claims stopped."""

    def __init__(self, keys: Keys, queues: Queues, clock: Clock | None) -> None:
        self._keys = keys
        self._queues = queues
        self._clock = clock
        self._served: set[str] = set()
        self._stopped: dict[tuple[str, str], tuple[Word, Word]] = {}

    def _at(self) -> Word:
        return moment(self._clock.now() if self._clock else None)

    def _script(self, verb: str, queue: str, *values: Word) -> Command:
        return script(self._keys, verb, queue, *values)

    # Put

    def put(self, jobs: Sequence[NewJob], word: str | None) -> Conversation[list[bool]]:
        """Accept new jobs, all of them or none."""
        by_queue: dict[str, list[NewJob]] = {}
        for job in jobs:
            by_queue.setdefault(job.queue, []).append(job)
        yield from self._queues.register(by_queue)
        strays = [job for job in jobs if is_stray(job.id, job.queue)]
        places = (yield from self._queues.reserve(strays)) if strays else {}
        now, news = self._at(), (self._keys.news, word or "")
        wanted = [
            (queue, some)
            for queue, all_of_queue in by_queue.items()
            for some in _pieces([job for job in all_of_queue if places.get(job.id, queue) == queue])
        ]
        if not wanted:
            return [False] * len(jobs)
        answers = yield [
            self._script("put", queue, now, pack([astuple(job) for job in some]), *news)
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
        asked = _Asked(plan)
        capable: Word = "" if plan.capable is None else pack(plan.capable)
        stepped: dict[str, list[str]] = {}
        # All are asked at least once: a claim also moves on what waits for its time.
        shares = dict.fromkeys((queue.name for queue in plan.queues), 0) | asked.shares()
        while shares:
            answers = yield [
                self._ask(plan, queue, wanted, capable) for queue, wanted in shares.items()
            ]
            for (queue, wanted), answer in zip(shares.items(), answers, strict=True):
                asked.take(queue, wanted, answer)
                self._note(plan.worker, queue, answer, stepped)
            shares = asked.shares()
        if asked.damaged:
            yield from self.settle(asked.damaged, None)
        parked = (yield from self._park(stepped, asked.now)) if stepped else []
        jobs, credits = asked.chosen()
        return Claim(jobs, credits, asked.now, parked)

    def _note(
        self, worker: str, queue: str, answer: list[Any], stepped: dict[str, list[str]]
    ) -> None:
        """Take note of what a claim came by: jobs, a place to go on from, jobs for others."""
        _, ids, _, _, _, stop, over, _ = answer
        self._queues.remember((each.decode() for each in ids), queue)
        if stop:
            self._stopped[worker, queue] = tuple(stop)
        if over:
            stepped.setdefault(queue, []).extend(each.decode() for each in over)

    def _ask(self, plan: ClaimPlan, queue: str, share: int, capable: Word) -> Command:
        after = self._stopped.pop((plan.worker, queue), ("", ""))
        spare = "1" if plan.spare_lost else "0"
        asked_at: Word = "" if plan.asked_at is None else plan.asked_at
        return self._script(
            "claim",
            queue,
            *(self._at(), plan.worker, plan.lease, share, capable, spare, asked_at),
            *after,
        )

    def _park(self, stepped: Mapping[str, list[str]], now: int) -> Conversation[list[Unknown]]:
        """Park those of these jobs whose task no live worker knows."""
        workers = yield from self.live_workers(now)
        queues = list(stepped)
        found = yield [
            ("HMGET", self._keys.key(queue, "bodies"), *stepped[queue]) for queue in queues
        ]
        commands = []
        for queue, bodies in zip(queues, found, strict=True):
            unknown = [
                job_id
                for job_id, text in zip(stepped[queue], bodies, strict=True)
                if text is not None and not _known(workers, body_of(job_id, text))
            ]
            if unknown:
                commands.append((queue, self._script("park", queue, self._at(), pack(unknown))))
        if not commands:
            return []
        answers = yield [command for _, command in commands]
        parked = []
        for (queue, _), answer in zip(commands, answers, strict=True):
            for raw_id, text in zip(answer[::2], answer[1::2], strict=True):
                job_id = raw_id.decode()
                body = body_of(job_id, text)
                parked.append(Unknown(JobId(job_id), body.task, body.version, queue, body.options))
        return sorted(parked, key=lambda each: each.id)

    # Extend and settle

    def extend(
        self, leases: Sequence[tuple[JobId, int]], lease: int
    ) -> Conversation[list[Extended]]:
        """Renew leases under their current fence."""
        grouped = yield from self._grouped(leases, [job_id for job_id, _ in leases])
        pieces = [(queue, some) for queue, pairs in grouped.items() for some in _pieces(pairs)]
        if not pieces:
            return []
        answers = yield [
            self._script("extend", queue, self._at(), lease, pack(some)) for queue, some in pieces
        ]
        return [
            Extended(job_id, said == 2)
            for (_, some), answer in zip(pieces, answers, strict=True)
            for (job_id, _), said in zip(some, answer, strict=True)
            if said
        ]

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
        pieces = [(queue, some) for queue, each in grouped.items() for some in _pieces(each)]
        if not pieces:
            return {}
        answers = yield [
            self._script(
                "settle",
                queue,
                self._at(),
                pack([astuple(settlement) for settlement in some]),
                self._keys.news,
                word or "",
            )
            for queue, some in pieces
        ]
        written: dict[JobId, Settlement] = {}
        for (_, some), answer in zip(pieces, answers, strict=True):
            for settlement, said in zip(some, answer, strict=True):
                if said == 1:
                    written[settlement.id] = settlement
                elif said:
                    written[settlement.id] = overrule(settlement, said.decode())
        # Who settles a job a second time is refused, wherever it is: to remember costs nothing.
        self._queues.drop(written)
        return {each.id: written[each.id] for each in settlements if each.id in written}

    def held(self, worker: str) -> Conversation[list[Job]]:
        """Return the running jobs that this worker claimed."""
        names = yield from self._queues.names()
        jobs: list[Job] = []
        for queue in names:
            running = yield from self._running(queue)
            mine = [job_id for job_id, run in running.items() if run.worker == worker]
            for some in _pieces(mine):
                [bodies] = yield [("HMGET", self._keys.key(queue, "bodies"), *some)]
                jobs += [
                    job_of(job_id, queue, body_of(job_id, text), running[job_id], lost=False)
                    for job_id, text in zip(some, bodies, strict=True)
                    if text is not None
                ]
            self._queues.remember(mine, queue)
        return jobs

    def _running(self, queue: str) -> Conversation[dict[str, Run]]:
        """Return the runs of a queue that have a lease, passed or not."""
        leases, lost, unknown = yield [
            ("ZRANGE", self._keys.key(queue, part), 0, -1) for part in ("leases", "lost", "unknown")
        ]
        ids = [*leases, *lost, *(parked_of(member)[2] for member in unknown)]
        runs: dict[str, Run] = {}
        for some in _pieces(ids):
            [texts] = yield [("HMGET", self._keys.key(queue, "runs"), *some)]
            for raw_id, text in zip(some, texts, strict=True):
                if text is not None:
                    run = run_of(raw_id.decode(), text)
                    if run.lease_until:
                        runs[raw_id.decode()] = run
        return runs

    # Upkeep

    def live_workers(self, now: int) -> Conversation[list[Worker]]:
        """Return the workers that live."""
        workers = yield from self._announced()
        return [worker for worker in workers if worker.live_until > now]

    def _announced(self) -> Conversation[list[Worker]]:
        """Return the workers that ever announced themselves and are not forgotten yet."""
        [found] = yield [("HGETALL", self._keys.workers)]
        return [
            worker_of(name.decode(), text)
            for name, text in zip(found[::2], found[1::2], strict=True)
        ]

    def announce(self, worker: Worker, lease: int) -> Conversation[None]:
        """Say that a worker lives, and which tasks it knows."""
        at = self._at()
        said = pack([dict(worker.capable), worker.pools, worker.processes])
        yield [run("announce", self._keys.workers, at, worker.id, lease, said)]
        yield from self._bring_back(at, worker.capable)

    def _bring_back(self, at: Word, capable: Mapping[str, int]) -> Conversation[None]:
        names = yield from self._queues.names()
        counts = (
            (yield [("ZCARD", self._keys.key(name, "unknown")) for name in names]) if names else []
        )
        parked = [name for name, count in zip(names, counts, strict=True) if count]
        if parked:
            yield [
                self._script("bring_back", name, at, pack(dict(capable)), BATCH) for name in parked
            ]

    def due(self) -> Conversation[tuple[int | None, int]]:
        """Return when the next parked job falls due, and what time it is there."""
        names = sorted(self._served) or (yield from self._queues.names())
        if not names:
            return None, 0
        answers = yield [self._script("due", name, self._at()) for name in names]
        times = [round(float(answer[1])) for answer in answers if len(answer) > 1]
        return min(times, default=None), max(answer[0] for answer in answers)

    def upkeep(self, keep: int) -> Conversation[Upkeep]:
        """Do one bounded round of housekeeping."""
        yield from self._queues.register(self._queues.forget())
        names = yield from self._queues.names()
        at = self._at()
        [time] = yield [("TIME",)]
        now = self._clock.now() if self._clock else int(time[0]) * 1_000_000 + int(time[1])
        workers = yield from self._announced()
        silent = [worker.id for worker in workers if worker.live_until < now - keep]
        if silent:
            yield [("HDEL", self._keys.workers, *silent)]
        known: dict[str, int] = {}
        for worker in (each for each in workers if each.live_until > now):
            for task, version in worker.capable.items():
                known[task] = max(version, known.get(task, 0))
        total: Counter[str] = Counter()
        for _ in range(BATCH // _STEP):
            if not names:
                break
            answers = yield [
                self._script("upkeep", name, at, keep, pack(known), _STEP) for name in names
            ]
            unfinished = []
            for name, answer in zip(names, answers, strict=True):
                promoted, back, expired, lines, old = answer
                counts = (promoted, back, expired, len(old), lines)
                total.update(dict(zip(Upkeep.__struct_fields__, counts, strict=True)))
                yield from self._queues.strike([each.decode() for each in old], name)
                if max(counts) >= _STEP:
                    unfinished.append(name)
            names = unfinished
        return Upkeep(**total)


class _Asked:
    """What a claim has got so far, and what it still asks for."""

    def __init__(self, plan: ClaimPlan) -> None:
        self._plan = plan
        self._jobs: dict[str, list[Job]] = {queue.name: [] for queue in plan.queues}
        self._empty: set[str] = set()
        self._most = inf
        self.damaged: list[Settlement] = []
        self.now = 0

    def shares(self) -> dict[str, int]:
        """Return how many jobs more each queue may give, if those not empty have enough."""
        if len(self._empty) == len(self._jobs) or sum(map(len, self._jobs.values())) >= self._most:
            return {}
        ready = {
            name: len(jobs) if name in self._empty else inf for name, jobs in self._jobs.items()
        }
        wanted = Counter(share(self._plan, ready).turns)
        self._most = wanted.total()
        return {
            name: count - len(self._jobs[name])
            for name, count in wanted.items()
            if count > len(self._jobs[name])
        }

    def take(self, queue: str, wanted: int, answer: list[Any]) -> None:
        """Take what a queue gave."""
        now, ids, bodies, runs, more, _, _, lost = answer
        self.now = max(self.now, now)
        jobs = self._jobs[queue]
        for raw_id, text, state in zip(ids, bodies, runs, strict=True):
            job_id = raw_id.decode()
            run = run_of(job_id, state)
            try:
                body = body_of(job_id, text)
            except DecodeError as problem:
                self.damaged.append(_dead_letter(JobId(job_id), run.fence, problem))
            else:
                jobs.append(job_of(job_id, queue, body, run, lost=raw_id in lost))
        if wanted and (len(ids) < wanted or not more):
            self._empty.add(queue)

    def chosen(self) -> tuple[list[Job], Mapping[str, float]]:
        """Return the jobs in the order they should start, and the credits after them."""
        shared = share(self._plan, {name: len(jobs) for name, jobs in self._jobs.items()})
        given = {name: iter(jobs) for name, jobs in self._jobs.items()}
        return [next(given[name]) for name in shared.turns], shared.credits


def _dead_letter(job_id: JobId, fence: int, problem: DecodeError) -> Settlement:
    """Return what becomes of a job that somebody damaged."""
    failure = described("fairlead.core.errors.DecodeError", str(problem))
    return Settlement(
        job_id, fence, State.DEAD, "failed", reason=Reason.UNREADABLE, failure=failure
    )


def _taken(new: Counter[tuple[str, str]], job: tuple[str, str]) -> bool:
    """Say whether a job is new, the first time it is asked."""
    is_new = new[job] > 0
    new[job] = 0
    return is_new


def _known(workers: Sequence[Worker], body: Body) -> bool:
    return any(can_run(worker.capable, body.task, body.version) for worker in workers)


def _pieces(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Return items in pieces that one script may take."""
    for first in range(0, len(items), MOST_AT_ONCE):
        yield items[first : first + MOST_AT_ONCE]
