"""What one process believes of the queues it claims from: which have jobs, and from where on.

A claim of n slots can serve n queues at most. So it asks those whose turn it is, each for its
share, and only queues that are *awake*: they had jobs when they were asked last, or somebody told
of a job. All others are asked for what those leave.

Under an old snapshot that somebody holds, every job that is done leaves an index entry behind that
each walk from the beginning would go over. So a claim goes on in a queue after the last job that
the claim before it took there, its *head*.

What stands before a head, is out of turn, or is in a queue that is not awake is found by a *look*:
a claim that believes nothing. A claim that does not fill its slots looks, and another one as often
as looks take a twentieth of the time; a fifth, if somebody told of jobs without saying where. A look
over many queues keeps to that in any case.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from fairlead.core.clock import SECOND, Clock
from fairlead.core.selection import ClaimPlan

Place = tuple[int, str]
"""A place in the order of a queue: order_at and id."""

LOOK_EVERY = SECOND // 10
COST, COST_IF_HEARD = 20, 5
"""A look may take one part in so many of the time."""
FEW = 100
"""So many queues are asked for what others leave at any time; more only by a look."""
_NEVER = (0, 0)
MARK: Place = (0, "")
"""In place of a head: begin at the queue's mark."""


class Start(NamedTuple):
    """What a claim believes: which queues are awake, with their heads, and which are not.

    A `look` begins at the marks, or at `since` where a mark is later. `resumed` are queues in
    which the worker's last claim stopped; they have that place for a head. `told` counts what was
    told before.
    """

    worker: str
    awake: Mapping[str, Place]
    asleep: Sequence[str]
    resumed: Collection[str]
    look: bool
    since: int | None
    told: int


class Taken(NamedTuple):
    """A claimed job, as far as its place in the order goes."""

    queue: str
    place: Place
    out_of_turn: bool


class Found(NamedTuple):
    """What a claim saw.

    `asked` are the queues that were to give jobs, `empty` those of them that had fewer, `others`
    further ones that have some, and `stopped` says where walks were broken off. If it `looked` at
    all queues of its plan, `looked` names them, and `cost` tells how long that took.
    """

    now: int
    asked: Collection[str]
    empty: Collection[str]
    others: Collection[str]
    stopped: Mapping[str, Place]
    looked: Sequence[str]
    cost: int


class Heads:
    """What one process believes of the queues it claims from."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        # The head of each queue that is awake.
        self._awake: dict[str, Place] = {}
        self._stopped: dict[tuple[str, str], Place] = {}
        # When each queue was looked at, and what that look cost.
        self._looked: dict[str, tuple[int, int]] = {}
        self._owed_at: int | None = None
        self._heard = False
        self._since: int | None = None
        # How often something was told, and when of which queue: a claim of before knows no better.
        self._told = 0
        self._told_of: dict[str, int] = {}

    def _time(self) -> int:
        return self._clock.now() if self._clock else time.monotonic_ns() // 1_000

    def look(self) -> None:
        """Look soon: a job may have come to stand anywhere."""
        self._heard = True

    def wake(self, names: Iterable[str], *, anew: bool = False) -> None:
        """Take note that these queues may have jobs; `anew`, if those may stand before the heads.

        Queues that nobody claims from here are passed over.
        """
        self._told += 1
        for name in names:
            if name in self._looked:
                self._told_of[name] = self._told
                if anew or name not in self._awake:
                    self._awake[name] = MARK

    def hear(self, place: int, names: Collection[str]) -> None:
        """Take note that jobs came into the order of some queues, the first at this place.

        Without names it may be any queue.
        """
        heads = [self._awake.get(name, MARK) for name in names or list(self._awake)]
        if any(place <= order_at for order_at, _ in heads):
            self._since = place if self._since is None else min(place, self._since)
            self._heard = True
        self._heard = self._heard or not names
        self.wake(names)

    def start(self, plan: ClaimPlan) -> Start:
        """Say what a claim with this plan may believe."""
        names = plan.lineup.names
        look = self._is_due(names, LOOK_EVERY)
        if look:
            for name in names:
                self._looked.setdefault(name, _NEVER)
        known, resumed, since = self._awake, [], None
        awake = {name: known[name] for name in names if name in known}
        asleep = [name for name in names if name not in awake] if len(awake) < len(names) else []
        if look:
            since, self._since, self._heard = self._since, None, False
            awake = dict.fromkeys(awake, MARK)
            known |= awake
        elif self._stopped:
            resumed = [name for name in awake if (plan.worker, name) in self._stopped]
            awake |= {name: self._stopped[plan.worker, name] for name in resumed}
        return Start(plan.worker, awake, asleep, resumed, look, since, self._told)

    def _is_due(self, names: Sequence[str], every: int) -> bool:
        """Say whether it is time for a look; it is, too, if the clock went back."""
        return not self._looked_at(names) <= self._time() < self._next_look(names, every)

    def _looked_at(self, names: Sequence[str]) -> int:
        return min(map(self._looked.get, names, repeat(_NEVER)), default=_NEVER)[0]

    def _next_look(self, names: Sequence[str], every: int) -> int:
        looked, cost = min(map(self._looked.get, names, repeat(_NEVER)), default=_NEVER)
        return looked + (cost * COST_IF_HEARD if self._heard else max(every, cost * COST))

    def rest(self, plan: ClaimPlan, asked: Collection[str]) -> list[str]:
        """Return the other queues to ask for what those left: the awake ones, or by a look all."""
        names = plan.lineup.names
        others = [name for name in names if name not in asked]
        if len(others) <= FEW or self._is_due(names, 0):
            return others
        self._owed_at = self._next_look(names, 0)
        return [name for name in others if name in self._awake]

    def patience(self) -> float:
        """Return in how many seconds to look again, if a look is owed."""
        if self._owed_at is None:
            return float("inf")
        return max(0.0, (self._owed_at - self._time()) / SECOND)

    def remember(self, start: Start, jobs: Sequence[Taken], found: Found) -> None:
        """Believe what a claim saw, but where something was told meanwhile."""
        if found.looked:
            # By a test's clock nothing costs time.
            stamp = (self._time(), 0 if self._clock else found.cost)
            self._looked |= dict.fromkeys(found.looked, stamp)
            self._owed_at = None
        for name in found.others:
            self._awake.setdefault(name, MARK)
        heads = dict.fromkeys(found.asked, MARK) | _last_places(jobs, found.now)
        for name in found.asked:
            self._go_on(start, name, heads[name], found)

    def _go_on(self, start: Start, name: str, head: Place, found: Found) -> None:
        """Say where the next claim begins in a queue that this one asked."""
        stop = found.stopped.get(name)
        self._stop(start, name, stop)
        if self._told_of.get(name, 0) > start.told:
            self._awake.setdefault(name, MARK)
        elif name in found.empty:
            self._awake.pop(name, None)
        else:
            anew = stop is not None or name in start.resumed
            self._awake[name] = MARK if anew else head

    def _stop(self, start: Start, name: str, stop: Place | None) -> None:
        """Remember where a walk was broken off; a look begins anew and forgets nothing for it."""
        key = (start.worker, name)
        before = self._stopped.pop(key, None)
        if stop is not None:
            self._stopped[key] = max(stop, before) if before and start.look else stop


def _last_places(jobs: Sequence[Taken], now: int) -> dict[str, Place]:
    """Return the head of each queue after these jobs; after one out of turn it is the mark."""
    heads: dict[str, Place] = {}
    for job in jobs:
        heads[job.queue] = max(job.place, heads.get(job.queue, job.place))
    for job in jobs:
        if job.out_of_turn:
            heads[job.queue] = MARK
    # A place in the future would hide what is put until then.
    return {name: min(head, (now, "")) for name, head in heads.items()}
