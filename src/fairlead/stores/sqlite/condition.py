"""How the file is: facts for people, and what in its set-up will hurt."""

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from fairlead.core.admin import Condition, Finding
from fairlead.stores.sqlite.connection import SIDES, Place
from fairlead.stores.sqlite.migrate import newest, version

_MB = 1_000_000
_LARGE_LOG = 256 * _MB
_LITTLE_ROOM = 500 * _MB
_SAFE_CHECKPOINTS = (3, 51, 3)
_NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "ceph", "glusterfs", "9p", "afs")


def condition(connection: sqlite3.Connection, place: Place) -> Condition:
    """Look at the file, its disk and the library that reads it."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    facts = {
        "file": str(place.path),
        "size": _size(place.path),
        "log": f"{mode}, {_size(place.wal)}",
        "durability": place.durability,
        "schema": _schema(connection),
        "sqlite": sqlite3.sqlite_version,
        "file system": _file_system(place.path) or "unknown",
        "room": f"{shutil.disk_usage(place.path.parent).free // _MB:,} MB free",
    }
    return Condition(facts, list(_findings(place)))


def _schema(connection: sqlite3.Connection) -> str:
    """Tell how far the schema is, and how much of it this program knows."""
    found, known = version(connection), newest()
    return f"{found} of {known}" if found <= known else f"{found}, of which we know {known}"


def _size(path: Path) -> str:
    return f"{path.stat().st_size / _MB:,.1f} MB" if path.exists() else "none"


def _findings(place: Place) -> Iterator[Finding]:
    if sqlite3.sqlite_version_info < _SAFE_CHECKPOINTS:
        yield Finding(
            f"SQLite {sqlite3.sqlite_version} can damage a file when two connections checkpoint at "
            "once (fixed in 3.51.3); Fairlead keeps to one, your own connections may not",
            "use a Python with SQLite 3.51.3, or run PRAGMA wal_autocheckpoint = 0 on every "
            "connection of your own to this file",
            grave=False,
        )
    system = _file_system(place.path)
    if system is not None and system.startswith(_NETWORK):
        yield Finding(
            f"the file is on a network file system ({system}), where SQLite's locks do not hold "
            "and jobs can be lost",
            "move it to a local disk, or use a store with a server",
        )
    yield from _open_to_others(place)
    if place.wal.exists() and place.wal.stat().st_size > _LARGE_LOG:
        yield Finding(
            f"the log is {_size(place.wal)} large: some connection has kept a read transaction "
            "open for long, so it cannot start anew",
            "find the program that does, and let it commit or roll back",
            grave=False,
        )
    if shutil.disk_usage(place.path.parent).free < _LITTLE_ROOM:
        yield Finding(
            "the disk is nearly full; when it is, nothing can be enqueued or settled",
            "make room, or move the file",
        )


def _open_to_others(place: Place) -> Iterator[Finding]:
    """Tell who else of this machine's users may read or change jobs, or hold up workers."""
    mode = _mode(place.path)
    yield from _open_file("the file", mode, place, _RUN, "all arguments")
    for ending in SIDES:
        side = place.beside(ending)
        harms = (_HOLD, _HOLD) if ending in _LOCKS else (_RUN, "arguments of jobs")
        # What holds for the file itself is told of that.
        yield from _open_file(side.name, _mode(side) & ~mode, place, *harms)
    folder, *above = place.path.parents
    if _may_replace(folder):
        yield Finding(
            f"every user of this machine can write in {folder}, and so replace the file",
            f"chmod o-w {quote(str(folder))}, or move the file to a folder of its own",
        )
    for each in filter(_may_replace, above):
        yield Finding(
            f"every user of this machine can write in {each}, and so replace the folder that the "
            "file is in",
            f"chmod o-w {quote(str(each))}, or chmod +t if all must write there",
        )
    for link in place.links:
        aside = [each for each in link.parents if each not in place.path.parents]
        for each in filter(_may_replace, aside):
            yield Finding(
                f"every user of this machine can write in {each}, and so replace {link}, which "
                "leads to the file",
                f"chmod o-w {quote(str(each))}, or name the file itself, {quote(str(place.path))}",
            )


_LOCKS = ("-turn", "-checkpoint", "-shm")
_RUN, _HOLD = "have workers run any task with any arguments", "hold up all who use it"


def _open_file(name: str, mode: int, place: Place, written: str, seen: str) -> Iterator[Finding]:
    """Tell of one file what its mode lets others do, and what they gain by that."""
    mine = f"{quote(str(place.path))}*"
    if mode & stat.S_IWOTH:
        yield Finding(
            f"every user of this machine can write {name}, and with it {written}",
            f"chmod o-rwx {mine}",
        )
    elif mode & stat.S_IROTH:
        yield Finding(
            f"every user of this machine can read {name}, and with it {seen}",
            f"chmod o-rwx {mine}",
            grave=False,
        )
    if mode & stat.S_IWGRP:
        yield Finding(
            f"every user of the file's group can write {name}, and with it {written}",
            f"chmod g-w {mine}, unless all of the group run workers or enqueue",
            grave=False,
        )


def _mode(path: Path) -> int:
    """Return the mode of a file; no rights, if it is not there."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def _may_replace(folder: Path) -> bool:
    """Say whether everybody may rename what others have in a folder."""
    mode = _mode(folder)
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _file_system(path: Path) -> str | None:
    """Return the kind of file system the file is on, where the kernel tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    kinds = {fields[1]: fields[2] for fields in (line.split() for line in mounts)}
    for folder in path.parents:
        name = os.fspath(folder).replace(" ", "\\040")
        if name in kinds:
            return kinds[name]
    return None
