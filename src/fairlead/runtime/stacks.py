"""Where another process is, asked in a way that works even while it holds the interpreter lock.

The process registers `faulthandler` for a signal, which writes all stacks from
C, into a file without a name that both have open. Whoever wants to know sends the
signal and reads.
"""

import asyncio
import faulthandler
import os
import re
import signal
import sys
from pathlib import Path

from fairlead.runtime.spawn import anonymous_file

SIGNAL = signal.SIGUSR2
_PATIENCE = 0.5
_OURS = str(Path(__file__).parents[1]) + os.sep
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


def answer(handle: int) -> None:
    """In the process: write the stacks to this descriptor when asked."""
    faulthandler.register(SIGNAL, file=handle, all_threads=True, chain=False)


class Stacks:
    """The other side: asks one process."""

    def __init__(self, handle: int | None = None) -> None:
        self.handle = anonymous_file("fairlead-stacks") if handle is None else handle

    async def ask(self, pid: int) -> dict[int, str]:
        """Return the innermost line of every thread, by its id; empty if there is no answer."""
        if self.handle < 0:
            return {}
        os.ftruncate(self.handle, 0)
        os.lseek(self.handle, 0, os.SEEK_SET)  # The descriptor's position is shared, too.
        try:
            os.kill(pid, SIGNAL)
        except ProcessLookupError:
            return {}
        text, size = "", -1
        for _ in range(10):
            await asyncio.sleep(_PATIENCE / 10)
            if self.handle < 0:
                return {}  # Closed meanwhile; the number may be another file's now.
            text = os.pread(self.handle, 1 << 20, 0).decode("utf-8", "replace")
            if text and len(text) == size:
                break
            size = len(text)
        return innermost(text)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.handle)
        self.handle = -1


def innermost(text: str) -> dict[int, str]:
    """Read what `faulthandler` wrote: every thread's innermost line that is not a library's."""
    found: dict[int, str] = {}
    parts = _THREAD.split(text)
    for ident, stack in zip(parts[1::2], parts[2::2], strict=True):
        frames = [f"{file}:{line} in {name}" for file, line, name in _FRAME.findall(stack)]
        if frames:
            found[int(ident, 16)] = _of_a_user(frames)
    return found


def line_of(ident: int) -> str | None:
    """Return the innermost line of a thread of this process that is not a library's."""
    frame = sys._current_frames().get(ident)  # noqa: SLF001 (the documented way)
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return _of_a_user(frames) if frames else None


def is_of_a_user(line: str) -> bool:
    """Say whether a line is neither Python's, nor a library's, nor ours."""
    return not ("/lib/python" in line or "<frozen" in line or line.startswith(_OURS))


def _of_a_user(frames: list[str]) -> str:
    return next(filter(is_of_a_user, frames), frames[0])
