"""Start a process of our own, in a process group of its own, tied to this one's life.

The group lets us end a process together with whatever its handlers started.
Ctrl-C in a terminal reaches only the supervisor, which then decides.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


class Spawned:
    """A started process and our end of the socket to it."""

    def __init__(self, role: str, target: str, handles: Sequence[int]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            passed = (theirs.fileno(), *handles)
            try:
                self.process = subprocess.Popen(  # noqa: S603 (this interpreter, our own module)
                    [sys.executable, "-m", "fairlead.cli.process", role, target, *map(str, passed)],
                    pass_fds=passed,
                    process_group=0,
                    stdin=subprocess.DEVNULL,
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self.socket = ours
        self.pid = self.process.pid

    def signal(self, number: int) -> None:
        """Send a signal to the process and whatever it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the process and whatever it started."""
        self.signal(signal.SIGKILL)

    def reap(self) -> str:
        """Wait for the process that was killed or has ended; says how it ended."""
        self.kill()
        return how_it_ended(self.process.wait())


def anonymous_file(name: str) -> int:
    """Return the descriptor of a file that nobody else can see, and that is gone with the last."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def how_it_ended(code: int) -> str:
    """Name an exit code for people: the signal, or the number."""
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} (killed, by hand or for want of memory)" if name == "SIGKILL" else name


def die_with_parent(parent: int) -> None:
    """In the new process: have the kernel end it when its parent dies, where it can.

    Elsewhere, and in any case, the end of the socket tells.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
