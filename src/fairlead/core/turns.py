"""Whose turn it is: weighted round robin with credit between the queues of a pool.

A turn costs a queue 1/weight of credit; the queue with the most credit is next, and of those that
have the same the one whose last turn is longest ago. After a claim everybody is given the credit by
which the round has moved on, up to zero: an idle queue's debt melts as fast as the others are
served, and no faster, so a queue cannot win by running empty, and an empty one saves nothing up.

A turn is one job, and two where many queues of the same weight share many slots: to ask a queue for
two jobs costs little more than to ask it for one. Queues of the same weight have their turns one
after the other, so between two turns of one each other queue has one at most. With two jobs each
that is less than ⌈W/w⌉ + k jobs, as `core.selection` promises. With other weights it would be more.

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
MANY = 64
"""From how many queues, and how many free slots on, a turn may be two jobs.

The last turn of a claim may find room for one job only, and its queue pays for two. With few slots
that could be the same queues again and again.
"""


class Lineup(tuple[Served, ...]):  # noqa: SLOT001 (a tuple has room for slots only if empty)
    """The queues of a pool, in order, and what of them never changes."""

    names: tuple[str, ...]
    at: dict[str, int]
    kinds: tuple[tuple[int, ...], tuple[int, ...]]
    weight: int
    is_even: bool

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
        lineup.is_even = not critical and len({queue.weight for queue in lineup}) == 1
        return lineup

    @property
    def critical(self) -> tuple[Served, ...]:
        """Those that are asked first."""
        return tuple(self[at] for at in self.kinds[0])


class Room:
    """The slots that are still free, and for whom.

    `reserve` are those that only one critical queue may use, `shared` those of all, of which
    critical queues may use `critical_share`. `bytes` are those of payload that may still come.
    `per_turn` is how many jobs a queue may start when it has its turn.
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
        has_many = len(lineup) >= MANY and self.shared >= MANY
        self.per_turn = 2 if has_many and lineup.is_even else 1

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

    `free` are those that owe nothing, and `owing` is a heap of what the others owe, which is their
    credit with the sign turned, counted from where the round stands. Both know each queue by its
    place, after the number of its last turn: of two alike, the lower one is next. `turns` is the
    number of the last turn of all.
    """

    __slots__ = ("free", "owing", "passed", "turns")

    def __init__(
        self,
        free: list[tuple[int, int]],
        owing: list[tuple[float, int, int]],
        passed: float,
        turns: int,
    ) -> None:
        self.free = free
        self.owing = owing
        self.passed = passed
        self.turns = turns

    def copy(self) -> "_Ring":
        return _Ring(self.free.copy(), self.owing.copy(), self.passed, self.turns)

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
        # What a queue owed first, and the number of its turns: a product is more exact than a sum.
        served: dict[int, tuple[float, int]] = {}
        dropped: list[tuple[float, int, int]] = []
        no_longer_free: list[tuple[int, int]] = []
        for owed, number, at in self._turns(lineup, among):
            queue = lineup[at]
            has_room = room.for_queue(queue)
            job = ask(queue) if has_room else None
            if job is None:
                if owed > passed:
                    dropped.append((owed, number, at))
                if has_room or queue.critical:
                    continue  # Others may have jobs, or slots of their own.
                break
            room.take(queue)
            chosen.append((queue.name, job))
            if room.per_turn > 1 and room.for_queue(queue) and (job := ask(queue)) is not None:
                room.take(queue)
                chosen.append((queue.name, job))
            last = owed
            if owed <= passed:
                no_longer_free.append((number, at))
            first, count = served.get(at, (owed, 0))
            served[at] = (first, count + 1)
            self.turns += 1
            push(owing, (first + (count + 1) / queue.weight, self.turns, at))
        for turn in dropped:
            push(owing, turn)
        for place in no_longer_free:
            del self.free[bisect_left(self.free, place)]
        self._move_on(last)

    def _turns(
        self, lineup: Lineup, among: Collection[str] | None
    ) -> Iterator[tuple[float, int, int]]:
        """Yield what the next queue owes, the number of its last turn, and its place.

        Who was served is in the heap again.
        """
        names, passed, owing = lineup.names, self.passed, self.owing
        for number, at in self.free:
            if among is None or names[at] in among:
                yield passed, number, at
        while owing:
            yield heapq.heappop(owing)

    def serve_alone(self, queue: Served, at: int, room: Room, length: float) -> int:
        """Serve the only queue that has jobs, all at once; returns how many of them."""
        count = int(min(length, room.for_queue(queue)))
        if count:
            turns = -(-count // room.per_turn)
            room.take(queue, count)
            owed = self._take_out(at)
            self.turns += turns
            heapq.heappush(self.owing, (owed + turns / queue.weight, self.turns, at))
            self._move_on(owed + (turns - 1) / queue.weight)
        return count

    def _take_out(self, at: int) -> float:
        """Take a queue out of the ring; returns what it owed."""
        for place, turn in enumerate(self.free):
            if turn[1] == at:
                del self.free[place]
                return self.passed
        [owing] = [turn for turn in self.owing if turn[2] == at]
        self.owing.remove(owing)
        heapq.heapify(self.owing)
        return owing[0]

    def _move_on(self, passed: float) -> None:
        """Give everybody the credit by which the round has moved on, up to zero."""
        owing = self.owing
        while owing and owing[0][0] <= passed:
            insort(self.free, heapq.heappop(owing)[1:])
        self.passed = passed if owing else 0.0
        if self.passed > _FAR:
            self.owing = [(owed - passed, number, at) for owed, number, at in owing]
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
                names[at]: ring.passed - owed for ring in self._rings for owed, _, at in ring.owing
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

        They stand in the order of their last turns, which decides between those whose first turn is
        at the same time. A store that goes on with the round elsewhere comes to the same turns, to
        the last digit.
        """
        lineup, rings = self.lineup, self._rings
        turns = {at: (number, owed) for ring in rings for owed, number, at in ring.owing}
        turns |= {at: (number, ring.passed) for ring in rings for number, at in ring.free}
        found = sorted((turns[lineup.at[name]], name) for name in names)
        return {name: owed for (_, owed), name in found}

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
    """Return a ring in which nobody has had a turn yet: the first in place is the first."""
    debts = [(-credits.get(lineup.names[at], 0.0), at) for at in kind] if credits else []
    owing = [(owed, at, at) for owed, at in debts if owed > 0]
    heapq.heapify(owing)
    free = [at for owed, at in debts if owed <= 0] if credits else kind
    return _Ring([(at, at) for at in free], owing, 0.0, len(lineup))
