"""The contact to the store: waits between tries, and what an outage means for passed leases.

After an outage the leases of jobs that still run may have passed, because nobody
could renew them. Their workers are back at the same moment as we are, so for
one heartbeat nobody takes over what looks lost.
"""

import asyncio
from random import Random

from fairlead.core.events import Bus, StoreFound, StoreLost

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 3.0


class Contact:
    """What one process knows of whether the store answers."""

    def __init__(
        self, worker: str, events: Bus, lease: float, heartbeat: float, random: Random
    ) -> None:
        self._worker = worker
        self._events = events
        # A lease may be almost two heartbeats old before it is first renewed, and its keeper may
        # rest for a pause when the store is back; so long before its time a lease can be lost.
        self._long = max(0.0, lease - 2 * heartbeat - LONGEST_PAUSE)
        self._heartbeat = heartbeat
        self._random = random
        self._lost_at: float | None = None
        self._tries = 0
        self.spare_until = 0.0

    async def lost(self, problem: Exception, since: float) -> None:
        """Take note of a failed call that began at `since`, and wait before the next.

        The pause grows from try to try and is jittered, so that many workers
        do not come back in step.
        """
        if self._lost_at is None:
            self._lost_at = since
            self._events.emit(StoreLost(self._worker, str(problem)))
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._tries)
        self._tries += 1
        await asyncio.sleep(pause * self._random.uniform(0.5, 1.0))

    def found(self) -> None:
        """Take note of an answer."""
        if self._lost_at is None:
            return
        now = asyncio.get_running_loop().time()
        away, self._lost_at, self._tries = now - self._lost_at, None, 0
        if away >= self._long:
            self.spare_until = now + self._heartbeat
        self._events.emit(StoreFound(self._worker, away))

    def spares(self, now: float) -> bool:
        """Say whether passed leases are to be left alone now."""
        away = self._lost_at is not None and now - self._lost_at >= self._long
        return away or now < self.spare_until
