"""The store of `sqlite:///path`: one file, any number of processes on one machine."""

import asyncio
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fairlead.core.clock import SECOND, Clock, SystemClock
from fairlead.core.errors import ConfigError
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, JobRecord, NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.core.store import Backend, Extended, Finding, Upkeep, Worker
from fairlead.stores.sqlite import admin
from fairlead.stores.sqlite.audit import audit
from fairlead.stores.sqlite.connection import Place, WriteLock, patiently
from fairlead.stores.sqlite.line import SqliteLine, ask, put_rows
from fairlead.stores.sqlite.migrate import check_current, migrate
from fairlead.stores.sqlite.wake import Watch, watch
from fairlead.stores.sqlite.writer import Writer

Answer = TypeVar("Answer")

_forsaken: list[sqlite3.Connection] = []
"""Connections a forked child inherited. To close one there could harm the parent's file."""


class _Session:
    """What is open: the writer, connections for reading, and a watch per event loop."""

    def __init__(self, place: Place, clock: Clock) -> None:
        self._place = place
        first = place.connect()
        lock = WriteLock(place)
        try:
            migrate(first, place, lock, clock)
            self.writer = Writer(place)
        except BaseException:
            first.close()
            raise
        finally:
            lock.close()
        self._readers = [first]
        self._watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Watch] = (
            weakref.WeakKeyDictionary()
        )

    def read(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        """Ask something of the file, on a connection that nobody else reads with meanwhile.

        A long question (an audit, say) holds up no short one.
        """
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = self._place.connect()
        try:
            return patiently(self._place, lambda: question(connection))
        finally:
            self._readers.append(connection)

    def watch(self) -> Watch:
        """Return the running loop's watch."""
        loop = asyncio.get_running_loop()
        if loop not in self._watches:
            self._watches[loop] = watch(self._place)
        return self._watches[loop]

    def close(self) -> None:
        """Finish what was handed over and let go of everything."""
        for each in self._watches.values():
            each.close()
        self.writer.close()
        for reader in self._readers:
            reader.close()

    def forsake(self) -> list[sqlite3.Connection]:
        """After a fork, in the child: drop all but the connections, which must not be closed."""
        return [*self._readers, *self.writer.forsake()]


class SqliteStore(Backend):
    """Jobs in an SQLite file. Opens at first use, and again in a forked child."""

    def __init__(self, place: Place, clock: Clock | None = None) -> None:
        self.url = place.url
        self._place = place
        self._clock = clock or SystemClock()
        self._line = SqliteLine(self._clock)
        self._desk = admin.SqliteDesk(self._clock)
        self._session: _Session | None = None
        self._opening = threading.Lock()
        _stores.add(self)

    # Opening

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        await self._opened()

    async def close(self) -> None:
        """Finish what was handed over and let go of the file."""
        session, self._session = self._session, None
        if session is not None:
            await asyncio.to_thread(session.close)

    async def _opened(self) -> _Session:
        if self._session is not None:
            return self._session
        return await asyncio.to_thread(self._open)

    def _open(self) -> _Session:
        with self._opening:
            if self._session is None:
                self._session = _Session(self._place, self._clock)
            return self._session

    def forget_after_fork(self) -> None:
        """In a forked child: leave what the parent opened alone, and open anew when needed."""
        session, self._session = self._session, None
        self._opening = threading.Lock()
        if session is not None:
            _forsaken.extend(session.forsake())

    # The line

    async def put(self, jobs: Sequence[NewJob]) -> list[bool]:
        """Accept new jobs, all of them or none."""
        session = await self._opened()
        return list(await session.writer.submit(self._line.put, jobs))

    def put_blocking(self, jobs: Sequence[NewJob]) -> list[bool]:
        """Accept new jobs from synchronous code, in the calling thread."""
        session = self._session or self._open()
        return list(session.writer.run(self._line.put, jobs))

    def put_within(self, connection: Any, jobs: Sequence[NewJob]) -> None:  # noqa: ANN401
        """Put on the caller's own connection to the same file."""
        if not isinstance(connection, sqlite3.Connection):
            raise ConfigError(
                f"connection= must be a sqlite3.Connection to {self._place.path}, "
                f"not {type(connection).__module__}.{type(connection).__qualname__}"
            )
        self._check_same_file(connection)
        if self._session is None:
            if connection.in_transaction:
                check_current(self._place)
            self._open()
        put_rows(connection, jobs, self._clock.now())

    def _check_same_file(self, connection: sqlite3.Connection) -> None:
        files = {row[1]: row[2] for row in connection.execute("PRAGMA database_list").fetchall()}
        theirs = files.get("main", "")
        if (
            not theirs
            or not self._place.path.exists()
            or not os.path.samefile(theirs, self._place.path)
        ):
            raise ConfigError(
                f"the connection is to {theirs or 'an in-memory database'}, the jobs are in "
                f"{self._place.path}; one transaction cannot span both, so point the app's URL "
                "at your own file"
            )

    async def claim(self, plan: ClaimPlan) -> Claim:
        """Give the worker what the selection rule chooses."""
        session = await self._opened()
        return (await session.writer.submit(self._line.claim, [plan]))[0]

    async def extend(self, leases: Sequence[tuple[JobId, int]], lease: int) -> list[Extended]:
        """Renew leases under their current fence."""
        session = await self._opened()
        items = [(job_id, fence, lease) for job_id, fence in leases]
        answers = await session.writer.submit(self._line.extend, items)
        return [answer for answer in answers if answer is not None]

    async def settle(self, settlements: Sequence[Settlement]) -> set[JobId]:
        """Write what became of running jobs, under their current fence."""
        session = await self._opened()
        written = await session.writer.submit(self._line.settle, settlements)
        return {s.id for s, ok in zip(settlements, written, strict=True) if ok}

    async def announce(self, worker: str, capable: Mapping[str, int], lease: int) -> None:
        """Say which tasks a worker knows."""
        session = await self._opened()
        await session.writer.submit(self._line.announce, [(worker, capable, lease)])

    async def wait(self, timeout: float) -> bool:  # noqa: ASYNC109 (a hint's patience)
        """Return when somebody wrote to the file, a parked job falls due, or time is up."""
        session = await self._opened()
        due = session.read(lambda connection: ask(connection, "due"))
        if due is not None:
            timeout = max(0.0, min(timeout, (due - self._clock.now()) / SECOND))
        return await session.watch().changed(timeout)

    async def upkeep(self, keep: int) -> Upkeep:
        """Do one bounded round of housekeeping."""
        session = await self._opened()
        return (await session.writer.submit(self._line.upkeep, [keep]))[0]

    # For people

    async def _read(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        session = await self._opened()
        return await asyncio.to_thread(session.read, question)

    async def find(self, job_id: JobId) -> JobRecord | None:
        """Return a job in whatever state."""
        return await self._read(lambda connection: admin.find(connection, job_id))

    async def attempts(self, job_id: JobId) -> list[Attempt]:
        """Return the job's lines of the attempt log."""
        return await self._read(lambda connection: admin.attempts(connection, job_id))

    async def count(self) -> dict[str, dict[State, int]]:
        """Count jobs by queue and state."""
        return await self._read(admin.count)

    async def cancel(self, job_ids: Collection[JobId], reason: str) -> dict[JobId, JobRecord]:
        """Cancel waiting jobs at once, and mark running ones."""
        session = await self._opened()
        items = [(job_id, reason) for job_id in job_ids]
        records = await session.writer.submit(self._desk.cancel, items)
        return {record.id: record for record in records if record is not None}

    async def pause(self, queue: str) -> None:
        """Let no further job of this queue start."""
        session = await self._opened()
        await session.writer.submit(self._desk.pause, [queue])

    async def resume(self, queue: str) -> None:
        """Let jobs of this queue start again."""
        session = await self._opened()
        await session.writer.submit(self._desk.resume, [queue])

    async def paused(self) -> set[str]:
        """Return the names of the paused queues."""
        return await self._read(admin.paused)

    async def workers(self) -> list[Worker]:
        """Return the workers that are announced and live."""
        now = self._clock.now()
        return await self._read(lambda connection: admin.workers(connection, now))

    async def audit(self) -> list[Finding]:
        """Check that every job is in exactly one place and every mark agrees."""
        now = self._clock.now()
        return await self._read(lambda connection: audit(connection, now))


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _forget_all() -> None:
    for store in list(_stores):
        store.forget_after_fork()


os.register_at_fork(after_in_child=_forget_all)


def sqlite_store(path: Path, options: Mapping[str, str], clock: Clock | None) -> SqliteStore:
    """Build the store from the parts of its URL."""
    known = {"durability", "timeout"}
    for name in options:
        if name not in known:
            raise ConfigError(f"sqlite:/// knows no option {name!r}; it takes {sorted(known)}")
    try:
        patience = float(options.get("timeout", "30"))
    except ValueError:
        raise ConfigError(f"timeout={options['timeout']} is not a number of seconds") from None
    return SqliteStore(Place(path, options.get("durability", "durable"), patience), clock)
