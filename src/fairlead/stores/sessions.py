"""What a store has open on each event loop."""

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Session(Protocol):
    """What is open on one event loop."""

    async def finished(self) -> None:
        """Wait for what was handed over."""

    def close(self) -> None:
        """Let go of everything, from whatever thread."""


S = TypeVar("S", bound=Session)


class Sessions(Generic[S]):
    """One session for each event loop, made when it is first asked for."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._open: dict[asyncio.AbstractEventLoop, S] = {}

    def here(self) -> S:
        """Return the session of the running loop."""
        loop = asyncio.get_running_loop()
        session = self._open.get(loop)
        if session is None:
            # A loop that is over cannot say so; what it had open ends when the next one begins.
            self._end([each for each in list(self._open) if each.is_closed()])
            session = self._open[loop] = self._make()
        return session

    async def close(self) -> None:
        """Close all of them; what was handed over in this loop is finished first."""
        mine = self._open.get(asyncio.get_running_loop())
        if mine is not None:
            await mine.finished()
        self._end(list(self._open))

    def _end(self, loops: list[asyncio.AbstractEventLoop]) -> None:
        for loop in loops:
            session = self._open.pop(loop, None)
            if session is not None:  # Else another thread was quicker.
                session.close()
