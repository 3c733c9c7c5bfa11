"""Pages of jobs: ids come first, in the order of a list, and then what is kept of those jobs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from fairlead.core.admin import Filter, matches
from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId
from fairlead.core.job import JobRecord
from fairlead.core.page import Page
from fairlead.stores.listing import Answer, Asked, Met, Order, Orders, lists_of, paged
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.next_ids import PARTS, NextIds, Spotted
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import Kept, is_id, kept_of, pack
from fairlead.stores.redis.talk import Conversation, call, pieces, spared

_ORDERS = Orders(
    "redis",
    (Order.RUNNING, Order.LOST, Order.LOST_PARKED),
    (Order.LIVE_IDS,),
    frozenset(PARTS),
)
_MOST = 1_000
"""How many ids are read at once."""
_RECORDS_AT_ONCE = 200


class Pages:
    """Goes along the orders of all queues."""

    def __init__(self, keys: Keys, queues: Queues) -> None:
        self._keys = keys
        self._queues = queues
        self._next_ids = NextIds(keys)

    def page(self, which: Filter, limit: int, cursor: str | None, now: int) -> Conversation[Page]:
        """Return a page."""
        walk = paged(_ORDERS, which, limit, cursor, now)
        try:
            asked = next(walk)
            names = yield from self._names(which)
            while True:
                asked = walk.send((yield from self._answer(asked, names)))
        except StopIteration as end:
            page: Page = end.value
            return page

    def walk(self, which: Filter, take: Callable[[JobRecord], None]) -> Conversation[None]:
        """Give every job that a filter means to `take`, once each, though it may move on."""
        seen: set[JobId] = set()
        # What falls due meanwhile is met again in its order.
        lists = sorted(lists_of(_ORDERS, which), key=lambda each: each.order is not Order.LATER)
        names = yield from self._names(which)
        for order, queue, one in lists:
            asked = Asked(order, queue, one, None, _MOST, _MOST)
            ends = False
            while not ends:
                met, ends = yield from self._answer(asked, names)
                for job in (each.job for each in met):
                    if job is not None and job.id not in seen:
                        seen.add(job.id)
                        take(job)
                if met:
                    ends = ends or met[-1].key == asked.after
                    asked = asked.on_from(met[-1].key)

    def _answer(self, asked: Asked, names: Sequence[str]) -> Conversation[Answer]:
        """Return what comes next in an order, in these queues."""
        asked = asked.within(_MOST)
        if asked.queue is not None:
            names = [asked.queue]
        found, ends = yield from self._next_ids.after(asked, names)
        met: list[Met] = []
        left = asked.most
        for some in (found[:left], *pieces(found[left:], _RECORDS_AT_ONCE)):
            for each, record in (yield from self._records(some)):
                is_meant = record is not None and matches(asked.which, record)
                if is_meant and not left:
                    return Answer(met, ends=False)
                left -= is_meant
                met.append(Met(each.key, record if is_meant else None))
        return Answer(met, ends)

    def _records(
        self, found: Sequence[Spotted]
    ) -> Conversation[Iterator[tuple[Spotted, JobRecord | None]]]:
        by_queue: dict[str, list[str]] = {}
        for each in found:
            if is_id(each.job_id):
                by_queue.setdefault(each.queue, []).append(each.job_id.decode())
        known = yield from kept_in(self._keys, by_queue)
        return ((each, _record(each, known)) for each in found)

    def _names(self, which: Filter) -> Conversation[list[str]]:
        """Return the queues that are asked for, by name."""
        return sorted(set(which.queues)) or (yield from self._queues.names())


def _record(found: Spotted, known: Mapping[tuple[str, str], Kept]) -> JobRecord | None:
    """Return the job of an id; None if it is gone, or cannot be read: of that the audit tells."""
    job_id = found.job_id.decode(errors="replace")
    kept = known.get((job_id, found.queue))
    with suppress(DecodeError):
        return kept.record(job_id, found.queue) if kept is not None else None
    return None


def kept_in(
    keys: Keys, wanted: Mapping[str, Sequence[str]]
) -> Conversation[dict[tuple[str, str], Kept]]:
    """Return what queues keep of jobs, by id and queue; it asks for large ones a few at a time."""
    known: dict[tuple[str, str], Kept] = {}
    left = dict(wanted)
    while left:
        asked = [call(keys, "records", queue, pack(ids)) for queue, ids in left.items()]
        answers = yield from spared(asked, None)
        rest: dict[str, Sequence[str]] = {}
        for (queue, ids), several in zip(left.items(), answers, strict=True):
            for job_id, answer in zip(ids, several or (), strict=False):
                kept = kept_of(answer)
                if kept is not None:
                    known[job_id, queue] = kept
            if several and len(several) < len(ids):
                rest[queue] = ids[len(several) :]
        left = rest
    return known
