"""Find out who waits for the write lock and has it at the same time: such a wait ends in nothing.

A thread that has written on a connection of its own and then enqueues without it waits for
itself, and so does a coroutine. SQLite tells only that somebody has the lock, and the system
only which process. So we look where it matters, once a wait takes unusually long:

* at the blocks of `job.commit()` that are open here;
* at the connections of the application that whoever waits can reach: its local variables,
  those of its callers and of their `self`, Django's connections of this thread, and the globals of
  the callers' modules as far as they belong to one thread;
* at the system's list of locks: if this process has the lock, none of our own connections does,
  and no other thread is there, it can only be the one that waits.

Nothing is concluded from another thread's connections: that one goes on, and lets go.
"""

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from fairlead.core.errors import WaitsForItself
from fairlead.stores.foreign import ALCHEMY, ASYNC_ALCHEMY, kind_of
from fairlead.stores.sqlite.connection import Place
from fairlead.stores.sqlite.own import we_write
from fairlead.stores.sqlite.talk import plain

_WRITE_LOCK_BYTE = 120
"""Where in the -shm file the lock of the one writer is (sqlite.org/walformat.html)."""
_HELPERS = ("fairlead-writer", "fairlead-sync", "fairlead-keeper")
_PACKAGE = __name__.partition(".")[0]


class _Block(NamedTuple):
    """A transaction on a connection of ours: on which file, and who is inside."""

    file: tuple[int, int] | None
    thread: int
    task: object


_blocks: list[_Block] = []


@contextmanager
def inside(place: Place) -> Iterator[None]:
    """Note that a block with the write lock is open in this thread, or in this coroutine."""
    block = _Block(place.identity(), threading.get_ident(), _task())
    _blocks.append(block)
    try:
        yield
    finally:
        _blocks.remove(block)


def check_thread(place: Place) -> None:
    """Raise if this thread, which waits for the write lock, has it."""
    file, thread = place.identity(), threading.get_ident()
    # If a coroutine of this thread's loop has it, it cannot go on while the thread waits.
    if any(block.file == file and block.thread == thread for block in _blocks):
        raise _in_thread(place, "a block of job.commit() in this thread")
    has_it = _process_has_lock(place)
    if has_it is False or we_write():
        return
    frames = list(_callers(sys._getframe(1)))  # noqa: SLF001 (the way to one's own callers)
    near = [*_reachable(frames), *_of_django(), *_of_modules(frames)]
    if any(_writes(each, file) for each in near):
        raise _in_thread(place, "a transaction of this thread")
    if has_it and _is_alone():
        raise _in_thread(place, "a transaction of this thread")


def check_task(place: Place, task: "asyncio.Task[Any]") -> WaitsForItself | None:
    """Return the error if a coroutine that waits for the write lock has it."""
    file = place.identity()
    if any(block.file == file and block.task is task for block in _blocks):
        return _in_coroutine(place, "a block of job.commit() in this coroutine")
    if _process_has_lock(place) is False or we_write():
        return None
    if any(_writes(each, file) for each in _reachable(_awaiting(task))):
        return _in_coroutine(place, "a transaction of this coroutine")
    return None


def _in_thread(place: Place, holder: str) -> WaitsForItself:
    # A coroutine may have called what blocks; its connection may be one for coroutines alone.
    return WaitsForItself(str(place.path), holder, in_coroutine=_task() is not None)


def _in_coroutine(place: Place, holder: str) -> WaitsForItself:
    return WaitsForItself(str(place.path), holder, in_coroutine=True)


def _task() -> object:
    with suppress(RuntimeError):
        return asyncio.current_task()
    return None


def _process_has_lock(place: Place) -> bool | None:
    """Say whether a connection of this process has the write lock; None if nobody can tell."""
    try:
        inode = str(place.beside("-shm").stat().st_ino)
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    # 1: POSIX  ADVISORY  WRITE 1234 08:01:131 120 120
    found = [line.split() for line in lines if f":{inode} " in line and " WRITE " in line]
    pids = {row[-4] for row in found if int(row[-2]) <= _WRITE_LOCK_BYTE <= _end(row[-1])}
    return str(os.getpid()) in pids if pids else None


def _end(text: str) -> float:
    return float("inf") if text == "EOF" else int(text)


def _is_alone() -> bool:
    """Say whether no thread but this one, and helpers of ours, is there."""
    here = threading.current_thread()
    return all(each is here or each.name.startswith(_HELPERS) for each in threading.enumerate())


# Where the application keeps its connections


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != _PACKAGE:
            yield frame
        frame = frame.f_back


def _awaiting(task: "asyncio.Task[Any]") -> Iterator[FrameType]:
    """Return the frames of a coroutine and of those that it awaits."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None)
        if frame is not None:
            yield from (each for each in _callers(frame) if each is frame)
        awaited = getattr(awaited, "cr_await", None)


def _reachable(frames: Iterable[FrameType]) -> Iterator[object]:
    """Return what is in local variables, and in the attributes of `self`."""
    for frame in frames:
        values = dict(frame.f_locals)
        yield from values.values()
        with suppress(TypeError):
            yield from list(vars(values.get("self")).values())


def _of_modules(frames: Iterable[FrameType]) -> Iterator[object]:
    """Return the globals that belong to the thread which uses them."""
    for names in {id(frame.f_globals): frame.f_globals for frame in frames}.values():
        for value in list(names.values()):
            if isinstance(value, sqlite3.Connection) or kind_of(value, _SCOPED):
                yield value


def _of_django() -> list[object]:
    """Return Django's connections of this thread, if there are any."""
    found = sys.modules.get("django.db")
    with suppress(Exception):  # Its settings may not be there.
        return list(found.connections.all(initialized_only=True)) if found else []
    return []


def _writes(value: object, file: tuple[int, int] | None) -> bool:
    """Say whether this is a connection with a transaction open on the file."""
    with suppress(Exception):  # Closed, of another thread, or broken in a way of its own.
        raw, name = _raw(value)
        return raw is not None and raw.in_transaction and Place(Path(name)).identity() == file
    return False


def _raw(value: Any) -> tuple[Any, str]:  # noqa: ANN401 (anything)
    """Return the driver's connection and the name of its file; None for what is no connection."""
    if isinstance(value, sqlite3.Connection):
        return (value, _name(value)) if _is_bound(value) else (None, "")
    if kind_of(value, _SCOPED):
        return _raw(value.registry()) if value.registry.has() else (None, "")
    kind = kind_of(value, _ALCHEMY)
    if kind == "Session":
        return _raw(value.connection()) if value.in_transaction() else (None, "")
    if kind == "AsyncSession":
        return _raw(value.sync_session)
    if kind == "AsyncConnection":
        return _raw(value.sync_connection)
    if kind == "Connection":
        return value.connection.driver_connection, value.engine.url.database
    if getattr(value, "vendor", None) == "sqlite":
        return value.connection, str(value.settings_dict["NAME"])
    return None, ""


def _is_bound(connection: sqlite3.Connection) -> bool:
    """Say whether only this thread can use a connection; another might end its transaction."""
    refused: list[sqlite3.Error] = []

    def use() -> None:
        try:
            connection.cursor().close()
        except sqlite3.ProgrammingError as problem:
            refused.append(problem)

    stranger = threading.Thread(target=use)
    stranger.start()
    stranger.join()
    return bool(refused)


def _name(connection: sqlite3.Connection) -> str:
    """Return the name of the file; raises if the connection is another thread's."""
    rows = plain(connection).execute("PRAGMA database_list").fetchall()
    return next((os.fsdecode(row[2]) for row in rows if row[0] == 0), "")


_ALCHEMY = {pair: pair[1] for pair in (*ALCHEMY, *ASYNC_ALCHEMY)}
_SCOPED = {("sqlalchemy", "scoped_session"): True}
