"""What one process believes of the queues it claims from: which have jobs, and from where on.

A claim of n slots can serve n queues at most. So it asks those whose turn it is, each for its
share, and only queues that are *awake*: they had jobs when they were asked last, or somebody told
of a job. All others are asked for what those leave.

Under an old snapshot that somebody holds, every job that is done leaves an index entry behind that
each walk from the beginning would go over. So a claim goes on in a queue after the last job that
the claim before it took there, its *head*.

What stands before a head, is out of turn, or is in a queue that is not awake is found by a *look*:
a claim that believes nothing. A claim that does not fill its slots looks, and another one as often
as looks take a twentieth of the time; a fifth, if somebody told of jobs and not where. A look
over many queues keeps to that in any case.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from fairlead.core.clock import SECOND, Clock
from fairlead.core.ids import JobId
from fairlead.core.selection import LOOK, ClaimPlan, Head, Looked
from fairlead.stores.looks import Looks, Place
from fairlead.stores.postgres.replies import Leased

LOOK_EVERY = SECOND // 10
COST, COST_IF_HEARD = 20, 5
"""A look may take one part in so many of the time."""
FEW = 100
"""So many queues are asked for what others leave at any time; more only by a look.

A look begins anew in so many of those that are awake, and the next one in others.
"""
_MOST_PLANS = 100
_NEVER = (0, 0)
MARK: Place = (0, "")
"""In place of a head: begin at the queue's mark."""
FRONT: Place = (-(2**63), "")
"""Before every job."""


class Start(NamedTuple):
    """What a claim believes: which queues are awake, None if all are, and where it goes on in each.

    A `look` begins at the marks, or at `since` where a mark is later. `resumed` are queues in
    which the worker's last claim stopped, with that place. `told` counts what was told before.
    """

    worker: str
    awake: Collection[str] | None
    heads: Mapping[str, Place]
    resumed: Mapping[str, Place]
    look: bool
    since: int | None
    told: int


class Found(NamedTuple):
    """What a claim saw.

    `asked` are the queues that were to give jobs, `ended` those of them that had fewer, `others`
    further ones that have some, `stirred` those in which jobs fell due or are known again. `gated`
    says of queues how many jobs were stepped over there, and where the walk was broken off. If it
    looked at all queues of its plan, `looked` names them, and `cost` tells how long that took.
    """

    now: int
    asked: Collection[str]
    ended: Collection[str]
    others: Collection[str]
    stirred: Collection[str]
    gated: Mapping[str, tuple[int, Place | None]]
    looked: Sequence[str]
    cost: int


class Heads:
    """What one process believes of the queues it claims from."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        # The head of each queue that is awake.
        self._awake: dict[str, Place] = {}
        # Where looks along jobs of others stopped, and in which queues there may be such.
        self._looks = Looks()
        self._stopped: set[str] = set()
        # When the queues of each plan were looked at, and what that look cost.
        self._looked: dict[Sequence[str], tuple[int, int]] = {}
        self._served: set[str] = set()
        self._owed_at: int | None = None
        self._heard = False
        self._anew = False
        self._since: int | None = None
        # How many queues of each plan were looked at in turn.
        self._rounds: Counter[Sequence[str]] = Counter()
        # How often something was told, and when of which queue: a claim of before knows no better.
        self._told = 0
        self._told_of: dict[str, int] = {}

    def _time(self) -> int:
        return self._clock.now() if self._clock else time.monotonic_ns() // 1_000

    def look(self, *, anew: bool = False) -> None:
        """Look soon: a job may have come to stand anywhere; `anew`, if one surely has."""
        self._heard = True
        if anew:
            self._anew = True
            self._looks.forget()

    def wake(self, names: Iterable[str], *, anew: bool = False) -> None:
        """Take note that these queues may have jobs; `anew`, if those may stand before the heads.

        Queues that nobody claims from here are passed over.
        """
        self._told += 1
        for name in names:
            if name in self._served:
                self._told_of[name] = self._told
                if anew or name not in self._awake:
                    self._awake[name] = MARK
                if anew:
                    self._looks.arrived(name, FRONT)

    def hear(self, place: int, names: Collection[str]) -> None:
        """Take note that jobs came into the order of some queues, the first at this place.

        Without names it may be any queue.
        """
        heads = {name: self._awake.get(name, MARK) for name in names or list(self._awake)}
        before = [name for name, (order_at, _) in heads.items() if place <= order_at]
        if before:
            self._since = place if self._since is None else min(place, self._since)
            self._heard = True
            self._awake |= dict.fromkeys(before, MARK)
        for name in names or list(self._stopped):
            self._looks.arrived(name, (place, ""))
        self._heard = self._heard or not names
        self.wake(names)

    def start(self, plan: ClaimPlan) -> Start:
        """Say what a claim with this plan may believe."""
        names, worker, heads = plan.lineup.names, plan.worker, self._awake
        awake = None if all(map(heads.__contains__, names)) else {n for n in names if n in heads}
        look = self._time() >= self._next_look(names, LOOK_EVERY)
        since = None
        if look:
            since, self._since, self._heard = self._since, None, False
            heads |= dict.fromkeys(self._in_turn(names, awake), MARK)
            self._served.update(names)
        resumed = {}
        for name in self._stopped:
            place = self._looks.place(worker, name)
            if place and name in heads:
                resumed[name] = place
        return Start(worker, awake, heads, resumed, look, since, self._told)

    def _in_turn(self, names: Sequence[str], awake: Collection[str] | None) -> Sequence[str]:
        """Return the awake queues that a look begins anew in: all, or some of many in turn."""
        those = names if awake is None else [name for name in names if name in awake]
        if self._anew or len(those) <= FEW:
            self._anew = False
            return those
        at = self._rounds[names] % len(those)
        self._rounds[names] = at + FEW
        return those[at : at + FEW]

    def _next_look(self, names: Sequence[str], every: int) -> int:
        """Return when to look at these queues again; a clock that went back calls for a look."""
        looked, cost = self._looked.get(names, _NEVER)
        pause = cost * COST_IF_HEARD if self._heard else max(every, cost * COST)
        return looked + pause if looked <= self._time() else looked - pause

    def rest(self, plan: ClaimPlan, asked: Collection[str]) -> list[str]:
        """Return the other queues to ask for what those left: the awake ones, or by a look all."""
        names = plan.lineup.names
        others = [name for name in names if name not in asked]
        if len(others) <= FEW or self._time() >= (look_at := self._next_look(names, 0)):
            return others
        self._owed_at = look_at
        return [name for name in others if name in self._awake]

    def patience(self) -> float:
        """Return in how many seconds to look again, if a look is owed."""
        if self._owed_at is None:
            return float("inf")
        return max(0.0, (self._owed_at - self._time()) / SECOND)

    def remember(self, start: Start, leases: Sequence[Leased], found: Found) -> bool:
        """Believe what a claim saw, but where something was told meanwhile.

        The leases are in the order of their places.

        Says whether there is more to look at, see `Claim.cut`.
        """
        if found.looked:
            # By a test's clock nothing costs time.
            if len(self._looked) > _MOST_PLANS:
                self._looked.clear()
                self._rounds.clear()
            self._looked[found.looked] = (self._time(), 0 if self._clock else found.cost)
            self._owed_at = None
        for name in found.others:
            self._awake.setdefault(name, MARK)
        for name in found.stirred:
            self._looks.arrived(name, FRONT)
        if start.resumed:
            resumed = {n: at for n, at in start.resumed.items() if n not in found.stirred}
            start = start._replace(resumed=resumed)
        heads = dict.fromkeys(found.asked, MARK) | _last_places(leases, found.now)
        more = False
        for name in found.asked:
            stepped = name in found.gated or name in start.resumed
            if stepped:
                more |= self._stop(start, name, leases, found)
            if self._told_of.get(name, 0) > start.told:
                self._awake.setdefault(name, MARK)
            elif name in found.ended and name not in start.resumed:
                self._awake.pop(name, None)
            else:
                self._awake[name] = MARK if stepped else heads[name]
        return more

    def _stop(self, start: Start, name: str, leases: Sequence[Leased], found: Found) -> bool:
        """Remember where a walk was broken off that stepped over jobs; or that it was not."""
        stepped, last = found.gated.get(name, (0, None))
        taken = [each.place for each in leases if each.job.queue == name]
        if last is None and name not in found.ended:
            last = max(taken, default=start.resumed.get(name))
        head = Head(JobId(last[1]), "", 0, last[0], 0) if last else None
        self._stopped.add(name)
        looked = Looked(head, stepped, len(taken), cut=stepped >= LOOK)
        return self._looks.end(start.worker, name, looked)


def _last_places(leases: Sequence[Leased], now: int) -> dict[str, Place]:
    """Return the head of each queue after these jobs; after one out of turn it is the mark."""
    heads = {each.job.queue: each.place for each in leases}
    heads |= {each.job.queue: MARK for each in leases if each.aside}
    # A place in the future would hide what is put until then.
    return {name: min(head, (now, "")) for name, head in heads.items()}
