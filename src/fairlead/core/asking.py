"""The selection rule for stores in many parts: whose turn it is, asked in rounds."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Generic, TypeVar

import msgspec

from fairlead.core.queue import Served
from fairlead.core.selection import ClaimPlan
from fairlead.core.turns import Credits

T = TypeVar("T")


class Asking(Generic[T]):
    """Whose turn it is, for a store in many parts that looks at no snapshot: asked in rounds.

    ::

        asking = Asking(plan)
        while wanted := asking.wanted():           # queue -> how many jobs more it should give
            for queue, jobs, is_empty in ask(wanted):
                asking.gave(queue, jobs, more=not is_empty)
        return asking.in_turns()

    A queue of which nothing is known yet is taken to have enough. So the first round asks those
    whose turn it is, each for its share, which is the whole share of a claim if all of them give
    it; the next shares what is left among the others. What comes out is what `select` chooses.
    `among` names the queues that may have jobs, where that is known: then the others are
    not asked. What a round costs follows from the slots, and not from the number of queues.
    """

    def __init__(self, plan: ClaimPlan, among: Collection[str] | None = None) -> None:
        self._plan = plan
        self._among = among
        self._given: dict[str, list[T]] = {}
        self._ended: set[str] = set()
        self._jobs = 0
        self._shares: Shares | None = None

    def wanted(self) -> dict[str, int]:
        """Return which queues to ask, each for how many jobs more; none if that is all.

        They stand in the order of their turns. A store may ask only the first of them in one
        round: whom it does not ask is wanted again.
        """
        if self._shares is not None and self._jobs >= len(self._shares.turns):
            return {}
        self._shares = _shared(self._plan, self._length, self._among)
        return {
            name: count - len(self._given.get(name, ()))
            for name, count in Counter(self._shares.turns).items()
            if count > len(self._given.get(name, ()))
        }

    def only(self, among: Collection[str]) -> None:
        """Ask none but these from now on: it was found out that the others have no jobs."""
        self._among = among

    @property
    def missing(self) -> int:
        """How many of the jobs that were wanted have not been given."""
        return len(self._shares.turns) - self._jobs if self._shares is not None else 0

    def gave(self, queue: str, jobs: Sequence[T], *, more: bool) -> None:
        """Take what a queue gave, no more than was wanted; without `more` it is not asked again."""
        if jobs:
            self._given.setdefault(queue, []).extend(jobs)
            self._jobs += len(jobs)
        if not more:
            self._ended.add(queue)

    def in_turns(self) -> tuple[list[T], Credits]:
        """Return what all gave in the order it should start, and the credits after it."""
        if self._shares is not None and self._jobs == len(self._shares.turns):
            return _in_turns(self._shares, self._given)
        return in_turns(self._plan, self._given)

    def _length(self, queue: str) -> float:
        return len(self._given.get(queue, ())) if queue in self._ended else inf


class Shares(msgspec.Struct, frozen=True):
    """Whose turn it is: the names of queues, one for each job, and the credits after them."""

    turns: list[str]
    credits: Credits


def in_turns(plan: ClaimPlan, given: Mapping[str, Sequence[T]]) -> tuple[list[T], Credits]:
    """Return what some queues gave in the order it should start, and the credits after it."""
    given = {name: jobs for name, jobs in given.items() if jobs}
    return _in_turns(_shared(plan, lambda name: len(given[name]), given), given)


def _in_turns(shares: Shares, given: Mapping[str, Sequence[T]]) -> tuple[list[T], Credits]:
    if len(given) == 1:
        [jobs] = given.values()
        return list(jobs[: len(shares.turns)]), shares.credits
    left = {name: iter(jobs) for name, jobs in given.items()}
    return [next(left[name]) for name in shares.turns], shares.credits


def share(plan: ClaimPlan, ready: Mapping[str, float]) -> Shares:
    """Share the slots between queues of which so many jobs may start, as `select` does."""
    return _shared(plan, ready.__getitem__, ready)


def _shared(
    plan: ClaimPlan, length: Callable[[str], float], among: Collection[str] | None
) -> Shares:
    room = plan.room()
    names = plan.lineup.at if among is None else among
    if len(names) == 1:
        [name] = names
        count, credits = plan.standing.serve_alone(room, name, length(name))
        return Shares([name] * count, credits)
    left: dict[str, float] = {}

    def ask(queue: Served) -> bool | None:
        count = left.get(queue.name)
        if count is None:
            count = length(queue.name) if among is None or queue.name in among else 0
        left[queue.name] = count - 1
        return count > 0 or None

    chosen, credits = plan.standing.serve(room, ask, among)
    return Shares([name for name, _ in chosen], credits)
