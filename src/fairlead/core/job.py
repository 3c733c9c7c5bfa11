"""A job: one call of a task, from the producer's hand to the archive.

    NewJob     what a producer puts
    Job        what a worker claims: the same call, plus lease, fence and counts
    JobRecord  what a person sees: a job in any state, with its history
    Attempt    one line of the attempt log: a run that ended

Payload and result are JSON text, encoded and checked against the task's
signature before the store sees them; the store never looks inside.

Values that exist by the thousand are hidden from the garbage collector
(`gc=False`): they hold only strings and numbers, so no cycle can go through them.
"""

from collections.abc import Callable
from enum import IntFlag, StrEnum
from typing import Annotated, Any, TypeVar

import msgspec

from fairlead.core.errors import ConfigError, DecodeError
from fairlead.core.ids import JobId
from fairlead.core.retry import Curve

LONGEST_HEAD_START = 24 * 3600
"""Priority is a head start in seconds, and nobody may be more than a day ahead."""

LATEST = 2**60
"""No instant and no fence is later, so that sums of them fit into 64 bits everywhere."""

MOST_RUNS = 10**9
"""No job is run, or crashes, or shares the death of a process, more often."""

ALONE = 3
"""Who has shared so many deaths of processes with other jobs has the next process to itself."""

LONGEST_ID = 36
"""How many ASCII characters the id of a job may have."""

LONGEST_NAME = 128
"""How many ASCII characters the name of a task, queue or pool may have."""

LONGEST_LABEL = 1_024
"""How many characters a tag, a correlation id, and the name or value of a header may have."""

MOST_LABELS = 64
"""How many tags a job may have, and how many headers."""

LEVEL = 1
"""What this program knows to do with jobs. It grows when what a job needs at its end does.

Every stored job has a level, too: the least that a program must have to do anything with it.
Programs below it let it be found, put it into its order when its time has come, and leave the
rest to newer ones: they neither claim, settle, cancel, revive, edit, delete, expire nor forget it.
"""

HIGHEST = 1_000
"""No program has a higher level: a stored one beyond it is damage."""

# What a stored number may be: a row with another one is damaged.
Instant = Annotated[int, msgspec.Meta(ge=0, le=LATEST)]
Place = Annotated[int, msgspec.Meta(ge=-LATEST, le=LATEST)]
Runs = Annotated[int, msgspec.Meta(ge=0, le=MOST_RUNS)]
Version = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Level = Annotated[int, msgspec.Meta(ge=1, le=HIGHEST)]


class Attached(IntFlag):
    """What a job has besides its own row.

    Kept as one number beside the job, wherever that is: the way out of a job without any costs
    nothing. So far only entries are kept; the other names are for what is to come.
    """

    ENTRIES = 1
    EDGES = 2
    PERMITS = 4
    KEY = 8
    FORGETTING = 1024
    """Some of it is gone already, for the job is being forgotten: it does not run again."""


class State(StrEnum):
    """Where a job is in its life."""

    __hash__ = str.__hash__  # Enum's own is Python code, and states key dicts on the hot path.

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether a job in this state runs no more unless a person says so."""
        return self not in (State.WAITING, State.RUNNING)


class Gate(StrEnum):
    """Why a waiting job may not start now.

    NEWER_PROGRAM: it takes a program of a higher level, or a newer program parked it for a gate
    that this program does not know.
    """

    PAUSED = "paused"
    NEWER_PROGRAM = "newer_program"
    NOT_DUE = "not_due"
    EXPIRED = "expired"
    NO_CAPABLE_WORKER = "no_capable_worker"
    LEASE_SPARED = "lease_spared"
    NO_SLOT = "no_slot"


class Reason(StrEnum):
    """Why a job is dead or cancelled, when no person and no task said it in words."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    POISON = "poison"
    UNCERTAIN = "uncertain"
    UNREADABLE = "unreadable"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class JobOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What only some jobs carry. Stored as one JSON text, or not at all."""

    timeout: float | None = None
    attempts: int | None = None
    backoff: Curve | None = None
    tags: tuple[str, ...] = ()
    correlation_id: str | None = None
    headers: dict[str, str] = {}


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job on its way into the store.

    `run_at` names an instant; without it the job is due `delay` microseconds
    after the store's own now. The same goes for `expires_at` and `expires_in`.
    `level` is the least that a program must have to do anything with it.
    """

    id: JobId
    task: str
    queue: str
    payload: str
    version: int = 1
    run_at: int | None = None
    delay: int = 0
    priority: int = 0
    expires_at: int | None = None
    expires_in: int | None = None
    options: str | None = None
    level: int = 1

    def __repr__(self) -> str:
        """Name the job; its payload may be nobody's business."""
        return f"<new job {self.id} of task {self.task!r} on queue {self.queue!r}>"

    def due_at(self, now: int) -> int:
        """Return the instant from which the job may run."""
        return now + self.delay if self.run_at is None else max(now, self.run_at)

    def ends_at(self, now: int) -> int | None:
        """Return the instant after which the job must not start any more."""
        return self.expires_at if self.expires_in is None else now + self.expires_in


def next_fence(fence: int, now: int) -> int:
    """Return the fence of the next claim: it grows even if the store lost its last second."""
    return max(fence + 1, now)


class Job(msgspec.Struct, frozen=True, gc=False):
    """A claimed job: the right to run it until `lease_until`, under this fence.

    `lost` says that an earlier run's lease passed without a word. `worker` and
    `claimed_at` then still tell of that run, and `decide(job, Lost(), …)` must
    be asked before any handler runs. `shared_deaths` says how often its process died
    while others ran in it too, since a run of it last ended by itself: nobody knows
    yet whose fault that was.
    """

    id: JobId
    task: str
    version: int
    queue: str
    payload: str
    options: str | None
    attempt: int
    crashes: int
    fence: int
    run_at: int
    enqueued_at: int
    expires_at: int | None
    claimed_at: int
    lease_until: int
    worker: str
    lost: bool = False
    shared_deaths: int = 0

    @property
    def taken_over(self) -> bool:
        """Whether it was claimed as lost since `worker` claimed it at `claimed_at`."""
        return self.fence > self.claimed_at

    @property
    def suspect(self) -> bool:
        """Whether it may have killed a process, and must not run beside jobs that have not."""
        return self.shared_deaths > 0 or self.crashes > 0

    @property
    def runs_alone(self) -> bool:
        """Whether it must have the next process to itself."""
        return self.shared_deaths >= ALONE or self.crashes > 0

    def __repr__(self) -> str:
        """Name the job; its payload may be nobody's business."""
        return f"<job {self.id} of task {self.task!r}, fence {self.fence}>"


class PastAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run that did not succeed, as kept with its job."""

    attempt: int
    outcome: str
    worker: str | None
    claimed_at: int | None
    started_at: int | None
    finished_at: int
    error: str | None = None
    message: str | None = None
    traceback: str | None = None
    fingerprint: str | None = None


class Attempt(msgspec.Struct, frozen=True):
    """One line of the attempt log: who ran what, when, and how it ended."""

    job_id: JobId
    fence: int
    attempt: int
    task: str
    queue: str
    pool: str | None
    worker: str | None
    ready_at: int
    claimed_at: int
    started_at: int | None
    finished_at: int
    outcome: str
    fingerprint: str | None


def size_of(job: NewJob | Job) -> int:
    """Return how much a job brings with it: its payload and options, as puts and claims count."""
    size = len(job.payload)
    return size if job.options is None else size + len(job.options)


class JobRecord(msgspec.Struct, frozen=True):
    """A job in any state, as people and result handles see it."""

    id: JobId
    task: str
    version: int
    queue: str
    state: State
    payload: str
    options: str | None
    priority: int
    attempt: int
    crashes: int
    fence: int
    run_at: int
    enqueued_at: int
    expires_at: int | None = None
    gate: Gate | None = None
    worker: str | None = None
    claimed_at: int | None = None
    lease_until: int | None = None
    cancel_requested: bool = False
    finished_at: int | None = None
    result: str | None = None
    reason: str | None = None
    errors: tuple[PastAttempt, ...] = ()
    shared_deaths: int = 0
    level: int = 1

    def __repr__(self) -> str:
        """Name the job; its payload may be nobody's business."""
        gate = f" ({self.gate})" if self.gate else ""
        return f"<job {self.id} of task {self.task!r} on queue {self.queue!r}, {self.state}{gate}>"


T = TypeVar("T")


def read(decode: Callable[[Any], T], what: str, text: str | bytes) -> T:
    """Read a stored value, or say that it cannot be read, whatever is wrong with it.

    Somebody may have written anything: no JSON, another shape, brackets nested so deep
    that no decoder follows.
    """
    try:
        return decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError, ConfigError) as problem:
        told = "it is nested too deep" if isinstance(problem, RecursionError) else str(problem)
        raise DecodeError(what, told) from None


_NO_OPTIONS = JobOptions()
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(JobOptions).decode


def encode_options(options: JobOptions) -> str | None:
    """Return the JSON text of the options, or None when nothing is special."""
    return None if options == _NO_OPTIONS else _encode(options).decode()


def decode_options(text: str | None) -> JobOptions:
    """Read what `encode_options` wrote."""
    return _NO_OPTIONS if text is None else read(_decode, "the options of a job", text)


_errors: msgspec.json.Decoder[tuple[PastAttempt, ...]] = msgspec.json.Decoder(
    tuple[PastAttempt, ...]
)


def decode_errors(text: str | None) -> tuple[PastAttempt, ...]:
    """Read a job's past attempts; what somebody damaged reads as none."""
    try:
        return () if text is None else read(_errors.decode, "the history of a job", text)
    except DecodeError:
        return ()
