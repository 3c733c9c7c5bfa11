"""Coroutine functions, each in a task of its own on this process's event loop."""

import asyncio
from collections.abc import Callable

from fairlead.core.outcome import Outcome
from fairlead.runtime.board import ASYNC
from fairlead.runtime.points import point
from fairlead.runtime.run import Run, acall, where_is

Begin = Callable[[Run, int, int], None]
"""Notes the start of a run: run, kind of runner, thread."""
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
        point("starting")
        self._begin(run, ASYNC, 0)
        point("started")
        outcome = await acall(run)
        point("ended")
        self._end(run, outcome)

    def call_off(self, run: Run) -> None:
        """Cancel the handler; it is told why by the error's first argument."""
        run.handle.cancel(run.reason())
        if run.started_at is None and run.called_off is not None:
            # A task that is cancelled before its first step never takes it, to tell its end.
            self._end(run, run.called_off)

    def where(self, run: Run) -> str | None:
        """Say at which line the handler is."""
        # The stack of a suspended task is not linked by f_back: outermost first, as a list.
        frames = run.handle.get_stack()
        return where_is(frames[-1], None) if frames else None
