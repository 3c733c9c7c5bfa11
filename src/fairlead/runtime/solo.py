"""A process that runs one handler after the other, for nobody but itself.

It reads orders from a socket and writes words back: which job starts, which has
ended and how. The word that a job starts is out before its handler runs, so if
the process dies its job is known. A thread does the reading, so that jobs which
wait behind a slow one can be recalled.
"""

import asyncio
import os
import socket
import threading
import time
from collections import deque

import msgspec

from fairlead.core.clock import SECOND
from fairlead.core.job import Job
from fairlead.core.outcome import Outcome
from fairlead.core.store import Store
from fairlead.core.task import Registry
from fairlead.runtime.frames import Frames, frame
from fairlead.runtime.run import Run, acall, call


class Order(msgspec.Struct, frozen=True, array_like=True):
    """A job to run, and the number by which it is spoken of.

    `clocks` are the store's time and this machine's monotonic one, at the same moment.
    """

    number: int
    job: Job
    pool: str
    clocks: tuple[int, float]


class Recall(msgspec.Struct, frozen=True, tag=True):
    """Give back the orders that have not started."""


class Word(msgspec.Struct, frozen=True, array_like=True):
    """What the process has to say: a job has ended, the next has started, some were recalled.

    `thread` is the one that the next runs in, if it is not the process's main one.
    """

    ended: int | None = None
    outcome: Outcome | None = None
    seconds: float = 0.0
    starts: int | None = None
    recalled: tuple[int, ...] = ()
    thread: int = 0


class Solo:
    """Runs orders until the channel is closed."""

    def __init__(self, tasks: Registry, store: Store, channel: socket.socket) -> None:
        channel.setblocking(True)
        self._tasks = tasks
        self._store = store
        self._channel = channel
        self._orders: deque[Order] = deque()
        self._arrived = threading.Semaphore(0)
        self._speaking = threading.Lock()

    def serve(self) -> None:
        """Run one order after the other."""
        threading.Thread(target=self._read, name="fairlead-orders", daemon=True).start()
        told = Word()
        with asyncio.Runner() as loop:
            while True:
                if told.ended is not None and not self._orders:
                    self._say(told)
                    told = Word()
                self._arrived.acquire()
                try:
                    order = self._orders.popleft()
                except IndexError:
                    continue  # It was recalled.
                self._say(msgspec.structs.replace(told, starts=order.number))
                began = time.monotonic()
                outcome = self._run(order, loop)
                told = Word(order.number, outcome, time.monotonic() - began)

    def _run(self, order: Order, loop: asyncio.Runner) -> Outcome:
        task = self._tasks[order.job.task]
        run = Run(order.job, task, order.pool, 0, self._store)
        told, at = order.clocks
        run.started_at = told + int((time.monotonic() - at) * SECOND)
        return loop.run(acall(run)) if task.is_async else call(run)

    def _say(self, word: Word) -> None:
        with self._speaking:
            self._channel.sendall(frame(word))

    def _read(self) -> None:
        frames: Frames[list[Order] | Recall] = Frames(list[Order] | Recall)  # type: ignore[arg-type]
        while data := self._channel.recv(1 << 18):
            for message in frames.feed(data):
                if isinstance(message, Recall):
                    self._give_back()
                else:
                    self._orders.extend(message)
                    self._arrived.release(len(message))
        os._exit(0)

    def _give_back(self) -> None:
        recalled = []
        while self._orders:
            try:
                recalled.append(self._orders.pop().number)
            except IndexError:
                break
        self._say(Word(recalled=tuple(recalled)))
