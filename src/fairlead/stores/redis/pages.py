"""Pages of jobs: each list along the sorted sets that have its jobs anyway, from a key on.

What goes by queue is read queue by queue. What goes by time is in one set for each queue, and the
next ones of all of them are merged. Ids come first, and then what is kept of those jobs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from fairlead.core.admin import Filter, matches
from fairlead.core.errors import DecodeError, StoreError
from fairlead.core.ids import JobId
from fairlead.core.job import JobRecord
from fairlead.core.page import Key, Page
from fairlead.stores.listing import (
    BY_QUEUE,
    Answer,
    Asked,
    Met,
    Order,
    Orders,
    due_between,
    lists_of,
    paged,
)
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import Kept, is_id, kept_of, pack, parked_of
from fairlead.stores.redis.talk import (
    Conversation,
    Part,
    ask_each,
    call,
    pieces,
    raise_outage,
    spared,
)

_PARTS = {
    Order.READY: "ready",
    Order.RUNNING: "leases",
    Order.LOST: "lost",
    Order.LATER: "due",
    Order.DONE: "done",
    Order.CANCELLED: "cancelled",
    Order.DEAD: "dead",
}
_ORDERS = Orders(
    "redis",
    (Order.RUNNING, Order.LOST, Order.LOST_PARKED),
    (Order.LIVE_IDS,),
    frozenset(_PARTS),
)
_MOST = 1_000
"""How many ids are read at once."""
_QUEUES_AT_ONCE = 100
_RECORDS_AT_ONCE = 200
_LEAST_OF_EACH = 4
"""How many ids of a queue are read at least, where those of many are merged."""
_AFTER_ALL_IDS = b"\xff"


class Spotted(NamedTuple):
    """An id that was found, with the key of its place, and its queue."""

    key: Key
    job_id: bytes
    queue: str


Found = tuple[list[Spotted], bool]
"""What comes next in an order, and whether that is the last of it."""


class _Timed(NamedTuple):
    """An id in a place that goes by time."""

    at: float
    job_id: bytes
    score: str


class _Ask(NamedTuple):
    """How many ids of a queue are wanted, after which key."""

    queue: str
    most: int
    score: str = ""
    job_id: bytes = b""


class Pages:
    """Goes along the orders of all queues."""

    def __init__(self, keys: Keys, queues: Queues) -> None:
        self._keys = keys
        self._queues = queues

    def page(self, which: Filter, limit: int, cursor: str | None, now: int) -> Conversation[Page]:
        """Return a page."""
        walk = paged(_ORDERS, which, limit, cursor, now)
        try:
            asked = next(walk)
            while True:
                asked = walk.send((yield from self._answer(asked)))
        except StopIteration as end:
            page: Page = end.value
            return page

    def walk(self, which: Filter, take: Callable[[JobRecord], None]) -> Conversation[None]:
        """Give every job that a filter means to `take`, once each, though it may move on."""
        seen: set[JobId] = set()
        # What falls due meanwhile is met again in its order.
        lists = sorted(lists_of(_ORDERS, which), key=lambda each: each.order is not Order.LATER)
        for order, queue, one in lists:
            asked = Asked(order, queue, one, None, _MOST, _MOST)
            ends = False
            while not ends:
                met, ends = yield from self._answer(asked)
                for job in (each.job for each in met):
                    if job is not None and job.id not in seen:
                        seen.add(job.id)
                        take(job)
                if met:
                    ends = ends or met[-1].key == asked.after
                    asked = asked.on_from(met[-1].key)

    def _answer(self, asked: Asked) -> Conversation[Answer]:
        """Return what comes next in an order."""
        asked = asked.within(_MOST)
        if asked.order is Order.LIVE_IDS:
            found, ends = yield from self._beginning(asked)
        elif asked.order in (Order.PARKED, Order.LOST_PARKED):
            found, ends = yield from self._parked(asked)
        elif asked.order in BY_QUEUE:
            found, ends = yield from self._by_queue(asked)
        else:
            found, ends = yield from self._by_time(asked)
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

    def _names(self, asked: Asked) -> Conversation[list[str]]:
        """Return the queues that are asked for, by name."""
        if asked.queue is not None:
            return [asked.queue]
        return sorted(set(asked.which.queues)) or (yield from self._queues.names())

    def _next(self, part: str, way: str, asks: Sequence[_Ask]) -> Conversation[list[list[_Timed]]]:
        """Return the next ids of some queues; none of a queue that somebody damaged."""
        parts = [Part(each.queue, each[1:], 1 + each.most // 10) for each in asks]
        answers = yield from ask_each(self._keys, "list", (part, way), parts)
        raise_outage(answers)
        return [[] if isinstance(each, StoreError) else _timed(each) for each in answers]

    # Queue by queue

    def _by_queue(self, asked: Asked) -> Conversation[Found]:
        part = _PARTS[asked.order]
        found: list[Spotted] = []
        names = _from((yield from self._names(asked)), asked.after)
        for some in pieces(names, _QUEUES_AT_ONCE):
            filled = yield from self._filled(part, some)
            while filled:
                asks = _enough(filled, asked.look - len(found), asked.after)
                answers = yield from self._next(part, "up", asks)
                found += [
                    Spotted((ask.queue, each.score, each.job_id), each.job_id, ask.queue)
                    for ask, answer in zip(asks, answers, strict=True)
                    for each in answer
                ]
                if len(found) >= asked.look:
                    return found[: asked.look], False
                filled = filled[len(asks) :]
        return found, True

    def _filled(self, part: str, names: Sequence[str]) -> Conversation[list[tuple[str, int]]]:
        """Return those of these queues that have jobs in a place, and how many."""
        asked = [("ZCARD", self._keys.key(name, part)) for name in names]
        sizes = yield from spared(asked, 0)
        return [(name, size) for name, size in zip(names, sizes, strict=True) if size]

    def _parked(self, asked: Asked) -> Conversation[Found]:
        found: list[Spotted] = []
        names = _from((yield from self._names(asked)), asked.after)
        for some in pieces(names, _QUEUES_AT_ONCE):
            for name, _ in (yield from self._filled("parked", some)):
                after = asked.after[1] if asked.after and asked.after[0] == name else b""
                assert isinstance(after, bytes)
                left = asked.look - len(found)
                if asked.order is Order.LOST_PARKED:
                    members = yield from self._lost_parked(name, after, left)
                else:
                    begin = b"(" + after if after else b"-"
                    command = ("ZRANGEBYLEX", self._keys.key(name, "parked"), begin, "+")
                    [members] = yield from spared([(*command, "LIMIT", 0, left)], [])
                found += [Spotted((name, each), parked_of(each)[1], name) for each in members]
                if len(found) >= asked.look:
                    return found, False
        return found, True

    def _lost_parked(self, queue: str, after: bytes, most: int) -> Conversation[list[bytes]]:
        """Return the parked jobs of a queue whose run was lost, so many after one of them."""
        key = self._keys.key(queue, "parked")
        found: list[bytes] = []
        for kind, _, lost in (yield from parked(self._keys, queue)):
            first, last = kind + b"\0r", kind + b"\0s"
            if lost and after < last and len(found) < most:
                begin = b"(" + after if after >= first else b"[" + first
                limit = ("LIMIT", 0, most - len(found))
                [some] = yield from spared([("ZRANGEBYLEX", key, begin, b"(" + last, *limit)], [])
                found += some
        return found

    # By time

    def _by_time(self, asked: Asked) -> Conversation[Found]:
        """Merge the next ids of all queues, a few of each at a time."""
        down = asked.order is not Order.LATER
        names = yield from self._names(asked)
        size = min(asked.look, max(_LEAST_OF_EACH, 2 * asked.look // max(1, len(names))))
        after, stop = _times(asked)
        asks = {name: _Ask(name, size, *after) for name in names}
        ahead: dict[str, list[_Timed]] = {}
        found: list[Spotted] = []
        while len(found) < asked.look:
            empty = [ask for name, ask in asks.items() if not ahead.get(name)]
            if empty:
                answers = yield from self._next(
                    _PARTS[asked.order], "down" if down else "up", empty
                )
                for ask, answer in zip(empty, answers, strict=True):
                    asks.pop(ask.queue)
                    ahead[ask.queue] = answer[::-1]
                    if len(answer) == size:
                        last = answer[-1]
                        asks[ask.queue] = _Ask(ask.queue, size, last.score, last.job_id)
            heads = [(each[-1][:2], name) for name, each in ahead.items() if each]
            if not heads:
                return found, True
            _, name = max(heads) if down else min(heads)
            each = ahead[name].pop()
            if stop is not None and (each.at < stop if down else each.at > stop):
                return found, True
            found.append(Spotted((each.score, each.job_id), each.job_id, name))
        return found, False

    # By id

    def _beginning(self, asked: Asked) -> Conversation[Found]:
        """Return ids of one queue that begin with a text, after the ids and steps before."""
        names = yield from self._names(asked)
        queue, step, last = asked.after or ("", "0", b"")
        assert isinstance(queue, str)
        assert isinstance(last, bytes)
        rest = [name for name in names if name > queue or (name == queue and step)]
        if not rest:
            return [], True
        name = rest[0]
        if name != queue:
            step, last = "0", b""
        asked_for = call(self._keys, "begin", name, asked.which.begins or "", str(step))
        [[goes_on, ids]] = yield from spared([asked_for], [b"0", []])
        found = [Spotted((name, step, each), each, name) for each in sorted(ids) if each > last]
        next_ = "" if int(goes_on) == 0 else str(int(goes_on))
        return [*found, Spotted((name, next_, b""), b"", name)], not next_ and name == rest[-1]


def _from(names: Sequence[str], after: Key | None) -> Sequence[str]:
    """Return the queues from that of a key on."""
    return names if after is None else [name for name in names if name >= str(after[0])]


def _enough(filled: Sequence[tuple[str, int]], wanted: int, after: Key | None) -> list[_Ask]:
    """Ask as many of these queues as have as many jobs as are wanted."""
    asks: list[_Ask] = []
    for name, size in filled:
        ask = _Ask(name, min(size, wanted))
        if after is not None and after[0] == name:
            _, score, job_id = after
            ask = _Ask(name, wanted, str(score), _bytes(job_id))
        asks.append(ask)
        if sum(each.most for each in asks) >= wanted:
            break
    return asks


def _times(asked: Asked) -> tuple[tuple[str, bytes], int | None]:
    """Return the key after which an order by time goes on, and the time at which it may stop."""
    after, until = due_between(asked.which) if asked.order is Order.LATER else (None, None)
    stop = until if asked.order is Order.LATER else asked.which.since
    if asked.after is not None:
        score, job_id = asked.after
        return (str(score), _bytes(job_id)), stop
    return ("", b"") if after is None else (str(after), _AFTER_ALL_IDS), stop


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


def _timed(answer: Sequence[bytes]) -> list[_Timed]:
    pairs = zip(answer[::2], answer[1::2], strict=True)
    return [_Timed(float(score), job_id, score.decode()) for job_id, score in pairs]


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


def parked(keys: Keys, queue: str) -> Conversation[list[tuple[bytes, int, int]]]:
    """Count parked jobs by gate and key: those that wait, and those whose run was lost."""
    key = keys.key(queue, "parked")
    found: list[tuple[bytes, int, int]] = []
    [first] = yield from spared([("ZRANGE", key, 0, 0)], [])
    while first:
        kind, _, _ = parked_of(first[0])
        waiting, lost, first = yield [
            ("ZLEXCOUNT", key, b"[" + kind + b"\0w", b"(" + kind + b"\0x"),
            ("ZLEXCOUNT", key, b"[" + kind + b"\0r", b"(" + kind + b"\0s"),
            # What somebody damaged may stand behind all of its kind, and must not come again.
            ("ZRANGEBYLEX", key, b"(" + max(kind + b"\0\xff", first[0]), "+", "LIMIT", 0, 1),
        ]
        found.append((kind, waiting, lost))
    return found
