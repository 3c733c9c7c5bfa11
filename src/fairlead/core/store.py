"""What a store must do, in prose.

`Store` is the line a job travels: put, claim, extend, settle, plus the few
verbs that keep it going. It has two more parts: `core.admin.Admin` for people, and
`core.entries.Entries` for small values that are no jobs.
Hot verbs take and return batches of core values.

Three rules hold for every verb:

* What a call changes is atomic per job; a put, per queue. Where a store gives more, its verb says
  so.
  An answer means it is durable as the store's class says. `Unanswered` means that it may have
  happened, or may still happen; any other `StoreUnavailable`, that the store was not asked or
  undid it. Either way the call can be repeated safely. A put, and what a person does, is repeated
  by the store itself before it raises `Unanswered`.
* The store's own clock is used for leases and due times, read when the call is
  carried out.
* Cancelling the caller of an async verb cancels its wait, not the work.

One conformance suite, split by verb, holds every store to these words.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Generic, TypeVar

import msgspec

from fairlead.core.admin import Admin, Worker
from fairlead.core.entries import Entries
from fairlead.core.ids import JobId
from fairlead.core.job import LEVEL, Job, NewJob
from fairlead.core.outcome import Settlement
from fairlead.core.selection import Claim, ClaimPlan

T = TypeVar("T")

BATCH = 1_000
"""How many jobs one round of promote, expire, bring back or prune may touch."""


_SURVIVES = {
    "memory": "an accepted job is gone with the program",
    "fast": "an accepted job survives kill -9; a power cut may take the last moment",
    "durable": "an accepted job survives kill -9 and power cuts",
}


class Accepted(msgspec.Struct, frozen=True, gc=False):
    """What became of a job that was put: the id that stands for it, and whether it is new."""

    id: JobId
    is_new: bool


def accepted(jobs: Sequence[NewJob], fresh: Iterable[bool]) -> list[Accepted]:
    """Return the answer to a put whose jobs stand for themselves."""
    return list(map(Accepted, [job.id for job in jobs], fresh))


class Within(Generic[T]):
    """Something to do in a caller's transaction, for either of two executors.

    `run` is for plain connections. `arun` is for async ones, and does on any other what `run`
    does. Nothing happens before one of them is called.
    """

    def __init__(self, run: Callable[[], T], arun: Callable[[], Awaitable[T]]) -> None:
        self.run = run
        self.arun = arun


class Extended(msgspec.Struct, frozen=True):
    """A lease that was renewed, and whether a person asked to cancel its job meanwhile."""

    id: JobId
    cancel_requested: bool


class Upkeep(msgspec.Struct, frozen=True):
    """What one round of upkeep did; a full batch in any part means there is more to do."""

    promoted: int = 0
    brought_back: int = 0
    expired: int = 0
    pruned_jobs: int = 0
    pruned_attempts: int = 0
    pruned_entries: int = 0

    @property
    def more(self) -> bool:
        """Whether another round would find something to do at once."""
        return any(count >= BATCH for count in msgspec.structs.astuple(self))


class Store(ABC):
    """The line a job travels."""

    url: str
    """Where the store is, without secrets; used in messages."""

    admin: Admin
    """What people may ask."""
    entries: Entries
    """Small values beside the jobs."""

    level: int = LEVEL
    """What this program knows to do with jobs: no verb but `put` changes one above it.

    A claim goes by the level of its plan. Leases are renewed whatever the level is: who has the
    fence of a job was given it.
    """

    jobs_per_put: int = 1_000
    """How many jobs of a long stream are best put at once."""
    bytes_per_put: int = 4 * 2**20
    """How many bytes of their payloads and options, about."""

    durability: str
    """What an answered put survives: `memory` nothing, `fast` a kill, `durable` a power cut too.

    Where that is for a server to say, it is known once the store is open.
    """
    told_durability: str = ""
    """What a server's own settings mean for that, in words, once the store is open."""

    @property
    def survives(self) -> str:
        """What an accepted job survives, in words."""
        return self.told_durability or _SURVIVES[self.durability]

    @abstractmethod
    async def open(self) -> None:
        """Connect, and bring the schema up to date if it is behind.

        Other verbs do this at first use; calling it again changes nothing. Raises
        `SchemaOutdated` if the schema serves this program no longer, and
        `StoreUnavailable` if the store cannot be reached. Safe in several
        processes at once; a crash in the middle leaves the old or the new
        schema, never half of one.
        """

    def check_there(self) -> None:  # noqa: B027 (most stores are never gone)
        """Raise `StoreGone` if what was opened is there no more, and will not come back.

        Workers ask this ten times a second, so it must not cost more than a look at a file. Servers
        come back: there it says nothing.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections and threads. Work that was handed over is finished first."""

    @abstractmethod
    async def put(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        """Accept new jobs.

        A job whose id the store knows already, in whatever state, is left as it
        is: a repeated put changes nothing. The answer says for each job which id stands for it
        and whether that is new. Jobs that are not due yet are parked until they are.

        All jobs of a queue, up to `jobs_per_put` of them, are accepted or none. A store with
        transactions accepts all of a put or nothing of it. Redis undoes nothing: of a put over
        several queues, or of more jobs, a part may be there if a damaged key refuses the rest.
        Repeated, it is recognised.

        `shared` says that the ids were made just now, so that nobody else can be putting them.
        Such puts of several callers share one transaction; one caller's bad job fails that
        caller alone. Another put may have to wait for a transaction that has its ids: where
        stores have such, it goes alone.

        Without an answer, the put is repeated for as long as an answer may take (`timeout=` of the
        store's URL), then `Unanswered` is raised. After a repeat, what the first try put is not
        told as new, unless it is shared.
        """

    @abstractmethod
    def put_blocking(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        """Do the same from synchronous code, in the calling thread."""

    @abstractmethod
    def put_within(self, connection: Any, jobs: Sequence[NewJob]) -> "Within[list[Accepted]]":  # noqa: ANN401
        """Put inside the caller's own transaction, on the caller's connection.

        Says for each job which id stands for it and whether that is new; the new ones exist if
        and when the caller commits. Never commits, never rolls back, never retries. Raises
        `ConfigError` for a connection this store cannot share a transaction with;
        without jobs it only looks at that.
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """Open a connection for one transaction of the application's own.

        Commits at the end of the block and rolls back if that raises. Others can
        work with the store meanwhile as far as its engine lets them. An exception
        of the commit itself means that it may or may not have happened.
        """

    @abstractmethod
    def atransaction(self) -> AbstractAsyncContextManager[Any]:
        """Do the same with an async connection; neither it nor the wait for it blocks the loop."""

    @abstractmethod
    def complete_within(
        self,
        connection: Any,  # noqa: ANN401
        settlement: Settlement,
    ) -> "Within[Settlement | None]":
        """Write that a run is done, inside a transaction, as `settle` would write it.

        Returns the settlement if it was written; None if the job's fence has
        moved on; and for a job that somebody asked to cancel what
        `outcome.overrule` makes of it, whose state is cancelled. In the last two
        cases nothing was written, and the caller rolls back.

        From here to the end of the transaction nobody else can settle, renew or
        claim the job. Never commits, never rolls back. Raises `ConfigError` as
        `put_within` does, and for a connection on which no transaction is open.
        """

    @abstractmethod
    async def claim(self, plan: ClaimPlan) -> Claim:
        """Give the worker the jobs that `selection.select` chooses for this plan.

        Each claimed job runs under a new lease and a new fence, which is the
        greater of fence + 1 and the store's time in microseconds, so that it
        grows even if the store lost its last second. The attempt is counted. A
        job whose lease has passed is claimed with `lost` set: its attempt was
        counted already, and worker and claim time stay those of the lost run.

        On the way, jobs that became due are promoted with their place kept,
        expired ones are cancelled, and jobs whose task no live worker knows are
        parked; each a bounded batch, in the plan's queues at least. Upkeep does the same in all.

        What a claim costs follows from the slots, not from the number of queues: it asks a queue
        when that has its turn, and queues without jobs cost next to nothing.

        A claim steps over at most `selection.LOOK` gated jobs of a queue; if it stopped for
        that, `cut` says so. The same worker's next claim goes on behind the last job that this
        one looked at, also if this one stopped because its slots were full; when one has come
        to the end of the queue, the next begins at the front. A job that comes to stand
        before that place by a call of this store object is seen by the next claim; one that
        comes by another process, at the latest after as many jobs were claimed as had been
        stepped over.

        No two claims get the same job while its lease lasts. After a crash in
        the middle each job is either claimed, and comes back when the lease
        passes, or untouched.
        """

    @abstractmethod
    async def extend(self, leases: Sequence[tuple[JobId, int]], lease: int) -> list[Extended]:
        """Renew leases until `lease` microseconds from now, by pairs of id and fence.

        Returns those whose leases still hold; a pair that is missing in the answer
        has lost its job. One that somebody else has locked, or that is out of reach while others
        are not, counts as held and is renewed a moment later. Pairs do not affect each other.
        """

    @abstractmethod
    async def held(self, worker: str) -> list[Job]:
        """Return the running jobs that this worker claimed, for whoever ends them in its place.

        Asked when the worker's process is known to be dead, so that nothing it
        claimed without a word to anybody is overlooked. A job that it took over
        as lost is not among them: its worker and claim time are those of the lost
        run, and it is lost again when its lease passes. One of its jobs that another
        took over may be among them, with a fence later than its claim time. May
        read every live job; PostgreSQL leaves out what stands in its queue behind 100,000 jobs
        in a row that nobody ever claimed. Those are lost when their leases pass.
        """

    @abstractmethod
    async def settle(self, settlements: Sequence[Settlement]) -> dict[JobId, Settlement]:
        """Write what became of running jobs, and end their leases.

        A settlement counts only under the job's current fence; others change
        nothing. Returns what was written, by job. With each settlement its
        attempt-log line is written, and the failure, if any, is added to the
        job's history. A job somebody asked to cancel while it ran is settled as
        `outcome.overrule` says.

        Done and cancelled jobs move to the finished ones, dead ones to the dead
        letters. Each job changes completely or not at all; after a crash the
        unwritten rest runs again when its leases pass.
        """

    @abstractmethod
    async def announce(self, worker: Worker, lease: int) -> None:
        """Say that a worker lives and which tasks it knows, for `lease` microseconds from now.

        Jobs parked for want of such a worker come back to their old places, in
        bounded batches: the first now, the rest with upkeep and claims.
        """

    @abstractmethod
    async def wait(
        self,
        timeout: float,  # noqa: ASYNC109 (a hint's patience)
        since: int = 0,
        *,
        for_work: bool = False,
    ) -> int:
        """Return when something may have changed, a parked job falls due, or time is up.

        Returns a mark that is another after every change noticed here. With
        `since`, a mark of before, it returns at once if that has passed; so who
        takes a mark, looks, and then waits with it misses no change in between.
        Marks hold for the event loop they were given in. With `for_work`, that a job
        ended need not be told; without it, that a parked one falls due need not.

        Still only a hint: it may come for nothing and it may be lost, so callers
        look again at least every poll interval.
        """

    @abstractmethod
    async def upkeep(self, keep: int) -> Upkeep:
        """Do one bounded round of housekeeping; any worker may, at any time.

        Promotes due jobs, cancels expired ones, brings back jobs whose task a
        live worker now knows, forgets finished jobs and attempt-log lines
        older than `keep` microseconds, and entries that have expired. Dead letters are
        never forgotten.
        """
