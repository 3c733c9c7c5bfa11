"""A worker process from inside: its stations, and an ear for its supervisor."""

import asyncio
import os
import signal
import socket

from fairlead.runtime.board import Board
from fairlead.runtime.frames import Frames, frame
from fairlead.runtime.messages import (
    Begin,
    Cancel,
    Gone,
    Hired,
    Inherit,
    Leaving,
    Lost,
    Ready,
    Stop,
    ToProcess,
    ToSupervisor,
)
from fairlead.runtime.recruit import Recruit
from fairlead.runtime.worker import Worker
from fairlead.runtime.workshop import Workshop


def first_word(channel: socket.socket) -> Begin:
    """Wait for the supervisor's first message."""
    frames: Frames[ToProcess] = Frames(ToProcess)  # type: ignore[arg-type]
    while data := channel.recv(1):  # No more than this message: what follows is for the loop.
        for message in frames.feed(data):
            assert isinstance(message, Begin)
            return message
    os._exit(1)


async def serve(
    workshop: Workshop,
    begin: Begin,
    target: str,
    channel: socket.socket,
    board: Board,
    recruit: Recruit | None,
) -> None:
    """Work until the supervisor says stop, or is no more. A `recruit` runs the first suspects."""
    await _Process(workshop, begin, target, channel, board, recruit).run()


class _Process:
    def __init__(
        self,
        workshop: Workshop,
        begin: Begin,
        target: str,
        channel: socket.socket,
        board: Board,
        recruit: Recruit | None,
    ) -> None:
        channel.setblocking(False)
        self._channel = channel
        self._frames: Frames[ToProcess] = Frames(ToProcess)  # type: ignore[arg-type]
        self._grace = begin.terms.grace
        self._worker = Worker(
            workshop, begin.worker, board, target, self._hire, recruit, is_watched=True
        )

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._channel, self._listen)
        loop.add_signal_handler(signal.SIGTERM, self._worker.stop, self._grace)
        self._say(Ready())
        await self._worker.run()
        self._say(Leaving())

    def _listen(self) -> None:
        try:
            data = self._channel.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(1)  # The supervisor is no more, and with it who renews our leases.
        for message in self._frames.feed(data):
            self._heed(message)

    def _heed(self, message: ToProcess) -> None:
        match message:
            case Stop(grace):
                self._worker.stop(grace)
            case Lost(pairs):
                self._worker.lost(pairs)
            case Cancel(pairs):
                self._worker.cancel(pairs)
            case Inherit(job, outcome):
                self._worker.inherit(job, outcome)

    def _hire(self, pid: int, begins: bool) -> None:  # noqa: FBT001 (told by position)
        self._say(Hired(pid) if begins else Gone(pid))

    def _say(self, message: ToSupervisor) -> None:
        # A few short messages: the socket's buffer takes them while the supervisor is busy.
        self._channel.setblocking(True)
        try:
            self._channel.sendall(frame(message))
        finally:
            self._channel.setblocking(False)
