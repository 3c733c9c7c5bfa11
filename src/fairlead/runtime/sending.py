"""What the runners have in common that send runs to processes of their own."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine

import msgspec

from fairlead.runtime.board import Board
from fairlead.runtime.hand import Hire
from fairlead.runtime.loop_runner import Begin, End
from fairlead.runtime.run import GIVEN_BACK, Run
from fairlead.runtime.solo import Order

KILL_SECONDS = 2.0
"""What a process gets to heed SIGTERM, and a coroutine to heed its cancellation."""
_LONGEST_PAUSE = 30.0


class Home(msgspec.Struct, frozen=True):
    """The worker process that runs are sent from.

    `target` names its app, and `now` returns the store's time. `begin` and `end` are
    told of every run, `hire` of every process.
    """

    target: str
    board: Board
    begin: Begin
    end: End
    hire: Hire
    now: Callable[[], int]


class SendingRunner(ABC):
    """Sends runs to processes.

    It rests if no process can be started, or one dies before it has run anything:
    longer each time, until a process runs something.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._resting = False
        self._closed = False
        self._asking: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _deal(self) -> None:
        """Send what waits to processes, as far as there is room."""

    def _mark_sent(self, run: Run) -> bool:
        """Mark a run as sent, and say whether it may be: if it was revoked, it is given back."""
        if self._home.board.send(run.place):
            return True
        # Not at once: its end may bring the next run to deal, in the midst of this.
        self._loop.call_soon(self._home.end, run, GIVEN_BACK)
        return False

    def _order(self, number: int, run: Run) -> Order:
        # Both clocks, so that the process can tell by the store's when it started.
        return Order(number, run.job, run.pool, (self._home.now(), self._loop.time()))

    def _rest(self) -> None:
        self._failures = min(self._failures + 1, 16)
        self._resting = True
        self._loop.call_later(min(_LONGEST_PAUSE, 0.1 * 2**self._failures), self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        if not self._closed:
            self._deal()

    def _ask(self, question: Coroutine[None, None, None]) -> None:
        """Ask a process something, beside everything else."""
        asking = self._loop.create_task(question)
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
