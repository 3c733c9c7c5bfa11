"""Connections to the file, and the wait for its one write lock.

SQLite lets one connection write at a time and has no queue for the others: its
own busy wait sleeps up to 100 ms between looks, so under load one process can
wait for seconds while another goes on. Here waiting is our own:

* Whoever wants to write first passes a turnstile, an flock on a side file. Only
  the process inside looks at the write lock, every fraction of a millisecond;
  it leaves the turnstile as soon as it has the lock. A process that has just
  written must go through the turnstile again, so it cannot overtake.
* Those outside look at the turnstile the more often the longer they wait, so
  the one that came first is most likely the next.

The turnstile is a courtesy. If its holder hangs, the others stop asking for it
after a second and go for the write lock themselves; correctness never depends
on it. Writers that know nothing of it (the application's own connections) are
served by SQLite's lock as ever.
"""

import errno
import fcntl
import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from fairlead.core.errors import (
    ConfigError,
    StoreError,
    StoreFull,
    StoreGone,
    StoreRefused,
    StoreUnavailable,
)
from fairlead.core.text import brief
from fairlead.stores.sqlite.access import obstacle
from fairlead.stores.sqlite.own import Own, note
from fairlead.stores.sqlite.trust import NotTrusted, Way, check_file, check_side, follow, is_link

Value = TypeVar("Value")

OLDEST_SQLITE = (3, 35, 0)
_SYNCHRONOUS = {"durable": "FULL", "fast": "NORMAL"}
UNUSUAL_WAIT = 0.2
"""How many seconds a wait for the write lock takes before somebody asks who has it."""
_TURNSTILE_PATIENCE = 1.0
_DISTRUST = 10.0
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_creating = threading.Lock()


SIDES = ("-turn", "-checkpoint", "-wal", "-shm", "-journal")
"""What the names of side files end with: two are ours, the others SQLite's."""


class Place:
    """Where the file is, and how it is to be opened."""

    def __init__(self, path: Path, durability: str = "durable", patience: float = 30.0) -> None:
        if durability not in _SYNCHRONOUS:
            raise ConfigError(
                f"durability must be one of {', '.join(_SYNCHRONOUS)}, not {brief(durability)}"
            )
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise ConfigError(
                f"this Python carries SQLite {sqlite3.sqlite_version}; Fairlead needs "
                f"{'.'.join(map(str, OLDEST_SQLITE))} or newer"
            )
        if not patience > 0:
            raise ConfigError(f"timeout must be a number of seconds above 0, not {patience:g}")
        self._given = path.absolute()
        self.durability = durability
        self.patience = patience
        self.url = f"sqlite:///{path}"

    @cached_property
    def path(self) -> Path:
        """The file itself: SQLite follows links, so the names beside it must be its own.

        Found at first use, and no other afterwards.
        """
        return self._way.end

    @property
    def links(self) -> list[Path]:
        """The links that led to the file."""
        return self._way.links

    @cached_property
    def _way(self) -> Way:
        return self._follow(self._given)

    @cached_property
    def wal(self) -> Path:
        """The write-ahead log."""
        return self.beside("-wal")

    @cached_property
    def _name(self) -> str:
        return str(self.path)

    def beside(self, ending: str) -> Path:
        """Name a side file: the write-ahead log, a lock."""
        return self.path.with_name(self.path.name + ending)

    def connect(self) -> Own:
        """Open a connection that never waits by itself and never checkpoints."""
        self._check_way()
        with _creating:
            self._create()
        connection = self._connected()
        try:
            patiently(self, lambda: self._prepare(connection))
            # SQLite has opened its own by now, and takes whatever somebody put there meanwhile.
            self._check_files()
        except BaseException:
            connection.close()
            raise
        return connection

    def open(self) -> Own:
        """Open the file that is there, without making or changing anything."""
        self._check_way()
        return self._connected()

    def _connected(self) -> Own:
        """Open the file under the name that was checked, or none."""
        self._check_files()
        before = self.identity()
        # SQLite makes no file: it would make one where a link leads that came after our checks.
        name = f"file://{quote(os.fsencode(self.path))}?mode=rw"
        try:
            connection = sqlite3.connect(
                name,
                uri=True,
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
                factory=Own,
            )
        except sqlite3.Error as problem:
            raise typed(problem, self) from problem
        try:
            if _name_of(connection) != os.fsencode(self.path) or self.identity() != before:
                raise self._leads_elsewhere()
        except BaseException:
            connection.close()
            raise
        note(connection)
        return connection

    def _create(self) -> None:
        """Make the file, readable to its owner only; SQLite gives its log the same mode.

        Only if there is none: to close any descriptor of the file drops every
        POSIX lock this process has on it, behind SQLite's back, and the next
        process to close the file would delete the log from under us.
        """
        if os.path.lexists(self.path):
            return
        try:
            os.close(os.open(self.path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            return  # Another process was quicker.
        except OSError as problem:
            raise self._cannot_open(problem) from problem

    def _check_way(self) -> None:
        """Raise if there is a link now on the way to the file, where none was before."""
        if self._follow(self.path).links:
            raise self._leads_elsewhere()

    def _check_files(self) -> None:
        """Raise if the file is none, or if a stranger made what is beside it (trust.py).

        SQLite, run by root, gives its side files to the owner of the file, by whatever name
        they have else.
        """
        with self._trusting():
            like = _found(self.path)
            if like is None:
                return
            check_file(self.path, like)
            for side in map(self.beside, SIDES):
                found = _found(side)
                if found is not None:
                    check_side(side, found, like)

    def _follow(self, path: Path) -> Way:
        with self._trusting():
            return follow(path)

    @contextmanager
    def _trusting(self) -> Iterator[None]:
        """Tell of what is not trusted as of a file that cannot be used."""
        try:
            yield
        except NotTrusted as problem:
            raise StoreUnavailable(self.url, str(problem)) from None
        except OSError as problem:
            raise self._cannot_open(problem) from problem

    def _leads_elsewhere(self) -> StoreUnavailable:
        return StoreUnavailable(
            self.url,
            f"{self.path} was replaced by a link, or the file behind it was, while it was being "
            "opened; see who may write in its folders, put it back, and restart this program",
        )

    def open_beside(self, ending: str) -> int:
        """Open a side file for a lock, as usable by others as the file itself."""
        side = self.beside(ending)
        with self._trusting():
            like = self.path.stat()
            try:
                handle = os.open(side, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                return _open_found(side, like)
        # Only what was made here and now is given away: what was found may be anybody's.
        with suppress(PermissionError):  # Only root can, and only root has to.
            if os.fstat(handle).st_uid != like.st_uid:
                os.fchown(handle, like.st_uid, like.st_gid)
        os.fchmod(handle, stat.S_IMODE(like.st_mode))
        return handle

    def _cannot_open(self, problem: OSError) -> StoreUnavailable:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            return StoreFull(self.url, f"{problem.strerror}{_FULL}")
        found = obstacle(self._given) or obstacle(Path(problem.filename or self._given))
        told = f"cannot open {problem.filename or 'the file'}: {problem.strerror}; {_LOOK}"
        return StoreUnavailable(self.url, found or told)

    def check_folder(self) -> None:
        """Raise if there is no folder in which the file could be."""
        if not self.path.parent.is_dir():
            raise StoreUnavailable(self.url, obstacle(self.path) or _LOOK)

    def identity(self) -> tuple[int, int] | None:
        """Say which file has this name now; None if there is none."""
        try:
            found = os.stat(self._name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def check_still(self, file: tuple[int, int] | None) -> None:
        """Raise unless this is the file that has the name now: what we wrote would go nowhere."""
        if self.identity() != file:
            raise StoreGone(
                self.url,
                "the file was removed or replaced while this program had it open, so nothing can "
                "be stored any more; put it back, from a backup if need be, and start this program "
                "again",
            )

    def is_full(self) -> bool:
        """Say whether the disk has no room for another page, or for another file."""
        try:
            disk = os.statvfs(self.path.parent)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < _LEAST_ROOM or (disk.f_files > 0 == disk.f_favail)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        for pragma in self._pragmas():
            connection.execute(f"PRAGMA {pragma}")

    def _pragmas(self) -> tuple[str, ...]:
        return (
            "journal_mode = WAL",
            f"synchronous = {_SYNCHRONOUS[self.durability]}",
            # One checkpointer per file (see checkpoint.py): before 3.51.3 two at once could
            # corrupt it.
            "wal_autocheckpoint = 0",
            # A log that a long reader made huge shrinks again when it starts anew.
            "journal_size_limit = 67108864",
            "cache_size = -65536",
        )


def _found(path: Path) -> os.stat_result | None:
    """Say what has this name, a link or whatever else; None if there is nothing."""
    with suppress(FileNotFoundError):
        return path.lstat()
    return None


def _open_found(side: Path, like: os.stat_result) -> int:
    """Open a side file that is there already, if it is one of ours."""
    try:
        handle = os.open(side, _OPEN | os.O_NONBLOCK)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise is_link(side) from None
        raise
    try:
        check_side(side, os.fstat(handle), like)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _name_of(connection: sqlite3.Connection) -> bytes:
    """Return the name under which SQLite opened the file, after all links."""
    connection.text_factory = bytes  # It need not be UTF-8.
    (_, _, name) = connection.execute("PRAGMA database_list").fetchone()
    connection.text_factory = str
    return bytes(name)


def is_busy(problem: sqlite3.Error) -> bool:
    """Say whether another connection is in the way, for now."""
    code = getattr(problem, "sqlite_errorcode", None) or 0
    return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_disk_error(problem: sqlite3.Error) -> bool:
    """Say whether the disk did not do what it was told."""
    return (getattr(problem, "sqlite_errorcode", None) or 0) & 0xFF == sqlite3.SQLITE_IOERR


def typed(problem: sqlite3.Error, place: Place) -> StoreError:
    """Turn what the driver raises into our own error, with a next step."""
    code = (getattr(problem, "sqlite_errorcode", None) or 0) & 0xFF
    if code in _DAMAGE or str(problem).startswith("Could not decode"):
        return StoreRefused(place.url, str(problem))
    if code == sqlite3.SQLITE_FULL or (code in _PERHAPS_FULL and place.is_full()):
        return StoreFull(place.url, f"{problem}{_FULL}")
    remedy = _REMEDIES.get(code)
    if code in _OF_THE_FOLDER and (found := obstacle(place.path)) is not None:
        return StoreUnavailable(place.url, found)
    if remedy is None and not isinstance(problem, sqlite3.OperationalError):
        return StoreError(f"{place.url}: {problem}")
    return StoreUnavailable(place.url, f"{problem}{remedy or ''}")


_DAMAGE = {
    *(sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH),
    *(sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE),
}
"""What SQLite says of values and rows, and will say again; everything else is about the file."""


_FULL = "; free some space, nothing was accepted that is not on disk"
_LEAST_ROOM = 64 * 1024
_PERHAPS_FULL = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
"""What SQLite says when it cannot make or lengthen a side file, for want of room or otherwise."""

_LOOK = "check that the folder exists and that this user may write in it"
_REMEDIES = {
    sqlite3.SQLITE_READONLY: "; let this user write the file and its folder",
    sqlite3.SQLITE_NOTADB: "; name another file, this one belongs to something else",
    sqlite3.SQLITE_CORRUPT: "; restore a backup, or rescue what is left with `sqlite3 .recover`",
    sqlite3.SQLITE_IOERR: "; check the disk",
    sqlite3.SQLITE_CANTOPEN: f"; {_LOOK}",
}
_OF_THE_FOLDER = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def waiting(place: Place, began: float | None = None) -> Iterator[float]:
    """Yield the seconds waited so far, again and again, until the place's patience is over.

    Pauses a little between looks, shorter the longer the wait has been. A wait
    that began earlier, elsewhere, goes on from there.
    """
    began = time.monotonic() if began is None else began
    waited = 0.0
    while True:
        yield waited
        # 2 ms at first, down to 0.2 ms after some 20 ms of waiting: old waiters look more often.
        time.sleep(random.uniform(0.5, 1.0) * max(0.0002, 0.002 / (1 + waited * 500)))
        waited = time.monotonic() - began
        if waited >= place.patience:
            break
    raise StoreUnavailable(
        place.url,
        f"another connection has held the write lock for {place.patience:g} s; look for a long "
        "transaction in your own code (to enqueue inside it, pass connection=), or a stopped "
        "process that has the file open",
    )


def patiently(place: Place, work: Callable[[], Value]) -> Value:
    """Do something that others may be in the way of for a moment, as long as patience lasts.

    Even a reader can be: while a file is opened first, recovered or closed last.
    """
    for _ in waiting(place):
        try:
            return work()
        except sqlite3.Error as problem:
            if not is_busy(problem):
                raise typed(problem, place) from problem
    raise AssertionError  # waiting() never ends without an error of its own


class WriteLock:
    """The way to SQLite's write lock for one process."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._turnstile = place.open_beside("-turn")
        self._distrusted_until = 0.0

    def close(self) -> None:
        """Let go of the side file."""
        os.close(self._turnstile)

    def begin(
        self,
        connection: sqlite3.Connection,
        since: float | None = None,
        look: Callable[[], object] | None = None,
    ) -> None:
        """Begin a write transaction, or raise `StoreUnavailable` when patience is over.

        Patience is counted from `since`, a monotonic time, if it is given. If it takes
        unusually long, `look` is called now and then, and may end the wait by raising.
        """
        inside = self.enter()
        again: float | None = None
        try:
            for _ in looks(self._place, since):
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    return
                except sqlite3.OperationalError as problem:
                    if not is_busy(problem):
                        raise
                again = again or time.monotonic() + UNUSUAL_WAIT
                if look is not None and time.monotonic() >= again:
                    look()
                    again = time.monotonic() + 5 * UNUSUAL_WAIT
        finally:
            if inside:
                self.leave()

    def enter(self) -> bool:
        """Be the one who looks at the write lock; waits for that, but not for ever."""
        if self._distrusted_until and time.monotonic() < self._distrusted_until:
            return False
        for waited in waiting(self._place):
            try:
                fcntl.flock(self._turnstile, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if waited > min(_TURNSTILE_PATIENCE, self._place.patience / 2):
                    break
        # Whoever is inside hangs; do not wait for it again at every write.
        self._distrusted_until = time.monotonic() + _DISTRUST
        return False

    def leave(self) -> None:
        """Let the next one look, after `enter` said yes."""
        fcntl.flock(self._turnstile, fcntl.LOCK_UN)


def looks(place: Place, since: float | None) -> Iterator[None]:
    """Yield in quick succession for as long as a write usually takes, then as `waiting` does."""
    for _ in range(200):
        yield
        time.sleep(0.0001)
    for _ in waiting(place, since):
        yield
