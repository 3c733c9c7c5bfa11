"""Where claims left off in the order of each queue, so that the next need not begin anew.

Under an old snapshot that somebody holds, every job that is done leaves an index
entry behind that each look from the beginning would walk over. So a claim goes on
after the last job of the claim before it. What may appear before that place, or is
out of turn, is found by a look, a claim that remembers nothing: whenever a claim
does not fill the slots, and otherwise as often as it costs a twentieth of the time.
"""

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fairlead.core.clock import SECOND, Clock
from fairlead.core.selection import ClaimPlan

Place = tuple[int, str]
"""A place in the order of a queue: order_at and id."""

LOOK_EVERY = SECOND // 10
DEEP_EVERY = 5 * SECOND
COST = 20
"""A look may take one part in so many of the time."""

SLACK = 2 * SECOND
"""How late a put may be committed and still be found by an ordinary look; as in `move_mark`."""


class Heads:
    """What one process remembers of the queues it claims from."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._heads: dict[str, Place] = {}
        self._stopped: dict[tuple[str, str], Place] = {}
        self._looked: dict[str, int] = {}
        self._next_look: dict[str, int] = {}
        self._next_deep = self._time() + DEEP_EVERY
        self._now = 0

    def _time(self) -> int:
        return self._clock.now() if self._clock else time.monotonic_ns() // 1_000

    def forget(self) -> None:
        """Look at the next claim: a job may have come to stand before the heads."""
        self._heads.clear()

    def hear(self, at: int) -> None:
        """Take note that jobs were put which had their places in the order since `at`."""
        self.forget()
        if at < self._now - SLACK:
            self._next_deep = 0

    def start(self, plan: ClaimPlan) -> "Start":
        """Say where a claim with this plan begins."""
        now = self._time()
        names = [queue.name for queue in plan.queues]
        stopped = [self._stopped.pop((plan.worker, name), None) for name in names]
        look = any(stopped) or any(
            name not in self._heads or not self._looked.get(name, 0) <= now < self._next_look[name]
            for name in names
        )
        if not look:
            return Start(names, [self._heads[name] for name in names], look=False, deep=False)
        return Start(names, stopped, look=True, deep=now >= self._next_deep)

    def looked(self, start: "Start", began: float) -> None:
        """Take note of a look, and when the next may be."""
        now = self._time()
        cost = round((time.monotonic() - began) * SECOND) * COST
        for name in start.names:
            # A clock that went back calls for a look as well.
            self._looked[name] = now
            self._next_look[name] = now + max(LOOK_EVERY, cost)
        if start.deep:
            self._next_deep = now + max(DEEP_EVERY, cost)

    def remember(self, jobs: Sequence["Taken"], found: "Found", *, full: bool) -> None:
        """Go on from here the next time, if this claim left more than it took.

        A queue with nothing to take is begun a little before now, for what is being
        committed just now; one that others left no slot for, where it was.
        """
        self._now = found.now
        before = {name: self._heads.pop(name, None) for name in found.names}
        if not full or any(job.out_of_turn for job in jobs):
            return
        last: dict[str, Place] = {}
        for job in jobs:
            last[job.queue] = max(job.place, last.get(job.queue, job.place))
        for name in found.names:
            head = last.get(name) or before[name]
            if name in found.empty:
                head = max(head or (0, ""), (found.now - SLACK, ""))
            if head is not None and name not in found.gated:
                # A place in the future would hide what is put until then.
                self._heads[name] = min(head, (found.now, ""))

    def stop(self, worker: str, queue: str, place: Place) -> None:
        """Go on here when this worker looks along this queue the next time."""
        self._stopped[worker, queue] = place


class Taken(NamedTuple):
    """A claimed job, as far as its place in the order goes."""

    queue: str
    place: Place
    out_of_turn: bool


class Found(NamedTuple):
    """What a claim saw: the time, the queues it went along, and which were empty or had gates."""

    now: int
    names: Sequence[str]
    gated: Collection[str]
    empty: Collection[str]


class Start:
    """Where a claim begins: after a place in each queue, or at its mark where that is None."""

    def __init__(
        self, names: list[str], places: Sequence[Place | None], *, look: bool, deep: bool
    ) -> None:
        self.names = names
        self.places = places
        self.look = look
        self.deep = deep
