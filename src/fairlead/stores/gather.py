"""Group commit without timers: while one batch is on its way, the next gathers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from fairlead.core.errors import StoreUnavailable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST_AT_ONCE = 2_000
MOST_BYTES = 4 * 2**20

_Request = tuple[Sequence[Item], asyncio.Future[Sequence[Answer]]]


class Gather(Generic[Item, Answer]):
    """Hands the items of many callers to `work` together; each caller gets its own answers."""

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        weigh: Callable[[Item], int] = lambda _: 0,
    ) -> None:
        """Begin; `weigh` tells the bytes of an item, if large ones must not come together."""
        self._work = work
        self._weigh = weigh
        self._waiting: list[_Request[Item, Answer]] = []
        self._going: asyncio.Task[None] | None = None

    async def submit(self, items: Sequence[Item]) -> Sequence[Answer]:
        """Return the answers to these items. Who is cancelled leaves its items in the batch."""
        answers: asyncio.Future[Sequence[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, answers))
        if self._going is None:
            self._going = asyncio.ensure_future(self._go())
        return await answers

    async def finished(self) -> None:
        """Wait until nobody waits for an answer."""
        if self._going is not None:
            await asyncio.wait({self._going})

    async def _go(self) -> None:
        try:
            while self._waiting:
                await self._hand_over(self._next())
        finally:
            self._going = None

    def _next(self) -> "list[_Request[Item, Answer]]":
        batch: list[_Request[Item, Answer]] = []
        size, weight = 0, 0
        while self._waiting and (not batch or size + len(self._waiting[0][0]) <= MOST_AT_ONCE):
            if weight > MOST_BYTES:
                break
            batch.append(self._waiting.pop(0))
            size += len(batch[-1][0])
            weight += sum(map(self._weigh, batch[-1][0]))
        return batch

    async def _hand_over(self, batch: "list[_Request[Item, Answer]]") -> None:
        try:
            answers = await self._work([item for items, _ in batch for item in items])
        except Exception as problem:  # noqa: BLE001 (it is told to those who wait)
            if len(batch) > 1 and not isinstance(problem, StoreUnavailable):
                for each in batch:  # One caller's bad item must not fail the others.
                    await self._hand_over([each])
                return
            for _, waiting in batch:
                if not waiting.done():
                    waiting.set_exception(problem)
            return
        start = 0
        for items, waiting in batch:
            if not waiting.done():
                waiting.set_result(answers[start : start + len(items)])
            start += len(items)
