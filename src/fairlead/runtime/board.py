"""What a process has in hand, on a board its supervisor can read, even after the process died.

One record per job, in memory both share: the process writes without a system
call, so the start of a handler is known before it runs, at no cost. The
supervisor reads it to renew leases, to enforce time limits when the process no
longer can, and to tell, when the process is dead, which jobs had started.

A record's state is written last and cleared first, so a reader sees a whole
record or none. Times of deadlines are those of `time.monotonic`, which all
processes of a machine share.
"""

import mmap
import os
import struct
import tempfile
from collections.abc import Iterator

import msgspec

from fairlead.core.ids import JobId

FREE, HELD, RUNNING = 0, 1, 2
ASYNC, THREAD, PROCESS, UNCLEAR = 1, 2, 3, 4
"""In what a handler runs; UNCLEAR says that it ran, and `reconcile` is being asked about it."""

NEVER = float("inf")

_HEADER = struct.Struct("=ddQ")  # pulse, spare_until, ended
_PULSE, _SPARE, _ENDED = struct.Struct("=d"), struct.Struct("=d"), struct.Struct("=Q")
_RECORD = struct.Struct("=BBHqqdddQ36s")  # state, kind, task, fence, … as in `Mark`
_HOLD = struct.Struct("=BHqqdddQ36s")  # the same without the state
_LIMIT, _LIMIT_AT = struct.Struct("=qd"), 12  # started_at, deadline
_SINCE, _SINCE_AT = struct.Struct("=dQ"), 36  # since, thread
_DEADLINE, _DEADLINE_AT = struct.Struct("=d"), 20
_FIRST, _LENGTH = _HEADER.size, _RECORD.size


class Mark(msgspec.Struct, frozen=True):
    """One job on the board: `held` or running, in which kind of runner, since when, until when.

    `started_at` is an instant by the store's clock; `deadline`, `held_since` and
    `since` are monotonic seconds.
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


class Board:
    """The records of one process."""

    def __init__(self, memory: mmap.mmap, handle: int | None = None) -> None:
        self.handle = handle
        """The descriptor by which a process that is started can open it, if it can."""
        self._memory = memory
        self.places = (len(memory) - _FIRST) // _LENGTH
        self._free = list(range(self.places - 1, -1, -1))

    @classmethod
    def private(cls, places: int) -> "Board":
        """Make a board for a process that has no supervisor."""
        return cls(mmap.mmap(-1, _offset(places)))

    @classmethod
    def shared(cls, places: int) -> tuple["Board", int]:
        """Make a board and the descriptor by which a child can open it."""
        handle = _anonymous_file()
        os.ftruncate(handle, _offset(places))
        return cls(mmap.mmap(handle, _offset(places))), handle

    @classmethod
    def opened(cls, handle: int) -> "Board":
        """Open the board of a descriptor that was passed on."""
        return cls(mmap.mmap(handle, os.fstat(handle).st_size), handle)

    # For the process itself

    @property
    def free(self) -> int:
        """How many more jobs there is a place for."""
        return len(self._free)

    def hold(self, job_id: JobId, fence: int, task: int, now: float) -> int:
        """Note a claimed job; returns its place."""
        place = self._free.pop()
        at = _offset(place)
        _HOLD.pack_into(
            self._memory, at + 1, 0, task, fence, 0, NEVER, now, 0.0, 0, job_id.encode()
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
    ) -> None:
        """Note that its handler is about to run."""
        at = _offset(place)
        _LIMIT.pack_into(self._memory, at + _LIMIT_AT, started_at, deadline)
        _SINCE.pack_into(self._memory, at + _SINCE_AT, now, thread)
        self._memory[at + 1] = kind
        self._memory[at] = RUNNING

    def end(self, place: int) -> None:
        """Note that its handler has ended; the outcome still has to be settled."""
        self.prolong(place, NEVER)

    def prolong(self, place: int, deadline: float) -> None:
        """Note until when its end is seen to by the process itself."""
        _DEADLINE.pack_into(self._memory, _offset(place) + _DEADLINE_AT, deadline)

    def ask(self, place: int, deadline: float) -> None:
        """Note that `reconcile` is being asked, until then, whether the run had an effect."""
        at = _offset(place)
        _DEADLINE.pack_into(self._memory, at + _DEADLINE_AT, deadline)
        self._memory[at + 1] = UNCLEAR
        self._memory[at] = RUNNING

    def clear(self, place: int) -> None:
        """Forget a job: it was settled, or given up."""
        self._memory[_offset(place)] = FREE
        self._free.append(place)

    def beat(self, now: float, ended: int) -> None:
        """Show that the event loop turns, and how many jobs have ended."""
        _PULSE.pack_into(self._memory, 0, now)
        _ENDED.pack_into(self._memory, 16, ended)

    @property
    def spare_until(self) -> float:
        """Until when passed leases are to be left alone, as the supervisor says."""
        return float(_SPARE.unpack_from(self._memory, 8)[0])

    # For the supervisor

    def spare(self, until: float) -> None:
        """Have passed leases left alone until then."""
        _SPARE.pack_into(self._memory, 8, until)

    @property
    def pulse(self) -> float:
        """When the event loop last turned."""
        return float(_PULSE.unpack_from(self._memory, 0)[0])

    @property
    def ended(self) -> int:
        """How many jobs have ended in this process."""
        return int(_ENDED.unpack_from(self._memory, 16)[0])

    def marks(self) -> Iterator[Mark]:
        """Go through the jobs on the board."""
        for place in range(self.places):
            at = _offset(place)
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
                    )

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()


def _offset(place: int) -> int:
    """Return where a record begins; so long is a board with as many before it."""
    return _FIRST + place * _LENGTH


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fairlead-board")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
