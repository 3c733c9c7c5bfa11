"""Claims, as conversations: who is asked, in which order, and what becomes of the answers."""

import threading
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

import msgspec

from fairlead.core.admin import Worker
from fairlead.core.asking import in_turns
from fairlead.core.clock import Clock
from fairlead.core.errors import StoreError
from fairlead.core.ids import JobId
from fairlead.core.job import LEVEL, Job, NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.selection import LONGEST_TOLD, Claim, ClaimPlan, Head, Looked, Unknown, can_run
from fairlead.stores.looks import Looks
from fairlead.stores.redis.crew import live
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.limits import Limit, bring_back, charge
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import pack
from fairlead.stores.redis.seen import FEW, Seen
from fairlead.stores.redis.shares import LOOKED_ENOUGH, Shares, rest_of
from fairlead.stores.redis.talk import (
    MOST_AT_ONCE,
    Conversation,
    Part,
    Word,
    ask_each,
    call,
    moment,
    pieces,
    present,
    spared,
)

_MOST_ROUNDS = 20
_AT_A_GLANCE = 500
_TO_MOVE = 2
"""What a glance answers at a queue in which something is to be moved on."""
_FRONT = (-(2**63), "")


class Claims:
    """Claims from many queues; remembers what they answered, and where looks along them stopped."""

    def __init__(
        self, keys: Keys, queues: Queues, limits: Sequence[Limit], clock: Clock | None
    ) -> None:
        self._keys = keys
        self._queues = queues
        self._limits = limits
        self._clock = clock
        self._looks = Looks()
        self._looks_guard = threading.Lock()
        self.seen = Seen(clock)
        self._level = LEVEL

    # What happens beside claims

    def put(self, jobs: Sequence[NewJob]) -> None:
        """Take note of what this process put; only with a head start it may be before a place."""
        if not self.seen.served:
            return
        for queue in {job.queue for job in jobs}:
            self.seen.told(queue)
        for job in jobs:
            if job.priority > 0:
                self.placed(job.queue)
            now = self.seen.store_time()
            if job.run_at or job.delay:
                self.seen.falls_due(job.queue, job.run_at or now + job.delay)
            if job.expires_at or job.expires_in:
                self.seen.falls_due(job.queue, job.expires_at or now + (job.expires_in or 0))

    def settled(self, queue: str, settlements: Sequence[Settlement]) -> None:
        """Take note of what this process settled: some may wait again, for their time perhaps."""
        waiting = [each for each in settlements if each.state is State.WAITING]
        if waiting:
            self.placed(queue)
        for each in waiting:
            if each.run_at is not None:
                self.seen.falls_due(queue, each.run_at)

    def placed(self, queue: str) -> None:
        """Take note that this process changed something in a queue, perhaps before its place."""
        self.seen.told(queue)
        with self._looks_guard:
            self._looks.arrived(queue, _FRONT)

    def hear(self, queue: str) -> bool:
        """Take note of news from a queue, or from any; returns whether we claim from it."""
        if not queue:
            self.seen.doubt()
        elif queue in self.seen.served:
            self.seen.told(queue)
        else:
            return not self.seen.served
        return True

    def doubt(self) -> None:
        """Take note that this process changed something in whatever queues."""
        self.seen.doubt()
        with self._looks_guard:
            self._looks.forget()

    def due(self) -> Conversation[tuple[int | None, int]]:
        """Return when the next parked job falls due, and what time it is, by our own clock."""
        names: Collection[str] = self.seen.unsure()
        if not self.seen.served:
            names = yield from self._queues.names()
        found, problem = yield from self._glance(names)
        if problem is not None and not found:
            raise problem
        now = self.seen.present()
        at = min([self.seen.next_at(), *(now + soon for _, _, soon in found if soon >= 0)])
        return (None if at == inf else int(at)), now

    # Claim

    def claim(
        self, plan: ClaimPlan, *, hears: bool
    ) -> Conversation[tuple[Claim, list[Settlement]]]:
        """Give the worker what the selection rule chooses, and what is to be settled on the way.

        Who may have something is asked, each for its share as if all of them had enough. What
        is left then, because some had not, is shared among the others in another round. Who
        hears no news cannot rely on what it knows: it asks a few more that had nothing.
        """
        capable: Word = "" if plan.capable is None else pack(plan.capable)
        self._level = plan.level
        self.seen.serve(plan.lineup, capable)
        yield from self._look()
        if self._limits:
            yield from self._make_room()
        whole = plan
        asked = Shares(plan, self.seen.among(plan.lineup))
        stale = set(self.seen.stalest(plan.lineup))
        stepped: dict[str, list[list[Any]]] = {}
        yield from self._ask_all(plan, asked, capable, stepped)
        claim, damaged = asked.claim(), asked.damaged
        if not claim.cut and not asked.is_full and not (hears and asked.answered):
            plan = plan.after(claim)
            asked = Shares(plan, stale, asked)
            yield from self._ask_all(plan, asked, capable, stepped)
            claim, damaged = claim.joined(asked.claim()), damaged + asked.damaged
        asked.check()
        now = asked.now or (yield from present(self._clock))
        if self._limits:
            claim = yield from self._charge(whole, claim, asked)
        parked: list[Unknown] = []
        if stepped:
            with suppress(StoreError):  # They are met again; what is claimed is not lost.
                parked = yield from self._park(stepped, now)
        return msgspec.structs.replace(claim, now=now, parked=parked), damaged

    def _make_room(self) -> Conversation[None]:
        """Bring back jobs that limits have room for now."""
        names = yield from self._queues.names()
        for name in (
            yield from bring_back(self._keys, self._limits, names, self._at(), self._level)
        ):
            self.placed(name)

    def _charge(self, plan: ClaimPlan, claim: Claim, asked: Shares) -> Conversation[Claim]:
        """Return what the limits leave of a claim."""
        jobs = yield from charge(self._keys, self._limits, claim.jobs, asked.places, self._at())
        if len(jobs) == len(claim.jobs):
            return claim
        given: dict[str, list[Job]] = {}
        for job in jobs:
            given.setdefault(job.queue, []).append(job)
        in_order, credits = in_turns(plan, given)
        return msgspec.structs.replace(claim, jobs=in_order, credits=credits, cut=True)

    def _ask_all(
        self, plan: ClaimPlan, asked: Shares, capable: Word, stepped: dict[str, list[list[Any]]]
    ) -> Conversation[None]:
        """Ask one round after the other; what came before an outage is leased, and ours."""
        try:
            yield from self._rounds(plan, asked, capable, stepped)
        except StoreError:
            if not asked.answered:
                raise

    def _rounds(
        self, plan: ClaimPlan, asked: Shares, capable: Word, stepped: dict[str, list[list[Any]]]
    ) -> Conversation[None]:
        vain = 0
        stirring = self.seen.stirring(plan.lineup)
        for _ in range(_MOST_ROUNDS):
            wanted = asked.wanted()
            if stirring:  # What has fallen due there is moved on, whoever has its turn.
                wanted = dict.fromkeys(stirring, 0) | wanted
                stirring = set()
            if not wanted:
                return
            tick, room_each = self.seen.tick, asked.bytes_each(len(wanted))
            answers = yield from self._ask(plan, wanted, capable, room_each)
            got = 0
            for (queue, count), answer in zip(wanted.items(), answers, strict=True):
                if isinstance(answer, StoreError):
                    asked.give_up(queue, answer)
                    self.seen.found(queue, tick, more=True, now=0, soon=-1)
                    continue
                jobs = asked.take(queue, count, answer)
                got += len(jobs)
                looks_on = self._note(plan.worker, queue, jobs, answer, stepped)
                if count and looks_on:
                    asked.look_on()
                self.seen.moved_on(queue)
                now, more, _, soon, *_ = answer
                self.seen.found(queue, tick, more=more > 0, now=now, soon=soon)
            vain = 0 if got else vain + 1
            if vain == 2:
                # One after the other turns out to be empty: see at once which are.
                names = self.seen.among(plan.lineup)
                if len(names) > FEW:
                    yield from self._glance(names)
                    asked.drop(names - self.seen.among(plan.lineup))
        asked.look_on()

    def _ask(
        self, plan: ClaimPlan, wanted: Mapping[str, int], capable: Word, most_bytes: int
    ) -> Conversation[list[Any]]:
        """Ask each queue for so many jobs."""
        asked_at: Word = "" if plan.asked_at is None else plan.asked_at
        spare = "1" if plan.spare_lost else "0"
        shared = (self._at(), plan.worker, plan.lease, capable, spare, asked_at, plan.level)
        parts = [self._part(plan.worker, queue, n, most_bytes) for queue, n in wanted.items()]
        return (yield from ask_each(self._keys, "claim", shared, parts))

    def _part(self, worker: str, queue: str, count: int, most_bytes: int) -> Part:
        """Return what a queue is asked. A look along jobs of others takes a call of its own."""
        place = self._looks.place(worker, queue)
        words = (count, most_bytes, *(place or ("", "")))
        return Part(queue, words, count if place is None else MOST_AT_ONCE)

    def _note(
        self,
        worker: str,
        queue: str,
        jobs: list[Job],
        answer: list[Any],
        stepped: dict[str, list[list[Any]]],
    ) -> bool:
        """Take note of what a claim came by: jobs, a place to go on from, jobs for others.

        Returns whether there is more to look at.
        """
        self._queues.remember((job.id for job in jobs), queue)
        rest = rest_of(answer)
        if not rest:  # It went on from no place, stepped over nothing and took over nothing.
            return False
        stop, over, _ = rest
        if over:
            stepped.setdefault(queue, []).extend(over)
        last = count = None
        if stop:
            at, last_id, count = stop
            last = Head(JobId(last_id.decode(errors="replace")), "", 0, int(at), 0)
        looked = Looked(last, count or 0, len(jobs), cut=answer[1] == LOOKED_ENOUGH)
        with self._looks_guard:
            return self._looks.end(worker, queue, looked) or looked.cut

    # Look

    def _look(self) -> Conversation[None]:
        """Take a glance at the queues that had nothing, if it is time for that."""
        names = self.seen.to_look_at()
        if names:
            since = self.seen.present()
            yield from self._glance(names)
            self.seen.looked(since)

    def _glance(
        self, names: Collection[str]
    ) -> Conversation[tuple[list[list[int]], StoreError | None]]:
        """See what a claim would find in queues; returns what they answered, and a problem."""
        found: list[list[int]] = []
        problem: StoreError | None = None
        for some in pieces(list(names), _AT_A_GLANCE):
            tick = self.seen.tick
            answers = yield from ask_each(
                self._keys, "glance", (self._at(), self._level), [Part(name) for name in some]
            )
            for name, answer in zip(some, answers, strict=True):
                if isinstance(answer, StoreError):
                    problem = answer
                    # Whoever asks is told why.
                    self.seen.found(name, tick, more=True, now=0, soon=-1)
                else:
                    found.append(answer)
                    now, may, soon = answer
                    self.seen.found(name, tick, more=may > 0, now=now, soon=soon)
                    if may == _TO_MOVE:
                        self.seen.stirs(name)
        return found, problem

    def _at(self) -> Word:
        return moment(self._clock.now() if self._clock else None)

    # Park

    def _park(
        self, stepped: Mapping[str, list[list[Any]]], now: int
    ) -> Conversation[list[Unknown]]:
        """Park those of these jobs whose task no live worker knows."""
        workers = yield from live(self._keys, now)
        asked, commands = [], []
        for queue, over in stepped.items():
            unknown, unreadable = _unknown(over, workers)
            if unknown or unreadable:
                kinds = [(*kind, ids) for kind, ids in unknown.items()]
                lists = (pack(kinds), pack(unreadable))
                asked.append((queue, list(unknown)))
                commands.append(call(self._keys, "park", queue, self._at(), *lists, LONGEST_TOLD))
        if not commands:
            return []
        answers = yield from spared(commands, ())
        parked = []
        for (queue, named), answer in zip(asked, answers, strict=True):
            # A queue with a damaged key answers nothing.
            for (task, version), (jobs, first, text) in zip(named, answer, strict=False):
                if jobs:
                    kind = Unknown(
                        id=JobId(first.decode()),
                        task=task,
                        version=version,
                        queue=queue,
                        options=text.decode(errors="replace") or None,
                        jobs=jobs,
                    )
                    parked.append(kind)
        return sorted(parked, key=lambda each: each.id)


def _unknown(
    over: list[list[Any]], workers: Sequence[Worker]
) -> tuple[dict[tuple[str, int], list[str]], list[str]]:
    """Return the ids of jobs that none of the workers knows, by task and version.

    And the ids of those whose task cannot be read.
    """
    kinds: defaultdict[tuple[bytes, int], set[str]] = defaultdict(set)
    for raw_id, raw_task, version in over:
        kinds[raw_task, version].add(raw_id.decode())
    unknown: dict[tuple[str, int], list[str]] = {}
    unreadable: list[str] = []
    for (raw_task, version), ids in kinds.items():
        try:
            task = raw_task.decode()
        except UnicodeDecodeError:
            unreadable += ids
            continue
        if not any(can_run(worker.capable, task, version) for worker in workers):
            unknown[task, version] = sorted(ids)
    return unknown, unreadable
