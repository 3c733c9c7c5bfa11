"""The disk under an SQLite file is full, and then it is not (F30)."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead import Fairlead, State, StoreFull
from tests.needs import without
from tests.system.tree import Shop, until


class Disk:
    """A small disk in memory."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self.path = path
        path.mkdir()
        self._ballast = path / "ballast"
        run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path))

    def fill(self) -> None:
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        self._ballast.unlink()


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        without("only root can mount a small disk")
    try:
        disk = Disk(tmp_path / "disk", 16)
    except subprocess.CalledProcessError as problem:
        without(f"no small disk can be mounted here: {problem.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        run("umount", "--lazy", str(disk.path))


@pytest.fixture
def small_shop(disk: Disk) -> Iterator[Shop]:
    shop = Shop(disk.path)
    try:
        yield shop
        shop.finish()
    finally:
        shop.close()
        shop.app.close()


def put_until_full(shop: Shop) -> None:
    with pytest.raises(StoreFull, match="free some space, nothing was accepted"):
        for _ in range(1000):
            shop.put_many("quick", 100)


@pytest.mark.timeout(120)
def test_a_full_disk_is_told_and_room_is_all_it_takes(small_shop: Shop, disk: Disk) -> None:
    """F30, I1, L2: what cannot be kept is refused; what was accepted is done when there is room."""
    small_shop.start("--lease", "4")
    small_shop.put_many("quick", 100)
    small_shop.until_final()
    disk.fill()
    put_until_full(small_shop)
    put_until_full(small_shop)
    disk.make_room()
    until(lambda: _puts(small_shop), 10, "room")
    small_shop.until_final(seconds=60)
    assert {small_shop.record(job).state for job in small_shop.accepted} == {State.DONE}


def test_a_file_that_cannot_be_made_for_want_of_room_is_told_as_that(disk: Disk) -> None:
    app = Fairlead(f"sqlite:///{disk.path}/jobs.db")
    disk.fill()
    with pytest.raises(StoreFull, match="free some space"):
        app.open()
    disk.make_room()
    app.open()
    app.close()


def _puts(shop: Shop) -> bool:
    try:
        shop.put("quick")
    except StoreFull:
        return False
    return True
