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

    def __init__(self, begin: Begin, target: str, places: int, now: float) -> None:
        self.worker = begin.worker
        self.started_at = now
        self.ready = False
        self.leaving = False
        self.retiring = False
        self.condemned = False
        self.looking = False
        self.kill_at: float | None = None
        self.lines: dict[int, str] = {}
        self.stacks = Stacks()
        self.board, handle = Board.shared(places)
        try:
            self.spawned = Spawned("worker", target, (handle, self.stacks.handle))
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
            case Leaving():
                self.leaving = True
            case Hired(pid):
                self._hired.add(pid)
            case Gone(pid):
                self._hired.discard(pid)

    def deaf(self, now: float) -> bool:
        """Say whether its event loop stands still."""
        return self.ready and now - self.board.pulse > _DEAF_SECONDS

    async def look(self) -> dict[int, str]:
        """Return the line every thread of it is at."""
        self.lines = await self.stacks.ask(self.pid) if self.ready else {}
        return self.lines

    def bury(self, now: float) -> Death:
        """See it to its end, with all that it started; returns what is known then."""
        self.listen()
        how = self.spawned.reap()
        for pid in self._hired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        on_purpose = self.leaving or self.condemned
        return Death(self.worker, how, tuple(self.board.marks()), now, on_purpose, self.lines)

    def close(self) -> None:
        """Let go of everything."""
        self.spawned.socket.close()
        self.stacks.close()
        self.board.close()
