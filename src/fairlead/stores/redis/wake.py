"""News: a channel to which every change is told, as a hint.

What is told is a word, and of new work the queue that it is in. So who hears it asks that
queue, and no other. Each queue is told of at most once in 10 ms by a process, and all of them a
hundred times a second in the long run: who has told of many at once tells that there may be work
anywhere, and then nothing for a moment.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis import exceptions

from fairlead.core.errors import StoreError
from fairlead.stores.news import ENDED, QUIET_SECONDS, WORK
from fairlead.stores.patience import Patience
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.nodes import Nodes
from fairlead.stores.redis.wire import Wire

_BEGIN_SECONDS = 1.0
_PING_SECONDS, _PONG_SECONDS = 2.0, 2.0
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0
_MOST_AT_ONCE = 20
"""Of how many queues a process tells at once before it rests."""


def told_of(word: str, queue: str) -> str:
    """Return what is told of a change in a queue."""
    return f"{word} {queue}"


def heard(text: str) -> tuple[str, str]:
    """Return the word and the queue of what was told; no queue if it may be any.

    Others may say more than that, on further lines.
    """
    word, _, queue = text.partition("\n")[0].partition(" ")
    return word, queue


class Bell:
    """Says what is to be told to others of a change; nothing if they have just heard it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._quiet_until: dict[str, float] = {}
        self._left = float(_MOST_AT_ONCE)
        self._since = time.monotonic()

    def work(self, queue: str) -> str:
        """Return what to tell of new work in a queue."""
        now = time.monotonic()
        with self._guard:
            if now < self._quiet_until.get(queue, 0.0):
                return ""
            left = self._left + (now - self._since) / QUIET_SECONDS
            self._left, self._since = min(left, _MOST_AT_ONCE), now
            if self._left < 1:
                return ""
            self._left -= 1
            self._quiet_until[queue] = now + QUIET_SECONDS
            # What follows may not be told: so the last word is that it may be any queue.
            return told_of(WORK, queue) if self._left >= 1 else WORK

    def ended(self) -> str:
        """Return what to tell of jobs that ended; no queue has the name of nothing."""
        now = time.monotonic()
        with self._guard:
            if now < self._quiet_until.get("", 0.0):
                return ""
            self._quiet_until[""] = now + QUIET_SECONDS
        return ENDED


class Listener:
    """Hears what others tell, on a connection of its own, for as long as it is open."""

    def __init__(
        self, address: Address, nodes: Nodes, channel: str, hear: Callable[[str], None]
    ) -> None:
        self._address = address
        self._nodes = nodes
        self._channel = channel
        self._hear = hear
        self._wire: Wire | None = None
        self._began = asyncio.Event()
        self._task = asyncio.ensure_future(self._listen())
        self.hears = False
        """Whether it is known to hear."""

    async def begin(self) -> None:
        """Give it a moment to hear its first word; a mark taken then misses nothing."""
        if not self._began.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_BEGIN_SECONDS):
                    await self._began.wait()
            self._began.set()

    def close(self) -> None:
        """Stop listening, from whatever thread."""
        with suppress(RuntimeError):  # Its loop is closed, and the task with it.
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        self._drop()

    def _drop(self) -> None:
        self.hears = False
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    async def _listen(self) -> None:
        """Listen for ever, on one connection after another, to one node after another."""
        pause, turn = _FIRST_PAUSE, 0
        while True:
            nodes = self._nodes.all
            try:
                # In a cluster every node passes on what any of them is told.
                self._wire = Wire(self._address, nodes[turn % len(nodes)])
                async with Patience(self._address.timeout):
                    await self._wire.say("SUBSCRIBE", self._channel)
                await self._hear_all(self._wire)
            except (exceptions.RedisError, StoreError, OSError, TimeoutError):
                pass  # Who hears nothing polls, `doctor` says so, and claims tell of an outage.
            finally:
                # Who has heard is not one that tries in vain.
                pause = _FIRST_PAUSE if self.hears else pause
                self._drop()
            turn += 1
            await asyncio.sleep(pause)
            pause = min(_LAST_PAUSE, pause * 2)

    async def _hear_all(self, wire: Wire) -> None:
        """Pass on what is heard, until even our own PING gets no answer."""
        hearing: asyncio.Future[Any] | None = None
        waited_for_pong = False
        try:
            while True:
                hearing = hearing or asyncio.ensure_future(wire.hear())
                patience = _PONG_SECONDS if waited_for_pong else _PING_SECONDS
                done, _ = await asyncio.wait({hearing}, timeout=patience)
                if done:
                    self._take(hearing.result())
                    hearing, waited_for_pong = None, False
                elif waited_for_pong:
                    return
                else:
                    await wire.say("PING")
                    waited_for_pong = True
        finally:
            if hearing is not None:
                hearing.cancel()

    def _take(self, said: list[Any]) -> None:
        if not self.hears:
            self.hears = True
            if self._began.is_set():
                self._hear(WORK)  # What was told while we could not hear is not lost.
            self._began.set()
        if said[0] == b"message":
            self._hear(said[2].decode(errors="replace"))
