"""What another user of the machine can do with names beside the file: nothing (T22, T27)."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

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
    for look in (store.open, store.migrations):
        with pytest.raises(StoreUnavailable, match=f"jobs.db{ending} is a link.*remove it"):
            await look()


@pytest.mark.parametrize("ending", ["-turn", "-checkpoint"])
async def test_a_lock_is_never_opened_through_a_link(path: Path, secret: Path, ending: str) -> None:
    """Also if the link is made after everything was looked at."""
    await make(path)
    linked(Path(f"{path}{ending}"), secret)
    with pytest.raises(StoreUnavailable, match=f"jobs.db{ending} is a link"):
        Place(path).open_beside(ending)


async def test_a_lock_that_is_no_file_is_refused_at_once(path: Path) -> None:
    await make(path)
    os.mkfifo(f"{path}-turn")
    with pytest.raises(StoreUnavailable, match="jobs.db-turn is no ordinary file; remove it"):
        await store_for(f"sqlite:///{path}").open()


@as_root
async def test_what_was_found_is_given_to_nobody(path: Path) -> None:
    """Somebody may have moved a file of ours there."""
    await make(path, STRANGER)
    Path(f"{path}-turn").write_text("ours")
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
        assert await store.count()
        await store.close()
        os.chown(path.parent, 2, 2)
    if owner != STRANGER:
        for look in (store_for(url).open, store_for(url).migrations):
            with pytest.raises(StoreUnavailable, match=f"{link.name} is a link.*remove it"):
                await look()


async def test_a_link_of_our_own_may_say_where_the_file_is(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").symlink_to(tmp_path / "elsewhere.db")
    await make(tmp_path / "jobs.db")
    assert (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize(
    ("which", "mode", "told"),
    [
        ("file", 0o602, "every user of this machine can write the file"),
        ("file", 0o604, "every user of this machine can read the file"),
        ("file", 0o620, "every user of the file's group can write it"),
        ("folder", 0o777, "every user of this machine can write in"),
        ("folder", 0o1777, None),
        ("file", 0o640, None),
    ],
)
async def test_the_doctor_tells_who_else_may_write(
    tmp_path: Path, which: str, mode: int, told: str | None
) -> None:
    path = tmp_path / "jobs.db"
    store = store_for(f"sqlite:///{path}")
    await store.open()
    (path if which == "file" else tmp_path).chmod(mode)
    findings = [each.problem for each in (await store.condition()).findings]
    ours = [each for each in findings if each.startswith("every user")]
    assert [each[: len(told or "")] for each in ours] == ([told] if told else [])
    await store.close()
