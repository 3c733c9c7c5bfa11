"""Which names of the file system are trusted, on the way to the file and beside it (T22, T27).

Other users of the machine may write in folders on that way. Whoever puts a link there wants
another file to be read or written; whoever makes a side file before us can read all that goes
through it; and to open a named pipe waits for ever.
"""

import os
import pwd
import stat
from pathlib import Path, PurePath
from typing import NamedTuple

from fairlead.stores.sqlite.access import is_folder

_MOST_LINKS = 40
"""As many as Linux follows."""

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotTrusted(Exception):
    """A name that somebody else may have put there; says which, and what to do."""


class Way(NamedTuple):
    """Where a path leads, and the links that lead there."""

    end: Path
    links: list[Path]


def follow(path: Path) -> Way:
    """Return where an absolute path leads, hop by hop, as the kernel goes it.

    Not at once: a link of our own may lead to one of a stranger's.
    """
    links: list[Path] = []
    at, ahead = Path("/"), list(path.parts[:0:-1])
    while ahead:
        here = at / ahead.pop()
        if here.name == "..":
            at = at.parent
            continue
        try:
            found = here.lstat()
        except FileNotFoundError:
            return Way(here.joinpath(*reversed(ahead)), links)
        if not stat.S_ISLNK(found.st_mode):
            at = here
            continue
        # Read once: what is judged is what is followed.
        target = PurePath(here.readlink())
        links.append(here)
        if len(links) > _MOST_LINKS or _leads_astray(found.st_uid, at, target):
            raise is_link(here)
        parts = target.parts
        if target.is_absolute():
            at, parts = Path("/"), parts[1:]
        ahead += reversed(parts)
    return Way(at, links)


def _leads_astray(owner: int, folder: Path, target: PurePath) -> bool:
    """Say whether somebody's link leads us to what he has no right to name.

    He may lead us to what is his own. To what is there he may also lead if the folder of the
    link is his, as the kernel allows it in folders like /tmp; but not root, whose rights are
    worth more than any folder.
    """
    me = os.geteuid()
    if owner in (0, me):
        return False
    try:
        return owner not in ((folder / target).stat().st_uid, folder.stat().st_uid if me else None)
    except FileNotFoundError:  # A link to nowhere: what we make would be there.
        return True


def is_link(path: Path) -> NotTrusted:
    """Say that a link stands where none may."""
    return NotTrusted(
        f"{path} is a link, and may lead to a file that is not ours; remove it, and keep "
        "others from writing in this folder"
    )


def check_file(path: Path, found: os.stat_result) -> None:
    """Raise unless what has the name of our file can hold jobs."""
    if stat.S_ISLNK(found.st_mode):
        raise is_link(path)
    if stat.S_ISDIR(found.st_mode):
        raise NotTrusted(is_folder(path))
    if not stat.S_ISREG(found.st_mode):
        raise NotTrusted(f"{path} is {_kind(found)}, no ordinary file; name another")


def check_side(path: Path, found: os.stat_result, like: os.stat_result) -> None:
    """Raise unless a side file is one that we could have made beside a file like this."""
    if stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink > 1):
        raise is_link(path)
    if not stat.S_ISREG(found.st_mode):
        raise NotTrusted(f"{path} is {_kind(found)}, no ordinary file; move it away")
    if not _may_write(found.st_uid, like):
        raise NotTrusted(
            f"{path} was made by user {found.st_uid}, who may not write the file beside it but "
            "could read and change all jobs by it; remove it, and keep others from writing in "
            "this folder"
        )
    if found.st_mode & ~like.st_mode & 0o077:
        raise NotTrusted(
            f"{path} can be used by more users than the file beside it, and holds the same jobs; "
            f"chmod {stat.S_IMODE(like.st_mode):o} {path}"
        )


def _may_write(user: int, like: os.stat_result) -> bool:
    """Say whether a user may write a file like this one, and so may have made what is beside it."""
    if user in (0, os.geteuid(), like.st_uid) or like.st_mode & stat.S_IWOTH:
        return True
    if not like.st_mode & stat.S_IWGRP:
        return False
    try:
        known = pwd.getpwuid(user)
    except KeyError:
        return False
    return like.st_gid in os.getgrouplist(known.pw_name, known.pw_gid)


def _kind(found: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
