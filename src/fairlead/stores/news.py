"""News of changes: told at most once in 10 ms by each process, and to those who wait here.

Who has just told of a change does not tell of the next. Whoever hears of one therefore looks
again a little later, for those that were not told. Every hint may be lost: who waits
looks again after its poll interval anyway.
"""

import asyncio
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from fairlead.core.clock import SECOND

WORK, ENDED, PING = "work", "ended", "ping"
QUIET_SECONDS = 0.01
ECHOES = (0.015, 0.06)
"""When to look again after a hint, for what was put in the quiet time after it."""


class Bell:
    """Says whether a change is to be told to others, or was just now."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._quiet_until: dict[str, float] = {}

    def word(self, word: str) -> str | None:
        """Return the word to tell others, or None if they have just heard it."""
        now = time.monotonic()
        with self._guard:
            if now < self._quiet_until.get(word, 0.0):
                return None
            self._quiet_until[word] = now + QUIET_SECONDS
        return word


class News:
    """Counts the changes that were noticed, and wakes who waits for them, on whatever loop.

    Who waits for work is not woken by a job that ended.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # Not the marks of an earlier life of this store, in all likelihood.
        first = time.monotonic_ns()
        self._marks = {WORK: first, ENDED: first}
        self._waiters: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def mark(self, *, for_work: bool) -> int:
        """Return the present mark."""
        return self._marks[WORK if for_work else ENDED]

    def bump(self, word: str) -> None:
        """Take note of a change: new work, or a job that ended."""
        with self._guard:
            self._marks[ENDED] += 1
            if word != ENDED:
                self._marks[WORK] += 1
            if not self._waiters:
                return
            woken = [waiter for waiter in self._waiters if word != ENDED or waiter[0] == ENDED]
            self._waiters = [waiter for waiter in self._waiters if waiter not in woken]
        for _, loop, hint in woken:
            with suppress(RuntimeError):  # The loop was closed; nobody waits there any more.
                loop.call_soon_threadsafe(_resolve, hint)

    async def changed(self, since: int, *, for_work: bool) -> None:
        """Return when the mark is no longer `since`."""
        hint: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        word = WORK if for_work else ENDED
        with self._guard:
            if self._marks[word] != since:
                return
            self._waiters.append((word, asyncio.get_running_loop(), hint))
        try:
            await hint
        finally:
            with self._guard:
                self._waiters = [waiter for waiter in self._waiters if waiter[2] is not hint]

    async def wait(
        self,
        patience: float,
        since: int,
        due: Coroutine[Any, Any, tuple[int | None, int]],
        *,
        for_work: bool,
    ) -> None:
        """Return when the mark is no longer `since`, time is up, or a parked job falls due.

        `due` asks when that will be, and what time it is there.
        """
        until = asyncio.get_running_loop().time() + patience
        changed = asyncio.ensure_future(self.changed(since, for_work=for_work))
        asked = asyncio.ensure_future(due)
        try:
            both: set[asyncio.Future[Any]] = {changed, asked}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if changed.done():
                return
            next_at, now = asked.result()
            left = until - asyncio.get_running_loop().time()
            if next_at is not None:
                left = min(left, (next_at - now) / SECOND)
            await asyncio.wait({changed}, timeout=max(0.0, left))
        finally:
            asked.cancel()
            changed.cancel()

    def hear(self, word: str) -> None:
        """Take note of what somebody else told, and of what may have followed untold."""
        self.bump(word)
        for seconds in ECHOES:
            asyncio.get_running_loop().call_later(seconds, partial(self.bump, word))


def _resolve(hint: asyncio.Future[None]) -> None:
    if not hint.done():
        hint.set_result(None)
