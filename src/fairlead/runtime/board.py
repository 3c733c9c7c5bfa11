"""What a process has in hand, on a board its supervisor can read, even after the process died.

One record per job, in memory both share: the process writes without a system
call, so the start of a handler is known before it runs, at no cost. The
supervisor reads it to renew leases, to enforce time limits when the process no
longer can, and to tell, when the process is dead, which jobs had started.

A record's state is written last and cleared first, so a reader sees a whole
record or none. Times of deadlines are those of `time.monotonic`, which all
processes of a machine share.

The supervisor writes too: a revocation takes back what was claimed until its time
and has not started; see `revoke.py`.

A supervisor outlives an upgrade of the program on disk, and the processes that it starts
then are newer ones. So the board says how long its header and its records are, and whoever
opens it goes by that. Fields are added behind the last ones; only who has room for them
writes them.
"""

import mmap
import os
import struct
from collections.abc import Iterator

import msgspec

from fairlead.core.ids import JobId
from fairlead.runtime.spawn import anonymous_file

FREE, HELD, RUNNING, SENT = 0, 1, 2, 3
"""SENT is held by a process of its own, which may start it without a word to this board."""
ASYNC, THREAD, PROCESS, UNCLEAR = 1, 2, 3, 4
"""In what a handler runs; UNCLEAR says that it ran, and `reconcile` is being asked about it."""

NEVER = float("inf")

_HEADER = struct.Struct("=ddQddQBHH")  # pulse, spare_until, ended, revoked_at, asked_at, asking, …
_TIME, _COUNT = struct.Struct("=d"), struct.Struct("=Q")
_PULSE_AT, _SPARE_AT, _ENDED_AT, _REVOKED_AT, _ASKED_AT, _ASKING_AT = 0, 8, 16, 24, 32, 40
_EVER_REVOKED_AT = 48  # A byte of its own: it is read at every start.
_LENGTHS, _LENGTHS_AT = struct.Struct("=HH"), 49  # of the header and of a record, here for good
_RECORD = struct.Struct("=BBHqqdddQ36s")  # state, kind, task, fence, … as in `Mark`
_HOLD = struct.Struct("=BHqqdddQ36s")  # the same without the state
_LIMIT, _LIMIT_AT = struct.Struct("=qd"), 12  # started_at, deadline
_SINCE, _SINCE_AT = struct.Struct("=dQ"), 36  # since, thread
_DEADLINE_AT, _HELD_SINCE_AT = 20, 28


class Mark(msgspec.Struct, frozen=True):
    """One job on the board: running or not, in which kind of runner, since when, until when.

    `started_at` is an instant by the store's clock; `deadline`, `held_since` and
    `since` are monotonic seconds. It is held since its claim was asked for.
    """

    running: bool
    kind: int
    task: int
    fence: int
    started_at: int
    deadline: float
    held_since: float
    since: float
    thread: int
    job_id: JobId
    sent: bool = False

    @property
    def pair(self) -> tuple[JobId, int]:
        """The job and its fence: this run of it, and no other."""
        return self.job_id, self.fence

    @property
    def only_held(self) -> bool:
        """Whether it was claimed, and neither started nor sent to a process of its own."""
        return not self.running and not self.sent


class Board:
    """The records of one process."""

    def __init__(self, memory: mmap.mmap, handle: int | None = None) -> None:
        self.handle = handle
        """The descriptor by which a process that is started can open it, if it can."""
        self._memory = memory
        first, length = _LENGTHS.unpack_from(memory, _LENGTHS_AT)
        # Where the record of each place begins.
        self._begins = list(range(first, len(memory) - length + 1, length))
        self._free = list(reversed(range(len(self._begins))))
        self.still = 0.0
        """For how many seconds the event loop has not turned, as seen by who calls `watch`."""
        self.given_back: set[tuple[JobId, int]] = set()
        """What was on the board when it was taken back from the process: no longer its own."""
        self._seen_pulse = 0.0

    @classmethod
    def private(cls, places: int) -> "Board":
        """Make a board for a process that has no supervisor."""
        return cls(_made(mmap.mmap(-1, _size(places))))

    @classmethod
    def shared(cls, places: int) -> tuple["Board", int]:
        """Make a board and the descriptor by which a child can open it."""
        handle = anonymous_file("fairlead-board")
        os.ftruncate(handle, _size(places))
        return cls(_made(mmap.mmap(handle, _size(places)))), handle

    @classmethod
    def opened(cls, handle: int) -> "Board":
        """Open the board of a descriptor that was passed on."""
        return cls(mmap.mmap(handle, os.fstat(handle).st_size), handle)

    # For the process itself

    @property
    def free(self) -> int:
        """How many more jobs there is a place for."""
        return len(self._free)

    def begin_claim(self, now: float) -> None:
        """Note that a claim is asked for, before it is."""
        _TIME.pack_into(self._memory, _ASKED_AT, max(now, self.asked_at))
        _COUNT.pack_into(self._memory, _ASKING_AT, self._asking + 1)

    def end_claim(self) -> None:
        """Note that what a claim brought is on the board."""
        _COUNT.pack_into(self._memory, _ASKING_AT, self._asking - 1)

    def hold(self, job_id: JobId, fence: int, task: int, asked_at: float) -> int:
        """Note a claimed job; returns its place."""
        place = self._free.pop()
        at = self._begins[place]
        _HOLD.pack_into(
            self._memory, at + 1, 0, task, fence, 0, NEVER, asked_at, 0.0, 0, job_id.encode()
        )
        self._memory[at] = HELD
        return place

    def start(
        self,
        place: int,
        kind: int,
        started_at: int,
        deadline: float,
        now: float,
        thread: int = 0,
    ) -> bool:
        """Note that its handler is about to run, and say whether it may: not if it was revoked.

        In a process of its own it may, because it was asked for when the job was sent.
        """
        at = self._begins[place]
        _LIMIT.pack_into(self._memory, at + _LIMIT_AT, started_at, deadline)
        _SINCE.pack_into(self._memory, at + _SINCE_AT, now, thread)
        self._memory[at + 1] = kind
        self._memory[at] = RUNNING
        return not self._memory[_EVER_REVOKED_AT] or kind == PROCESS or self._stands(at)

    def send(self, place: int) -> bool:
        """Note that it goes to a process of its own, and say whether it may, as `start` does."""
        at = self._begins[place]
        self._memory[at] = SENT
        return not self._memory[_EVER_REVOKED_AT] or self._stands(at)

    def _stands(self, at: int) -> bool:
        """Say whether a mark stands that was just made; if the job was revoked, it is held again.

        First the mark, then this look: the supervisor does it the other way round, so one of the
        two always sees the other.
        """
        revoked_at: float = _TIME.unpack_from(self._memory, _REVOKED_AT)[0]
        if revoked_at >= _TIME.unpack_from(self._memory, at + _HELD_SINCE_AT)[0]:
            self._memory[at] = HELD
            return False
        return True

    def take_back(self, place: int) -> None:
        """Note that it did not start in the process it was sent to, and waits here again."""
        self._memory[self._begins[place]] = HELD

    def end(self, place: int) -> None:
        """Note that its handler has ended; the outcome still has to be settled."""
        _TIME.pack_into(self._memory, self._begins[place] + _DEADLINE_AT, NEVER)

    def prolong(self, place: int, deadline: float) -> None:
        """Note until when its end is seen to by the process itself."""
        _TIME.pack_into(self._memory, self._begins[place] + _DEADLINE_AT, deadline)

    def ask(self, place: int, deadline: float) -> None:
        """Note that `reconcile` is being asked, until then, whether the run had an effect."""
        at = self._begins[place]
        _TIME.pack_into(self._memory, at + _DEADLINE_AT, deadline)
        self._memory[at + 1] = UNCLEAR
        self._memory[at] = RUNNING

    def clear(self, place: int) -> None:
        """Forget a job: it was settled, or given up."""
        self._memory[self._begins[place]] = FREE
        self._free.append(place)

    def beat(self, now: float, ended: int) -> None:
        """Show that the event loop turns, and how many jobs have ended."""
        _TIME.pack_into(self._memory, _PULSE_AT, now)
        _COUNT.pack_into(self._memory, _ENDED_AT, ended)

    @property
    def spare_until(self) -> float:
        """Until when passed leases are to be left alone, as the supervisor says."""
        return self._time(_SPARE_AT)

    @property
    def revoked_at(self) -> float:
        """The time of the last revocation: nothing starts that was asked for until then."""
        return self._time(_REVOKED_AT)

    # For the supervisor

    def spare(self, until: float) -> None:
        """Have passed leases left alone until then."""
        _TIME.pack_into(self._memory, _SPARE_AT, until)

    def revoke(self, now: float) -> None:
        """Have nothing started any more that was asked for until now."""
        _TIME.pack_into(self._memory, _REVOKED_AT, now)
        self._memory[_EVER_REVOKED_AT] = 1

    def watch(self, tick: float) -> None:
        """Take note of whether the event loop turns. Called every `tick` seconds.

        Seen from here and not from its own clock: if we stood still, so did it. A
        process that has not begun does not stand still.
        """
        pulse = self.pulse
        self.still = self.still + tick if pulse and pulse == self._seen_pulse else 0.0
        self._seen_pulse = pulse

    @property
    def waits(self) -> bool:
        """Whether something was asked for since the last revocation, and has not started."""
        revoked_at = self.revoked_at
        return (self._asking > 0 and self.asked_at > revoked_at) or any(
            mark.only_held and mark.held_since > revoked_at for mark in self.marks()
        )

    @property
    def asked_at(self) -> float:
        """When the process last asked for a claim."""
        return self._time(_ASKED_AT)

    @property
    def _asking(self) -> int:
        return int(_COUNT.unpack_from(self._memory, _ASKING_AT)[0])

    def _time(self, at: int) -> float:
        return float(_TIME.unpack_from(self._memory, at)[0])

    @property
    def pulse(self) -> float:
        """When the event loop last turned."""
        return self._time(_PULSE_AT)

    @property
    def ended(self) -> int:
        """How many jobs have ended in this process."""
        return int(_COUNT.unpack_from(self._memory, _ENDED_AT)[0])

    def marks(self) -> Iterator[Mark]:
        """Go through the jobs on the board."""
        for at in self._begins:
            if self._memory[at] != FREE:
                state, kind, task, fence, started_at, *times, thread, job_id = _RECORD.unpack_from(
                    self._memory, at
                )
                deadline, held_since, since = times
                if state != FREE:
                    yield Mark(
                        state == RUNNING,
                        kind,
                        task,
                        fence,
                        started_at,
                        deadline,
                        held_since,
                        since,
                        thread,
                        JobId(job_id.rstrip(b"\0").decode("utf-8", "replace")),
                        state == SENT,
                    )

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()


def _size(places: int) -> int:
    """Return how long a board with so many records is."""
    return _HEADER.size + places * _RECORD.size


def _made(memory: mmap.mmap) -> mmap.mmap:
    """Write on a new board how it is made."""
    _LENGTHS.pack_into(memory, _LENGTHS_AT, _HEADER.size, _RECORD.size)
    return memory
