"""What got no answer is asked again: the store recognises a put by its ids, an act by its action.

Only what may have happened is repeated. If the store could not be asked at all, whoever called is
told so at once. A repeat goes alone: it may have to wait for the call before it, which a server may
still be busy with, and nobody else waits meanwhile.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from fairlead.core.acts import Action
from fairlead.core.errors import StoreUnavailable, Unanswered

Answer = TypeVar("Answer")

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0


def repeated(lost: Unanswered, again: Callable[[float], Answer], patience: float) -> Answer:
    """Ask again until there is an answer; `again` is told how many seconds are left for it."""
    for pause, until in _pauses(patience):
        time.sleep(pause)
        try:
            return again(max(until - time.monotonic(), _FIRST_PAUSE))
        except StoreUnavailable as problem:
            lost = _worse(lost, problem)
    raise lost


async def arepeated(
    lost: Unanswered, again: Callable[[float], Awaitable[Answer]], patience: float
) -> Answer:
    """Do the same from a running loop. Who is cancelled asks no more."""
    for pause, until in _pauses(patience):
        await asyncio.sleep(pause)
        left = max(until - time.monotonic(), _FIRST_PAUSE)
        try:
            async with asyncio.timeout(left):
                return await again(left)
        except StoreUnavailable as problem:
            lost = _worse(lost, problem)
        except TimeoutError:
            break
    raise lost


async def acted(act: Callable[[], Awaitable[Answer]], by: Action, patience: float) -> Answer:
    """Do what a person asks for; again, if there is no answer."""
    try:
        try:
            return await act()
        except Unanswered as lost:
            return await arepeated(lost, lambda _: act(), patience)
    except Unanswered as lost:
        raise Unanswered(lost.url, lost.problem, action=by) from lost


def _pauses(patience: float) -> Iterator[tuple[float, float]]:
    """Yield how long to wait before the next try, and until when tries are made.

    The pauses grow, and differ from caller to caller, so that a server that is back is not met by
    all of them at once.
    """
    until = time.monotonic() + patience
    longest = _FIRST_PAUSE
    while (left := until - time.monotonic()) > 0:
        yield min(left, random.uniform(longest / 2, longest)), until
        longest = min(2 * longest, _LONGEST_PAUSE)


def _worse(lost: Unanswered, problem: StoreUnavailable) -> Unanswered:
    """Return what to tell after a repeat failed: the first may have happened, whatever came now."""
    if isinstance(problem, Unanswered):
        return problem
    told = Unanswered(lost.url, problem.problem)
    told.__cause__ = problem
    return told
