"""The slots of one pool in this process: who runs, who waits for a slot, how much to claim."""

import zlib
from collections import Counter, deque
from collections.abc import Callable

from fairlead.core.selection import MOST_BYTES, ClaimPlan
from fairlead.core.turns import Credits, Lineup
from fairlead.runtime.run import Run
from fairlead.runtime.workshop import PoolPlan

AHEAD_SECONDS = 0.1
STRANDED_SECONDS = 1.0
"""A job that was claimed ahead and has not started by then is given back to others."""


def bytes_for_next(most_bytes: int, seconds: float, lease: float) -> int:
    """Say how many bytes the next claim may bring, after one that took so long.

    What arrives after half a lease is given back, and what the store does not send in time is lost.
    Over a slow link the same jobs would come too late again and again, so claims shrink, to
    single jobs if need be, and grow again when they are quick.
    """
    if seconds > lease / 8:
        return max(1, most_bytes // 32)
    return min(MOST_BYTES, most_bytes * 2)


def phase_of(process: str, processes: int) -> float:
    """Return at which phase a process begins its rounds between queues, by its name.

    Those of one worker are spread evenly, and workers begin anywhere.
    """
    worker, _, number = process.rpartition("/")
    begun = zlib.crc32((worker or process).encode()) / 2**32
    place = int(number) / processes if worker and number.isdecimal() else 0.0
    return (begun + place) % 1.0


class Slots:
    """Runs are fed, started as slots are free, and leave when they have ended.

    With `start_suspect`, suspects are started by that. Each needs a slot of its own.
    """

    def __init__(
        self,
        plan: PoolPlan,
        start: Callable[[Run], None],
        phase: float = 0.0,
        start_suspect: Callable[[Run], None] | None = None,
    ) -> None:
        self.plan = plan
        self._lineup = Lineup(plan.queues)
        self.credits = Credits.at_phase(self._lineup, phase)
        self._start_one = start
        self._start_suspect = start_suspect
        self._suspects = 0
        # Threads and processes take their next job without asking; they keep to the slots.
        self._most = plan.capacity + plan.ahead if plan.self_serving else plan.capacity
        self._limit = self._most
        self._waiting: deque[tuple[Run, float]] = deque()
        self._in_hand: Counter[str] = Counter()
        self._bytes = 0
        self._running = 0
        self._ended = 0
        self._rate = 0.0
        self._measured_at = 0.0
        self.on_room: Callable[[], None] = lambda: None

    @property
    def in_hand(self) -> int:
        """How many jobs were fed and have not ended."""
        return self._running + len(self._waiting)

    def room(self, now: float) -> int:
        """Return how many jobs to claim now; zero if it is not worth it yet."""
        # With so much in hand, what is claimed ahead would cost memory and save little time.
        ahead = self._ahead(now) if self._bytes < MOST_BYTES else 0
        room = self.plan.capacity + ahead - self.in_hand
        # In small bites every claim would cost a commit; so with jobs in hand, wait for more room.
        return room if room > ahead // 2 or self.in_hand <= self.plan.capacity else 0

    def claim_plan(self, worker: str, lease: int, capable: dict[str, int], room: int) -> ClaimPlan:
        """Say what this pool asks the store for."""
        reserves = self.plan.capacity - self.plan.slots
        return ClaimPlan(
            worker=worker,
            queues=self._lineup,
            slots=room + self.in_hand - reserves,
            lease=lease,
            running=dict(self._in_hand),
            credits=self.credits,
            capable=capable,
        )

    def _ahead(self, now: float) -> int:
        """Return how many jobs beyond the slots will start in a moment, by what was measured."""
        if not self.plan.ahead:
            return 0
        elapsed = now - self._measured_at
        if elapsed >= AHEAD_SECONDS / 10:
            # The longer since the last look, the less the old rate is worth.
            weight = min(1.0, elapsed / AHEAD_SECONDS)
            self._rate += weight * (self._ended / elapsed - self._rate)
            self._ended, self._measured_at = 0, now
        return min(self.plan.ahead, int(self._rate * AHEAD_SECONDS))

    def feed(self, run: Run, now: float) -> None:
        """Take a run in, and start it if a slot is free."""
        self._in_hand[run.job.queue] += 1
        self._bytes += run.size
        if run.job.shared_deaths or run.job.crashes:
            self._count_suspects(1)
        if self._running < self._limit:
            self._start(run)
        else:
            self._waiting.append((run, now))

    def _count_suspects(self, change: int) -> None:
        if self._start_suspect is not None:
            self._suspects += change
            # Who serves itself knows nothing of suspects: with some about, all keep to the slots.
            self._limit = self.plan.capacity if self._suspects else self._most

    def _start(self, run: Run) -> None:
        self._running += 1
        if self._suspects and self._start_suspect is not None and run.job.suspect:
            self._start_suspect(run)
        else:
            self._start_one(run)

    def ended(self, run: Run) -> None:
        """Free the slot of a run that has ended, for the next."""
        self._forget(run)
        self._running -= 1
        self._ended += 1
        while self._waiting and self._running < self._limit:
            self._start(self._waiting.popleft()[0])
        self.on_room()

    def take_back(self, before: float = float("inf")) -> list[Run]:
        """Take out the runs that were fed before a time and have not started."""
        taken = []
        while self._waiting and self._waiting[0][1] < before:
            run, _ = self._waiting.popleft()
            self._forget(run)
            taken.append(run)
        return taken

    def drop(self, run: Run) -> bool:
        """Take out a run that has not started; says whether it was there."""
        for entry in self._waiting:
            if entry[0] is run:
                self._waiting.remove(entry)
                self._forget(run)
                return True
        return False

    def _forget(self, run: Run) -> None:
        queue = run.job.queue
        self._in_hand[queue] -= 1
        if not self._in_hand[queue]:
            del self._in_hand[queue]  # What a claim costs follows from what runs.
        self._bytes -= run.size
        if run.job.shared_deaths or run.job.crashes:
            self._count_suspects(-1)
