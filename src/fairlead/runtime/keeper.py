"""Keep what is in hand: renew leases, announce the worker; and run the services beside the line.

Runs outside the processes whose handlers might block it: in the supervisor, or,
for a worker inside another program, in a thread of its own. What goes wrong with one job, or
with one duty, keeps it from no other: the leases of all depend on it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec

from fairlead.core.admin import PoolShare, Worker
from fairlead.core.clock import SECOND
from fairlead.core.errors import StoreError
from fairlead.runtime.board import Board
from fairlead.runtime.contact import Contact, Troubles, is_outage, said
from fairlead.runtime.revoke import Revoker
from fairlead.runtime.run import Pair
from fairlead.runtime.service import Service, Services
from fairlead.runtime.split import in_parts
from fairlead.runtime.upkeep import upkeep
from fairlead.runtime.workshop import Workshop

SERVICES: tuple[Callable[[Workshop], Service], ...] = (upkeep,)
"""What runs beside the line, in every worker."""


class News(msgspec.Struct, frozen=True):
    """What a heartbeat found out about one board: leases that are gone, jobs to cancel."""

    lost: tuple[Pair, ...]
    cancelled: tuple[Pair, ...]


class Keeper:
    """Keeps the leases on some boards, by worker id. `tell` gets the news of each.

    `tell_blocked` gets the worker whose loop stands still, and how many jobs were given back.
    """

    def __init__(
        self,
        workshop: Workshop,
        worker: str,
        boards: Callable[[], Mapping[str, Board]],
        tell: Callable[[str, News], None],
        tell_blocked: Callable[[str, int], None] = lambda _worker, _returned: None,
    ) -> None:
        terms = workshop.terms
        self._workshop = workshop
        self._worker = worker
        self._boards = boards
        self._tell = tell
        self._revoker = Revoker(workshop, worker, boards, tell_blocked)
        self.serving = True
        """Whether it still claims; a worker that stops knows its tasks, but serves nobody."""
        self.contact = Contact(
            worker,
            workshop.events,
            terms.lease,
            terms.heartbeat,
            workshop.random,
            workshop.served,
        )
        self._troubles = Troubles(worker, workshop.events)
        self._services = Services(workshop, worker, [make(workshop) for make in SERVICES])

    async def run(self) -> None:
        """Beat, announce, give back what cannot start, and run the services, for ever.

        Who cancels it ends the services first: while one of their steps runs, leases are renewed.
        """
        async with asyncio.TaskGroup() as duties:
            duties.create_task(self._beat_forever())
            duties.create_task(self._revoker.run())
            await self._services.run()

    async def begin(self) -> None:
        """Announce the worker before it claims anything.

        If no other worker has been live for a heartbeat, the store may have been away until
        now, and passed leases may belong to jobs that still run: workers that begin
        together learn nothing from each other. A worker that drains does not wait for
        that: it would end before it could find out.
        """
        await self._try("announce this worker", self.announce)
        if not self._workshop.terms.drain and not await self._others_saw_no_outage():
            now = asyncio.get_running_loop().time()
            self.contact.spare_until = now + self._workshop.terms.heartbeat
        self.spare()

    async def _others_saw_no_outage(self) -> bool:
        """Say whether a live worker began at least a heartbeat before this one, by the store."""
        began = {
            worker.id: worker.started_at for worker in await self._workshop.store.admin.workers()
        }
        ours = began.pop(self._worker, 0)
        return any(at <= ours - self._workshop.terms.heartbeat * SECOND for at in began.values())

    async def announce(self) -> None:
        """Say which tasks this worker knows, and what it serves them with."""
        shop = self._workshop
        pools = tuple(
            PoolShare(pool.name, pool.slots, tuple(queue.share for queue in pool.queues))
            for pool in (shop.pools if self.serving else ())
        )
        worker = Worker(self._worker, shop.capable, pools, shop.terms.processes)
        await shop.store.announce(worker, shop.terms.lease_micros)

    async def leave(self) -> None:
        """Say that this worker is no more, if the store can be told."""
        with suppress(Exception):  # It is forgotten when its lease passes.
            await self._workshop.store.announce(Worker(self._worker, {}), 0)

    async def _beat_forever(self) -> None:
        loop = asyncio.get_running_loop()
        # A keeper asks so regularly that all the time since its last answer counts as away, be it
        # that the store was, or that this machine stood still.
        answered = loop.time()
        while True:
            began = loop.time()
            try:
                await self._try("renew leases", self.beat)
                await self._try("announce this worker", self.announce)
            except StoreError as problem:
                await self.contact.lost(problem, answered)
                self.spare()
                continue
            self.contact.found(answered)
            answered = loop.time()
            self.spare()
            await asyncio.sleep(max(0.0, began + self._workshop.terms.heartbeat - loop.time()))

    async def _try(self, duty: str, step: Callable[[], Awaitable[None]]) -> None:
        """Do a duty; raises only if the store is away. Anything else is told, and tried again."""
        try:
            await step()
        except Exception as problem:
            if is_outage(problem):
                raise
            self._troubles.tell(f"it could not {duty}: {said(problem)}; it goes on trying")

    def spare(self) -> None:
        """Let the processes know that passed leases may only look lost."""
        now = asyncio.get_running_loop().time()
        until = max(
            self.contact.spare_until,
            now + self._workshop.terms.heartbeat if self.contact.spares(now) else 0.0,
        )
        for board in self._boards().values():
            board.spare(until)

    async def beat(self) -> None:
        """Renew the leases of what is on the boards, in one batch.

        Jobs that were claimed a moment ago are left out: most will be settled
        before their lease is half over. So are those that were taken back.
        """
        terms = self._workshop.terms
        before = asyncio.get_running_loop().time() - terms.heartbeat
        owners = {
            mark.pair: worker
            for worker, board in self._boards().items()
            for mark in board.marks()
            if mark.held_since <= before and mark.pair not in board.given_back
        }
        owners |= await self._unseen(before)
        if not owners:
            return
        parts = await in_parts(
            lambda pairs: self._workshop.store.extend(pairs, terms.lease_micros),
            list(owners),
            self._tell_damaged,
        )
        kept = {renewed.id: renewed.cancel_requested for part in parts for renewed in part}
        # Of two runs of a job on our boards only the later one can have been renewed.
        newest = dict(sorted(owners))
        lost: dict[str, list[Pair]] = {}
        cancelled: dict[str, list[Pair]] = {}
        for pair, worker in owners.items():
            if pair[0] not in kept or pair[1] < newest[pair[0]]:
                if not await self._is_settled(pair):
                    lost.setdefault(worker, []).append(pair)
            elif kept[pair[0]]:
                cancelled.setdefault(worker, []).append(pair)
        for worker in sorted(lost.keys() | cancelled.keys()):
            news = News(tuple(lost.get(worker, ())), tuple(cancelled.get(worker, ())))
            self._tell(worker, news)

    def _tell_damaged(self, pair: Pair, problem: Exception) -> None:
        self._troubles.tell(f"the lease of job {pair[0]} cannot be renewed: {said(problem)}")

    async def _is_settled(self, pair: Pair) -> bool:
        """Say whether a lease is gone because its run has ended, and not because it is lost.

        A handler that made its job done in a transaction of its own may go on after it.
        """
        log = self._workshop.store.admin.attempts(pair[0])
        lines = await self._troubles.found(f"the log of job {pair[0]}", log)
        return any(line.fence == pair[1] for line in lines)

    async def _unseen(self, before: float) -> dict[Pair, str]:
        """Return what processes claimed that have stood still since, and so have not seen it."""
        found: dict[Pair, str] = {}
        for worker, board in self._boards().items():
            if 0 < board.pulse <= before:
                held = self._workshop.store.held(worker)
                jobs = await self._troubles.found(f"what {worker} has claimed", held)
                found |= {(job.id, job.fence): worker for job in jobs}
        return found
