"""Plain functions, in threads of our own.

Threads take one run after the other from a shared line. Results are laid into a
deque and the event loop is woken once for all that have gathered, which makes a
hand-back fifty times cheaper than `run_in_executor`.
"""

import asyncio
import contextvars
import threading
from collections import deque
from contextlib import suppress
from queue import SimpleQueue

from fairlead.core.outcome import Outcome
from fairlead.runtime.board import THREAD
from fairlead.runtime.loop_runner import Begin, End
from fairlead.runtime.points import point
from fairlead.runtime.run import GIVEN_BACK, Run, call, where_is_thread


class ThreadRunner:
    """Runs handlers in threads, as many as were ever needed at once, up to `size`."""

    def __init__(self, name: str, size: int, begin: Begin, end: End) -> None:
        self._name = name
        self._size = size
        self._begin = begin
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Run, float]] = deque()
        self._tickets: SimpleQueue[None] = SimpleQueue()  # One for each run that waits.
        self._outbox: deque[tuple[Run, Outcome]] = deque()
        self._collecting = False
        self._threads = 0
        self._in_hand = 0

    def start(self, run: Run) -> None:
        """Begin a run in a thread that is free, or a new one, or as soon as one is free."""
        self._in_hand += 1
        if self._threads < min(self._in_hand, self._size):
            self._threads += 1
            threading.Thread(
                target=self._serve, name=f"fairlead-{self._name}-{self._threads}", daemon=True
            ).start()
        self._waiting.append((run, self._loop.time()))
        self._tickets.put(None)

    def take_back(self, before: float) -> list[Run]:
        """Take out the runs that came before a time and wait for a thread."""
        taken: list[Run] = []
        with suppress(IndexError):  # A thread was quicker.
            while self._waiting[0][1] < before:
                taken.append(self._waiting.popleft()[0])
        self._in_hand -= len(taken)
        return taken

    def _serve(self) -> None:
        me = threading.get_ident()
        while True:
            self._tickets.get()
            try:
                run, _ = self._waiting.popleft()
            except IndexError:
                continue  # It was taken back.
            self._outbox.append((run, run.called_off or self._run(run, me)))
            if not self._collecting:
                self._collecting = True
                with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                    self._loop.call_soon_threadsafe(self._collect)

    def _run(self, run: Run, me: int) -> Outcome:
        point("starting")
        run.handle = me
        if not self._begin(run, THREAD, me):
            return GIVEN_BACK
        point("started")
        outcome = contextvars.Context().run(call, run)
        point("ended")
        return outcome

    def _collect(self) -> None:
        # First the flag: who lays down a result from here on rings again.
        self._collecting = False
        while self._outbox:
            run, outcome = self._outbox.popleft()
            self._in_hand -= 1
            self._end(run, outcome)

    def call_off(self, run: Run) -> None:
        """Nothing to do: a handler learns of it at its next checkpoint, or never starts."""

    def where(self, run: Run) -> str | None:
        """Say at which line the handler is."""
        code = getattr(run.task.function, "__code__", None)
        return where_is_thread(run.handle, code) if run.handle is not None else None
