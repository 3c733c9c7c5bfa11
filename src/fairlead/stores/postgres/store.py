"""The store of `postgresql://`: one database, any number of machines."""

import asyncio
import os
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from fairlead.core.admin import (
    ALL,
    LIVE,
    Action,
    AuditLine,
    Condition,
    ErrorGroup,
    Filter,
    Finding,
    Migration,
    Running,
    Waiting,
    Worker,
)
from fairlead.core.clock import Clock, SystemClock
from fairlead.core.errors import FairleadWarning, StoreError
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, Job, JobRecord, NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.selection import Claim, ClaimPlan, Snapshot
from fairlead.core.store import Backend, Extended, Upkeep
from fairlead.stores.news import ENDED, WORK, Bell, News
from fairlead.stores.postgres.address import REMEDY, Address
from fairlead.stores.postgres.admin import Hand
from fairlead.stores.postgres.audit import audit, repair
from fairlead.stores.postgres.condition import condition
from fairlead.stores.postgres.foreign import Caller, check
from fairlead.stores.postgres.lacking import find_lacking
from fairlead.stores.postgres.lane import AsyncConnection, BlockingLanes, Connection
from fairlead.stores.postgres.line import PostgresLine, end_of, fresh_ones, put_parts
from fairlead.stores.postgres.migrate import applied, migrate
from fairlead.stores.postgres.puts import Puts
from fairlead.stores.postgres.session import Session
from fairlead.stores.postgres.statements import statements
from fairlead.stores.postgres.wake import Crier
from fairlead.stores.repeat import acted
from fairlead.stores.sessions import Sessions

Answer = TypeVar("Answer")

POLL_SECONDS = 0.2
"""How long a wait is where no news can be heard."""
_BUSY_PAUSES = (0.005, 0.02, 0.1, 0.5, 1.0, 2.0)


class PostgresStore(Backend):
    """Jobs in a schema of a PostgreSQL database. Connects at first use, and again in a fork."""

    jobs_per_put = 5_000

    def __init__(self, address: Address, clock: Clock | None = None) -> None:
        self.url = address.url
        self.durability = "durable"
        self._address = address
        self._clock = clock
        self._sql = statements(address.quoted_schema)
        self._caller = Caller(address, self._sql)
        self._line = PostgresLine(address.quoted_schema, clock)
        self._hand = Hand(address.quoted_schema, clock)
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
                kept = migrate(self._address)
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

    def _new_session(self) -> Session:
        return Session(self._address, self._line, self.news, self.puts)

    # The line

    async def put(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[bool]:
        """Accept new jobs, all of them or none."""
        return await (await self._session()).puts.put(jobs, shared=shared) if jobs else []

    def put_blocking(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[bool]:
        """Accept new jobs from synchronous code, in the calling thread."""
        if not jobs:
            return []
        if not self._is_open:
            self._open()
        return self.puts.blocking(jobs, shared=shared)

    # With the application's own data

    def put_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[bool]:  # noqa: ANN401
        """Put on the caller's own connection to the same database."""
        if not jobs:
            check(connection, is_async=False)
            return []
        if not self._is_open:
            self._open()
        return [
            fresh
            for some, text in self._put_parts(jobs)
            for fresh in fresh_ones(some, self._caller.call(connection, "put", text))
        ]

    async def aput_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[bool]:  # noqa: ANN401
        """Put on the caller's own connection, which may be async."""
        if not jobs:
            check(connection, is_async=True)
            return []
        await self.open()
        return [
            fresh
            for some, text in self._put_parts(jobs)
            for fresh in fresh_ones(some, await self._caller.acall(connection, "put", text))
        ]

    def _put_parts(self, jobs: Sequence[NewJob]) -> list[tuple[Sequence[NewJob], str]]:
        # These become visible when the caller commits, whenever that is.
        self._line.heads.look()
        return put_parts(jobs, self._line.at(), self._crier.word(jobs))

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

    def complete_within(self, connection: Any, settlement: Settlement) -> Settlement | None:  # noqa: ANN401
        """Write that a run is done, in the transaction of this connection."""
        check(connection, is_async=False)
        text = self._line.end_text(settlement)
        return end_of(settlement, self._caller.call(connection, "settle", text))

    async def acomplete_within(self, connection: Any, settlement: Settlement) -> Settlement | None:  # noqa: ANN401
        """Write that a run is done, in the transaction of a connection that may be async."""
        check(connection, is_async=True)
        text = self._line.end_text(settlement)
        return end_of(settlement, await self._caller.acall(connection, "settle", text))

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
            written |= (await self._line.settle(lane, busy, None, patient=True))[0]
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
        done = await self._line.upkeep((await self._session()).people, keep)
        if done.promoted or done.brought_back:
            self.news.bump(WORK)
        return done

    # For people

    async def find(self, job_id: JobId) -> JobRecord | None:
        """Return a job in whatever state."""
        return await self._hand.find((await self._session()).looks, job_id)

    async def jobs(
        self, which: Filter, limit: int = 100, before: JobId | None = None
    ) -> list[JobRecord]:
        """Return jobs that the filter means, newest first."""
        return await self._hand.jobs((await self._session()).people, which, limit, before)

    async def count(self, which: Filter = ALL) -> dict[str, dict[State, int]]:
        """Count jobs by queue and state."""
        return await self._hand.count((await self._session()).people, which)

    async def groups(self, which: Filter) -> list[ErrorGroup]:
        """Return failures by fingerprint."""
        return await self._hand.groups((await self._session()).people, which)

    async def attempts(self, job_id: JobId) -> list[Attempt]:
        """Return the job's lines of the attempt log."""
        return await self._hand.attempts((await self._session()).looks, job_id)

    async def recent(
        self, since: int, limit: int = 10_000, queue: str | None = None
    ) -> list[Attempt]:
        """Return the last lines of the attempt log."""
        return await self._hand.recent((await self._session()).people, since, limit, queue)

    async def waiting(self) -> dict[str, Waiting]:
        """Count the waiting jobs of each queue by what they wait for."""
        return await self._hand.waiting((await self._session()).people)

    async def running(self) -> list[Running]:
        """Count running jobs by worker process, queue and task."""
        return await self._hand.running((await self._session()).people)

    async def snapshot(self, plan: ClaimPlan, limit: int) -> Snapshot:
        """Return what a claim with this plan would look at now."""
        return await self._hand.snapshot((await self._session()).people, plan, limit)

    async def ahead(self, job_id: JobId) -> int:
        """Count the due jobs before this one in its queue."""
        return await self._hand.ahead((await self._session()).people, job_id)

    async def unknown(self) -> dict[tuple[str, int], int]:
        """Count the jobs parked for want of a capable worker, by task and version."""
        return await self._hand.unknown((await self._session()).people)

    async def paused(self) -> set[str]:
        """Return the names of the paused queues."""
        return await self._hand.paused((await self._session()).people)

    async def workers(self) -> list[Worker]:
        """Return the workers that are announced and live."""
        return await self._hand.workers((await self._session()).looks)

    async def audit_log(self, limit: int = 100, job_id: JobId | None = None) -> list[AuditLine]:
        """Return the audit log, newest first."""
        return await self._hand.audit_log((await self._session()).people, limit, job_id)

    async def cancel(
        self,
        job_ids: Collection[JobId],
        reason: str,
        by: Action,
        states: Collection[State] = LIVE,
    ) -> dict[JobId, JobRecord]:
        """Cancel waiting jobs at once, and mark running ones."""
        lane = (await self._session()).acts

        async def cancel() -> dict[JobId, JobRecord]:
            touched = await self._act("cancel", by, job_ids, states, reason=reason)
            found = [await self._hand.find(lane, job_id) for job_id in touched]
            return {record.id: record for record in found if record is not None}

        return await self._surely(cancel, by)

    async def revive(
        self, job_ids: Collection[JobId], states: Collection[State], by: Action
    ) -> list[JobId]:
        """Let jobs run again, or sooner."""
        return await self._surely(lambda: self._act("revive", by, job_ids, states), by)

    async def edit(self, job_id: JobId, was: str, payload: str, version: int, by: Action) -> bool:
        """Replace the payload of a dead letter, if it still is `was`."""
        new: dict[str, Any] = {"was": was, "payload": payload, "version": version}
        return bool(await self._surely(lambda: self._act("edit", by, [job_id], **new), by))

    async def delete(
        self, job_ids: Collection[JobId], states: Collection[State], by: Action
    ) -> list[JobId]:
        """Forget final jobs for good."""
        return await self._surely(lambda: self._act("delete", by, job_ids, states), by)

    async def pause(self, queue: str, by: Action) -> bool:
        """Let no further job of this queue start."""
        return bool(await self._surely(lambda: self._act("pause", by, queue=queue), by))

    async def resume(self, queue: str, by: Action) -> bool:
        """Let jobs of this queue start again."""
        return bool(await self._surely(lambda: self._act("resume", by, queue=queue), by))

    async def _act(
        self,
        verb: str,
        by: Action,
        job_ids: Collection[JobId] = (),
        states: Collection[State] = (),
        **more: object,
    ) -> list[JobId]:
        lane = (await self._session()).acts
        told = {"tell": WORK} if verb in ("revive", "resume", "cancel") else {}
        touched = await self._hand.act(lane, verb, by, job_ids, states, **more, **told)
        self._line.heads.look(anew=True)
        self.news.bump(WORK)
        return touched

    async def note(self, by: Action, count: int, job_id: JobId | None = None) -> None:
        """Add to the audit log something that was done by other verbs."""
        lane = (await self._session()).acts
        await self._surely(lambda: self._hand.note(lane, by, count, job_id), by)

    async def _surely(self, act: Callable[[], Awaitable[Answer]], by: Action) -> Answer:
        """Do what a person asks for; again, if there is no answer."""
        return await acted(act, by, self._address.timeout)

    async def audit(self) -> list[Finding]:
        """Check that every job is in exactly one place and every mark agrees."""
        lane = (await self._session()).people
        lacking = await find_lacking(lane, self._address)
        try:
            return lacking + await audit(lane, self._address.quoted_schema, self._line.at())
        except StoreError:
            if not lacking:
                raise
            return lacking  # The tables cannot be looked at without what is missing.

    async def repair(self, by: Action) -> list[str]:
        """Put right what the audit finds."""
        lane, schema = (await self._session()).people, self._address.quoted_schema
        done = await self._surely(lambda: repair(lane, schema, self._line.at(), by), by)
        self._line.heads.look()
        self.news.bump(WORK)
        return done

    async def condition(self) -> Condition:
        """Return facts about the server, and what is wrong with its set-up."""
        listener = (await self._session()).listen()
        await listener.begin()
        now = (self._clock or SystemClock()).now()
        return await self._looked(
            lambda connection: condition(connection, self._address, now, hears=listener.hears)
        )

    async def _looked(self, question: Callable[[Any], Awaitable[Answer]]) -> Answer:
        return await (await self._session()).people.run(question)

    async def migrations(self) -> list[Migration]:
        """Return the steps of the schema and whether each was applied."""
        return await asyncio.to_thread(applied, self._address)


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
