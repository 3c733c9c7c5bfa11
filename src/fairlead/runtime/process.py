"""A worker process from inside: its stations, and an ear for its supervisor."""

import asyncio
import os
import signal
import socket
from functools import partial

from fairlead.core.errors import SchemaOutdated
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
    Outdated,
    Ready,
    Stop,
    ToProcess,
    ToSupervisor,
)
from fairlead.runtime.recruit import Recruit
from fairlead.runtime.worker import Worker
from fairlead.runtime.workshop import Workshop

_OPEN_SECONDS = 1.0


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
    channel.setblocking(False)
    if (problem := await _outdated(workshop)) is not None:
        _tell_outdated(channel, problem)
        _say(channel, Leaving())
        return
    hire, tell_outdated = partial(_tell_of_process, channel), partial(_tell_outdated, channel)
    worker = Worker(
        *(workshop, begin.worker, board, target, hire, recruit, tell_outdated), is_watched=True
    )
    frames: Frames[ToProcess] = Frames(ToProcess)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    loop.add_reader(channel, _listen, channel, frames, worker)
    loop.add_signal_handler(signal.SIGTERM, worker.stop, begin.terms.grace)
    _say(channel, Ready())
    await worker.run()
    _say(channel, Leaving())


async def _outdated(workshop: Workshop) -> SchemaOutdated | None:
    """Open the store; returns what it says, if that is that this program is too old for it.

    If it says nothing, or does not answer soon, the stations meet that in their own way.
    """
    opening = asyncio.ensure_future(workshop.store.open())
    opening.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([opening], timeout=_OPEN_SECONDS)
    problem = opening.exception() if opening.done() else None
    return problem if isinstance(problem, SchemaOutdated) else None


def _listen(channel: socket.socket, frames: Frames[ToProcess], worker: Worker) -> None:
    try:
        data = channel.recv(1 << 18)
    except BlockingIOError:
        return
    except OSError:
        data = b""
    if not data:
        os._exit(1)  # The supervisor is no more, and with it who renews our leases.
    for message in frames.feed(data):
        _heed(message, worker)


def _heed(message: ToProcess, worker: Worker) -> None:
    match message:
        case Stop(grace):
            worker.stop(grace)
        case Lost(pairs):
            worker.lost(pairs)
        case Cancel(pairs):
            worker.cancel(pairs)
        case Inherit(run):
            worker.inherit(run)


def _tell_of_process(channel: socket.socket, pid: int, begins: bool) -> None:  # noqa: FBT001 (told by position)
    _say(channel, Hired(pid) if begins else Gone(pid))


def _tell_outdated(channel: socket.socket, problem: SchemaOutdated) -> None:
    _say(channel, Outdated(str(problem)))


def _say(channel: socket.socket, message: ToSupervisor) -> None:
    # A few short messages: the socket's buffer takes them while the supervisor is busy.
    channel.setblocking(True)
    try:
        channel.sendall(frame(message))
    finally:
        channel.setblocking(False)
