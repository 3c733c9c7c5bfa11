"""How a page of jobs is gathered, in every store alike.

A store keeps some orders anyway, and answers what comes next in one of them. `paged` walks along
those that a filter asks for, one after another, until the page is full or has looked at enough.
It is a generator that yields what it asks and is sent the answers, so it does not know how a
store is reached.
"""

from collections.abc import Awaitable, Callable, Generator
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from fairlead.core.admin import LEAST_LOOKED, LOOKED_FOR_EACH, MOST_LISTED, Filter, Wait
from fairlead.core.errors import BadCursor
from fairlead.core.job import JobRecord, State
from fairlead.core.page import (
    OTHER_LIST,
    Key,
    KeyPart,
    Page,
    Spot,
    cursor_of,
    digest_of,
    spot_of,
)


class Order(StrEnum):
    """The orders that stores keep: of waiting jobs, of running ones, of ended ones, of ids."""

    READY = "ready"
    LATER = "later"
    PARKED = "parked"
    RUNNING = "running"
    FRONT = "front"
    BEHIND = "behind"
    LOST = "lost"
    LOST_PARKED = "lost_parked"
    DEAD = "dead"
    CANCELLED = "cancelled"
    DONE = "done"
    LIVE_IDS = "live_ids"
    FINISHED_IDS = "finished_ids"
    DEAD_IDS = "dead_ids"


BY_QUEUE = frozenset({Order.READY, Order.RUNNING, Order.FRONT, Order.BEHIND, Order.LOST})
"""Orders that go queue by queue: those of other queues than are asked for need not be looked at."""
_NEWEST_FIRST = frozenset({Order.DEAD, Order.CANCELLED, Order.DONE})
_LONGEST_PART = 400
"""How much of a text a cursor holds. None that is sound is longer; what somebody damaged may be."""
_USUAL = (State.WAITING, State.RUNNING, State.DEAD, State.CANCELLED, State.DONE)
_WAITS = {
    Wait.DUE: (Order.READY, Order.LATER),
    Wait.DELAYED: (Order.LATER,),
    Wait.RETRYING: (Order.LATER,),
    Wait.PARKED: (Order.PARKED,),
}
"""Where jobs stand that wait for something. Who fell due need not be in its order yet."""


class Orders(NamedTuple):
    """In which orders a kind of store has its running jobs, and its ids.

    In those that are `apart`, all jobs are of one state by their place.
    """

    store: str
    running: tuple[Order, ...]
    ids: tuple[Order, ...]
    apart: frozenset[Order]


class Asked(NamedTuple):
    """What comes next in an order after a key: `look` jobs, of which `most` may be meant.

    With a queue, only that one matters.
    """

    order: Order
    queue: str | None
    which: Filter
    after: Key | None
    look: int
    most: int

    def within(self, look: int) -> "Asked":
        """Return the same for no more jobs than so many."""
        return self._replace(look=min(look, self.look))

    def on_from(self, after: Key) -> "Asked":
        """Return the same after another key."""
        return self._replace(after=after)


class Met(NamedTuple):
    """A job that was looked at: where it stands, and what it is if it is meant."""

    key: Key
    job: JobRecord | None


class Answer(NamedTuple):
    """What was met, in order; and whether that was the last of it."""

    met: list[Met]
    ends: bool


class List(NamedTuple):
    """One of the lists that a filter asks for: in one queue or in all, and what is meant there."""

    order: Order
    queue: str | None
    which: Filter


Walk = Generator[Asked, Answer, Page]


def digest_of_filter(which: Filter) -> int:
    """Return what a cursor tells of a filter, for programs of any version.

    The names are the cursor's own, and what is not asked for is left out: so a filter that can ask
    for more has the cursors of before. `since` and `at` may change from page to page.
    """
    told = {
        "queues": which.queues,
        "tasks": which.tasks,
        "states": which.states,
        "tags": which.tags,
        "error": which.error,
        "waits": which.waits,
        "begins": which.begins,
    }
    return digest_of({name: value for name, value in told.items() if value not in (None, ())})


def paged(kept: Orders, which: Filter, limit: int, cursor: str | None, now: int) -> Walk:
    """Ask for what a page needs, and return the page."""
    lists = lists_of(kept, which)
    asked = digest_of_filter(which)
    number, after = _begin(kept, lists, asked, cursor)
    limit = max(0, min(limit, MOST_LISTED))
    most = max(LEAST_LOOKED, LOOKED_FOR_EACH * limit)
    found: list[JobRecord] = []
    looked, look = 0, limit
    while number < len(lists) and len(found) < limit and looked < most:
        order, queue, one = lists[number]
        left = limit - len(found)
        answer = yield Asked(order, queue, one, after, min(look, most - looked), left)
        meant = [met.job for met in answer.met if met.job is not None]
        found += meant
        looked += len(answer.met)
        look = min(4 * look, most) if len(meant) < len(answer.met) else limit - len(found)
        # What somebody damaged may not stand where it says, and must not be met for ever.
        stays = bool(answer.met) and answer.met[-1].key == after
        if answer.ends or stays:
            number, after = number + 1, None
        elif answer.met:
            after = answer.met[-1].key
    next_ = None
    if number < len(lists):
        order, queue, _ = lists[number]
        spot = Spot(order, queue, after and _brief(after, order))
        next_ = cursor_of(kept.store, asked, spot)
    return Page(found, next_, looked, now)


def _begin(
    kept: Orders, lists: list[List], asked: int, cursor: str | None
) -> tuple[int, Key | None]:
    """Return the number of the list where a page begins, and after which key."""
    if cursor is None:
        return 0, None
    spot = spot_of(kept.store, asked, cursor)
    for number, (order, queue, _) in enumerate(lists):
        if (order, queue) == (spot.order, spot.queue):
            return number, spot.after
    raise BadCursor(cursor, OTHER_LIST)


def _brief(key: Key, order: Order) -> Key:
    """Return a key that fits into a cursor; what is cut leads behind all that begin as it does."""
    return tuple(_cut(part, up=order not in _NEWEST_FIRST) for part in key)


def _cut(part: KeyPart, *, up: bool) -> KeyPart:
    if isinstance(part, str) and len(part) > _LONGEST_PART:
        return part[:_LONGEST_PART] + ("\U0010ffff" if up else "")
    if isinstance(part, bytes) and len(part) > _LONGEST_PART:
        return part[:_LONGEST_PART] + (b"\xff" if up else b"")
    return part


def lists_of(kept: Orders, which: Filter) -> list[List]:
    """Return the orders in which what a filter means is found, one after another."""
    if which.begins is not None:
        return [List(order, None, which) for order in kept.ids]
    lists: dict[List, None] = {}
    for state in which.states or _USUAL:
        for order in _orders(kept, which, state):
            one = replace(which, states=() if order in kept.apart else (state,))
            queues = sorted(set(which.queues)) if order in BY_QUEUE and which.queues else [None]
            lists |= dict.fromkeys(List(order, queue, one) for queue in queues)
    return list(lists)


def _orders(kept: Orders, which: Filter, state: State) -> list[Order]:
    if state is State.RUNNING:
        return list(kept.running)
    if state is State.WAITING:
        waits = which.waits or tuple(Wait)
        return [order for wait in waits for order in _WAITS[wait]]
    return [Order(state)]


def due_between(which: Filter) -> tuple[int | None, int | None]:
    """Return after which instant delayed jobs that a filter means fall due, and until when."""
    later = not which.waits or {Wait.DELAYED, Wait.RETRYING} & set(which.waits)
    due = not which.waits or Wait.DUE in which.waits
    return None if due else which.at, None if later else which.at


def held(walk: Walk, answer: Callable[[Asked], Answer]) -> Page:
    """Let a page be gathered by a function that answers."""
    try:
        asked = next(walk)
        while True:
            asked = walk.send(answer(asked))
    except StopIteration as end:
        page: Page = end.value
        return page


async def held_async(walk: Walk, answer: Callable[[Asked], Awaitable[Answer]]) -> Page:
    """Do the same with a coroutine."""
    try:
        asked = next(walk)
        while True:
            asked = walk.send(await answer(asked))
    except StopIteration as end:
        page: Page = end.value
        return page
