"""What another user of the machine can do with names beside the file: nothing (T22, T27)."""

import os
import pwd
import socket
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import StoreUnavailable
from fairlead.stores import store_for
from fairlead.stores.sqlite.connection import SIDES, Place
from tests.words import new_job

STRANGER = 65_534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two users")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The name of a file in a folder that belongs to somebody else."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
    return folder / "jobs.db"


@pytest.fixture
def secret(tmp_path: Path) -> Iterator[Path]:
    """A file of ours that nobody else may touch; nobody has when the test is over."""
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    before = secret.stat()
    yield secret
    after = secret.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        *(before.st_uid, before.st_gid, before.st_mode),
    )
    assert secret.read_text() == "secret"


async def make(path: Path, owner: int | None = None) -> None:
    """Make a file with a job in it, and leave nothing beside it."""
    store = store_for(f"sqlite:///{path}")
    await store.put([new_job()])
    await store.close()
    for ending in SIDES:
        Path(f"{path}{ending}").unlink(missing_ok=True)
    if owner is not None:
        os.chown(path, owner, owner)


def linked(link: Path, target: Path) -> None:
    link.symlink_to(target)
    if os.geteuid() == 0:
        os.chown(link, STRANGER, STRANGER, follow_symlinks=False)


@pytest.mark.parametrize("make_link", [linked, os.link], ids=["symbolic", "hard"])
@pytest.mark.parametrize("ending", SIDES)
async def test_a_side_file_that_is_a_link_is_refused(
    path: Path, secret: Path, ending: str, make_link: Callable[[Path, Path], None]
) -> None:
    """A link named jobs.db-turn gave away the file it led to."""
    await make(path, STRANGER if os.geteuid() == 0 else None)
    if make_link is linked:
        linked(Path(f"{path}{ending}"), secret)
    else:
        os.link(secret, f"{path}{ending}")
    store = store_for(f"sqlite:///{path}")
    for look in (store.open, store.admin.migrations):
        with pytest.raises(StoreUnavailable, match=f"jobs.db{ending} is a link.*remove it"):
            await look()


@pytest.mark.parametrize("ending", ["-turn", "-checkpoint"])
async def test_a_lock_is_never_opened_through_a_link(path: Path, secret: Path, ending: str) -> None:
    """Also if the link is made after everything was looked at."""
    await make(path)
    linked(Path(f"{path}{ending}"), secret)
    with pytest.raises(StoreUnavailable, match=f"jobs.db{ending} is a link"):
        Place(path).open_beside(ending)


@pytest.mark.parametrize("kind", ["a folder", "a named pipe", "a socket", "a device"])
@pytest.mark.parametrize("ending", ["", *SIDES])
async def test_what_is_no_ordinary_file_is_refused_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, kind: str
) -> None:
    """A named pipe let every command wait for ever."""
    if ending:
        await make(path)
    else:
        path.unlink(missing_ok=True)
    monkeypatch.chdir(path.parent)  # The name of a socket is short.
    name = f"jobs.db{ending}"
    if kind == "a folder":
        Path(name).mkdir()
    elif kind == "a named pipe":
        os.mkfifo(name)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(name)
    elif os.geteuid():
        pytest.skip("only root can make devices")
    else:
        os.mknod(name, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    told = f", no ordinary file; {'move it away' if ending else 'name another'}"
    if kind == "a folder" and not ending:
        told = f"; name a file in it, as in sqlite:///{path}/jobs.db"
    for look in (
        store_for(f"sqlite:///{path}").open,
        store_for(f"sqlite:///{path}").admin.migrations,
    ):
        with pytest.raises(StoreUnavailable, match=f"{name} is {kind}{told}"):
            await look()


@as_root
@pytest.mark.parametrize("ending", SIDES)
async def test_a_side_file_that_a_stranger_made_is_refused(path: Path, ending: str) -> None:
    """Made beforehand in a folder for all, it let him read the arguments of every job."""
    await make(path)
    side = Path(f"{path}{ending}")
    side.touch(0o600)
    os.chown(side, STRANGER, STRANGER)
    for look in (
        store_for(f"sqlite:///{path}").open,
        store_for(f"sqlite:///{path}").admin.migrations,
    ):
        told = f"jobs.db{ending} was made by user {STRANGER}, who may not write.*remove it"
        with pytest.raises(StoreUnavailable, match=told):
            await look()
    path.chmod(0o602)  # He may do anything with the jobs now.
    store = store_for(f"sqlite:///{path}")
    await store.open()
    await store.close()


@as_root
async def test_a_stranger_is_not_waited_for_with_his_side_files(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He may be quicker than SQLite, which takes what it finds."""
    await make(path)

    def prepare(_: Place, connection: sqlite3.Connection) -> None:
        Path(f"{path}-wal").touch(0o600)
        os.chown(f"{path}-wal", STRANGER, STRANGER)

    monkeypatch.setattr(Place, "_prepare", prepare)
    with pytest.raises(StoreUnavailable, match="jobs.db-wal was made by user"):
        Place(path).connect()


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620, 0o666])
async def test_a_side_file_for_more_users_than_the_file_is_refused(path: Path, mode: int) -> None:
    await make(path)
    side = Path(f"{path}-wal")
    side.touch()
    side.chmod(mode)
    with pytest.raises(StoreUnavailable, match=f"jobs.db-wal can be used by.*chmod 600 {side}"):
        await store_for(f"sqlite:///{path}").open()


@as_root
@pytest.mark.parametrize("group", [0, 1])
async def test_who_shares_the_file_by_its_group_may_make_side_files(
    path: Path, monkeypatch: pytest.MonkeyPatch, group: int
) -> None:
    await make(path)
    path.chmod(0o660)
    os.chown(path, 0, 0)
    other = pwd.getpwall()[1]
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [group])
    Path(f"{path}-turn").touch(0o660)
    os.chown(f"{path}-turn", other.pw_uid, other.pw_gid)
    if group:
        with pytest.raises(StoreUnavailable, match="jobs.db-turn was made by user"):
            await store_for(f"sqlite:///{path}").open()
    else:
        os.close(Place(path).open_beside("-turn"))


@as_root
async def test_what_was_found_is_given_to_nobody(path: Path) -> None:
    """Somebody may have moved a file of ours there."""
    await make(path, STRANGER)
    Path(f"{path}-turn").touch(0o600)
    os.close(Place(path).open_beside("-turn"))
    assert Path(f"{path}-turn").stat().st_uid == 0


@as_root
async def test_root_makes_side_files_for_the_owner_of_the_file(path: Path) -> None:
    await make(path, STRANGER)
    path.chmod(0o660)
    before = os.umask(0o077)
    try:
        os.close(Place(path).open_beside("-turn"))
    finally:
        os.umask(before)
    made = Path(f"{path}-turn").stat()
    assert (made.st_uid, made.st_gid) == (STRANGER, STRANGER)
    assert stat.S_IMODE(made.st_mode) == 0o660


@as_root
async def test_no_file_is_made_where_the_link_of_another_user_says(
    path: Path, tmp_path: Path
) -> None:
    linked(path, tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable, match="jobs.db is a link.*remove it"):
        await store_for(f"sqlite:///{path}").open()
    assert not (tmp_path / "elsewhere").exists()


@as_root
@pytest.mark.parametrize("part", ["file", "folder"])
@pytest.mark.parametrize("owner", [0, 1, STRANGER])
@pytest.mark.parametrize("me", [0, 1])
async def test_another_user_leads_us_to_nothing_but_his_own(
    tmp_path: Path, path: Path, part: str, owner: int, me: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of his own he may, but not root: it could be any file of the machine."""
    there = tmp_path / "other"
    there.mkdir()
    await make(there / "jobs.db", owner)
    os.chown(there, owner, owner)
    link = path if part == "file" else path.parent / "folder"
    linked(link, there / "jobs.db" if part == "file" else there)
    url = f"sqlite:///{path if part == 'file' else link / 'jobs.db'}"
    monkeypatch.setattr(os, "geteuid", lambda: me)
    if owner == STRANGER or me:
        store = store_for(url)
        assert await store.admin.count()
        await store.close()
        os.chown(path.parent, 2, 2)
    if owner != STRANGER:
        for look in (store_for(url).open, store_for(url).admin.migrations):
            with pytest.raises(StoreUnavailable, match=f"{link.name} is a link.*remove it"):
                await look()


@as_root
async def test_a_link_that_is_gone_led_nowhere(path: Path, tmp_path: Path) -> None:
    """What it had named when the store was made was written when it had gone."""
    linked(path, tmp_path / "elsewhere")
    store = store_for(f"sqlite:///{path}")
    path.unlink()
    await store.open()
    await store.close()
    assert path.exists()
    assert not (tmp_path / "elsewhere").exists()


@as_root
@pytest.mark.parametrize("part", ["file", "folder"])
async def test_a_link_of_ours_to_a_strangers_link_is_refused(
    tmp_path: Path, path: Path, secret: Path, part: str
) -> None:
    if part == "file":
        linked(path, secret)
        (tmp_path / "ours.db").symlink_to(path)
    else:
        linked(path.parent / "folder", tmp_path)
        (tmp_path / "ours.db").symlink_to(Path("theirs", "..", "theirs", "folder", "secret"))
    store = store_for(f"sqlite:///{tmp_path}/ours.db")
    for look in (store.open, store.admin.migrations):
        with pytest.raises(StoreUnavailable, match="theirs/(jobs.db|folder) is a link.*remove it"):
            await look()


def test_links_that_lead_in_a_ring_are_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").symlink_to("other.db")
    (tmp_path / "other.db").symlink_to("jobs.db")
    with pytest.raises(StoreUnavailable, match="is a link"):
        Place(tmp_path / "jobs.db").connect()


async def test_a_link_that_comes_later_is_refused(tmp_path: Path) -> None:
    """Also one of our own: whoever has the file open goes on with the old one."""
    place = Place(tmp_path / "jobs.db")
    place.connect().close()
    (tmp_path / "jobs.db").rename(tmp_path / "other.db")
    (tmp_path / "jobs.db").symlink_to("other.db")
    for look in (place.connect, place.open):
        with pytest.raises(StoreUnavailable, match="jobs.db was replaced by a link"):
            look()


@pytest.mark.parametrize("there", [True, False])
async def test_a_link_that_comes_between_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    """SQLite follows links, and would make the file that is not there."""
    path, other = tmp_path / "jobs.db", tmp_path / "other.db"
    await make(path)
    if there:
        await make(other)
    connect = sqlite3.connect

    def late(name: str, **options: Any) -> sqlite3.Connection:
        path.rename(tmp_path / "aside.db")
        path.symlink_to(other)
        try:
            return connect(name, **options)
        finally:
            path.unlink()
            (tmp_path / "aside.db").rename(path)

    monkeypatch.setattr(sqlite3, "connect", late)
    told = "was replaced by a link" if there else "unable to open"
    with pytest.raises(StoreUnavailable, match=told):
        Place(path).connect()
    assert other.exists() == there


async def test_the_name_of_the_file_may_have_any_characters(tmp_path: Path) -> None:
    name = os.fsdecode(b"a?b#c%20 \xff.db")
    Place(tmp_path / name).connect().close()
    assert os.listdir(tmp_path) == [name]


async def test_a_link_of_our_own_may_say_where_the_file_is(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").symlink_to(tmp_path / "elsewhere.db")
    await make(tmp_path / "jobs.db")
    assert (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize(
    ("which", "mode", "told"),
    [
        ("file", 0o602, "every user of this machine can write the file"),
        ("file", 0o604, "every user of this machine can read the file"),
        ("file", 0o620, "every user of the file's group can write the file"),
        ("-wal", 0o602, "every user of this machine can write jobs.db-wal, and"),
        ("-shm", 0o602, "every user of this machine can write jobs.db-shm, and"),
        ("-turn", 0o602, "every user of this machine can write jobs.db-turn, and with it hold up"),
        ("-wal", 0o604, "every user of this machine can read jobs.db-wal, and"),
        ("-wal", 0o620, "every user of the file's group can write jobs.db-wal, and"),
        ("folder", 0o777, "every user of this machine can write in"),
        ("folder", 0o1777, None),
        ("above", 0o777, "every user of this machine can write in"),
        ("above", 0o1777, None),
        ("above", 0o755, None),
        ("file", 0o640, None),
    ],
)
async def test_the_doctor_tells_who_else_may_write(
    tmp_path: Path, which: str, mode: int, told: str | None
) -> None:
    folder = tmp_path / "all" / "ours"
    folder.mkdir(parents=True)
    path = folder / "jobs.db"
    store = store_for(f"sqlite:///{path}")
    await store.put([new_job()])
    places = {"file": path, "folder": folder, "above": folder.parent}
    places.get(which, Path(f"{path}{which}")).chmod(mode)
    findings = [each.problem for each in (await store.admin.condition()).findings]
    ours = [each for each in findings if each.startswith("every user")]
    assert [each[: len(told or "")] for each in ours] == ([told] if told else [])
    await store.close()


@pytest.mark.parametrize("is_file", [True, False])
async def test_the_doctor_tells_who_else_may_replace_a_link_to_the_file(
    tmp_path: Path, is_file: bool
) -> None:
    ours, open_to_all = tmp_path / "ours", tmp_path / "open"
    ours.mkdir()
    open_to_all.mkdir()
    await make(ours / "jobs.db")
    link = open_to_all / ("jobs.db" if is_file else "ours")
    link.symlink_to(ours / "jobs.db" if is_file else ours)
    store = store_for(f"sqlite:///{link if is_file else link / 'jobs.db'}")
    await store.put([new_job()])
    for mode, told in ((0o777, [f"replace {link}, which leads to the file"]), (0o1777, [])):
        open_to_all.chmod(mode)
        findings = [each.problem for each in (await store.admin.condition()).findings]
        assert [each[-len(told[0]) :] for each in findings if "every user" in each] == told
    await store.close()


async def test_the_doctor_tells_once_what_holds_for_all_files(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    await make(path)
    path.chmod(0o604)
    store = store_for(f"sqlite:///{path}")
    await store.put([new_job()])
    assert Path(f"{path}-wal").stat().st_mode & 0o777 == 0o604
    findings = [each.problem for each in (await store.admin.condition()).findings]
    assert sum("every user" in each for each in findings) == 1
    await store.close()
