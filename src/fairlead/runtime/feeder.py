"""First station: claim what the slots will need, and feed it to them."""

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from fairlead.core.errors import StoreError
from fairlead.core.job import Job
from fairlead.runtime.contact import Contact
from fairlead.runtime.points import point
from fairlead.runtime.pool import Slots
from fairlead.runtime.workshop import Workshop


class Feeder:
    """Claims for one pool, until it is stopped.

    `take` is called with the jobs of every claim, and whether it came so late that
    their leases may have passed. `dry` says that the last claim found nothing while
    nothing was in hand.
    """

    def __init__(
        self,
        workshop: Workshop,
        worker: str,
        slots: Slots,
        contact: Contact,
        take: Callable[[Slots, list[Job], bool], None],
        spares: Callable[[float], bool],
        places: Callable[[], int],
    ) -> None:
        self._workshop = workshop
        self._worker = worker
        self._slots = slots
        self._contact = contact
        self._take = take
        self._spares = spares
        self._places = places
        self._bell = asyncio.Event()
        self._stopped = False
        self._rest: asyncio.Future[int] | None = None
        self._woken = False
        self.dry = False
        slots.on_room = self._on_room

    def stop(self) -> None:
        """Claim no more."""
        self._stopped = True
        self._bell.set()
        self._wake()

    def _on_room(self) -> None:
        self._bell.set()
        # With a reserve kept free a claim always finds less than there is room for, so "less"
        # does not mean that the queues are empty.
        if self._slots.plan.capacity > self._slots.plan.slots:
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
                await self._bell.wait()
                continue
            if not mark:
                mark = await self._wait(0, 0)
            idle = not self._slots.in_hand
            found = await self._claim(room, loop.time())
            self.dry = idle and found == 0
            if found is not None and found < room:
                mark = await self._wait(self._workshop.terms.poll, mark)

    async def _claim(self, room: int, now: float) -> int | None:
        """Claim once; returns how many jobs came, None if the store did not answer."""
        terms = self._workshop.terms
        plan = self._slots.claim_plan(
            self._worker, terms.lease_micros, self._workshop.capable, room
        )
        if self._spares(now):
            plan = replace(plan, spare_lost=True)
        point("claim")
        try:
            claim = await self._workshop.store.claim(plan)
        except StoreError as problem:
            await self._contact.lost(problem, now)
            return None
        point("claimed")
        self._contact.found()
        self._slots.credits = claim.credits
        late = asyncio.get_running_loop().time() - now > terms.lease / 2
        self._take(self._slots, claim.jobs, late)
        return len(claim.jobs)

    async def _wait(self, seconds: float, mark: int) -> int:
        """Wait for a hint that there is work; returns the new mark."""
        self._rest = asyncio.ensure_future(self._workshop.store.wait(seconds, mark))
        self._woken = False
        now = asyncio.get_running_loop().time()
        try:
            return await self._rest
        except asyncio.CancelledError:
            if not self._woken:
                raise
        except StoreError as problem:
            await self._contact.lost(problem, now)
        finally:
            self._rest = None
        return mark
