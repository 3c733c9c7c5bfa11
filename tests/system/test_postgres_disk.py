"""The server's disk is full, and then it is not (F30)."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead import State
from fairlead.core.errors import StoreUnavailable
from tests.servers.postgres import PostgresServer
from tests.system.faults import PostgresShop
from tests.system.tree import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


class Disk:
    """A small disk in memory, which belongs to who runs the server."""

    def __init__(self, folder: Path, owner: os.stat_result, megabytes: int) -> None:
        self.path = folder / "disk"
        self.path.mkdir()
        self._ballast = self.path / "ballast"
        run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(self.path))
        self.space = self.path / "space"
        self.space.mkdir()
        os.chown(self.path, owner.st_uid, owner.st_gid)
        os.chown(self.space, owner.st_uid, owner.st_gid)

    def fill(self) -> None:
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        self._ballast.unlink()

    def close(self) -> None:
        run("umount", "--lazy", str(self.path))


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def disk() -> Iterator[tuple[PostgresServer, Disk]]:
    """A server with a database of its own on a small disk."""
    with PostgresServer() as server:
        disk = Disk(server.folder, server.folder.stat(), 48)
        try:
            server.execute(f"CREATE TABLESPACE small LOCATION '{disk.space}'")
            server.execute("CREATE DATABASE small TABLESPACE small")
            yield server, disk
        finally:
            server.stop("immediate")
            disk.close()


@pytest.fixture
def small_shop(tmp_path: Path, disk: tuple[PostgresServer, Disk]) -> Iterator[PostgresShop]:
    shop = PostgresShop(tmp_path, disk[0], database="small")
    try:
        yield shop
        shop.finish()
    finally:
        shop.close()
        shop.app.close()


@pytest.mark.timeout(120)
def test_a_full_disk_is_told_and_room_is_all_it_takes(
    small_shop: PostgresShop, disk: tuple[PostgresServer, Disk]
) -> None:
    """I1, L2: what cannot be kept is refused; what was accepted is done when there is room."""
    tree = small_shop.start("--lease", "2")
    small_shop.until_up()
    running = [small_shop.put("wait", 3.0) for _ in range(5)]
    for job in running:
        small_shop.until_started(job)
    disk[1].fill()
    with pytest.raises(StoreUnavailable, match="the server has no room"):
        for _ in range(1000):
            small_shop.put_many("quick", 100)
    with pytest.raises(StoreUnavailable, match="the server has no room"):
        call = small_shop.module.quick.call
        small_shop.app.bridge.run(small_shop.app.store.put([call().job for _ in range(1000)]))
    for job in running:
        until(lambda: small_shop.lines(job, "end"), 20, "the end of a handler")
    tree.until_log("the server has no room")
    disk[1].make_room()
    small_shop.check_back()
    small_shop.until_final(seconds=40)
    for job in small_shop.accepted:
        record = small_shop.record(job)
        assert (record.state, len(small_shop.starts(job))) == (State.DONE, 1)
