"""Leaves nothing of a server behind, however we end: a process that outlives us by a moment.

It waits at the end of a pipe, is told which process to mind, and when whoever told
it is gone without a word it kills that process with its family, and removes the
folder.
"""

import os
import select
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from fairlead.bench.servers import family

DONE = "done"


class Guard:
    """Minds a folder, and the process that works in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._owner = os.getpid()
        self._process = subprocess.Popen(  # noqa: S603 (this interpreter, our own module)
            [sys.executable, "-m", "fairlead.bench.servers.guard", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Who presses Ctrl-C means the program.
        )

    def mind(self, pid: int) -> None:
        """Take this process along when the end comes."""
        self._say(str(pid))

    def close(self) -> None:
        """Remove the folder ourselves, and let the guard go."""
        if os.getpid() != self._owner:
            return  # A fork of ours ends; the server is not its business.
        sweep(self._folder)
        self._say(DONE)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()


def sweep(folder: Path) -> None:
    """Remove the folder, and the shared memory of a PostgreSQL that was killed in it."""
    for path in folder.glob("*/postmaster.pid"):
        with suppress(OSError, IndexError, ValueError):
            key_and_id = path.read_text().splitlines()[6].split()
            subprocess.run(  # noqa: S603 (a fixed command and a number)
                ["/usr/bin/env", "ipcrm", "-m", str(int(key_and_id[1]))],
                capture_output=True,
                check=False,
            )
    shutil.rmtree(folder, ignore_errors=True)


def _told() -> list[str]:
    """Read what we are told until nobody can tell us more."""
    owner, heard = os.getppid(), b""
    # The end of the pipe does not suffice: a child that our owner forked may hold it too.
    while os.getppid() == owner:
        if select.select([0], [], [], 0.2)[0]:
            heard += (said := os.read(0, 4096))
            if not said:
                break
    return heard.decode().split()


def main(folder: Path) -> None:
    """Wait, and sweep unless we were told that it is done."""
    words = _told()
    if DONE in words:
        return
    # Its number may be another's by now; but nobody else has our folder in the command.
    if words and str(folder).encode() in family.command(int(words[-1])):
        family.kill(int(words[-1]))
    sweep(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
