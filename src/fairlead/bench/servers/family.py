"""A process and all it started, signalled as one.

PostgreSQL gives each of its processes a session of its own, so there is no group
to signal: the family is found by asking who is whose parent. The head is stopped
first, so that it starts nobody while we look.
"""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def _stat(pid: int) -> list[str]:
    """Return what the kernel knows of a process, from its state on; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def command(pid: int) -> bytes:
    """Return the command line of a process, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def descendants(pid: int) -> list[int]:
    """Return all that a process started, and what those started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) and stat[0] not in "ZX":
            parents[int(entry.name)] = int(stat[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _until(pid: int, states: str) -> None:
    """Wait for a process to be in one of these states, or gone: a signal takes its moment."""
    end = time.monotonic() + 10
    while (stat := _stat(pid)) and stat[0] not in states:
        if time.monotonic() > end:
            raise TimeoutError(f"process {pid} is in state {stat[0]}, not in one of {states}")
        time.sleep(0.001)


def _stop(pid: int) -> None:
    _send(pid, signal.SIGSTOP)
    _until(pid, "TtZX")


def freeze(head: int) -> None:
    """Stop them all, the head first."""
    _stop(head)
    for pid in descendants(head):
        _stop(pid)


def thaw(head: int) -> None:
    """Let them all go on."""
    for pid in (*descendants(head), head):
        _send(pid, signal.SIGCONT)


def kill(head: int) -> None:
    """Kill all at once: nobody can finish, tell others or tidy up. Returns when they are dead."""
    _stop(head)
    family = (*descendants(head), head)
    for pid in family:
        _send(pid, signal.SIGKILL)
    for pid in family:
        _until(pid, "ZX")
