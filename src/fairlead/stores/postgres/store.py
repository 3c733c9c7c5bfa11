"""The store of `postgresql://`: one database, any number of machines."""

import asyncio
import os
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from fairlead.core.admin import Worker
from fairlead.core.clock import Clock
from fairlead.core.errors import FairleadWarning
from fairlead.core.ids import JobId
from fairlead.core.job import Job, NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.core.store import Accepted, Extended, Store, Upkeep, Within, accepted
from fairlead.stores.news import ENDED, WORK, Bell, News
from fairlead.stores.postgres.address import REMEDY, Address
from fairlead.stores.postgres.admin import PostgresAdmin
from fairlead.stores.postgres.entries import PostgresEntries
from fairlead.stores.postgres.foreign import Caller, check
from fairlead.stores.postgres.lane import AsyncConnection, BlockingLanes, Connection
from fairlead.stores.postgres.line import PostgresLine, end_of, fresh_ones
from fairlead.stores.postgres.migrate import migrate
from fairlead.stores.postgres.puts import Puts
from fairlead.stores.postgres.session import Session
from fairlead.stores.postgres.statements import statements
from fairlead.stores.postgres.wake import Crier
from fairlead.stores.sessions import Sessions

POLL_SECONDS = 0.2
"""How long a wait is where no news can be heard."""
_BUSY_PAUSES = (0.005, 0.02, 0.1, 0.5, 1.0, 2.0)


class PostgresStore(Store):
    """Jobs in a schema of a PostgreSQL database. Connects at first use, and again in a fork."""

    jobs_per_put = 5_000

    def __init__(self, address: Address, clock: Clock | None = None) -> None:
        self.url = address.url
        self.durability = "durable"
        self._address = address
        self._clock = clock
        self._sql = statements(address.quoted_schema)
        self._caller = Caller(address, self._sql)
        self._line = PostgresLine(address.quoted_schema, clock, lambda: self.level)
        self.admin = PostgresAdmin(address, clock, self._session, lambda: self.level, self._changed)
        self.entries = PostgresEntries(address, clock, self._session, lambda: self.level)
        self._is_open = False
        self.begin()
        _stores.add(self)

    def begin(self) -> None:
        """Begin with nothing open; again in a fork, whose threads and connections stay behind."""
        self.news = News()
        self._bell = Bell()
        self._crier = Crier(self._bell)
        self.puts = Puts(self._address, self._line, self.news, self._crier)
        self._lent = BlockingLanes(self._address)
        self._sessions = Sessions(self._new_session)
        self._opening = threading.Lock()

    # Opening

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""
        if not self._is_open:
            await asyncio.to_thread(self._open)

    def _open(self) -> None:
        with self._opening:
            if not self._is_open:
                kept = migrate(self._address, self.level)
                self.durability, self.told_durability = kept.kind, kept.survives
                self._is_open = True

    async def close(self) -> None:
        """Let go of the connections; what was handed over is finished first."""
        await self._sessions.close()
        self.puts.close()
        self._lent.close()

    async def _session(self) -> Session:
        if not self._is_open:
            await self.open()
        return self._sessions.here()

    def _changed(self) -> None:
        """Take note that jobs may have come to stand elsewhere."""
        self._line.heads.look(anew=True)
        self.news.bump(WORK)

    def _new_session(self) -> Session:
        return Session(self._address, self._line, self.news, self.puts)

    # The line

    async def put(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        """Accept new jobs, all of them or none."""
        if not jobs:
            return []
        return accepted(jobs, await (await self._session()).puts.put(jobs, shared=shared))

    def put_blocking(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        """Accept new jobs from synchronous code, in the calling thread."""
        if not jobs:
            return []
        if not self._is_open:
            self._open()
        return accepted(jobs, self.puts.blocking(jobs, shared=shared))

    # With the application's own data

    def put_within(self, connection: Any, jobs: Sequence[NewJob]) -> Within[list[Accepted]]:  # noqa: ANN401
        """Put on the caller's own connection to the same database, of whatever library."""

        def run() -> list[Accepted]:
            if not jobs:
                check(connection, is_async=False)
            elif not self._is_open:
                self._open()
            parts = self._put_parts(jobs)
            call = partial(self._caller.call, connection, "put")
            return accepted(jobs, _fresh((some, call(text)) for some, text in parts))

        async def arun() -> list[Accepted]:
            if not jobs:
                check(connection, is_async=True)
            else:
                await self.open()
            parts = self._put_parts(jobs)
            call = partial(self._caller.acall, connection, "put")
            return accepted(jobs, _fresh([(some, await call(text)) for some, text in parts]))

        return Within(run, arun)

    def _put_parts(self, jobs: Sequence[NewJob]) -> list[tuple[Sequence[NewJob], str]]:
        if not jobs:
            return []
        # These become visible when the caller commits, whenever that is.
        self._line.heads.look()
        return self._line.put_parts(jobs, self._crier.word(jobs))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Give a connection for one transaction of the application's own."""
        if not self._is_open:
            self._open()
        with self._lent.borrowed(float("inf")) as connection, connection.transaction():
            yield connection

    @asynccontextmanager
    async def atransaction(self) -> AsyncIterator[AsyncConnection]:
        """Give an async connection for one transaction of the application's own."""
        session = await self._session()
        async with session.lent.borrowed() as connection, connection.transaction():
            yield connection

    def complete_within(
        self,
        connection: Any,  # noqa: ANN401
        settlement: Settlement,
    ) -> Within[Settlement | None]:
        """Write that a run is done, in the transaction of this connection."""

        def run() -> Settlement | None:
            check(connection, is_async=False)
            text = self._line.end_text(settlement)
            return end_of(settlement, self._caller.call(connection, "settle", text))

        async def arun() -> Settlement | None:
            check(connection, is_async=True)
            text = self._line.end_text(settlement)
            return end_of(settlement, await self._caller.acall(connection, "settle", text))

        return Within(run, arun)

    # The worker's part

    async def claim(self, plan: ClaimPlan) -> Claim:
        """Give the worker what the selection rule chooses."""
        return await self._line.claim((await self._session()).claims, plan)

    async def extend(self, leases: Sequence[tuple[JobId, int]], lease: int) -> list[Extended]:
        """Renew leases under their current fence."""
        session = await self._session()
        held, locked = await self._line.extend(session.leases, leases, lease)
        if locked:
            session.extend_late([pair for pair in leases if pair[0] in locked], lease)
        return held

    async def held(self, worker: str) -> list[Job]:
        """Return the running jobs that this worker claimed."""
        return await self._line.held((await self._session()).leases, worker)

    async def settle(self, settlements: Sequence[Settlement]) -> dict[JobId, Settlement]:
        """Write what became of running jobs, under their current fence."""
        lane = (await self._session()).ends
        again = any(settlement.state is State.WAITING for settlement in settlements)
        word = self._bell.word(WORK if again else ENDED)
        written, busy = await self._line.settle(lane, settlements, word)
        for pause in _BUSY_PAUSES:
            if not busy:
                break
            await asyncio.sleep(pause)
            more, busy = await self._line.settle(lane, busy, None)
            written |= more
        if busy:
            # Not to be dropped as if the lease were lost: who stands in line has his turn.
            last = self._line.settle(lane, busy, None, patient=True)
            written |= (await last)[0]
        self.news.bump(WORK if again else ENDED)
        return written

    async def announce(self, worker: Worker, lease: int) -> None:
        """Say that a worker lives, and which tasks it knows."""
        await self._line.announce((await self._session()).leases, worker, lease)
        self.news.bump(WORK)

    async def wait(self, timeout: float, since: int = 0, *, for_work: bool = False) -> int:  # noqa: ASYNC109 (patience)
        """Return when there is news, a parked job falls due, or time is up."""
        session = await self._session()
        listener = session.listen()
        await listener.begin()
        if timeout > 0 and self.news.mark(for_work=for_work) == since:
            patience = min(timeout, self._line.heads.patience()) if for_work else timeout
            if not listener.hears:
                patience = min(patience, POLL_SECONDS)
            await self.news.wait(patience, since, self._line.due(session.looks), for_work=for_work)
        return self.news.mark(for_work=for_work)

    async def upkeep(self, keep: int) -> Upkeep:
        """Do one bounded round of housekeeping."""
        lane = (await self._session()).people
        done = await self._line.upkeep(lane, keep)
        if done.promoted or done.brought_back:
            self.news.bump(WORK)
        return done


def _fresh(answers: Iterable[tuple[Sequence[NewJob], Any]]) -> Iterator[bool]:
    for jobs, answer in answers:
        yield from fresh_ones(jobs, answer)


_stores: weakref.WeakSet[PostgresStore] = weakref.WeakSet()


def _begin_in_child() -> None:
    for store in list(_stores):
        store.begin()


os.register_at_fork(after_in_child=_begin_in_child)


def postgres_store(url: str, clock: Clock | None) -> PostgresStore:
    """Build the store from its URL; warn if others could read what goes to it."""
    address = Address.of(url)
    if address.doubt:
        told = f"the connection to {address.url} is not protected. {address.doubt}; {REMEDY}"
        warnings.warn(told, FairleadWarning, stacklevel=5)
    return PostgresStore(address, clock)
