"""Pages of jobs in memory: the orders of the queues are kept, those of others are sorted anew."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from heapq import nsmallest
from itertools import islice

from fairlead.core.admin import Filter, matches
from fairlead.core.job import Gate, JobRecord
from fairlead.core.page import Key, Page
from fairlead.stores.listing import Answer, Asked, Met, Order, Orders, due_between, held, paged
from fairlead.stores.memory.line import MemoryLine
from fairlead.stores.memory.live import LiveJob

_ORDERS = Orders("memory", (Order.RUNNING,), (Order.LIVE_IDS,), frozenset())
_Placed = tuple[Key, Callable[[], JobRecord]]


class MemoryListing:
    """Lists the jobs of a line."""

    def __init__(self, line: MemoryLine) -> None:
        self._line = line

    def page(self, which: Filter, limit: int, cursor: str | None) -> Page:
        """Return a page, as one state of the line has it."""
        with self._line.lock:
            return held(paged(_ORDERS, which, limit, cursor, self._line.clock.now()), self._answer)

    def _answer(self, asked: Asked) -> Answer:
        if asked.order is Order.READY:
            found = list(islice(self._ready(asked), asked.look))
        else:
            found = nsmallest(asked.look, self._placed(asked), key=lambda each: each[0])
        met: list[Met] = []
        left = asked.most
        for key, told in found:
            record = told()
            is_meant = matches(asked.which, record)
            if is_meant and not left:
                return Answer(met, ends=False)
            left -= is_meant
            met.append(Met(key, record if is_meant else None))
        return Answer(met, ends=len(found) < asked.look)

    def _ready(self, asked: Asked) -> Iterator[_Placed]:
        """Return the jobs in the orders of the queues, which are kept sorted, from a key on."""
        first, *place = asked.after or ("",)
        for queue in sorted(self._line.order):
            if asked.queue not in (None, queue) or queue < str(first):
                continue
            order = self._line.order[queue]
            begin = bisect_right(order, tuple(place)) if queue == first else 0
            for at in range(begin, len(order)):
                yield (queue, *order[at]), self._line.live[order[at][1]].record

    def _placed(self, asked: Asked) -> Iterator[_Placed]:
        """Return the jobs of an order after a key, with their keys."""
        after = asked.after
        return (each for each in self._all(asked) if after is None or each[0] > after)

    def _all(self, asked: Asked) -> Iterator[_Placed]:
        """Return the jobs of an order with their keys, which grow along it."""
        line = self._line
        match asked.order:
            case Order.LIVE_IDS:
                for live in line.live.values():
                    yield (live.new.id,), live.record
                for record in (*line.finished.values(), *line.dead.values()):
                    yield (record.id,), _told(record)
            case Order.DEAD:
                yield from _ended(line.dead.values())
            case Order.DONE | Order.CANCELLED:
                yield from _ended(line.finished.values())
            case _:
                for live in line.live.values():
                    if _stands(live, asked):
                        yield _key(live, asked.order), live.record


def _ended(records: Iterable[JobRecord]) -> Iterator[_Placed]:
    """Return the jobs that ended, the last one first."""
    for record in records:
        yield (-(record.finished_at or 0), record.id), _told(record)


def _told(record: JobRecord) -> Callable[[], JobRecord]:
    return lambda: record


def _stands(live: LiveJob, asked: Asked) -> bool:
    """Say whether a live job stands in an order."""
    if asked.queue not in (None, live.new.queue) or bool(live.lease_until) != (
        asked.order is Order.RUNNING
    ):
        return False
    match asked.order:
        case Order.LATER:
            after, until = due_between(asked.which)
            is_asked = (after is None or live.run_at > after) and (
                until is None or live.run_at <= until
            )
            return live.parked is Gate.NOT_DUE and is_asked
        case Order.PARKED:
            return live.is_aside
    return True


def _key(live: LiveJob, order: Order) -> Key:
    new = live.new
    match order:
        case Order.LATER:
            return live.run_at, new.id
        case Order.PARKED:
            return new.task, new.version, *live.place
    return new.queue, *live.place
