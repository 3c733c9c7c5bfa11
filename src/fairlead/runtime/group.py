"""A process in which suspects run, many handlers at once and apart from all other jobs.

Coroutine functions run on its loop and plain ones in threads, as in a worker
process. It reads orders from a socket and writes words back, as a solo process
does. Before a handler runs, its start is marked on the worker process's board and
told to it. So it is known which jobs a death took with it, even if both
processes die. A thread reads the socket: whatever the handlers do, this process
ends when its worker process closes it.
"""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Callable

import msgspec

from fairlead.core.clock import SECOND
from fairlead.core.failure import described
from fairlead.core.outcome import Ending, Failed, Outcome, Returned
from fairlead.core.store import Store
from fairlead.core.task import Registry
from fairlead.runtime.board import PROCESS, Board
from fairlead.runtime.frames import Frames, frame
from fairlead.runtime.loop_runner import LoopRunner
from fairlead.runtime.run import CUT_OFF, GIVEN_BACK, Run
from fairlead.runtime.solo import Order, Recall, Word
from fairlead.runtime.thread_runner import ThreadRunner

MOST_THREADS = 100_000
"""No bound of its own: slots of the pools bound the runs of a group."""


class CallOff(msgspec.Struct, frozen=True, tag=True):
    """End a run with this outcome; with none, because it is past its time limit."""

    number: int
    outcome: Ending | None


Message = list[Order] | Recall | CallOff


class Group:
    """Runs what is ordered, on this loop. `say` is called with each word, from any thread.

    Orders are numbered by their places on the board.
    """

    def __init__(
        self, tasks: Registry, store: Store, say: Callable[[Word], None], board: Board | None
    ) -> None:
        self._tasks = tasks
        self._store = store
        self._say = say
        self._board = board
        self._loop = asyncio.get_running_loop()
        self._on_loop = LoopRunner(self._begin, self._end)
        self._in_threads = ThreadRunner("group", MOST_THREADS, self._begin, self._end)
        self._runs: dict[int, Run] = {}
        self._clocks = (0, 0.0)

    def heed(self, message: Message) -> None:
        """Do what a message says."""
        match message:
            case Recall():
                self._give_back()
            case CallOff(number, outcome):
                if (run := self._runs.get(number)) is not None:
                    self._call_off(run, outcome)
            case _:
                for order in message:
                    self._start(order)

    def _start(self, order: Order) -> None:
        if order.job.task not in self._tasks:
            told = f"the code that is there now has no task {order.job.task!r}; restart the worker"
            self._say(Word(order.number, Failed(described("UnknownTask", told))))
            return
        task = self._tasks[order.job.task]
        run = Run(order.job, task, order.pool, order.number, self._store)
        self._clocks = order.clocks
        self._runs[order.number] = run
        (self._on_loop if task.is_async else self._in_threads).start(run)

    def _begin(self, run: Run, _kind: int, thread: int) -> bool:
        told, at = self._clocks
        run.since = self._loop.time()
        run.started_at = told + int((run.since - at) * SECOND)
        if self._board is not None:
            times = (run.started_at, run.since + run.timeout, run.since)
            self._board.start(run.place, PROCESS, *times, os.getpid())
        self._say(Word(starts=run.place, thread=thread))
        return True

    def _end(self, run: Run, outcome: Outcome) -> None:
        del self._runs[run.place]
        self._say(Word(run.place, outcome))

    def _give_back(self) -> None:
        """Give back what has not started; a thread may be about to, and then it is left."""
        for run in self._in_threads.take_back(float("inf")):
            self._end(run, GIVEN_BACK)
        for run in self._runs.values():
            if run.task.is_async and run.started_at is None:
                run.called_off = run.called_off or GIVEN_BACK

    def _call_off(self, run: Run, outcome: Ending | None) -> None:
        runner = self._on_loop if run.task.is_async else self._in_threads
        if isinstance(outcome, Returned) and run.started_at is not None:
            outcome = CUT_OFF  # It started while whoever gave it back did not know.
        run.called_off = outcome or run.timed_out(runner.where(run))
        runner.call_off(run)


async def serve(tasks: Registry, store: Store, channel: socket.socket, board: Board | None) -> None:
    """Run what is ordered through a channel, until that is closed; then the process ends."""
    channel.setblocking(True)
    loop, speaking = asyncio.get_running_loop(), threading.Lock()

    def say(word: Word) -> None:
        with speaking:
            channel.sendall(frame(word))

    group = Group(tasks, store, say, board)

    def read() -> None:
        frames: Frames[Message] = Frames(Message)  # type: ignore[arg-type]
        while data := channel.recv(1 << 18):
            for message in frames.feed(data):
                loop.call_soon_threadsafe(group.heed, message)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    threading.Thread(target=read, name="fairlead-orders", daemon=True).start()
    await asyncio.Event().wait()
