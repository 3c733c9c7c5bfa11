"""The store of `sqlite:///path`: one file, any number of processes on one machine."""

import asyncio
import os
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, Clock, SystemClock
from fairlead.core.errors import ConfigError, Unanswered, did_you_mean
from fairlead.core.ids import JobId
from fairlead.core.job import LATEST, Job, NewJob
from fairlead.core.outcome import Settlement
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.core.store import Accepted, Extended, Store, Upkeep, Within, accepted
from fairlead.core.text import brief
from fairlead.stores.foreign import commits_itself
from fairlead.stores.repeat import arepeated, repeated
from fairlead.stores.sqlite.acts import SqliteActs
from fairlead.stores.sqlite.admin import SqliteAdmin
from fairlead.stores.sqlite.connection import Place, typed
from fairlead.stores.sqlite.entries import SqliteEntries
from fairlead.stores.sqlite.foreign import Shared, check_file, explained, shared, within
from fairlead.stores.sqlite.heads import held
from fairlead.stores.sqlite.line import SqliteLine, complete
from fairlead.stores.sqlite.migrate import check_current
from fairlead.stores.sqlite.session import Session
from fairlead.stores.sqlite.talk import ask
from fairlead.stores.sqlite.transaction import AsyncConnection, atransaction, transaction
from fairlead.stores.sqlite.ways import enter
from fairlead.stores.sqlite.writer import Verb, WriterClosed

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class SqliteStore(Store):
    """Jobs in an SQLite file. Opens at first use, and again in a forked child."""

    def __init__(self, place: Place, clock: Clock | None = None) -> None:
        self.url = place.url
        self.durability = place.durability
        self._place = place
        self._clock = clock or SystemClock()
        self._line = SqliteLine(self._clock)
        acts = SqliteActs(self._clock, self._line)
        self.admin = SqliteAdmin(place, self._line, acts, self._read, self._write)
        self.entries = SqliteEntries(self._clock, self._read, self._write, lambda: self.level)
        self._session: Session | None = None
        self._opening = threading.Lock()
        _stores.add(self)

    @property
    def level(self) -> int:
        """What this program knows to do with jobs."""
        return self._line.level

    @level.setter
    def level(self, level: int) -> None:
        self._line.level = level

    # Opening

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        await self._opened()

    def check_there(self) -> None:
        """Raise if the file was removed or replaced while it is open."""
        session = self._session
        if session is not None:
            session.writer.check_file()

    async def close(self) -> None:
        """Finish what was handed over and let go of the file."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        # Under the lock, so that a fork meanwhile waits until nothing is open.
        with self._opening:
            session, self._session = self._session, None
            if session is not None:
                session.close()

    async def _opened(self) -> Session:
        if self._session is not None:
            return self._session
        return await asyncio.to_thread(self._open)

    def _open(self) -> Session:
        with self._opening:
            if self._session is None:
                self._session = Session(self._place, self._line)
            return self._session

    def close_before_fork(self) -> None:
        """Let go of the file, and keep others from opening it until the fork is over.

        SQLite's idea of its locks is per process, so no connection may cross a
        fork, not even to be closed on the other side.
        """
        self._opening.acquire()
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def reopen_after_fork(self, *, child: bool) -> None:
        """Let both sides open the file again when they need it."""
        if child:
            self._opening = threading.Lock()
        else:
            self._opening.release()

    async def _write(self, verb: Verb[Item, Answer], items: Sequence[Item]) -> Sequence[Answer]:
        """Hand items to the writer; to a new one if the old was closed meanwhile."""
        while True:
            session = self._session or await self._opened()
            try:
                return await session.writer.submit(verb, items)
            except WriterClosed:
                await asyncio.to_thread(self._forget, session)

    async def _write_surely(
        self, verb: Verb[Item, Answer], items: Sequence[Item]
    ) -> Sequence[Answer]:
        """Do the same with what is recognised when it is repeated: again, if there is no answer."""
        try:
            return await self._write(verb, items)
        except Unanswered as lost:
            again = partial(self._write, verb, items)
            return await arepeated(lost, lambda _: again(), self._place.patience)

    def _forget(self, session: Session) -> None:
        with self._opening:
            if self._session is session:
                self._session = None

    # The line

    async def put(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        """Accept new jobs, all of them or none."""
        return accepted(jobs, await self._write_surely(self._line.put, jobs))

    def put_blocking(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        """Accept new jobs from synchronous code, in the calling thread."""
        try:
            return accepted(jobs, self._put_blocking(jobs))
        except Unanswered as lost:
            fresh = repeated(lost, lambda _: self._put_blocking(jobs), self._place.patience)
            return accepted(jobs, fresh)

    def _put_blocking(self, jobs: Sequence[NewJob]) -> Sequence[bool]:
        while True:
            session = self._session or self._open()
            try:
                return session.writer.run(self._line.put, jobs)
            except WriterClosed:
                self._forget(session)

    def put_within(self, connection: Any, jobs: Sequence[NewJob]) -> Within[list[Accepted]]:  # noqa: ANN401
        """Put on the caller's own connection to the same file, of whatever library."""
        return self._within(connection, partial(self._put_on, jobs))

    def _put_on(self, jobs: Sequence[NewJob], mine: Shared) -> list[Accepted]:
        self._check_shared(mine)
        if not jobs:
            # Nothing is read either. A transaction that read first may not write once somebody
            # else has committed: the caller's first statement would be refused.
            if mine.commits_itself:
                raise commits_itself()
            return []
        with explained(mine):
            fresh = enter(mine, jobs, self._clock.now())
            self._open().served.check_on(mine)
            return accepted(jobs, fresh)

    def _within(self, connection: Any, work: Callable[[Shared], Answer]) -> Within[Answer]:  # noqa: ANN401
        """Return work on a connection of the caller's own, for one of two executors."""
        return Within(lambda: work(shared(connection)), lambda: within(connection, work))

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Give a connection that has the write lock, for one transaction."""
        self._open().writer.check_file()
        return transaction(self._place)

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[AsyncConnection]:
        """Give a connection for coroutines that has the write lock, for one transaction."""
        (await self._opened()).writer.check_file()
        async with atransaction(self._place) as connection:
            yield connection

    def complete_within(
        self,
        connection: Any,  # noqa: ANN401
        settlement: Settlement,
    ) -> Within[Settlement | None]:
        """Write that a run is done, inside a transaction."""
        return self._within(connection, partial(self._complete_on, settlement))

    def _complete_on(self, settlement: Settlement, mine: Shared) -> Settlement | None:
        self._check_shared(mine)
        with explained(mine):
            try:
                ruled = complete(mine, settlement, self._line.moment())
                self._open().served.check_on(mine)
                return ruled
            except sqlite3.IntegrityError as problem:
                raise typed(problem, self._place) from problem

    def _check_shared(self, mine: Shared) -> None:
        check_file(self._place, mine)
        if self._session is None:
            if mine.in_transaction:
                check_current(self._place, self.level)
            self._open()

    async def claim(self, plan: ClaimPlan) -> Claim:
        """Give the worker what the selection rule chooses."""
        return (await self._write(self._line.claim, [plan]))[0]

    async def extend(self, leases: Sequence[tuple[JobId, int]], lease: int) -> list[Extended]:
        """Renew leases under their current fence."""
        items = [(job_id, fence, lease) for job_id, fence in leases]
        answers = await self._write(self._line.extend, items)
        return [answer for answer in answers if answer is not None]

    async def held(self, worker: str) -> list[Job]:
        """Return the running jobs that this worker claimed."""
        return await self._read(lambda connection: held(connection, worker))

    async def settle(self, settlements: Sequence[Settlement]) -> dict[JobId, Settlement]:
        """Write what became of running jobs, under their current fence."""
        written = await self._write(self._line.settle, settlements)
        return {settlement.id: settlement for settlement in written if settlement}

    async def announce(self, worker: Worker, lease: int) -> None:
        """Say that a worker lives, and which tasks it knows."""
        await self._write(self._line.announce, [(worker, lease)])

    async def wait(
        self,
        timeout: float,  # noqa: ASYNC109 (a hint's patience)
        since: int = 0,
        *,
        for_work: bool = False,
    ) -> int:
        """Return when somebody wrote to the file, a parked job falls due, or time is up."""
        try:
            # The watch first: what happens while we ask for the next due time is not missed.
            watch = (await self._opened()).watch()
        except WriterClosed:
            return 0
        now = self._clock.now()
        due = await self._read(lambda connection: ask(connection, "due", now=now, latest=LATEST))
        if due is not None:
            timeout = min(timeout, (due - now) / SECOND)
        return await watch.changed(timeout, since)

    async def upkeep(self, keep: int) -> Upkeep:
        """Do one bounded round of housekeeping."""
        return (await self._write(self._line.upkeep, [keep]))[0]

    # Reading

    async def _read(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        while True:
            session = await self._opened()
            try:
                return await asyncio.to_thread(session.read, question)
            except WriterClosed:
                await asyncio.to_thread(self._forget, session)


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
_forking: list[SqliteStore] = []


def _before_fork() -> None:
    _forking[:] = _stores
    for store in _forking:
        store.close_before_fork()


def _after_fork(*, child: bool) -> None:
    while _forking:
        _forking.pop().reopen_after_fork(child=child)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, child=False),
    after_in_child=partial(_after_fork, child=True),
)


def sqlite_store(path: Path, options: Mapping[str, str], clock: Clock | None) -> SqliteStore:
    """Build the store from the parts of its URL."""
    known = {"durability", "timeout"}
    for name in options:
        if name not in known:
            raise ConfigError(
                f"sqlite:/// knows no option {brief(name)}{did_you_mean(name, known)}; "
                f"it takes {' and '.join(sorted(known))}"
            )
    try:
        patience = float(options.get("timeout", "30"))
    except ValueError:
        raise ConfigError(
            f"timeout={brief(options['timeout'])} is not a number of seconds; write timeout=30"
        ) from None
    return SqliteStore(Place(path, options.get("durability", "durable"), patience), clock)
