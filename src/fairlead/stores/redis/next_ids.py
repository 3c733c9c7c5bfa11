"""The next ids of an order, after a key, in the sorted sets that have its jobs anyway.

What goes by queue is read queue by queue. What goes by time is in one set for each queue, and the
next ones of all of them are merged. Of many queues one id each is compared first, by the server,
and more is read only of those whose jobs come next.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from fairlead.core.errors import StoreError
from fairlead.core.page import Key
from fairlead.stores.listing import BY_QUEUE, Asked, Order, due_between
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.parked import lost_parked
from fairlead.stores.redis.records import parked_of
from fairlead.stores.redis.talk import (
    Conversation,
    Part,
    Word,
    ask_each,
    call,
    call_over,
    filled,
    pieces,
    raise_outage,
    spared,
)

PARTS = {
    Order.READY: "ready",
    Order.RUNNING: "leases",
    Order.LOST: "lost",
    Order.LATER: "due",
    Order.DONE: "done",
    Order.CANCELLED: "cancelled",
    Order.DEAD: "dead",
}
"""Where the jobs of an order stand; they are all of one state."""
_FIRST_QUEUES, _QUEUES_AT_ONCE = 50, 500
"""Of how many queues a place is asked for at once: of few at first, for they may fill the page."""
_BEGUN_AT_ONCE, _LOOK_PER_QUEUE = 16, 50
"""How many queues are looked through at once for ids that begin with a text: one for each fifty
jobs that may be looked at.
"""
_LEAPT_AT_ONCE = 100
"""How many queues are looked through at once for parked jobs whose run was lost."""
_LEAST_OF_EACH = 4
"""How many ids of a queue are read at least, where those of many are merged."""
_BEGIN: tuple[Word, ...] = ("", b"")
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
    after: tuple[Word, ...] = ()


class NextIds:
    """Finds what comes next in an order."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def after(self, asked: Asked, names: Sequence[str]) -> Conversation[Found]:
        """Return what comes next in an order, in the queues of these names."""
        if asked.order is Order.LIVE_IDS:
            return (yield from self._beginning(asked, names))
        if asked.order is Order.LOST_PARKED:
            return (yield from self._lost_parked(asked, names))
        if asked.order is Order.PARKED or asked.order in BY_QUEUE:
            return (yield from self._by_queue(asked, names))
        return (yield from self._by_time(asked, names))

    def _next(self, part: str, way: str, asks: Sequence[_Ask]) -> Conversation[list[list[_Timed]]]:
        """Return the next ids of some queues; none of a queue that somebody damaged."""
        parts = [
            Part(each.queue, (each.most, *(each.after or _BEGIN)), 1 + each.most // 10)
            for each in asks
        ]
        answers = yield from ask_each(self._keys, "list", (part, way), parts)
        raise_outage(answers)
        return [[] if isinstance(each, StoreError) else _timed(each) for each in answers]

    # Queue by queue

    def _by_queue(self, asked: Asked, names: Sequence[str]) -> Conversation[Found]:
        found: list[Spotted] = []
        part = PARTS.get(asked.order, "parked")
        for some in _few_first(_from(names, asked.after)):
            left = yield from filled(self._keys, part, some)
            while left:
                asks = _enough(left, asked.look - len(found), asked.after)
                if asked.order is Order.PARKED:
                    found += yield from self._parked(asks)
                else:
                    found += yield from self._placed(part, asks)
                if len(found) >= asked.look:
                    return found[: asked.look], False
                left = left[len(asks) :]
        return found, True

    def _placed(self, part: str, asks: Sequence[_Ask]) -> Conversation[list[Spotted]]:
        answers = yield from self._next(part, "up", asks)
        return [
            Spotted((ask.queue, each.score, each.job_id), each.job_id, ask.queue)
            for ask, answer in zip(asks, answers, strict=True)
            for each in answer
        ]

    def _parked(self, asks: Sequence[_Ask]) -> Conversation[list[Spotted]]:
        commands = []
        for ask in asks:
            begin = b"(" + _bytes(ask.after[0]) if ask.after else b"-"
            key = self._keys.key(ask.queue, "parked")
            commands.append(("ZRANGEBYLEX", key, begin, "+", "LIMIT", 0, ask.most))
        answers = yield from spared(commands, [])
        return [
            _aside(ask.queue, member)
            for ask, members in zip(asks, answers, strict=True)
            for member in members
        ]

    def _lost_parked(self, asked: Asked, names: Sequence[str]) -> Conversation[Found]:
        found: list[Spotted] = []
        after = asked.after
        for some in _few_first(_from(names, after)):
            left = [name for name, _ in (yield from filled(self._keys, "parked", some))]
            for several in pieces(left, _LEAPT_AT_ONCE):
                goes_on = dict.fromkeys(several, b"")
                if after is not None and after[0] in goes_on:
                    goes_on[str(after[0])] = _bytes(after[1])
                found += yield from self._lost_among(goes_on, asked.look - len(found))
                if len(found) >= asked.look:
                    return found[: asked.look], False
        return found, True

    def _lost_among(self, goes_on: dict[str, bytes], wanted: int) -> Conversation[list[Spotted]]:
        """Return the first parked jobs of some queues whose run was lost, after a member of each.

        Of each queue little is asked at first, and more only of those before which there are not
        enough. A look that finds nothing and is not at its end is told as a place without a job.
        """
        ahead: dict[str, list[Spotted]] = {name: [] for name in goes_on}
        few = max(1, wanted // len(ahead))
        while asks := _unsure(ahead, goes_on, wanted):
            words = {name: (goes_on.pop(name), few) for name in asks}
            words[asks[0]] = (words[asks[0]][0], wanted)
            answers = yield from lost_parked(self._keys, words)
            for name, (at, members) in zip(asks, answers, strict=True):
                ahead[name] += [_aside(name, member) for member in members]
                if at:
                    goes_on[name] = at
                    ahead[name] += [] if members else [Spotted((name, at), b"", name)]
        return [each for several in ahead.values() for each in several]

    # By time

    def _by_time(self, asked: Asked, names: Sequence[str]) -> Conversation[Found]:
        """Merge the next ids of all queues, a few of each at a time."""
        way = "up" if asked.order is Order.LATER else "down"
        down = way == "down"
        after, stop = _times(asked)
        last = None
        if len(names) * _LEAST_OF_EACH > 2 * asked.look:
            names, last = yield from self._foremost(asked, way, names, after)
        size = min(asked.look, max(_LEAST_OF_EACH, 2 * asked.look // max(1, len(names))))
        asks = {name: _Ask(name, size, after) for name in names}
        ahead: dict[str, list[_Timed]] = {}
        found: list[Spotted] = []
        while len(found) < asked.look:
            empty = [ask for name, ask in asks.items() if not ahead.get(name)]
            if empty:
                answers = yield from self._next(PARTS[asked.order], way, empty)
                for ask, answer in zip(empty, answers, strict=True):
                    asks.pop(ask.queue)
                    ahead[ask.queue] = answer[::-1]
                    if len(answer) == ask.most:
                        most = min(2 * ask.most, asked.look)
                        behind = (answer[-1].score, answer[-1].job_id)
                        asks[ask.queue] = _Ask(ask.queue, most, behind)
            heads = [(each[-1][:2], name) for name, each in ahead.items() if each]
            if not heads:
                return found, last is None
            key, name = max(heads) if down else min(heads)
            # Other queues may have jobs before this one, if some of those before it have gone.
            if last is not None and (key < last if down else key > last):
                return found, False
            each = ahead[name].pop()
            if stop is not None and (each.at < stop if down else each.at > stop):
                return found, True
            found.append(Spotted((each.score, each.job_id), each.job_id, name))
        return found, False

    def _foremost(
        self, asked: Asked, way: str, names: Sequence[str], after: Sequence[Word]
    ) -> Conversation[tuple[list[str], tuple[float, bytes] | None]]:
        """Return the queues that the next ids are in: those whose own next ones come first.

        With them comes the last of these ids, which no other queue has any before; None if there
        are no other queues with ids.
        """
        groups = list(pieces(names, 1 if self._keys.in_cluster else _QUEUES_AT_ONCE))
        words = (way, asked.look, *after)
        part = PARTS[asked.order]
        answers = yield from spared(
            [call_over(self._keys, "heads", part, group, *words) for group in groups], ()
        )
        heads = [
            ((float(score), job_id), group[number - 1])
            for group, told in zip(groups, answers, strict=True)
            for number, job_id, score in zip(told[::3], told[1::3], told[2::3], strict=True)
        ]
        heads.sort(reverse=way == "down")
        first = heads[: asked.look]
        last = first[-1][0] if len(first) == asked.look else None
        return [name for _, name in first], last

    # By id

    def _beginning(self, asked: Asked, names: Sequence[str]) -> Conversation[Found]:
        """Return ids that begin with a text, after the ids and steps before.

        A small queue is looked through at one step. The more is wanted, the more of them are
        together, for what a queue answers may be all of its ids.
        """
        queue, step, last = asked.after or ("", "0", b"")
        assert isinstance(queue, str)
        assert isinstance(last, bytes)
        rest = [name for name in names if name > queue or (name == queue and step)]
        if rest[:1] != [queue]:
            step, last = "0", b""
        together = max(1, min(asked.look // _LOOK_PER_QUEUE, _BEGUN_AT_ONCE))
        some = rest[: 1 if step != "0" else together]
        steps = [step, *["0"] * (len(some) - 1)]
        begins = asked.which.begins or ""
        calls = [
            call(self._keys, "begin", name, begins, str(from_))
            for name, from_ in zip(some, steps, strict=True)
        ]
        answers = yield from spared(calls, [b"0", []])
        found: list[Spotted] = []
        for name, from_, (goes_on, ids) in zip(some, steps, answers, strict=True):
            found += [
                Spotted((name, from_, each), each, name) for each in sorted(ids) if each > last
            ]
            next_ = "" if int(goes_on) == 0 else str(int(goes_on))
            found.append(Spotted((name, next_, b""), b"", name))
            if next_ or len(found) > asked.look:
                return found[: asked.look], False
            last = b""
        return found, len(some) == len(rest)


def _from(names: Sequence[str], after: Key | None) -> Sequence[str]:
    """Return the queues from that of a key on."""
    return names if after is None else [name for name in names if name >= str(after[0])]


def _few_first(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Return queues in pieces, a small one first."""
    yield names[:_FIRST_QUEUES]
    yield from pieces(names[_FIRST_QUEUES:], _QUEUES_AT_ONCE)


def _aside(queue: str, member: bytes) -> Spotted:
    return Spotted((queue, member), parked_of(member)[1], queue)


def _enough(queues: Sequence[tuple[str, int]], wanted: int, after: Key | None) -> list[_Ask]:
    """Ask as many of these queues as have as many jobs as are wanted."""
    asks: list[_Ask] = []
    for name, size in queues:
        if after is not None and after[0] == name:
            asks.append(_Ask(name, wanted, _words(after[1:])))
        else:
            asks.append(_Ask(name, min(size, wanted)))
        if sum(each.most for each in asks) >= wanted:
            break
    return asks


def _unsure(
    ahead: Mapping[str, Sequence[Spotted]], goes_on: Collection[str], wanted: int
) -> list[str]:
    """Return the queues that may have more, before as many as are wanted have been found."""
    unsure, found = [], 0
    for name, several in ahead.items():
        found += len(several)
        if found >= wanted:
            break
        if name in goes_on:
            unsure.append(name)
    return unsure


def _times(asked: Asked) -> tuple[tuple[Word, ...], int | None]:
    """Return the key after which an order by time goes on, and the time at which it may stop."""
    after, until = due_between(asked.which) if asked.order is Order.LATER else (None, None)
    stop = until if asked.order is Order.LATER else asked.which.since
    if asked.after is not None:
        return _words(asked.after), stop
    return _BEGIN if after is None else (str(after), _AFTER_ALL_IDS), stop


def _words(key: Key) -> tuple[Word, ...]:
    """Return what tells a function of a key."""
    return tuple(part if isinstance(part, bytes) else str(part) for part in key)


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


def _timed(answer: Sequence[bytes]) -> list[_Timed]:
    pairs = zip(answer[::2], answer[1::2], strict=True)
    return [_Timed(float(score), job_id, score.decode()) for job_id, score in pairs]
