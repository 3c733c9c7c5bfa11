"""An event loop without a selector: time jumps to the next timer, and a seed says who goes first.

Several simulated processes share the loop. Inside a process callbacks run in the
order they were called, as asyncio promises; between processes the seed decides.
A process can be frozen, and can die: then nothing of it runs any more.
"""

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from fairlead.core.clock import SECOND

_EPOCH = 1_700_000_000 * SECOND
_here: contextvars.ContextVar["Process"] = contextvars.ContextVar("simulated_process")


class Deadlock(Exception):
    """Nothing is ready and no timer is set: the simulation would wait for ever."""


class Killed(BaseException):
    """Raised at a crash point to leave the code of a process that has just died."""


class Process:
    """A simulated process: what is ready to run in it, and whether it may."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.hired = False  # Whether it runs handlers for another one.
        self.frozen_until = 0.0
        self.ready: deque[asyncio.Handle] = deque()
        self.listed = False
        self.context = contextvars.copy_context()
        self.context.run(_here.set, self)


def here() -> Process:
    """Return the process whose code runs."""
    return _here.get()


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs what is ready, one callback of a random process at a time."""

    def __init__(self, random: Random, stalls: float = 0.0) -> None:
        super().__init__()
        self._random = random
        self._stalls = stalls
        self._now = 1_000.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._number = 0
        self._listed: list[Process] = []
        self._graves: list[asyncio.Task[Any]] = []
        self._disposing = False
        self.outside = Process("outside")

    # What asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._queue(handle)
        return handle

    call_soon_threadsafe = call_soon  # There is one thread.

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._number += 1
        if not self._disposing:
            heapq.heappush(self._timers, (when, self._number, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: a cancelled timer is passed over when its time comes."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        raise AssertionError("the simulation has no threads; something asked for one")

    # Who runs next

    def _queue(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(_here, self.outside)
        if not process.alive or self._disposing:
            return
        process.ready.append(handle)
        if self._stalls and len(process.ready) == 1 and self._random.random() < self._stalls:
            # A busy machine: what happens meanwhile piles up, and is seen all at once.
            self.freeze(process, self._random.random() * 0.05)
        self._list(process)

    def _list(self, process: Process) -> None:
        if not process.listed and process.ready and process.frozen_until <= self._now:
            process.listed = True
            self._listed.append(process)

    def _unlist(self, at: int) -> None:
        self._listed[at].listed = False
        self._listed[at] = self._listed[-1]
        self._listed.pop()

    def _run_once(self) -> None:
        if not self._listed:
            self._jump()
            return
        at = self._random.randrange(len(self._listed)) if len(self._listed) > 1 else 0
        process = self._listed[at]
        if not process.alive or process.frozen_until > self._now or not process.ready:
            self._unlist(at)
            return
        handle = process.ready.popleft()
        if not process.ready:
            self._unlist(at)
        if not handle._cancelled:
            handle._run()

    def _jump(self) -> None:
        """Go to the time of the next timer, and ring all that are due."""
        while self._timers and self._timers[0][2]._cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            raise Deadlock("nothing is ready and no timer is set")
        self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            _, _, handle = heapq.heappop(self._timers)
            if not handle._cancelled:
                self._queue(handle)

    # What the simulation does to processes

    def freeze(self, process: Process, seconds: float) -> None:
        """Let nothing of a process run for a while."""
        until = self._now + seconds
        if until > process.frozen_until:
            process.frozen_until = until
            self.call_at(until, self._list, process, context=self.outside.context)

    def kill(self, process: Process) -> None:
        """Let nothing of a process run ever again. Its memory stays as it is."""
        # Kept: a coroutine that nobody refers to is closed, and its `finally` would run.
        self._graves.extend(asyncio.all_tasks(self))
        process.alive = False
        process.ready.clear()

    def spawn(self, process: Process, coroutine: Any) -> asyncio.Task[Any]:
        """Start a task inside a process."""
        return process.context.run(self.create_task, coroutine)

    def tell(self, process: Process, callback: Callable[..., object], *args: Any) -> None:
        """Have something called inside a process, a moment from now."""
        delay = self._random.random() * 0.01
        self.call_later(delay, callback, *args, context=process.context)

    def dispose(self) -> None:
        """Close what is left of all tasks, so that nothing of it runs after the simulation."""
        self._disposing = True
        for _ in range(100):
            left = [task for task in asyncio.all_tasks(self) if task._log_destroy_pending]
            for task in left:
                task._log_destroy_pending = False
                _close(task.get_coro())
            if not left:
                break
        self._timers.clear()
        self._listed.clear()
        self._graves.clear()
        self.close()


def _close(coroutine: Any) -> None:
    for _ in range(10):  # A task group waits for its tasks even then.
        with suppress(BaseException):  # It belonged to a process that is no more.
            coroutine.close()
            return


class VirtualClock:
    """A clock that follows the loop, and may be wrong by some seconds."""

    def __init__(self, loop: VirtualLoop, wrong_by: float = 0.0) -> None:
        self._loop = loop
        self._start = _EPOCH + round(wrong_by * SECOND)

    def now(self) -> int:
        return self._start + round(self._loop.time() * SECOND)
