"""Whose turn it is: weighted round robin with credit between the queues of a pool.

Serving a queue costs it 1/weight of credit; the queue with the most credit is next, and of those
that have the same the one that stands first. After a claim everybody is given the credit by which
the round has moved on, up to zero: an idle queue's debt melts as fast as the others are served, and
no faster, so a queue cannot win by running empty, and an empty one saves nothing up.

A queue is asked for its next job when it has its turn, and not before. So a claim of n slots asks
at most n queues that have something, however many there are, and those that it finds empty on its
way. Nothing here goes over all queues at every claim: what never changes is in the `Lineup`,
made once, and `Credits` are kept in the order of the turns.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Self, TypeVar

from fairlead.core.errors import ConfigError
from fairlead.core.queue import Served

_FAR = 1_000_000.0
"""How far a round goes before it is counted from zero again, for the sake of exact fractions."""


class Lineup(tuple[Served, ...]):  # noqa: SLOT001 (a tuple has room for slots only if empty)
    """The queues of a pool, in order, and what of them never changes."""

    names: tuple[str, ...]
    at: dict[str, int]
    kinds: tuple[tuple[int, ...], tuple[int, ...]]
    weight: int

    def __new__(cls, queues: Iterable[Served]) -> Self:
        """Refuse a queue that stands twice: its jobs would be given out twice."""
        lineup = super().__new__(cls, queues)
        lineup.names = tuple(queue.name for queue in lineup)
        lineup.at = {name: at for at, name in enumerate(lineup.names)}
        if len(lineup.at) < len(lineup):
            raise ConfigError("a claim names a queue twice; name each once")
        critical = tuple(at for at, queue in enumerate(lineup) if queue.critical)
        ordinary = tuple(at for at, queue in enumerate(lineup) if not queue.critical)
        lineup.kinds = (critical, ordinary)
        lineup.weight = sum(queue.weight for queue in lineup)
        return lineup

    @property
    def critical(self) -> tuple[Served, ...]:
        """Those that are asked first."""
        return tuple(self[at] for at in self.kinds[0])


class Room:
    """The slots that are still free, and for whom.

    `reserve` are those that only one critical queue may use, `shared` those of all, of which
    critical queues may use `critical_share`. `bytes` are those of payload that may still come.
    """

    def __init__(
        self, lineup: Lineup, slots: int, running: Mapping[str, int], most_bytes: int
    ) -> None:
        critical = lineup.critical
        beyond = sum(max(0, running.get(q.name, 0) - q.reserved) for q in critical)
        ordinary = sum(
            count
            for name, count in running.items()
            if name in lineup.at and not lineup[lineup.at[name]].critical
        )
        self.reserve = {q.name: max(0, q.reserved - running.get(q.name, 0)) for q in critical}
        self.shared = max(0, slots - beyond - ordinary)
        self.critical_share = max(0, slots // 2 - beyond)
        self.bytes = most_bytes

    def for_queue(self, queue: Served) -> int:
        """Return how many more jobs of this queue may start."""
        if self.bytes <= 0:
            return 0
        if not queue.critical:
            return self.shared
        return self.reserve[queue.name] + min(self.shared, self.critical_share)

    def take(self, queue: Served, jobs: int = 1) -> None:
        """Fill slots with jobs of this queue, the reserved ones first."""
        if queue.critical:
            reserved = min(jobs, self.reserve[queue.name])
            self.reserve[queue.name] -= reserved
            jobs -= reserved
            self.critical_share -= jobs
        self.shared -= jobs


T = TypeVar("T")

Ask = Callable[[Served], T | None]
"""Asks a queue that has its turn for its next job; None if it has no more."""


class _Ring:
    """The queues of one kind, critical or not, by whose turn it is.

    `free` are the places of those that owe nothing, in order; `owing` is a heap of what the others
    owe, which is their credit with the sign turned. Both are counted from where the round stands.
    """

    __slots__ = ("free", "owing", "passed")

    def __init__(self, free: list[int], owing: list[tuple[float, int]], passed: float) -> None:
        self.free = free
        self.owing = owing
        self.passed = passed

    def copy(self) -> "_Ring":
        return _Ring(self.free.copy(), self.owing.copy(), self.passed)

    def serve(
        self,
        lineup: Lineup,
        room: Room,
        ask: Ask[T],
        among: Collection[str] | None,
        chosen: list[tuple[str, T]],
    ) -> None:
        """Serve the queues by credit until they or the slots run out."""
        owing, passed, last, push = self.owing, self.passed, self.passed, heapq.heappush
        # What a queue owed first, and the number of its jobs: a product is more exact than a sum.
        served: dict[int, tuple[float, int]] = {}
        dropped: list[tuple[float, int]] = []
        for owed, at in self._turns(lineup, among):
            queue = lineup[at]
            has_room = room.for_queue(queue)
            job = ask(queue) if has_room else None
            if job is None:
                if owed > passed:
                    dropped.append((owed, at))
                if has_room or queue.critical:
                    continue  # Others may have jobs, or slots of their own.
                break
            room.take(queue)
            chosen.append((queue.name, job))
            last = owed
            first, count = served.get(at, (owed, 0))
            served[at] = (first, count + 1)
            push(owing, (first + (count + 1) / queue.weight, at))
        for turn in dropped:
            push(owing, turn)
        for at, (first, _) in served.items():
            if first <= passed:
                del self.free[bisect_left(self.free, at)]
        self._move_on(last)

    def _turns(self, lineup: Lineup, among: Collection[str] | None) -> Iterator[tuple[float, int]]:
        """Yield what the next queue owes, and its place. Who was served is in the heap again."""
        names, owing = lineup.names, self.owing
        for at in self.free if among is None else [n for n in self.free if names[n] in among]:
            yield self.passed, at
        while owing:
            yield heapq.heappop(owing)

    def serve_alone(self, queue: Served, at: int, room: Room, length: float) -> int:
        """Serve the only queue that has jobs, all at once; returns how many of them."""
        count = int(min(length, room.for_queue(queue)))
        if count:
            room.take(queue, count)
            owed = self._take_out(at)
            heapq.heappush(self.owing, (owed + count / queue.weight, at))
            self._move_on(owed + (count - 1) / queue.weight)
        return count

    def _take_out(self, at: int) -> float:
        """Take a queue out of the ring; returns what it owed."""
        place = bisect_left(self.free, at)
        if place < len(self.free) and self.free[place] == at:
            del self.free[place]
            return self.passed
        [turn] = [turn for turn in self.owing if turn[1] == at]
        self.owing.remove(turn)
        heapq.heapify(self.owing)
        return turn[0]

    def _move_on(self, passed: float) -> None:
        """Give everybody the credit by which the round has moved on, up to zero."""
        owing = self.owing
        while owing and owing[0][0] <= passed:
            insort(self.free, heapq.heappop(owing)[1])
        self.passed = passed if owing else 0.0
        if self.passed > _FAR:
            self.owing = [(owed - passed, at) for owed, at in owing]
            self.passed = 0.0


class Credits(Mapping[str, float]):
    """The credit of each queue of a lineup, zero or less; those that have zero are left out.

    A value: a claim returns others. To make them costs a copy of two lists, and no step for each
    queue.
    """

    __slots__ = ("_by_name", "_rings", "lineup")

    def __init__(self, lineup: Lineup, credits: Mapping[str, float] | None = None) -> None:
        self.lineup = lineup
        self._rings = tuple(_ring(lineup, kind, credits or {}) for kind in lineup.kinds)
        self._by_name: dict[str, float] | None = None

    @classmethod
    def at_phase(cls, lineup: Lineup, phase: float) -> "Credits":
        """Return those that a process begins with, at a phase from 0 to 1.

        Each queue waits for a part of the time between two of its turns, every queue for another
        part, and in a process of another phase for yet another. So processes do not all serve the
        same queue at once, and then none of them for long.
        """
        number = len(lineup)
        parts = {queue.name: (at / number + phase) % 1.0 for at, queue in enumerate(lineup)}
        return cls(lineup, {queue.name: -parts[queue.name] / queue.weight for queue in lineup})

    def _told(self) -> dict[str, float]:
        if self._by_name is None:
            names = self.lineup.names
            self._by_name = {
                names[at]: ring.passed - owed for ring in self._rings for owed, at in ring.owing
            }
        return self._by_name

    def __getitem__(self, name: str) -> float:
        """Return what a queue owes, with the sign turned."""
        return self._told()[name]

    def __iter__(self) -> Iterator[str]:
        """Go along those that owe something."""
        return iter(self._told())

    def __len__(self) -> int:
        """Return how many owe something."""
        return sum(len(ring.owing) for ring in self._rings)

    def __repr__(self) -> str:
        """Show them as a plain mapping."""
        return f"Credits({self._told()})"

    def first_turns(self, names: Iterable[str]) -> dict[str, float]:
        """Return when each of these queues has its first turn, by the count of its round.

        A store that goes on with the round elsewhere comes to the same turns, to the last digit.
        """
        lineup, rings = self.lineup, self._rings
        owed = {at: owed for ring in rings for owed, at in ring.owing}
        places = {name: lineup.at[name] for name in names}
        return {
            name: owed[at] if at in owed else rings[not lineup[at].critical].passed
            for name, at in places.items()
        }

    def updated(self, more: "Credits") -> "Credits":
        """Return these with those of some of the queues in place of their own."""
        if more.lineup is self.lineup:
            return more
        others = {name: credit for name, credit in self.items() if name not in more.lineup.at}
        return Credits(self.lineup, others | dict(more))

    def serve(
        self, room: Room, ask: Ask[T], among: Collection[str] | None = None
    ) -> tuple[list[tuple[str, T]], "Credits"]:
        """Serve the queues, the critical ones first, until they or the slots run out.

        `among` names those that may have jobs, where that is known: others need not be asked.
        """
        turns: list[tuple[str, T]] = []
        rings = [ring.copy() for ring in self._rings]
        for ring in rings:
            ring.serve(self.lineup, room, ask, among, turns)
        return turns, self._moved(rings)

    def serve_alone(self, room: Room, name: str, length: float) -> tuple[int, "Credits"]:
        """Serve the only queue that has jobs, so many of them: what `serve` comes to then."""
        at = self.lineup.at[name]
        rings = [ring.copy() for ring in self._rings]
        count = rings[not self.lineup[at].critical].serve_alone(self.lineup[at], at, room, length)
        return count, self._moved(rings)

    def _moved(self, rings: list[_Ring]) -> "Credits":
        moved = object.__new__(Credits)
        moved.lineup, moved._rings, moved._by_name = self.lineup, tuple(rings), None
        return moved


def _ring(lineup: Lineup, kind: tuple[int, ...], credits: Mapping[str, float]) -> _Ring:
    debts = [(-credits.get(lineup.names[at], 0.0), at) for at in kind] if credits else []
    owing = [(owed, at) for owed, at in debts if owed > 0]
    heapq.heapify(owing)
    free = [at for owed, at in debts if owed <= 0] if credits else list(kind)
    return _Ring(free, owing, 0.0)
