"""The store of `sqlite:///path`: one file, any number of processes on one machine."""

import asyncio
import os
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
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
    check_count,
)
from fairlead.core.clock import SECOND, Clock, SystemClock
from fairlead.core.errors import ConfigError, Unanswered, did_you_mean
from fairlead.core.ids import JobId
from fairlead.core.job import LATEST, Attempt, Job, JobRecord, NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.selection import Claim, ClaimPlan, Snapshot
from fairlead.core.store import Backend, Extended, Upkeep
from fairlead.core.text import brief
from fairlead.stores.foreign import commits_itself
from fairlead.stores.repeat import acted, arepeated, repeated
from fairlead.stores.sqlite import admin
from fairlead.stores.sqlite.admin import Edit, Request
from fairlead.stores.sqlite.audit import all_damages, audit
from fairlead.stores.sqlite.condition import condition
from fairlead.stores.sqlite.connection import Place, typed
from fairlead.stores.sqlite.entries import SqliteEntries
from fairlead.stores.sqlite.foreign import Shared, check_file, explained, shared, within
from fairlead.stores.sqlite.line import SqliteLine, complete
from fairlead.stores.sqlite.migrate import applied, check_current
from fairlead.stores.sqlite.session import Session
from fairlead.stores.sqlite.sound import AT_ONCE
from fairlead.stores.sqlite.talk import ask
from fairlead.stores.sqlite.transaction import AsyncConnection, atransaction, transaction
from fairlead.stores.sqlite.ways import enter
from fairlead.stores.sqlite.writer import Verb, WriterClosed

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class SqliteStore(Backend):
    """Jobs in an SQLite file. Opens at first use, and again in a forked child."""

    def __init__(self, place: Place, clock: Clock | None = None) -> None:
        self.url = place.url
        self.durability = place.durability
        self._place = place
        self._clock = clock or SystemClock()
        self._line = SqliteLine(self._clock)
        self._hand = admin.SqliteHand(self._clock, self._line)
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

    async def _act(self, verb: Verb[Item, Answer], item: Item, by: Action) -> Answer:
        """Do what a person asks for; again, if there is no answer."""
        return (await acted(lambda: self._write(verb, [item]), by, self._place.patience))[0]

    def _forget(self, session: Session) -> None:
        with self._opening:
            if self._session is session:
                self._session = None

    # The line

    async def put(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[bool]:
        """Accept new jobs, all of them or none."""
        return list(await self._write_surely(self._line.put, jobs))

    def put_blocking(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[bool]:
        """Accept new jobs from synchronous code, in the calling thread."""
        try:
            return self._put_blocking(jobs)
        except Unanswered as lost:
            return repeated(lost, lambda _: self._put_blocking(jobs), self._place.patience)

    def _put_blocking(self, jobs: Sequence[NewJob]) -> list[bool]:
        while True:
            session = self._session or self._open()
            try:
                return list(session.writer.run(self._line.put, jobs))
            except WriterClosed:
                self._forget(session)

    def put_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[bool]:  # noqa: ANN401
        """Put on the caller's own connection to the same file, of whatever library."""
        return self._put_on(jobs, shared(connection))

    async def aput_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[bool]:  # noqa: ANN401
        """Put on an async connection, ours or the caller's, or on a plain one."""
        return await within(connection, partial(self._put_on, jobs))

    def _put_on(self, jobs: Sequence[NewJob], mine: Shared) -> list[bool]:
        self._check_shared(mine)
        if not jobs and mine.commits_itself:
            raise commits_itself()
        with explained(mine):
            fresh = enter(mine, jobs, self._clock.now())
            self._open().served.check_on(mine)
            return fresh

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

    def complete_within(self, connection: Any, settlement: Settlement) -> Settlement | None:  # noqa: ANN401
        """Write that a run is done, inside a transaction."""
        return self._complete_on(settlement, shared(connection))

    async def acomplete_within(self, connection: Any, settlement: Settlement) -> Settlement | None:  # noqa: ANN401
        """Write that a run is done on an async connection, ours or the caller's, or a plain one."""
        return await within(connection, partial(self._complete_on, settlement))

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
        return await self._read(lambda connection: admin.held(connection, worker))

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

    # For people

    async def _read(self, question: Callable[[sqlite3.Connection], Answer]) -> Answer:
        while True:
            session = await self._opened()
            try:
                return await asyncio.to_thread(session.read, question)
            except WriterClosed:
                await asyncio.to_thread(self._forget, session)

    async def find(self, job_id: JobId) -> JobRecord | None:
        """Return a job in whatever state."""
        return await self._read(lambda connection: admin.find(connection, job_id))

    async def jobs(
        self, which: Filter, limit: int = 100, before: JobId | None = None
    ) -> list[JobRecord]:
        """Return jobs that the filter means, newest first."""
        return await self._read(lambda connection: admin.jobs(connection, which, limit, before))

    async def count(self, which: Filter = ALL) -> dict[str, dict[State, int]]:
        """Count jobs by queue and state."""
        return await self._read(lambda connection: admin.count(connection, which))

    async def groups(self, which: Filter) -> list[ErrorGroup]:
        """Return failures by fingerprint."""
        return await self._read(lambda connection: admin.groups(connection, which))

    async def attempts(self, job_id: JobId) -> list[Attempt]:
        """Return the job's lines of the attempt log."""
        return await self._read(lambda connection: admin.attempts(connection, job_id))

    async def recent(
        self, since: int, limit: int = 10_000, queue: str | None = None
    ) -> list[Attempt]:
        """Return the last lines of the attempt log."""
        return await self._read(lambda connection: admin.recent(connection, since, limit, queue))

    async def waiting(self) -> dict[str, Waiting]:
        """Count the waiting jobs of each queue by what they wait for."""
        return await self._read(partial(admin.waiting, now=self._clock.now()))

    async def running(self) -> list[Running]:
        """Count running jobs by worker process, queue and task."""
        return await self._read(partial(admin.running, now=self._clock.now()))

    async def snapshot(self, plan: ClaimPlan, limit: int) -> Snapshot:
        """Return what a claim with this plan would look at now."""
        now = self._clock.now()
        return await self._read(lambda connection: admin.snapshot(connection, plan, limit, now))

    async def ahead(self, job_id: JobId) -> int:
        """Count the due jobs before this one in its queue."""
        now = self._clock.now()
        return await self._read(lambda connection: admin.ahead(connection, job_id, now))

    async def unknown(self) -> dict[tuple[str, int], int]:
        """Count the jobs parked for want of a capable worker, by task and version."""
        return await self._read(admin.unknown)

    async def paused(self) -> set[str]:
        """Return the names of the paused queues."""
        return await self._read(admin.paused)

    async def workers(self) -> list[Worker]:
        """Return the workers that are announced and live."""
        now = self._clock.now()
        return await self._read(lambda connection: admin.workers(connection, now))

    async def audit_log(self, limit: int = 100, job_id: JobId | None = None) -> list[AuditLine]:
        """Return the audit log, newest first."""
        return await self._read(lambda connection: admin.audit_log(connection, limit, job_id))

    async def cancel(
        self,
        job_ids: Collection[JobId],
        reason: str,
        by: Action,
        states: Collection[State] = LIVE,
    ) -> dict[JobId, JobRecord]:
        """Cancel waiting jobs at once, and mark running ones."""
        request = Request(job_ids, by, states, reason)
        return await self._act(self._hand.cancel, request, by)

    async def revive(
        self, job_ids: Collection[JobId], states: Collection[State], by: Action
    ) -> list[JobId]:
        """Let jobs run again, or sooner."""
        return await self._act(self._hand.revive, Request(job_ids, by, states), by)

    async def edit(self, job_id: JobId, was: str, payload: str, version: int, by: Action) -> bool:
        """Replace the payload of a dead letter, if it still is `was`."""
        edit = Edit(job_id, was, payload, version, by)
        return await self._act(self._hand.edit, edit, by)

    async def delete(
        self, job_ids: Collection[JobId], states: Collection[State], by: Action
    ) -> list[JobId]:
        """Forget final jobs for good."""
        return await self._act(self._hand.delete, Request(job_ids, by, states), by)

    async def pause(self, queue: str, by: Action) -> bool:
        """Let no further job of this queue start."""
        return await self._act(self._hand.pause, (queue, by), by)

    async def resume(self, queue: str, by: Action) -> bool:
        """Let jobs of this queue start again."""
        return await self._act(self._hand.resume, (queue, by), by)

    async def note(self, by: Action, count: int, job_id: JobId | None = None) -> None:
        """Add to the audit log something that was done by other verbs."""
        await self._act(self._hand.note, (by, check_count(count), job_id), by)

    async def audit(self) -> list[Finding]:
        """Check that every job is in exactly one place and every mark agrees."""
        return await self._read(partial(audit, by=self._line.moment()))

    async def repair(self, by: Action) -> list[str]:
        """Put right what the audit finds, some at a time.

        What was put right may lay bare what else is wrong, so all is looked at again until
        nothing is left but what SQLite refused to have changed.
        """
        mended: list[str] = []
        refused: dict[tuple[str, object], str] = {}
        look = partial(all_damages, by=self._line.moment())
        while True:
            found = await self._read(look)
            open_ = [damage for damage in found if damage.place not in refused]
            before = len(mended)
            for at in range(0, len(open_), AT_ONCE):
                some = (by, open_[at : at + AT_ONCE])
                told = await self._act(self._hand.repair, some, by)
                mended += told.mended
                refused |= told.refused
            if len(mended) == before:
                return [*mended, *refused.values()]

    async def condition(self) -> Condition:
        """Return facts about the file, and what is wrong with its set-up."""
        return await self._read(lambda connection: condition(connection, self._place))

    async def migrations(self) -> list[Migration]:
        """Return the steps of the schema and whether each was applied."""
        return await asyncio.to_thread(applied, self._place, self.level)


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
