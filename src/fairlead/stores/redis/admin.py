"""What people ask of the queues: each question is a conversation, on the lane for its kind."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from fairlead.core.acts import Action, AuditLine, Deed, Note
from fairlead.core.admin import (
    ALL,
    Admin,
    Condition,
    ErrorGroup,
    Filter,
    Finding,
    Migration,
    Part,
    Stats,
    Worker,
)
from fairlead.core.clock import Clock, SystemClock
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, JobRecord, State
from fairlead.core.page import Page
from fairlead.core.selection import ClaimPlan, Snapshot
from fairlead.stores.redis.acts import Acts
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.audit import audit
from fairlead.stores.redis.condition import condition, migrations, servers
from fairlead.stores.redis.crew import live
from fairlead.stores.redis.deeds import Deeds
from fairlead.stores.redis.history import History
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.lane import BlockingLanes, Lane
from fairlead.stores.redis.limits import Limit
from fairlead.stores.redis.listing import Listing
from fairlead.stores.redis.nodes import Nodes
from fairlead.stores.redis.pages import Pages
from fairlead.stores.redis.places import Places
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.repair import Repair
from fairlead.stores.redis.served import Served
from fairlead.stores.redis.talk import Conversation, present
from fairlead.stores.redis.wake import Listener
from fairlead.stores.repeat import acted

P = ParamSpec("P")
T = TypeVar("T")


class Session(Protocol):
    """What of an open session people need."""

    looks: Lane
    people: Lane

    def listen(self) -> Listener:
        """Return the listener of this loop."""


Talk = Callable[Concatenate["RedisAdmin", P], Conversation[T]]
Verb = Callable[Concatenate["RedisAdmin", P], Coroutine[Any, Any, T]]


def _question(talk: Talk[P, T]) -> Verb[P, T]:
    """Make a verb of a conversation, on the lane of people: it may be long."""

    @wraps(talk)
    async def verb(self: "RedisAdmin", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.ask(talk(self, *args, **kwargs))

    return verb


def _look(talk: Talk[P, T]) -> Verb[P, T]:
    """Make a verb of a short conversation, which programs have as well."""

    @wraps(talk)
    async def verb(self: "RedisAdmin", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await (await self.session()).looks.hold(talk(self, *args, **kwargs))

    return verb


class RedisAdmin(Admin):
    """Looks at the queues, and acts on them."""

    def __init__(
        self,
        keys: Keys,
        queues: Queues,
        address: Address,
        limits: Sequence[Limit],
        clock: Clock | None,
        session: Callable[[], Awaitable[Session]],
        reach: Callable[[], tuple[Nodes, BlockingLanes]],
        served: Served,
        changed: Callable[[], None],
    ) -> None:
        """Begin; `changed` is called when jobs may have come to stand elsewhere."""
        self._keys = keys
        self._queues = queues
        self._address = address
        self._clock = clock
        self.session = session
        self._reach = reach
        self._served = served
        self._changed = changed
        self._pages = Pages(keys, queues)
        self._listing = Listing(keys, queues, self._pages)
        self._history = History(keys, queues)
        self._places = Places(keys, queues, self._listing, limits, clock)
        self._acts = Acts(keys, queues, clock)
        self._deeds = Deeds(keys, queues, self._acts, clock, served)

    async def ask(self, talk: Conversation[T]) -> T:
        """Hold a conversation for people."""
        return await (await self.session()).people.hold(talk)

    # Looking

    @_look
    def find(self, job_id: JobId) -> Conversation[JobRecord | None]:
        """Return a job in whatever state."""
        return self._listing.find(job_id)

    @_question
    def page(
        self, which: Filter = ALL, limit: int = 100, cursor: str | None = None
    ) -> Conversation[Page]:
        """Return the next jobs that the filter means."""
        now = yield from present(self._clock)
        return (yield from self._pages.page(which, limit, cursor, now))

    @_question
    def count(self, which: Filter = ALL) -> Conversation[dict[str, dict[State, int]]]:
        """Count jobs by queue and state."""
        return self._listing.count(which)

    @_question
    def groups(self, which: Filter) -> Conversation[list[ErrorGroup]]:
        """Return failures by fingerprint."""
        return self._listing.groups(which)

    @_look
    def attempts(self, job_id: JobId) -> Conversation[list[Attempt]]:
        """Return the job's lines of the attempt log."""
        return self._history.attempts(job_id)

    @_question
    def recent(
        self, since: int, limit: int = 10_000, queue: str | None = None
    ) -> Conversation[list[Attempt]]:
        """Return the last lines of the attempt log."""
        return self._history.recent(since, limit, queue)

    @_question
    def stats(self, parts: Collection[Part] = tuple(Part)) -> Conversation[Stats]:
        """Return how the queues are, in the parts that are asked for."""
        return self._places.stats(parts)

    @_question
    def snapshot(self, plan: ClaimPlan, limit: int) -> Conversation[Snapshot]:
        """Return what a claim with this plan would look at now."""
        return self._places.snapshot(plan, limit)

    @_question
    def ahead(self, job_id: JobId) -> Conversation[int]:
        """Count the due jobs before this one in its queue."""
        return self._places.ahead(job_id)

    @_look
    def workers(self) -> Conversation[list[Worker]]:
        """Return the workers that are announced and live."""
        now = yield from present(self._clock)
        return (yield from live(self._keys, now))

    @_question
    def audit_log(
        self, limit: int = 100, job_id: JobId | None = None
    ) -> Conversation[list[AuditLine]]:
        """Return the audit log, newest first."""
        return self._acts.log(limit, job_id)

    # Acting

    async def act(self, deed: Deed, by: Action) -> list[str]:
        """Do what a person wants done; again, if there is no answer."""
        return await self._surely(lambda: self._deeds.do(deed, by), by)

    async def _surely(self, talk: Callable[[], Conversation[T]], by: Action) -> T:
        done = await acted(lambda: self.ask(talk()), by, self._address.timeout)
        self._changed()
        return done

    # The store itself

    @_question
    def audit(self) -> Conversation[list[Finding]]:
        """Check that every job is in exactly one place and every mark agrees."""
        return audit(self._keys, self._queues, self._clock, self._served.level())

    async def repair(self, by: Action) -> list[str]:
        """Put right what the audit finds."""
        repair = Repair(self._keys, self._queues, self._clock, self._served.level())
        try:
            return await self._surely(repair.all, by)
        finally:  # Whatever came after: what was done is written down.
            if repair.done:
                await self.act(Note(len(repair.done)), by)

    async def condition(self) -> Condition:
        """Return facts about the server, and what is wrong with its set-up."""
        listener = (await self.session()).listen()
        await listener.begin()
        nodes, _ = self._reach()
        found = await self.ask(servers(nodes, self._served, self._address))
        now = (self._clock or SystemClock()).now()
        return condition(found, self._address, now, hears=listener.hears)

    async def migrations(self) -> list[Migration]:
        """Return the versions of our keys, and whether they are in use."""
        nodes, lanes = self._reach()
        return await asyncio.to_thread(lanes.hold, migrations(nodes, self._keys))
