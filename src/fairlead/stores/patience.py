"""Time limits for answers, counted while the event loop turns.

A handler may block the loop for seconds. An answer that comes meanwhile is read only afterwards,
and a limit on the clock would fall before it: the store would be said to be silent, though it was
not. So the time is counted in parts, and a part that took longer than it should counts as one.
"""

import asyncio
from types import TracebackType

_PARTS = 10


class Patience:
    """What `asyncio.timeout` is, counted so; it costs one timer, as that does."""

    def __init__(self, seconds: float) -> None:
        self._part = seconds / _PARTS
        self._left = _PARTS
        self._limit = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._begin_part()

    def _begin_part(self) -> None:
        self._timer = self._loop.call_later(self._part, self._end_part)

    def _end_part(self) -> None:
        self._left -= 1
        if self._left:
            self._begin_part()
        else:
            self._limit.reschedule(self._loop.time())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, problem, trace)
