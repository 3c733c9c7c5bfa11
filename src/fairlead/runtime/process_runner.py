"""Handlers in processes of their own, which can be killed, and whose death costs one job.

A process runs one handler at a time. Jobs that are quick are sent several at a
time, so that the socket is not what they wait for; a slow job is sent alone.
"""

import signal
from collections import deque
from collections.abc import Callable
from functools import partial

from fairlead.core.outcome import Crashed
from fairlead.runtime.board import PROCESS
from fairlead.runtime.hand import Hand
from fairlead.runtime.memory import resident_bytes
from fairlead.runtime.run import Run
from fairlead.runtime.sending import KILL_SECONDS, Home, SendingRunner
from fairlead.runtime.solo import Recall, Word

SENT_SECONDS = 0.1
MOST_SENT = 50


class _Hand(Hand):
    """One process and the jobs it was given."""

    def __init__(self, home: Home, listen: Callable[["_Hand"], None]) -> None:
        super().__init__("solo", home.target, home.hire, partial(listen, self))
        self.sent: dict[int, Run] = {}
        self.running: Run | None = None
        self.ended = 0
        self.leaving = False
        self.slow = False  # Its present job takes long: nothing is sent to wait behind it.


class ProcessRunner(SendingRunner):
    """Runs handlers in as many processes as the pool has slots."""

    def __init__(
        self, home: Home, size: int, *, max_jobs: int | None = None, max_memory: int | None = None
    ) -> None:
        super().__init__(home)
        self._size = size
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._hands: list[_Hand] = []
        self._pending: deque[tuple[Run, float]] = deque()
        self._number = 0
        self._seconds = SENT_SECONDS  # A run's mean duration; slow until the opposite is seen.

    def open(self) -> None:
        """Start the processes now, so that the first job need not wait for one."""
        while len(self._hands) < self._size:
            self._new_hand()

    def start(self, run: Run) -> None:
        """Give a run to the process that has least to do, or keep it until one has room."""
        self._pending.append((run, self._loop.time()))
        self._deal()

    def take_back(self, before: float) -> list[Run]:
        """Take out the runs that came before a time and wait for a process.

        Those that were sent to a process whose present job takes long are asked
        back from it, and are among them the next time.
        """
        for hand in self._hands:
            if len(hand.sent) > 1 and hand.running and hand.running.since < before:
                hand.slow = True
                hand.tell(Recall())
        taken = []
        while self._pending and self._pending[0][1] < before:
            taken.append(self._pending.popleft()[0])
        return taken

    def time_out(self, run: Run) -> None:
        """End a run at its time limit, once it is known at which line it is."""
        self._ask(self._time_out(run))

    async def _time_out(self, run: Run) -> None:
        where = await self._where(run)
        if run.called_off is None:
            run.called_off = run.timed_out(where)
        self.call_off(run)

    def call_off(self, run: Run) -> None:
        """End the process that runs it; one that ignores SIGTERM is killed."""
        hand = next((hand for hand in self._hands if hand.running is run), None)
        if hand is None:
            for entry in [entry for entry in self._pending if entry[0] is run]:
                self._pending.remove(entry)
                self._home.end(run, run.called_off or Crashed("never started"))
            return  # If it was sent: it is ended as soon as it starts.
        hand.signal(signal.SIGTERM)
        self._loop.call_later(KILL_SECONDS, self._kill, hand, run)

    def _kill(self, hand: _Hand, run: Run) -> None:
        if hand.running is run:
            hand.signal(signal.SIGKILL)

    async def _where(self, run: Run) -> str | None:
        """Say at which line the handler is."""
        hand = next((hand for hand in self._hands if hand.running is run), None)
        lines = await hand.lines() if hand else {}
        return next(reversed(lines.values()), None)  # The main thread is written last.

    def close(self) -> None:
        """End all processes."""
        self._closed = True
        for hand in list(self._hands):
            self._bury(hand)

    # Dealing

    def _depth(self) -> int:
        return max(1, min(MOST_SENT, int(SENT_SECONDS / max(self._seconds, 1e-6))))

    def _deal(self) -> None:
        depth = self._depth()
        while self._pending:
            hand = self._least_busy(depth)
            if hand is None:
                return
            # Of quick jobs a process gets several at once, but no more than its share.
            share = -(-len(self._pending) // self._size)
            room = min(depth - len(hand.sent), share)
            self._send(hand, [self._pending.popleft()[0] for _ in range(room)])

    def _least_busy(self, depth: int) -> _Hand | None:
        able = [hand for hand in self._hands if not hand.leaving]
        if len(able) < self._size and all(hand.sent for hand in able) and not self._resting:
            try:
                able.append(self._new_hand())
            except OSError:  # The machine has no room for another process now.
                self._rest()
        able = [hand for hand in able if not hand.slow]
        hand = min(able, key=lambda hand: len(hand.sent), default=None)
        return hand if hand is not None and len(hand.sent) < depth else None

    def _send(self, hand: _Hand, runs: list[Run]) -> None:
        orders = []
        for run in runs:
            if not self._mark_sent(run):
                continue
            self._number += 1
            hand.sent[self._number] = run
            orders.append(self._order(self._number, run))
        if orders:
            hand.tell(orders)

    # Listening

    def _new_hand(self) -> _Hand:
        hand = _Hand(self._home, self._listen)
        self._hands.append(hand)
        return hand

    def _listen(self, hand: _Hand) -> None:
        words, ended = hand.receive()
        for word in words:
            self._heed(hand, word)
        if ended:
            self._bury(hand)
        self._deal()

    def _heed(self, hand: _Hand, word: Word) -> None:
        if word.ended is not None and word.outcome is not None:
            run = hand.sent.pop(word.ended)
            hand.running = None
            hand.slow = False
            hand.ended += 1
            self._failures = 0
            self._seconds += 0.2 * (word.seconds - self._seconds)
            self._home.end(run, word.outcome)
            self._recycle(hand)
        since = hand.running.since if hand.running else self._loop.time()
        self._take_back([hand.sent.pop(number) for number in word.recalled], since)
        if word.starts is not None:
            hand.running = run = hand.sent[word.starts]
            self._home.begin(run, PROCESS, hand.pid)
            if run.called_off is not None:
                self.call_off(run)

    def _recycle(self, hand: _Hand) -> None:
        """Let a process go that has done enough or grown too large, between two jobs."""
        enough = self._max_jobs is not None and hand.ended >= self._max_jobs
        if not enough and self._max_memory is not None:
            enough = resident_bytes(hand.pid) > self._max_memory
        hand.leaving = hand.leaving or enough
        if hand.leaving and not hand.sent:
            self._bury(hand)

    def _bury(self, hand: _Hand) -> None:
        """See a process to its end: its job crashed, what it had not started goes to others."""
        if hand not in self._hands:
            return
        self._hands.remove(hand)
        how, words = hand.bury()
        for word in words:
            self._heed(hand, word)
        died = hand.running
        waiting = [run for run in hand.sent.values() if run is not died]
        self._take_back(waiting[::-1], self._loop.time())
        if died is not None:
            self._home.end(died, died.called_off or Crashed(how))
        elif not hand.leaving and not self._closed:
            self._rest()

    def _take_back(self, runs: list[Run], since: float) -> None:
        """Have runs wait here again that a process was sent and did not start, the last first."""
        for run in runs:
            self._home.board.take_back(run.place)
            self._pending.appendleft((run, since))

    def bury_the_dead(self) -> None:
        """Look after dead processes that something they forked keeps from being noticed."""
        for hand in list(self._hands):
            if hand.dead:
                self._bury(hand)
                self._deal()
