"""The contact to the store: waits between tries, and what an outage means for passed leases.

After an outage the leases of jobs that still run may have passed, because nobody
could renew them. Their workers are back at the same moment as we are, so for
one heartbeat nobody takes over what looks lost.

An answer that the store gives is no outage, even if it is a refusal: one damaged job must not
stop the others. See `split.py`.

A store whose schema has become too new for this program is no outage either: see `Served`.
"""

import asyncio
import time
from collections.abc import Awaitable
from random import Random
from typing import TypeVar

from fairlead.core.errors import (
    FairleadError,
    SchemaOutdated,
    StoreError,
    StoreGone,
    StoreRefused,
)
from fairlead.core.events import Bus, StoreFound, StoreLost, Trouble
from fairlead.core.text import sentence

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 3.0
"""Between tries; never longer than half a heartbeat, so that running jobs are renewed in time."""


_SILENT_SECONDS = 60.0
"""How long the same trouble is not told again."""
_MOST_TROUBLES = 1_000

Item = TypeVar("Item")


def is_outage(problem: Exception) -> bool:
    """Say whether a call failed because of the store as a whole, so that repeating it may help.

    Anything else is damage: one of the jobs that the call is about cannot be dealt with.
    """
    return isinstance(problem, StoreError) and not isinstance(problem, StoreRefused)


def said(problem: Exception) -> str:
    """Return an error in words; one that is not ours may say little without its class."""
    return str(problem) if isinstance(problem, FairleadError) else repr(problem)


class Troubles:
    """Tells what should not happen, each trouble once in a while."""

    def __init__(self, worker: str, events: Bus) -> None:
        self._worker = worker
        self._events = events
        self._told: dict[str, float] = {}

    def tell(self, told: str) -> None:
        """Tell of it, unless it was told a moment ago."""
        now = time.monotonic()
        if now - self._told.get(told, -_SILENT_SECONDS) < _SILENT_SECONDS:
            return
        if len(self._told) >= _MOST_TROUBLES:
            self._told.clear()
        self._told[told] = now
        self._events.emit(Trouble(self._worker, told))

    async def found(self, what: str, look: Awaitable[list[Item]]) -> list[Item]:
        """Return what a look finds: nothing, if damage keeps the store from saying it.

        Raises only if the store is away.
        """
        try:
            return await look
        except Exception as problem:
            if is_outage(problem):
                raise
            self.tell(f"{what} cannot be read: {said(problem)}; `fairlead doctor` tells what")
            return []


class Served:
    """Whether the store still serves this program: not once its schema is too new for it.

    Any verb may say so, in any station and in any thread of a worker. Then the worker drains.
    """

    def __init__(self) -> None:
        self.problem: SchemaOutdated | None = None

    def note(self, problem: Exception) -> bool:
        """Take note of what a verb raised; says whether this program is no longer served."""
        if not isinstance(problem, SchemaOutdated):
            return False
        self.problem = self.problem or problem
        return True


def no_longer_served(problem: object) -> str:
    """Return what a worker says when it drains because its program is too old."""
    return (
        f"this program is no longer served: {sentence(str(problem))} What runs may finish, then "
        "the worker ends. Update the program, and start the worker again"
    )


class Contact:
    """What one process knows of whether the store answers."""

    def __init__(
        self,
        worker: str,
        events: Bus,
        lease: float,
        heartbeat: float,
        random: Random,
        served: Served | None = None,
    ) -> None:
        self._worker = worker
        self._events = events
        # A lease is at most two heartbeats old when it is renewed, that is half its time over; in
        # the other half, less a pause of its keeper when the store is back, none can pass.
        self._harmless = lease - 2.5 * heartbeat
        self._heartbeat = heartbeat
        self._random = random
        self._served = served or Served()
        self._lost_at: float | None = None
        self._tries = 0
        self.spare_until = 0.0

    async def lost(self, problem: Exception, since: float) -> None:
        """Take note of a failed call that began at `since`, and wait before the next.

        The pause grows from try to try and is jittered, so that many workers
        do not come back in step. A store that is gone is told by who ends the worker for it.
        """
        if not self._served.note(problem) and self._lost_at is None:
            self._lost_at = since
            if not isinstance(problem, StoreGone):
                self._events.emit(StoreLost(self._worker, str(problem)))
        pause = min(LONGEST_PAUSE, self._heartbeat / 2, FIRST_PAUSE * 2**self._tries)
        self._tries = min(self._tries + 1, 16)  # No power is beyond a float, however long it takes.
        await asyncio.sleep(pause * self._random.uniform(0.5, 1.0))

    def found(self, since: float) -> None:
        """Take note of an answer to a call that began at `since`."""
        now = asyncio.get_running_loop().time()
        away = now - (since if self._lost_at is None else self._lost_at)
        if away >= self._harmless:
            self.spare_until = now + self._heartbeat
        if self._lost_at is not None:
            self._lost_at, self._tries = None, 0
            self._events.emit(StoreFound(self._worker, away))

    def spares(self, now: float) -> bool:
        """Say whether passed leases are to be left alone now."""
        away = self._lost_at is not None and now - self._lost_at >= self._harmless
        return away or now < self.spare_until
