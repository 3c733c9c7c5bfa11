"""Ends what handlers started, if the supervisor is killed and cannot do it itself.

Our own processes end by themselves then. A program that a handler started knows
nothing of us; it is in the group of the process that started it. So a shell
waits at the end of a pipe, keeps the list of groups it was told last, and ends
them when the pipe is closed without a word.
"""

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from typing import IO

_SCRIPT = """
trap '' TERM INT HUP QUIT
groups=
while read -r line; do groups=$line; done
[ -z "$groups" ] || kill -s KILL -- $groups
"""


class Guardian:
    """A shell that outlives us by a moment."""

    def __init__(self) -> None:
        self._told = ""
        self._shell = subprocess.Popen(  # noqa: S603 (a fixed script)
            ["/bin/sh", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def watch(self, groups: Iterable[int]) -> None:
        """Say which groups of processes are to end with us."""
        told = " ".join(f"-{group}" for group in sorted(groups))
        if told != self._told:
            self._told = told
            self._say(told)

    def close(self) -> None:
        """Let it go, with nothing to do."""
        self._say("")
        with suppress(OSError):
            self._pipe.close()
        self._shell.wait()

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._shell.stdin is not None
        return self._shell.stdin

    def _say(self, line: str) -> None:
        with suppress(OSError):  # Somebody killed it: then what handlers started may outlive us.
            self._pipe.write(f"{line}\n".encode())
            self._pipe.flush()
