"""What people may ask of a store, in prose, and the values they ask with.

Looking changes nothing. `snapshot` answers by one state of the store, or on Redis of each queue.
Other answers may be put together from several looks, a moment apart. Acting takes job ids and an
`Action`, which says who does it. What is done to a job is added to the audit log in the same atomic
step, so the log and the jobs never disagree. A store with transactions does the whole of an act or
nothing. Redis goes from queue to queue and leaves out one that is damaged; cut short, it is
completed by a repeat. Any act may be repeated: under the same action the same call is done once,
and answered as it was then, for as long as the audit log has its line (`core.answers`). Without an
answer a store repeats it itself, for as long as an answer may take, and then raises `Unanswered`.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

import msgspec

from fairlead.core.acts import Action, AuditLine, Deed
from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId
from fairlead.core.job import LEVEL, Attempt, Gate, JobRecord, State, decode_options
from fairlead.core.page import Page
from fairlead.core.queue import Share
from fairlead.core.selection import ClaimPlan, Snapshot

MOST_LISTED = 1_000
"""How many jobs a page has at most."""
LOOKED_FOR_EACH, LEAST_LOOKED = 10, 200
"""How many jobs a page looks at, for each that it may have, and if it may have few."""


class Wait(StrEnum):
    """What a waiting job waits for: a slot, its time, its next attempt; or it is parked."""

    DUE = "due"
    DELAYED = "delayed"
    RETRYING = "retrying"
    PARKED = "parked"


class Filter(msgspec.Struct, frozen=True):
    """Which jobs are meant. Each part that is given must hold; nothing given means all.

    Several queues, tasks or states mean any of them, several tags all of them. With `waits`,
    waiting jobs are meant only if they wait for one of these at the instant `at`.
    `since` compares with the time a job ended, or was enqueued if it has not.
    `error` is the fingerprint of a job's last failure, or a part of its class or
    message, whatever the case of its ASCII letters. `begins` is how the job's id does.
    """

    queues: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    states: tuple[State, ...] = ()
    tags: tuple[str, ...] = ()
    since: int | None = None
    error: str | None = None
    waits: tuple[Wait, ...] = ()
    at: int = 0
    begins: str | None = None


ALL = Filter()


def wait_of(job: JobRecord, now: int) -> Wait:
    """Say what a waiting job waits for."""
    if job.gate not in (None, Gate.NOT_DUE):
        return Wait.PARKED
    if job.run_at <= now:
        return Wait.DUE
    return Wait.RETRYING if job.attempt else Wait.DELAYED


def matches(which: Filter, job: JobRecord) -> bool:
    """Say whether a filter means this job."""
    if which.queues and job.queue not in which.queues:
        return False
    if which.begins is not None and not job.id.startswith(which.begins):
        return False
    if which.tasks and job.task not in which.tasks:
        return False
    if which.states and job.state not in which.states:
        return False
    waits = job.state is State.WAITING and bool(which.waits)
    if waits and wait_of(job, which.at) not in which.waits:
        return False
    if which.since is not None and (job.finished_at or job.enqueued_at) < which.since:
        return False
    if which.tags and not set(which.tags) <= set(tags_of(job)):
        return False
    return which.error is None or _has_error(job, which.error)


def tags_of(job: JobRecord) -> tuple[str, ...]:
    """Return a job's tags; what cannot be read has none."""
    try:
        return decode_options(job.options).tags
    except DecodeError:
        return ()


def _has_error(job: JobRecord, wanted: str) -> bool:
    if not job.errors:
        return False
    last = job.errors[-1]
    return last.fingerprint == wanted or any(
        _folded(wanted) in _folded(text or "") for text in (last.error, last.message)
    )


def _folded(text: str) -> bytes:
    """Return a text without the case of its ASCII letters: what every store can do alike."""
    return text.encode().lower()


class ErrorGroup(msgspec.Struct, frozen=True):
    """Jobs whose last failure has the same fingerprint: most likely one problem.

    `job` is the newest of them, and `error` and `message` are its own. Jobs that
    ended without a failure have no fingerprint.
    """

    fingerprint: str | None
    error: str | None
    message: str | None
    tasks: tuple[str, ...]
    count: int
    first_at: int
    last_at: int
    job: JobId


class Waiting(msgspec.Struct, frozen=True):
    """The waiting jobs of a queue, by what they wait for.

    `oldest` is since when the longest waiting due job has been due; parked ones count apart.
    """

    due: int = 0
    delayed: int = 0
    retrying: int = 0
    parked: int = 0
    oldest: int | None = None


class Running(msgspec.Struct, frozen=True):
    """Running jobs of one task and queue in one worker process; `claimed_at` is the first one's."""

    worker: str
    queue: str
    task: str
    count: int
    claimed_at: int


def by_process(running: Sequence[Running]) -> dict[str, dict[str, int]]:
    """Count running jobs by worker process and queue."""
    counts: dict[str, dict[str, int]] = {}
    for each in running:
        of_process = counts.setdefault(each.worker, {})
        of_process[each.queue] = of_process.get(each.queue, 0) + each.count
    return counts


class PoolShare(msgspec.Struct, frozen=True):
    """A pool as a worker announces it: its slots, and the queues that share them."""

    name: str
    slots: int
    queues: tuple[Share, ...]


class Worker(msgspec.Struct, frozen=True):
    """A worker as it announced itself: the tasks it knows, and what it serves them with.

    Its pools are those of each of its `processes`; these claim under ids that
    begin with its own.
    """

    id: str
    capable: Mapping[str, int]
    pools: tuple[PoolShare, ...] = ()
    processes: int = 1
    started_at: int = 0
    live_until: int = 0
    level: int = LEVEL

    def owns(self, process: str) -> bool:
        """Say whether a process that claims under this id is one of its own."""
        return process == self.id or process.startswith(f"{self.id}/")

    def pools_for(self, queue: str) -> list[PoolShare]:
        """Return its pools that serve a queue."""
        return [pool for pool in self.pools if any(each.name == queue for each in pool.queues)]


REPAIR = "fairlead doctor --repair"
"""What puts damaged rows right; a finding whose remedy names it is about one."""

NOT_MENDED = "could not mend"
"""How a sentence begins that tells of damage which a repair had to leave."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong, and what to do about it. What is not grave can wait.

    `more` is how many more like it were found, and are not told one by one.
    """

    problem: str
    remedy: str
    grave: bool = True
    more: int = 0


class Condition(msgspec.Struct, frozen=True):
    """How a store is, besides its jobs: facts worth knowing, by name, and what is wrong."""

    facts: Mapping[str, str]
    findings: Sequence[Finding] = ()


class Migration(msgspec.Struct, frozen=True):
    """One numbered step of a store's schema, and when it was applied, if it was.

    `serves` is the least level of the programs that can still use the store after it.
    """

    number: int
    name: str
    sql: str
    applied_at: int | None = None
    serves: int = 1


VERBS = "verbs"
"""The last of a store's steps, where its verbs are functions in the database."""


def missing(steps: Sequence[Migration]) -> list[Migration]:
    """Return the steps that were not applied."""
    return [step for step in steps if step.applied_at is None]


class Part(StrEnum):
    """What `Admin.stats` may be asked for."""

    WAITING = "waiting"
    RUNNING = "running"
    UNKNOWN = "unknown"
    PAUSED = "paused"


class Stats(msgspec.Struct, frozen=True):
    """How a store's queues are; of each part that was asked for.

    `waiting` counts the waiting jobs of each queue that has some, by what they wait for; `running`
    counts running jobs by the worker process that claimed them, by queue and by task; `unknown`
    those that are parked for want of a capable worker, by task and version. `paused` are the names
    of the paused queues.
    """

    waiting: Mapping[str, Waiting] = {}
    running: Sequence[Running] = ()
    unknown: Mapping[tuple[str, int], int] = {}
    paused: frozenset[str] = frozenset()

    def only(self, parts: Collection[Part]) -> "Stats":
        """Return some of its parts."""
        return Stats(**{part: getattr(self, part) for part in parts})


class Admin(ABC):
    """What people may ask of a store."""

    # Looking

    @abstractmethod
    async def find(self, job_id: JobId) -> JobRecord | None:
        """Return a job in whatever state, or None if the store does not know it."""

    @abstractmethod
    async def page(self, which: Filter = ALL, limit: int = 100, cursor: str | None = None) -> Page:
        """Return the first jobs that the filter means, or those after where a page ended.

        Each state is a list in an order that the store keeps anyway, and several states are one
        list after another: as the filter names them, or else waiting, running, dead, cancelled,
        done. Waiting jobs come queue by queue, each in its order, then delayed ones by due
        time, then parked ones; or as `waits` names them. Ended ones come by the time they
        ended, newest first; running ones in an order of the store's own. With `begins` all
        states are one list, in any order.

        A page has at most MOST_LISTED jobs. It also ends when it has looked at LOOKED_FOR_EACH
        times as many as it may have, or LEAST_LOOKED: it may be short, or empty, before the end. So
        whoever wants all goes on for as long as there is a cursor. No snapshot is kept over
        pages. A job that neither changes nor moves is seen exactly once; one that moves may be
        seen again at its next place, or be missed; on Redis, a lease that is renewed moves its job.

        Raises `BadCursor` for a cursor that another kind of store made, that is damaged, or that
        was made for another filter; `since` and `at` may have changed.

        A page costs what the jobs cost that it looks at, however many there are. But Redis has no
        order over queues: unless the filter names some, a page also reads the names of all, and for
        each list a number or a score of each queue. Nor has it one of ids, or of parked jobs whose
        run was lost: with `begins` it looks through all ids, and for running jobs through the keys
        of gates, a thousand a call. A call that finds none counts as one job looked at.
        """

    @abstractmethod
    async def count(self, which: Filter = ALL) -> dict[str, dict[State, int]]:
        """Count the jobs that the filter means, by queue and state."""

    @abstractmethod
    async def groups(self, which: Filter) -> list[ErrorGroup]:
        """Return the failures of the jobs that the filter means, by fingerprint, largest first."""

    @abstractmethod
    async def attempts(self, job_id: JobId) -> list[Attempt]:
        """Return the job's lines of the attempt log, oldest first."""

    @abstractmethod
    async def recent(
        self, since: int, limit: int = 10_000, queue: str | None = None
    ) -> list[Attempt]:
        """Return the last lines of the attempt log that ended at or after `since`, newest first.

        Those that ended at the same moment come in any order. With a queue only its own
        lines count.
        """

    @abstractmethod
    async def stats(self, parts: Collection[Part] = tuple(Part)) -> Stats:
        """Return how the queues are, in the parts that are asked for.

        `waiting` looks at every live job where the store has no other way; Redis at delayed
        ones only, and at the keys that others are parked for.
        """

    @abstractmethod
    async def snapshot(self, plan: ClaimPlan, limit: int) -> Snapshot:
        """Return what a claim with this plan would look at now: `limit` jobs of each queue.

        Those are the first ones in order that are not running, whichever gate
        holds them, but for delayed ones and those that the claim leaves parked: for want of a
        worker that knows more, because their limit has no room, or for a newer program.
        `used` says how much of each limit is in use. `select` of it is what the claim gives, if the
        worker's last claim looked through all of its queues (see `selection.LOOK`).
        """

    @abstractmethod
    async def ahead(self, job_id: JobId) -> int:
        """Count the due jobs before this one in the order of its queue, parked ones not."""

    @abstractmethod
    async def workers(self) -> list[Worker]:
        """Return the workers that are announced and live."""

    @abstractmethod
    async def audit_log(self, limit: int = 100, job_id: JobId | None = None) -> list[AuditLine]:
        """Return the audit log, newest first; with a job, only what was done to it by its id."""

    # Acting

    @abstractmethod
    async def act(self, deed: Deed, by: Action) -> list[str]:
        """Do what a person wants done; `core.acts` says what each deed means.

        Returns what it was done to: ids of jobs, or the name of a queue.
        """

    # The store itself

    @abstractmethod
    async def audit(self) -> list[Finding]:
        """Check that every job is in exactly one place and every mark agrees.

        A full scan on a consistent view. An empty list means all is well.
        """

    @abstractmethod
    async def repair(self, by: Action) -> list[str]:
        """Put right what `audit` finds, or move it out; says what was done, a sentence each.

        Afterwards `audit` finds nothing, but for what the store refuses to have changed: of that a
        sentence says why, which begins with NOT_MENDED. A number or a mark that follows from others
        is written anew. A job that cannot be put right becomes a dead letter, reason `unreadable`,
        with as much of it as can be kept; what is not a job is removed. Nothing that is sound
        changes. Works in bounded steps, and may be repeated: a repeat mends what is left, and tells
        of that alone. What was done is in the audit log, each damage once.
        """

    @abstractmethod
    async def condition(self) -> Condition:
        """Return facts about the store, and what is wrong with its set-up; changes nothing."""

    @abstractmethod
    async def migrations(self) -> list[Migration]:
        """Return the steps of the schema and whether each was applied; applies none."""
