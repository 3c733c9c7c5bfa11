"""The server's disk is full, and then it is not (F30)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import State
from fairlead.core.errors import StoreUnavailable
from tests.servers.postgres import PostgresServer
from tests.system.disk import Disk
from tests.system.faults import PostgresShop
from tests.system.tree import until


@pytest.fixture
def disk() -> Iterator[tuple[PostgresServer, Disk]]:
    """A server with a database of its own on a small disk."""
    with PostgresServer() as server, Disk(server.folder, 48) as disk:
        try:
            server.execute(f"CREATE TABLESPACE small LOCATION '{disk.path}'")
            server.execute("CREATE DATABASE small TABLESPACE small")
            yield server, disk
        finally:
            server.stop("immediate")


@pytest.fixture
def small_shop(tmp_path: Path, disk: tuple[PostgresServer, Disk]) -> Iterator[PostgresShop]:
    with PostgresShop(tmp_path, disk[0], database="small") as shop:
        yield shop


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
