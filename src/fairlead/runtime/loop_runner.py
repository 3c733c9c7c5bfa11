"""Coroutine functions, each in a task of its own on this process's event loop."""

import asyncio
from collections.abc import Callable

from fairlead.core.outcome import Outcome
from fairlead.runtime.board import ASYNC
from fairlead.runtime.points import point
from fairlead.runtime.run import GIVEN_BACK, Run, acall, where_is

Begin = Callable[[Run, int, int], bool]
"""Notes the start of a run (run, kind of runner, thread), and says whether it may start."""
End = Callable[[Run, Outcome], None]
"""Takes a run that has ended, in the event loop's thread."""


class LoopRunner:
    """Runs handlers on the loop."""

    def __init__(self, begin: Begin, end: End) -> None:
        self._begin = begin
        self._end = end
        self._loop = asyncio.get_running_loop()

    def start(self, run: Run) -> None:
        """Begin a run."""
        # Not by create_task, which costs as much again.
        run.handle = asyncio.Task(self._run(run), loop=self._loop)

    async def _run(self, run: Run) -> None:
        if run.called_off is not None:
            self._end(run, run.called_off)
            return
        point("starting")
        if not self._begin(run, ASYNC, 0):
            self._end(run, GIVEN_BACK)
            return
        point("started")
        outcome = await acall(run)
        point("ended")
        self._end(run, outcome)

    def call_off(self, run: Run) -> None:
        """Cancel the handler; it is told why by the error's first argument."""
        # A task cancelled before its first step would end without a word to anybody.
        if run.started_at is not None:
            run.handle.cancel(run.reason())

    def where(self, run: Run) -> str | None:
        """Say at which line the handler is."""
        # A suspended coroutine is linked to what it awaits by `cr_await`, not by `f_back`.
        code = getattr(run.task.function, "__code__", None)
        awaited = run.handle.get_coro()
        found = None
        while (frame := getattr(awaited, "cr_frame", None)) is not None:
            if found is None or code is None or frame.f_code.co_filename == code.co_filename:
                found = frame
            awaited = awaited.cr_await
        return where_is(found, None)
