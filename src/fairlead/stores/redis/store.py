"""The store of `redis://`: one server or a cluster, any number of machines."""

import asyncio
import os
import threading
import warnings
import weakref
from collections.abc import Iterable, Sequence
from functools import partial

from msgspec.structs import replace

from fairlead.core.admin import Worker
from fairlead.core.clock import Clock
from fairlead.core.errors import ConfigError, FairleadWarning, Unanswered
from fairlead.core.ids import JobId
from fairlead.core.job import Job, NewJob, State, size_of
from fairlead.core.outcome import Settlement
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.core.store import Accepted, Extended, Upkeep, accepted
from fairlead.stores.gather import Gather
from fairlead.stores.news import ECHOES, ENDED, WORK, News
from fairlead.stores.redis.address import Address, Node
from fairlead.stores.redis.admin import RedisAdmin
from fairlead.stores.redis.condition import OPEN, begin, weakest
from fairlead.stores.redis.entries import RedisEntries
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.lane import BlockingLanes, Lane
from fairlead.stores.redis.limits import Limit
from fairlead.stores.redis.line import RedisLine
from fairlead.stores.redis.nodes import Nodes
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.served import Served
from fairlead.stores.redis.talk import MOST_AT_ONCE
from fairlead.stores.redis.wake import Bell, Listener, heard
from fairlead.stores.repeat import arepeated, repeated
from fairlead.stores.sessions import Sessions
from fairlead.stores.untransacted import Untransacted

PEOPLE_SECONDS = 60.0
"""How long an answer to a person's question may take; each is one of many small ones, but long
lists may come over a slow line."""
POLL_SECONDS = 0.2
"""How long a wait is where no news can be heard."""


class _Session:
    """What is open on one event loop: connections for each kind of work, and a listener."""

    def __init__(self, store: "RedisStore", address: Address, nodes: Nodes) -> None:
        self._store = store
        self._nodes = nodes
        self._address = address
        self.puts = Lane(address, nodes)
        self.repeats = Lane(address, nodes)
        self.claims = Lane(address, nodes)
        self.leases = Lane(address, nodes)
        self.ends = Lane(address, nodes)
        self.looks = Lane(address, nodes)
        self.small = Lane(address, nodes)  # Entries: many large ones would hold up looks.
        self.people = Lane(address, nodes, PEOPLE_SECONDS)
        self._gathers: dict[str, Gather[NewJob, bool]] = {}
        self.listener: Listener | None = None

    def gather(self, jobs: Sequence[NewJob]) -> Gather[NewJob, bool]:
        """Return where these jobs gather with others.

        In a cluster only with those of their own queue: its node may be out of reach alone.
        """
        name = jobs[0].queue if self._address.is_cluster else ""
        gather = self._gathers.get(name)
        if gather is None:
            gather = self._gathers[name] = Gather(self._store.put_gathered, size_of)
        return gather

    def listen(self) -> Listener:
        """Return the listener of this loop."""
        if self.listener is None:
            store = self._store
            self.listener = Listener(self._address, self._nodes, store.keys.news, store.hear)
        return self.listener

    def _lanes(self) -> tuple[Lane, ...]:
        lines = (self.puts, self.repeats, self.claims, self.leases, self.ends)
        return *lines, self.looks, self.small, self.people

    async def finished(self) -> None:
        """Wait for what was handed over."""
        for gather in list(self._gathers.values()):
            await gather.finished()
        for lane in self._lanes():
            await lane.finished()

    def close(self) -> None:
        """Let go of everything, from whatever thread."""
        if self.listener is not None:
            self.listener.close()
        for lane in self._lanes():
            lane.close()


class RedisStore(Untransacted):
    """Jobs under the keys of one prefix. Connects at first use, and again in a fork."""

    entries: RedisEntries
    jobs_per_put = MOST_AT_ONCE

    def __init__(self, address: Address, clock: Clock | None = None) -> None:
        self.url = address.url
        self.durability = "fast"
        self.keys = Keys(address.prefix, in_cluster=address.is_cluster)
        self._address = address
        self._clock = clock
        self._queues = Queues(self.keys)
        self._served = Served(self.keys, lambda: self.level)
        self.limits: list[Limit] = []
        self.admin = RedisAdmin(
            self.keys,
            self._queues,
            address,
            self.limits,
            clock,
            self._session,
            lambda: (self._nodes, self._blocking),
            self._served,
            self._changed,
        )
        self.entries = RedisEntries(self.keys, self._queues, clock, self._small, self._served)
        self._is_open = False
        self.begin()
        _stores.add(self)

    def begin(self) -> None:
        """Begin with nothing open; again in a fork, whose threads and connections stay behind."""
        self.news = News()
        self._line = RedisLine(self.keys, self._queues, self.limits, self._clock, self._served)
        self._bell = Bell()
        self._nodes = Nodes(self._address)
        self._blocking = BlockingLanes(self._address, self._nodes)
        self._sessions = Sessions(lambda: _Session(self, self._address, self._nodes))
        self._opening = threading.Lock()

    # Opening

    async def open(self) -> None:
        """Connect, and see to it that the server keeps what it accepts."""
        if not self._is_open:
            await asyncio.to_thread(self._open)

    def _open(self) -> None:
        with self._opening:
            if self._is_open:
                return
            found = self._blocking.hold(begin(self._nodes, self.keys, self._served, self._address))
            if not self._address.is_open:  # Else it was told already.
                _warn_if_open(self._address, [server.place for server in found])
            server = weakest(found)
            self.durability, self.told_durability = server.durability, server.survives
            self._is_open = True

    async def close(self) -> None:
        """Let go of the connections; what was handed over is finished first."""
        await self._sessions.close()
        self._blocking.close()
        await asyncio.sleep(0.001)  # Sockets are closed with the loop's next step.

    async def _session(self) -> _Session:
        if not self._is_open:
            await self.open()
        return self._sessions.here()

    async def _small(self) -> Lane:
        return (await self._session()).small

    def _changed(self) -> None:
        """Take note that jobs may have come to stand elsewhere."""
        self._line.claims.doubt()
        self.news.bump(WORK)

    # The line

    async def put(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        """Accept new jobs."""
        if not jobs:
            return []
        session = await self._session()
        try:
            return accepted(jobs, await session.gather(jobs).submit(jobs))
        except Unanswered as lost:
            again = partial(self._put_on, session.repeats, jobs)
            known = await arepeated(lost, lambda _: again(), self._address.timeout)
            return accepted(jobs, [True] * len(jobs) if shared else known)

    async def put_gathered(self, jobs: Sequence[NewJob]) -> Sequence[bool]:
        """Accept the jobs of several callers together."""
        return await self._put_on((await self._session()).puts, jobs)

    async def _put_on(self, lane: Lane, jobs: Sequence[NewJob]) -> list[bool]:
        fresh = await lane.hold(self._line.put(jobs, self._bell), together=True)
        self.news.bump(WORK)
        return fresh

    def put_blocking(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        """Accept new jobs from synchronous code, in the calling thread."""
        if not jobs:
            return []
        if not self._is_open:
            self._open()
        try:
            fresh = self._put_blocking(self._blocking, jobs)
        except Unanswered as lost:
            self._blocking.close()  # What else is idle may be as deaf.
            fresh = repeated(lost, partial(self._put_anew, jobs), self._address.timeout)
        # The lane says things twice if its connection was closed meanwhile.
        return accepted(jobs, [True] * len(jobs) if shared else fresh)

    def _put_anew(self, jobs: Sequence[NewJob], patience: float) -> list[bool]:
        """Put on connections of its own."""
        lanes = BlockingLanes(replace(self._address, timeout=patience), self._nodes)
        try:
            return self._put_blocking(lanes, jobs)
        finally:
            lanes.close()

    def _put_blocking(self, lanes: BlockingLanes, jobs: Sequence[NewJob]) -> list[bool]:
        fresh = lanes.hold(self._line.put(jobs, self._bell), together=True)
        self.news.bump(WORK)
        return fresh

    def no_transactions(self) -> ConfigError:
        """Say why, and the way out."""
        return ConfigError(
            "Redis cannot share a transaction with your database, so redis:// takes no "
            "`connection=` and has no job.commit(). Enqueue after your commit, and make handlers "
            "idempotent; or use postgresql:// or sqlite:/// for jobs that must commit together "
            "with your data"
        )

    # The worker's part

    async def claim(self, plan: ClaimPlan) -> Claim:
        """Give the worker what the selection rule chooses."""
        session = await self._session()
        hears = session.listener is not None and session.listener.hears
        return await session.claims.hold(self._line.claim(plan, hears=hears))

    async def extend(self, leases: Sequence[tuple[JobId, int]], lease: int) -> list[Extended]:
        """Renew leases under their current fence."""
        return await (await self._session()).leases.hold(self._line.extend(leases, lease))

    async def held(self, worker: str) -> list[Job]:
        """Return the running jobs that this worker claimed."""
        return await (await self._session()).looks.hold(self._line.held(worker))

    async def settle(self, settlements: Sequence[Settlement]) -> dict[JobId, Settlement]:
        """Write what became of running jobs, under their current fence."""
        talk = self._line.settle(settlements, self.level, self._bell)
        written = await (await self._session()).ends.hold(talk)
        again = any(settlement.state is State.WAITING for settlement in settlements)
        self.news.bump(WORK if again else ENDED)
        return written

    async def announce(self, worker: Worker, lease: int) -> None:
        """Say that a worker lives, and which tasks it knows."""
        await (await self._session()).leases.hold(self._line.announce(worker, lease))
        self.news.bump(WORK)

    async def wait(self, timeout: float, since: int = 0, *, for_work: bool = False) -> int:  # noqa: ASYNC109 (patience)
        """Return when there is news, a parked job falls due, or time is up."""
        session = await self._session()
        listener = session.listen()
        await listener.begin()
        if timeout > 0 and self.news.mark(for_work=for_work) == since:
            patience = timeout if listener.hears else min(timeout, POLL_SECONDS)
            until = asyncio.get_running_loop().time() + patience
            due = session.looks.hold(self._line.due(for_work=for_work))
            await self.news.wait(patience, since, due, for_work=for_work)
            if for_work and asyncio.get_running_loop().time() >= until:
                self._line.claims.seen.doubt()  # Nobody told of anything: better look.
        return self.news.mark(for_work=for_work)

    def hear(self, text: str) -> None:
        """Take note of what somebody told, and of what may have followed untold."""
        word, queue = heard(text)
        if word != ENDED and not self._line.claims.hear(queue):
            word = ENDED  # No work of ours; but who waits for an end may be told no other word.
        if word != ENDED:
            for seconds in ECHOES:
                again = partial(self._line.claims.hear, queue)
                asyncio.get_running_loop().call_later(seconds, again)
        self.news.hear(word)

    async def upkeep(self, keep: int) -> Upkeep:
        """Do one bounded round of housekeeping."""
        looks = (await self._session()).looks
        done = await looks.hold(self._line.upkeep(keep, self.level))
        loose = await looks.hold(self.entries.prune())
        done = replace(done, pruned_entries=done.pruned_entries + loose)
        if done.promoted or done.brought_back:
            self.news.bump(WORK)
        return done


_stores: weakref.WeakSet[RedisStore] = weakref.WeakSet()


def _begin_in_child() -> None:
    for store in list(_stores):
        store.begin()


os.register_at_fork(after_in_child=_begin_in_child)


def redis_store(url: str, clock: Clock | None) -> RedisStore:
    """Build the store from its URL; warn if others could read what goes to it."""
    address = Address.of(url)
    _warn_if_open(address, address.nodes)
    return RedisStore(address, clock)


def _warn_if_open(address: Address, nodes: Iterable[Node]) -> None:
    if any(address.is_open_to(node) for node in nodes):
        told = f"{address.url}: {OPEN.problem}; {OPEN.remedy}"
        warnings.warn(told, FairleadWarning, stacklevel=6)
