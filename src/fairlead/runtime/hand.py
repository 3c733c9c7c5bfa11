"""A process that runs handlers for this one, from outside: what it is told, and what it says."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from fairlead.runtime.frames import Frames, frame
from fairlead.runtime.recruit import Recruit
from fairlead.runtime.solo import Word
from fairlead.runtime.stacks import Stacks

Hire = Callable[[int, bool], None]
"""Told of every process that begins (True) or has ended (False)."""


class Hand:
    """One process, and the socket to it: a `recruit`, or a process that is started now.

    `on_news` is called when there is something to receive.
    """

    def __init__(
        self,
        role: str,
        target: str,
        hire: Hire,
        on_news: Callable[[], None],
        handles: Sequence[int] = (),
        recruit: Recruit | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._hire = hire
        recruit = recruit or Recruit(role, target, handles)
        self._stacks, self._spawned = Stacks(recruit.stacks), recruit.spawned
        self.pid = self._spawned.pid
        self._frames: Frames[Word] = Frames(Word)
        self._outgoing = bytearray()
        hire(self.pid, True)
        self._loop.add_reader(self._spawned.socket, on_news)

    @property
    def dead(self) -> bool:
        """Whether it has ended, even if something that it forked keeps its socket open."""
        return self._spawned.process.poll() is not None

    def tell(self, message: object) -> None:
        """Send a message; to a process that is no more it is simply lost."""
        self._outgoing += frame(message)
        self._flush()

    def _flush(self) -> None:
        handle = self._spawned.socket
        try:
            sent = handle.send(self._outgoing) if self._outgoing else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # It died, which `receive` tells.
        del self._outgoing[:sent]
        if self._outgoing:
            self._loop.add_writer(handle, self._flush)
        else:
            self._loop.remove_writer(handle)

    def receive(self) -> tuple[list[Word], bool]:
        """Return what it has said, and whether that was its last word."""
        words: list[Word] = []
        while True:
            try:
                data = self._spawned.socket.recv(1 << 18)
            except BlockingIOError:
                return words, False
            except OSError:
                data = b""
            if not data:
                return words, True
            words += self._frames.feed(data)

    async def lines(self) -> dict[int, str]:
        """Return the line that each of its threads is at, the main one last."""
        return await self._stacks.ask(self.pid)

    def signal(self, number: int) -> None:
        """Send a signal to it and what it started."""
        self._spawned.signal(number)

    def leave(self) -> None:
        """Have it end by itself: there is nothing more to tell it."""
        with suppress(OSError):  # It is gone already.
            self._spawned.socket.shutdown(socket.SHUT_WR)

    def bury(self) -> tuple[str, list[Word]]:
        """See it to its end, with what it started; says how it ended, and its last words."""
        self._loop.remove_reader(self._spawned.socket)
        self._loop.remove_writer(self._spawned.socket)
        how = self._spawned.reap()
        words, _ = self.receive()
        self._spawned.socket.close()
        self._stacks.close()
        self._hire(self.pid, False)
        return how, words
