"""A worker process from outside, as its supervisor sees it."""

import os
import signal
from contextlib import suppress

from fairlead.runtime.board import Board
from fairlead.runtime.frames import Frames, frame
from fairlead.runtime.messages import (
    Begin,
    Gone,
    Hired,
    Leaving,
    Outdated,
    Ready,
    ToProcess,
    ToSupervisor,
)
from fairlead.runtime.spawn import Spawned
from fairlead.runtime.stacks import Stacks
from fairlead.runtime.takeover import Death

_DEAF_SECONDS = 3.0
"""A process whose loop has not turned for so long will not hear what it is told."""


class Child:
    """One process: its socket, its board, and what was decided about it."""

    def __init__(self, begin: Begin, target: str, places: int, role: str = "worker") -> None:
        self.worker = begin.worker
        self.ready = False
        self.leaving = False
        self.outdated: str | None = None
        self.retiring = False
        self.condemned = False
        self.looking = False
        self.told_blocked = False
        self.idle_since: float | None = None
        """Since when it has stood still for a lease, with nothing running that has a limit."""
        self.kill_at: float | None = None
        self.lines: dict[int, str] = {}
        self.stacks = Stacks()
        self.board, handle = Board.shared(places)
        try:
            self.spawned = Spawned(role, target, (handle, self.stacks.handle))
        except OSError:
            self.stacks.close()
            self.board.close()
            raise
        finally:
            os.close(handle)
        self._frames: Frames[ToSupervisor] = Frames(ToSupervisor)  # type: ignore[arg-type]
        self._outgoing = bytearray()
        self._hired: set[int] = set()
        self.tell(begin)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.spawned.pid

    @property
    def groups(self) -> set[int]:
        """The process groups that are to end with it: its own, and those of whom it hired."""
        return {self.pid, *self._hired}

    def kill(self) -> None:
        """End it, and all that it started."""
        for group in self.groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def tell(self, message: ToProcess) -> None:
        """Send a message; to a process that is gone or deaf it is simply lost."""
        self._outgoing += frame(message)
        self.flush()

    def flush(self) -> None:
        """Send what the socket did not take before."""
        with suppress(OSError):
            while self._outgoing:
                del self._outgoing[: self.spawned.socket.send(self._outgoing)]

    def listen(self) -> None:
        """Take in what it has to say."""
        with suppress(OSError):
            while data := self.spawned.socket.recv(1 << 16):
                for message in self._frames.feed(data):
                    self._heed(message)

    def _heed(self, message: ToSupervisor) -> None:
        match message:
            case Ready():
                self.ready = True
            case Outdated(problem):
                self.outdated = problem
            case Leaving():
                self.leaving = True
            case Hired(pid):
                self._hired.add(pid)
            case Gone(pid):
                self._hired.discard(pid)

    @property
    def still(self) -> float:
        """For how many seconds its event loop has not turned."""
        return self.board.still

    @property
    def deaf(self) -> bool:
        """Whether it will not hear what it is told: it starts, or its loop stands still."""
        return not self.ready or self.still > _DEAF_SECONDS

    async def look(self) -> dict[int, str]:
        """Return the line every thread of it is at."""
        self.looking = True
        try:
            self.lines = await self.stacks.ask(self.pid) if self.ready else {}
        finally:
            self.looking = False
        return self.lines

    def bury(self, now: float) -> Death:
        """See it to its end, with all that it started; returns what is known then."""
        self.listen()
        self.kill()
        how = self.spawned.reap()
        on_purpose = self.leaving or self.condemned
        return Death(self.worker, how, tuple(self.board.marks()), now, on_purpose, self.lines)

    def close(self) -> None:
        """Let go of everything."""
        self.spawned.socket.close()
        self.stacks.close()
        self.board.close()
