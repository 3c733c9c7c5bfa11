"""What this process knows of the queues it serves: which may have something for a claim.

To ask a queue costs about as much whether it has jobs or not, and there may be a thousand. So what
each answered is kept: a queue that had nothing left is not asked again until somebody tells of it,
something in it falls due, or a regular look finds something there. A look takes a glance at all
that are taken for empty; it comes after every wait without news, and otherwise twice a
second, but takes a twentieth of the time at most.
"""

import heapq
import threading
import time
from collections.abc import Sequence
from math import inf

from fairlead.core.clock import SECOND, Clock
from fairlead.core.turns import Lineup
from fairlead.stores.redis.talk import Word

FEW = 8
"""So many queues are rather asked than looked at first."""
_EVERY = SECOND // 2
_PART = 20
"""Looks take one part of so many of the time."""


class Seen:
    """What is known of each queue, by claims of workers who know the same tasks.

    Whoever asks takes a `tick` first: what is told of a queue while its answer is on its way may be
    news to that. Times are by the clock of this process, or the one that tests move.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._guard = threading.Lock()
        self._capable: Word = ""
        self._ahead = 0
        self.served: set[str] = set()
        """The names of all queues that this process claims from."""
        self._known: set[str] = set()
        self._sure: set[str] = set()  # Nobody told of them since they answered.
        self._empty: dict[str, None] = {}  # Who was asked longest ago stands first.
        self._due_at: dict[str, float] = {}
        self._in_order: list[tuple[float, str]] = []
        self._overdue: set[str] = set()
        self.tick = 0
        self._told: dict[str, int] = {}
        self._doubted = self._looked = 0
        self._next_look = self._no_look_before = 0

    def present(self) -> int:
        """Return what time it is here, in microseconds."""
        return self._clock.now() if self._clock else time.monotonic_ns() // 1_000

    def store_time(self) -> int:
        """Return what time it is by the store's clock, as far as we know."""
        return self.present() + self._ahead

    # What is told

    def told(self, queue: str) -> None:
        """Take note that something changed in a queue."""
        with self._guard:
            self.tick += 1
            self._told[queue] = self.tick
            self._sure.discard(queue)
            self._empty.pop(queue, None)

    def falls_due(self, queue: str, at: int) -> None:
        """Take note that something in a queue falls due at a time by the store's clock."""
        with self._guard:
            self._expect(queue, min(at - self._ahead, self._due_at.get(queue, inf)))

    def _expect(self, queue: str, at: float) -> None:
        self._due_at.pop(queue, None)
        if at < inf:
            self._due_at[queue] = at
            heapq.heappush(self._in_order, (at, queue))
        if len(self._in_order) > _PART * (FEW + len(self._due_at)):  # Most are outdated.
            self._in_order = [(at, queue) for queue, at in self._due_at.items()]
            heapq.heapify(self._in_order)

    def doubt(self) -> None:
        """Take note that something may have changed in any of them."""
        with self._guard:
            self.tick += 1
            self._doubted = self.tick

    # What claims ask

    def serve(self, lineup: Lineup, capable: Word) -> None:
        """Take note of whose jobs are claimed, by whom: others may find what these did not."""
        with self._guard:
            if capable != self._capable:
                self._capable = capable
                self._forget()
            self.served.update(lineup.at)

    def _forget(self) -> None:
        self._known.clear()
        self._sure.clear()
        self._empty.clear()

    def among(self, lineup: Lineup) -> set[str]:
        """Return which of these may have something."""
        now = self.present()
        with self._guard:
            while self._in_order and self._in_order[0][0] <= now:
                at, queue = heapq.heappop(self._in_order)
                if self._due_at.get(queue) == at:
                    del self._due_at[queue]
                    self._empty.pop(queue, None)
                    self._overdue.add(queue)
            return lineup.at.keys() - self._empty.keys()

    def stirring(self, lineup: Lineup) -> set[str]:
        """Return those of them in which something has fallen due, or may have."""
        with self._guard:
            new = lineup.at.keys() - self._known
            return (self._overdue & lineup.at.keys()) | (new if len(new) <= FEW else set())

    def stalest(self, lineup: Lineup) -> list[str]:
        """Return the few of these that were found empty longest ago."""
        with self._guard:
            found = (queue for queue in self._empty if queue in lineup.at)
            return [queue for queue, _ in zip(found, range(FEW), strict=False)]

    def to_look_at(self) -> Sequence[str]:
        """Return the queues that a look is due at; none if it is not the time for one."""
        now = self.present()
        with self._guard:
            new = self.served - self._known
            if len(new) > FEW:
                return sorted(new)
            if now < self._no_look_before:
                return ()
            if now < self._next_look and self._doubted <= self._looked:
                return ()
            self._looked, self._next_look = self.tick, now + _EVERY
            if len(self.served) > FEW:
                return list(self._empty)
            self._forget()
            return ()

    def looked(self, since: int) -> None:
        """Take note of how long a look took, which began then."""
        now = self.present()
        with self._guard:
            self._next_look = now + _EVERY
            self._no_look_before = now + (_PART - 1) * (now - since)

    # What they were answered

    def found(self, queue: str, tick: int, *, more: bool, now: int, soon: int) -> None:
        """Take note of what a queue answered: whether it has more, and when something falls due.

        `now` is the time by the store's clock, 0 if it did not answer. `soon` is how long it takes
        until something falls due, -1 if nothing does.
        """
        here = self.present()
        until = here + soon if soon >= 0 else inf
        with self._guard:
            if now:
                self._ahead = now - here
            self._known.add(queue)
            self._empty.pop(queue, None)
            if self._told.get(queue, 0) > tick:
                self._expect(queue, min(until, self._due_at.get(queue, inf)))
                return
            self._expect(queue, until)
            self._sure.add(queue)
            if not more:
                self._empty[queue] = None

    def stirs(self, queue: str) -> None:
        """Take note that something in a queue is to be moved on."""
        with self._guard:
            self._overdue.add(queue)

    def moved_on(self, queue: str) -> None:
        """Take note that what had fallen due in a queue has been moved on."""
        with self._guard:
            self._overdue.discard(queue)

    # Who waits

    def unsure(self) -> list[str]:
        """Return the queues of which it is not known whether something falls due."""
        with self._guard:
            return sorted(self.served - self._sure)

    def next_at(self) -> float:
        """Return when something falls due in one of the others, or it is time for a look."""
        with self._guard:
            in_order = self._in_order
            while in_order and self._due_at.get(in_order[0][1]) != in_order[0][0]:
                heapq.heappop(in_order)
            at = in_order[0][0] if in_order else inf
            return min(at, self._no_look_before) if self._doubted > self._looked else at
