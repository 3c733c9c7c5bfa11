"""The line of `memory://`: jobs in dicts, claimed by the selection rule as it is."""

import asyncio
import heapq
import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, Clock, SystemClock
from fairlead.core.errors import ConfigError
from fairlead.core.ids import JobId
from fairlead.core.job import (
    LEVEL,
    Attempt,
    Gate,
    Job,
    JobRecord,
    NewJob,
    Reason,
    State,
    next_fence,
)
from fairlead.core.outcome import Settlement, overrule
from fairlead.core.queue import Served
from fairlead.core.selection import (
    LIMITS,
    Claim,
    ClaimPlan,
    Head,
    Line,
    Lines,
    Snapshot,
    Unknown,
    Used,
    can_run,
    limit_of,
    select,
)
from fairlead.core.store import BATCH, Accepted, Extended, Upkeep
from fairlead.stores.looks import Looks
from fairlead.stores.memory.entries import MemoryEntries
from fairlead.stores.memory.live import End, LiveJob
from fairlead.stores.untransacted import Untransacted


class MemoryLine(Untransacted):
    """Put, claim, extend, settle and the verbs that keep the line going."""

    entries: MemoryEntries
    url = "memory://"
    level = LEVEL
    durability = "memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.lock = threading.RLock()
        self.live: dict[JobId, LiveJob] = {}
        self.finished: dict[JobId, JobRecord] = {}
        self.dead: dict[JobId, JobRecord] = {}
        self.log: list[Attempt] = []
        # Waiting and running jobs that are not parked, by queue, in claim order.
        self.order: defaultdict[str, list[tuple[int, JobId]]] = defaultdict(list)
        # Jobs that were parked until a time; a mark may be stale, its job tells.
        self.due: list[tuple[int, JobId]] = []
        # The same for jobs that expire.
        self.expiring: list[tuple[int, JobId]] = []
        # Jobs that are parked for anything else, as for a worker who knows them.
        self.aside: set[JobId] = set()
        self.paused: set[str] = set()
        self._looks = Looks()
        self.workers: dict[str, Worker] = {}
        self.entries = MemoryEntries(
            self.lock,
            self.clock,
            self._may_own,
            lambda job_id, fence: self._running(job_id, fence) is not None,
        )
        self._mark = 1
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    async def open(self) -> None:
        """Nothing to do: memory is always open."""

    async def close(self) -> None:
        """Nothing to do; the jobs stay as long as the object does."""

    # The line

    async def put(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        """Accept new jobs, all of them or none."""
        return self.put_blocking(jobs)

    def put_blocking(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        """Accept new jobs from synchronous code."""
        with self.lock:
            now = self.clock.now()
            taken_in = [self._taken_in(job, now) for job in jobs]
            accepted = [Accepted(live.new.id, self._put(live, now)) for live in taken_in]
        self.notify()
        return accepted

    def no_transactions(self) -> ConfigError:
        """Say why, and the way out."""
        return ConfigError(
            "memory:// has no transactions to share; enqueue without `connection=` and end jobs "
            "without job.commit(), or use sqlite:/// with a connection to the same file"
        )

    def _taken_in(self, job: NewJob, now: int) -> LiveJob:
        run_at = job.due_at(now)
        return LiveJob(
            new=job,
            run_at=run_at,
            order_at=run_at - job.priority * SECOND,
            enqueued_at=now,
            expires_at=job.ends_at(now),
        )

    def _put(self, live: LiveJob, now: int) -> bool:
        job_id = live.new.id
        if job_id in self.live or job_id in self.finished or job_id in self.dead:
            return False
        self.enter(live, now)
        return True

    def enter(self, live: LiveJob, now: int) -> None:
        """Take a job into the line."""
        self.live[live.new.id] = live
        if live.expires_at is not None:
            heapq.heappush(self.expiring, (live.expires_at, live.new.id))
        self.place(live, now)

    def place(self, live: LiveJob, now: int) -> None:
        """Put a waiting job where it belongs: in the order, or parked until it is due."""
        if live.run_at > now:
            live.parked = Gate.NOT_DUE
            heapq.heappush(self.due, (live.run_at, live.new.id))
        else:
            self._stand(live)

    def _stand(self, live: LiveJob) -> None:
        """Put a job into the order."""
        live.parked = None
        queue, place = live.new.queue, live.place
        insort(self.order[queue], place)
        self._looks.arrived(queue, place)

    def displace(self, live: LiveJob) -> None:
        """Take a job out of the place it has."""
        self.aside.discard(live.new.id)
        if live.parked is None:
            order = self.order[live.new.queue]
            del order[bisect_left(order, live.place)]
            if not order:
                del self.order[live.new.queue]  # A claim goes along the queues that have jobs.

    async def claim(self, plan: ClaimPlan) -> Claim:
        """Give the worker what the selection rule chooses."""
        with self.lock:
            now = self.clock.now()
            self._promote(now)
            self._bring_back_known(partial(can_run, plan.capable))
            self._expire(now)
            used = self.in_use()
            self._bring_back_limited(used)
            lines = Lines(plan, partial(self._line, plan.worker, now))
            selection = select(Snapshot(plan, now, lines, self.order, used))
            cut = selection.cut
            for name, looked in selection.looked.items():
                cut |= self._looks.end(plan.worker, name, looked)
            unknown = [
                self.live[job_id]
                for job_id, gate in sorted(selection.held.items())
                if gate is Gate.NO_CAPABLE_WORKER
            ]
            parked = self._park_unknown(unknown, now)
            for gate, heads in selection.refused.items():
                for head in heads:
                    self.park(self.live[head.id], gate)
            jobs = [self._lease(self.live[head.id], plan, now) for _, head in selection.chosen]
        return Claim(jobs, selection.credits, now, parked, cut)

    def _line(self, worker: str, now: int, queue: Served) -> Line:
        return Line(queue, self._heads(worker, queue.name, now), queue.name in self.paused)

    def _heads(self, worker: str, queue: str, now: int) -> Iterator[Head]:
        order = self.order[queue]
        last = self._looks.place(worker, queue)
        for at in range(bisect_right(order, last) if last else 0, len(order)):
            live = self.live[order[at][1]]
            if live.lease_until <= now:
                yield live.head

    def _lease(self, live: LiveJob, plan: ClaimPlan, now: int) -> Job:
        lost = live.lease_until > 0
        live.fence = next_fence(live.fence, now)
        live.lease_until = now + plan.lease
        if not lost:
            live.attempt += 1
            live.worker, live.claimed_at = plan.worker, now
        return live.job(lost=lost)

    def in_use(self) -> dict[Gate, Counter[str]]:
        """Return how much of each limit is in use."""
        running = [live.head for live in self.live.values() if live.lease_until] if LIMITS else []
        keys = {gate: map(limit.uses, running) for gate, limit in LIMITS.items()}
        return {gate: Counter(key for key in of if key is not None) for gate, of in keys.items()}

    def park(self, live: LiveJob, gate: Gate) -> None:
        """Take a job out of the order, until what it waits for is there."""
        self.displace(live)
        live.parked = gate
        self.aside.add(live.new.id)

    def _park_unknown(self, unknown: Iterable[LiveJob], now: int) -> list[Unknown]:
        """Park those of these jobs that no live worker knows."""
        kinds: defaultdict[tuple[str, str, int], list[LiveJob]] = defaultdict(list)
        for live in unknown:
            kinds[live.new.queue, live.new.task, live.new.version].append(live)
        parked = []
        for (_, task, version), alike in kinds.items():
            if self._known(task, version, now):
                continue
            for live in alike:
                self.park(live, Gate.NO_CAPABLE_WORKER)
            parked.append(alike[0].unknown(len(alike)))
        return parked

    def _known(self, task: str, version: int, now: int) -> bool:
        return any(
            worker.live_until > now and can_run(worker.capable, task, version)
            for worker in self.workers.values()
        )

    async def extend(self, leases: Sequence[tuple[JobId, int]], lease: int) -> list[Extended]:
        """Renew leases under their current fence."""
        with self.lock:
            now = self.clock.now()
            renewed = []
            for job_id, fence in leases:
                live = self._running(job_id, fence)
                if live is not None:
                    live.lease_until = now + lease
                    renewed.append(Extended(job_id, live.cancel is not None))
            return renewed

    async def held(self, worker: str) -> list[Job]:
        """Return the running jobs that this worker claimed."""
        with self.lock:
            running = [live for live in self.live.values() if live.lease_until]
            return [live.job(lost=False) for live in running if live.worker == worker]

    async def settle(self, settlements: Sequence[Settlement]) -> dict[JobId, Settlement]:
        """Write what became of running jobs, under their current fence."""
        with self.lock:
            now = self.clock.now()
            ruled = [self._settle(settlement, now) for settlement in settlements]
        self.notify()
        return {settlement.id: settlement for settlement in ruled if settlement}

    def _may_own(self, job_id: JobId) -> bool:
        live = self.live.get(job_id)
        return live is not None and live.new.level <= self.level

    def _running(self, job_id: JobId, fence: int) -> LiveJob | None:
        """Return the job if this fence is the one it runs under: the only fence check there is."""
        live = self.live.get(job_id)
        return live if live is not None and live.lease_until and live.fence == fence else None

    def _settle(self, settlement: Settlement, now: int) -> Settlement | None:
        live = self._running(settlement.id, settlement.fence)
        if live is None or live.new.level > self.level:
            return None
        if live.cancel is not None:
            settlement = overrule(settlement, live.cancel)
        self.log.append(live.end_run(settlement, now))
        self.displace(live)
        live.attempt -= not settlement.counts
        live.crashes += settlement.crashed
        live.shared_deaths = settlement.shared_deaths
        if settlement.state is State.WAITING:
            if settlement.run_at is not None:
                head_start = live.run_at - live.order_at
                live.run_at = settlement.run_at
                live.order_at = settlement.run_at - head_start
            live.lease_until, live.worker, live.claimed_at = 0, None, None
            self.place(live, now)
        else:
            self.leave(live, End(settlement.state, now, settlement.reason, settlement.result))
        return settlement

    def leave(self, live: LiveJob, end: End) -> None:
        """Move a job out of the line for good."""
        record = live.record(end)
        del self.live[record.id]
        (self.dead if end.state is State.DEAD else self.finished)[record.id] = record

    async def announce(self, worker: Worker, lease: int) -> None:
        """Say that a worker lives, and which tasks it knows."""
        with self.lock:
            now = self.clock.now()
            known = self.workers.get(worker.id)
            self.workers[worker.id] = msgspec.structs.replace(
                worker, started_at=known.started_at if known else now, live_until=now + lease
            )
            self._bring_back_known(partial(can_run, worker.capable))
        self.notify()

    async def wait(
        self,
        timeout: float,  # noqa: ASYNC109 (a hint's patience)
        since: int = 0,
        *,
        for_work: bool = False,
    ) -> int:
        """Return when something may have changed, a parked job falls due, or time is up."""
        loop = asyncio.get_running_loop()
        hint: asyncio.Future[None] = loop.create_future()
        with self.lock:
            if self._mark != since:
                return self._mark
            self._waiters.append((loop, hint))
            now = self.clock.now()
            due = min((at for at, _ in self.due if at > now), default=None)
        if due is not None:
            timeout = min(timeout, (due - now) / SECOND)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(hint, timeout)
        finally:
            with self.lock:
                self._waiters = [w for w in self._waiters if w[1] is not hint]
        return self._mark

    def notify(self) -> None:
        """Wake who waits."""
        with self.lock:
            self._mark += 1
            waiters, self._waiters = self._waiters, []
        for loop, hint in waiters:
            with suppress(RuntimeError):  # The loop was closed; nobody waits there any more.
                loop.call_soon_threadsafe(_resolve, hint)

    async def upkeep(self, keep: int) -> Upkeep:
        """Do one bounded round of housekeeping."""
        with self.lock:
            now = self.clock.now()
            done = Upkeep(
                promoted=self._promote(now),
                brought_back=self._bring_back_known(lambda t, v: self._known(t, v, now)),
                expired=self._expire(now),
                pruned_jobs=self._prune(now - keep),
                pruned_attempts=self._prune_log(now - keep),
                pruned_entries=self.entries.prune(now),
            )
            self._prune_workers(now - keep)
        if done.promoted or done.brought_back:
            self.notify()
        return done

    def _promote(self, now: int) -> int:
        promoted = 0
        while self.due and self.due[0][0] <= now and promoted < BATCH:
            run_at, job_id = heapq.heappop(self.due)
            live = self.live.get(job_id)
            if live and live.parked is Gate.NOT_DUE and live.run_at == run_at:
                self.place(live, now)
                promoted += 1
        return promoted

    def _bring_back_known(self, known: Callable[[str, int], bool]) -> int:
        return self._bring_back(
            Gate.NO_CAPABLE_WORKER, lambda live: known(live.new.task, live.new.version)
        )

    def _bring_back_limited(self, used: Used) -> None:
        for gate in LIMITS:
            self._bring_back(gate, lambda live: limit_of(live.head, used) is None)

    def _bring_back(self, gate: Gate, is_open: Callable[[LiveJob], bool]) -> int:
        parked = [live for live in map(self.live.__getitem__, self.aside) if live.parked is gate]
        back = [live for live in parked if is_open(live)][:BATCH]
        for live in back:
            self.aside.discard(live.new.id)
            self._stand(live)
        return len(back)

    def _expire(self, now: int) -> int:
        expired = 0
        left = []
        while self.expiring and self.expiring[0][0] <= now and expired < BATCH:
            mark = heapq.heappop(self.expiring)
            live = self.live.get(mark[1])
            if live is None or live.expires_at != mark[0]:
                continue  # It has ended, or was revived without an expiry that had passed.
            if live.lease_until or live.new.level > self.level:
                left.append(mark)  # It may wait again, and expire then; or be for newer programs.
                continue
            self.displace(live)
            self.leave(live, End(State.CANCELLED, now, Reason.EXPIRED))
            expired += 1
        for mark in left:
            heapq.heappush(self.expiring, mark)
        return expired

    def _prune(self, before: int) -> int:
        old = [
            record.id
            for record in self.finished.values()
            if (record.finished_at or 0) < before and record.level <= self.level
        ][:BATCH]
        for job_id in old:
            del self.finished[job_id]
            self.entries.forget(job_id)
        return len(old)

    def _prune_workers(self, before: int) -> None:
        for worker in list(self.workers.values()):
            if worker.live_until < before:
                del self.workers[worker.id]

    def _prune_log(self, before: int) -> int:
        old = [at for at, line in enumerate(self.log) if line.finished_at < before][:BATCH]
        for at in reversed(old):
            del self.log[at]
        return len(old)


def _resolve(hint: asyncio.Future[None]) -> None:
    if not hint.done():
        hint.set_result(None)
