"""Where claims left off in the order of each queue, so that the next need not begin anew.

Under an old snapshot that somebody holds, every job that is done leaves an index
entry behind that each look from the beginning would walk over. So a claim goes on
after the last job of the claim before it. What may appear before that place, or is
out of turn, is found by a look, a claim that remembers nothing: whenever a claim
does not fill the slots, and otherwise as often as it costs a twentieth of the time; a
fifth, if it was heard that there is something to find.
"""

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fairlead.core.clock import SECOND, Clock
from fairlead.core.selection import ClaimPlan

Place = tuple[int, str]
"""A place in the order of a queue: order_at and id."""

LOOK_EVERY = SECOND // 10
COST, COST_IF_HEARD = 20, 5
"""A look may take one part in so many of the time."""
SLACK = 2 * SECOND
"""How late a put may be committed and still be found after a queue was empty."""


class Start(NamedTuple):
    """Where a claim begins: after a place in each queue, or at its mark where that is None.

    A look begins at `since` if a mark is later.
    """

    names: Sequence[str]
    places: Sequence[Place | None]
    look: bool
    since: int | None


class Taken(NamedTuple):
    """A claimed job, as far as its place in the order goes."""

    queue: str
    place: Place
    out_of_turn: bool


class Found(NamedTuple):
    """What a claim saw: the time, which queues were empty or had gates, and what it cost."""

    now: int
    gated: Collection[str]
    empty: Collection[str]
    cost: int


class Heads:
    """What one process remembers of the queues it claims from."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._heads: dict[str, Place] = {}
        self._stopped: dict[tuple[str, str], Place] = {}
        self._looked: dict[str, tuple[int, int]] = {}
        self._heard = False
        self._since: int | None = None

    def _time(self) -> int:
        return self._clock.now() if self._clock else time.monotonic_ns() // 1_000

    def look(self) -> None:
        """Look soon: a job may have come to stand before the heads."""
        self._heard = True

    def hear(self, place: int) -> None:
        """Take note that jobs came into the order, the first of them at this place."""
        if any(place <= order_at for order_at, _ in self._heads.values()):
            self._since = place if self._since is None else min(place, self._since)
            self._heard = True

    def start(self, plan: ClaimPlan) -> Start:
        """Say where a claim with this plan begins."""
        now = self._time()
        names = [queue.name for queue in plan.queues]
        stopped = [self._stopped.pop((plan.worker, name), None) for name in names]
        if not any(stopped) and all(self._knows(name, now) for name in names):
            return Start(names, [self._heads[name] for name in names], look=False, since=None)
        since, self._since, self._heard = self._since, None, False
        return Start(names, stopped, look=True, since=since)

    def _knows(self, queue: str, now: int) -> bool:
        """Say whether a claim may go on in a queue; a clock that went back calls for a look."""
        looked, cost = self._looked.get(queue, (0, 0))
        pause = cost * COST_IF_HEARD if self._heard else max(LOOK_EVERY, cost * COST)
        return queue in self._heads and looked <= now < looked + pause

    def remember(self, start: Start, jobs: Sequence[Taken], found: Found, *, full: bool) -> None:
        """Go on from here the next time, if this claim left more than it took.

        A queue with nothing to take is begun a little before now, for what is being
        committed just now; one that others left no slot for, where it was.
        """
        if start.look:
            # By a test's clock nothing costs time.
            cost = 0 if self._clock else found.cost
            self._looked |= dict.fromkeys(start.names, (self._time(), cost))
        before = {name: self._heads.pop(name, None) for name in start.names}
        if not full or any(job.out_of_turn for job in jobs):
            return
        last: dict[str, Place] = {}
        for job in jobs:
            last[job.queue] = max(job.place, last.get(job.queue, job.place))
        for name in start.names:
            head = last.get(name) or before[name]
            if name in found.empty:
                head = max(head or (0, ""), (found.now - SLACK, ""))
            if head is not None and name not in found.gated:
                # A place in the future would hide what is put until then.
                self._heads[name] = min(head, (found.now, ""))

    def stop(self, worker: str, queue: str, place: Place) -> None:
        """Go on here when this worker looks along this queue the next time."""
        self._stopped[worker, queue] = place
