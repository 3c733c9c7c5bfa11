"""A small disk in memory, which a test fills."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.needs import without


class Disk:
    """A disk of so many megabytes in a folder; it belongs to the folder's owner."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.path = folder / "disk"
        self._owner = folder.stat()
        self._megabytes = megabytes
        self._ballast = self.path / "ballast"

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            without("only root can mount a small disk")
        self.path.mkdir()
        size, owner = f"size={self._megabytes}m", self._owner
        options = f"{size},uid={owner.st_uid},gid={owner.st_gid}"
        try:
            _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path))
        except subprocess.CalledProcessError as problem:
            self.path.rmdir()
            without(f"no small disk can be mounted here: {problem.stderr.decode().strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", "--lazy", str(self.path))
        self.path.rmdir()

    def fill(self) -> None:
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        self._ballast.unlink()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
