"""First station: claim what the slots will need, and feed it to them.

A claim asks for jobs of all queues at once. If the store refuses it, something in one of the
queues is damaged: they are asked in parts, and the queue that is refused by itself rests for a
while, so that the others are fed as before.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from fairlead.core.errors import StoreError
from fairlead.core.job import Job
from fairlead.core.queue import Served
from fairlead.core.selection import MOST_BYTES, Claim, ClaimPlan
from fairlead.runtime.board import Board
from fairlead.runtime.contact import Contact, Troubles, is_outage, said
from fairlead.runtime.points import point
from fairlead.runtime.pool import Slots, bytes_for_next
from fairlead.runtime.split import in_parts
from fairlead.runtime.workshop import Workshop

_REST_SECONDS = 5.0
"""How long a queue is not asked again after the store refused it."""

_LOOK_PART = 10
"""A look along jobs of others that found none of ours takes one part in so many of the time."""


class Feeder:
    """Claims for one pool, until it is stopped.

    `hear` is called with every claim, `take` with its jobs, when it was asked for, and whether
    it came so late that their leases may have passed. `dry` says that the last claim found nothing
    while nothing was in hand, `claiming` how many jobs a claim that is on its way may
    bring.
    """

    def __init__(
        self,
        workshop: Workshop,
        worker: str,
        slots: Slots,
        contact: Contact,
        hear: Callable[[Claim, bool], None],
        take: Callable[[Slots, list[Job], float, bool], None],
        spares: Callable[[float], bool],
        places: Callable[[], int],
        store_time: Callable[[], int],
        board: Board,
    ) -> None:
        self._workshop = workshop
        self._worker = worker
        self._slots = slots
        self._keeps_reserve = slots.plan.capacity > slots.plan.slots
        self._contact = contact
        self._hear = hear
        self._take = take
        self._spares = spares
        self._places = places
        self._store_time = store_time
        self._board = board
        self._troubles = Troubles(worker, workshop.events)
        self._refused_until: dict[str, float] = {}
        self._most_bytes = MOST_BYTES
        self._looks_since: float | None = None
        self._looks_again_at = 0.0
        self._bell = asyncio.Event()
        self._stopped = False
        self._rest: asyncio.Future[int] | None = None
        self._woken = False
        self.dry = False
        self.claiming = 0
        slots.on_room = self._on_room

    def stop(self) -> None:
        """Claim no more."""
        self._stopped = True
        self._bell.set()
        self._wake()

    def ring(self) -> None:
        """Look again whether there is room."""
        self._bell.set()

    def _on_room(self) -> None:
        self._bell.set()
        # With a reserve kept free a claim always finds less than there is room for, so "less"
        # does not mean that the queues are empty.
        if self._keeps_reserve:
            self._wake()

    def _wake(self) -> None:
        if self._rest is not None:
            self._woken = True
            self._rest.cancel()

    async def run(self) -> None:
        """Claim, feed, and wait for room or for work, again and again."""
        loop = asyncio.get_running_loop()
        mark = 0
        while not self._stopped:
            room = min(self._slots.room(loop.time()), self._places())
            if not room:
                self._bell.clear()
                with suppress(TimeoutError):  # Another pool's claim may leave room without a word.
                    async with asyncio.timeout(self._workshop.terms.poll):
                        await self._bell.wait()
                continue
            self.claiming = room
            if not mark:
                mark = await self._wait(0, 0)
            idle, began = not self._slots.in_hand, loop.time()
            claim = await self._claim(room, began)
            self.claiming = 0
            self.dry = idle and claim is not None and not claim.jobs and not claim.cut
            if claim is None or self._stopped:
                continue
            if self._looks_on(claim, began, loop.time()):
                await asyncio.sleep(0)  # A store that need not wait leaves others no time.
            elif len(claim.jobs) < room:
                mark = await self._wait(self._workshop.terms.poll, mark)

    def _looks_on(self, claim: Claim, began: float, now: float) -> bool:
        """Say whether to claim again at once, because the claim did not see all there is.

        Our jobs may stand behind any number of others. But once a look has come to the end of
        those and found none of ours, each hint is worth one claim for a while, not a whole look.
        """
        if claim.jobs:
            self._looks_since, self._looks_again_at = None, 0.0
            return claim.cut
        if claim.cut and now >= self._looks_again_at:
            self._looks_since = began if self._looks_since is None else self._looks_since
            return True
        if not claim.cut and self._looks_since is not None:
            self._looks_again_at = now + _LOOK_PART * (now - self._looks_since)
            self._looks_since = None
        return False

    async def _claim(self, room: int, now: float) -> Claim | None:
        """Claim once, and feed what came; None if the store did not answer."""
        self._board.begin_claim(now)
        try:
            return await self._claimed(room, now)
        finally:
            self._board.end_claim()

    async def _claimed(self, room: int, now: float) -> Claim | None:
        terms = self._workshop.terms
        plan = replace(
            self._slots.claim_plan(self._worker, terms.lease_micros, self._workshop.capable, room),
            spare_lost=self._spares(now),
            asked_at=self._store_time(),
            most_bytes=self._most_bytes,
        )
        point("claim")
        try:
            claim = await self._asked(plan, now)
        except Exception as problem:
            if not is_outage(problem):
                raise
            self.claiming = 0
            await self._contact.lost(problem, now)
            return None
        finally:
            took = asyncio.get_running_loop().time() - now
            self._most_bytes = bytes_for_next(self._most_bytes, took, terms.lease)
        point("claimed")
        self._contact.found(now)
        self._slots.credits = claim.credits
        late = took > terms.lease / 2
        self._hear(claim, late)
        self._take(self._slots, claim.jobs, now, late)
        return claim

    async def _asked(self, plan: ClaimPlan, now: float) -> Claim:
        """Ask the store for jobs of all queues that do not rest, in parts where it must be."""
        queues = self._served(plan.queues, now)
        whole = Claim([], plan.standing, self._store_time())

        async def ask(some: Sequence[Served]) -> None:
            nonlocal whole
            part = plan.after(whole).only(some)
            whole = whole.joined(await self._workshop.store.claim(part))

        def rest(queue: Served, problem: Exception) -> None:
            self._refused_until[queue.name] = now + _REST_SECONDS
            told = f"queue {queue.name!r} is not served, because something in it is damaged"
            self._troubles.tell(f"{told}: {said(problem)}; `fairlead doctor` tells what")

        try:
            if queues:
                await in_parts(ask, queues, rest)
        except StoreError:
            if not whole.jobs:
                raise
            # What came before is leased, and ours to run; the next claim meets the outage.
        return whole

    def _served(self, queues: Sequence[Served], now: float) -> Sequence[Served]:
        """Return those of the queues that do not rest."""
        if not self._refused_until:
            return queues
        self._refused_until = {q: at for q, at in self._refused_until.items() if at > now}
        return [queue for queue in queues if queue.name not in self._refused_until]

    async def _wait(self, seconds: float, mark: int) -> int:
        """Wait for a hint that there is work; returns the new mark."""
        hint = self._workshop.store.wait(seconds, mark, for_work=True)
        self._rest = asyncio.ensure_future(hint)
        self._woken = False
        now = asyncio.get_running_loop().time()
        try:
            return await self._rest
        except asyncio.CancelledError:
            if not self._woken:
                raise
        except Exception as problem:  # noqa: BLE001 (around a service's step: a wait is a hint)
            if is_outage(problem):
                await self._contact.lost(problem, now)
            else:
                self._troubles.tell(f"it cannot wait for news: {said(problem)}; it looks by itself")
                await asyncio.sleep(self._workshop.terms.poll)
        finally:
            self._rest = None
        return mark
