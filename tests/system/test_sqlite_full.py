"""The disk under an SQLite file is full, and then it is not (F30)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Fairlead, State, StoreFull
from tests.cli.shop import refused
from tests.system.disk import Disk
from tests.system.tree import Shop, until


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path, 16) as disk:
        yield disk


@pytest.fixture
def small_shop(disk: Disk) -> Iterator[Shop]:
    with Shop(disk.path) as shop:
        yield shop


def put_until_full(shop: Shop) -> None:
    with pytest.raises(StoreFull, match="free some space, nothing was accepted"):
        for _ in range(1000):
            shop.put_many("quick", 100)


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


@pytest.mark.parametrize("there", [False, True], ids=["no file", "a file"])
def test_a_worker_that_finds_no_room_says_so_once_and_exits(
    disk: Disk, tmp_path: Path, there: bool
) -> None:
    """One that runs tries on; one that starts could not even say that it is there."""
    url = f"sqlite:///{disk.path}/jobs.db"
    (tmp_path / "shop.py").write_text(f"from fairlead import Fairlead\napp = Fairlead({url!r})\n")
    if there:
        app = Fairlead(url)
        app.open()
        app.close()
    disk.fill()
    assert "free some space" in refused(tmp_path, "worker", "shop:app", code=1)


def _puts(shop: Shop) -> bool:
    try:
        shop.put("quick")
    except StoreFull:
        return False
    return True
