"""What happened, as a typed catalogue.

Events are emitted only after the store said yes. Logs, metrics and live views
are subscribers; nothing that a job's life depends on listens here.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from fairlead.core.ids import JobId


class LogStyle(msgspec.Struct, frozen=True):
    """How the log tells of events: what it leaves out, and how its lines look.

    `quiet` leaves out runs that ended well. Without `messages` nobody reads what a failure or a
    handler's `Cancel` says, which may hold secrets: its class and its place are told alone.
    """

    level: str = "info"
    format: str = "plain"
    quiet: bool = False
    messages: bool = True


class Event(msgspec.Struct, frozen=True):
    """Something that happened."""


class JobEvent(Event, frozen=True):
    """Something that happened to a job."""

    job_id: JobId
    task: str
    queue: str
    correlation_id: str | None


class Enqueued(JobEvent, frozen=True):
    """The store accepted a new job."""


class Started(JobEvent, frozen=True):
    """A handler began to run."""

    attempt: int
    wait_seconds: float


class Finished(JobEvent, frozen=True):
    """A job is done."""

    attempt: int
    run_seconds: float
    wait_seconds: float


class Retried(JobEvent, frozen=True):
    """A run failed, and the job waits for its next attempt.

    `run_seconds` and `wait_seconds` are None for what never started, here and below.
    """

    attempt: int
    delay_seconds: float
    error: str
    detail: str | None = None
    error_message: str | None = None
    run_seconds: float | None = None
    wait_seconds: float | None = None


class Died(JobEvent, frozen=True):
    """A job became a dead letter."""

    attempt: int
    reason: str
    error: str | None = None
    detail: str | None = None
    error_message: str | None = None
    run_seconds: float | None = None
    wait_seconds: float | None = None


class Cancelled(JobEvent, frozen=True):
    """A job was cancelled."""

    reason: str
    run_seconds: float | None = None
    wait_seconds: float | None = None


class LeaseExpired(JobEvent, frozen=True):
    """A worker fell silent, and its job was taken over."""

    worker: str


class SettlementRefused(JobEvent, frozen=True):
    """A worker came too late: the job's fence had moved on, and nothing was written."""

    fence: int
    outcome: str


class Parked(JobEvent, frozen=True):
    """A claim parked jobs of one task, version and queue: they wait for a worker that knows them.

    `jobs` is their number; the event names one of them.
    """

    version: int
    jobs: int


class Returned(JobEvent, frozen=True):
    """A worker gave a job back unfinished; its attempt does not count."""

    attempt: int


class Snoozed(JobEvent, frozen=True):
    """A handler asked to be run later; its attempt does not count."""

    attempt: int
    delay_seconds: float
    run_seconds: float | None = None
    wait_seconds: float | None = None


class Overdue(JobEvent, frozen=True):
    """A handler runs past its time limit and does not end; `where` names its line.

    One in a thread ends with its process, which waits for its other jobs, but no longer than
    `ends_within` seconds; None if nobody can end it, or it is not in a thread.
    """

    limit_seconds: float
    where: str | None
    ends_within: float | None = None


class WorkerEvent(Event, frozen=True):
    """Something that happened to a worker or one of its processes."""

    worker: str


class WorkerStarted(WorkerEvent, frozen=True):
    """A worker takes up its work."""

    app: str
    store: str
    durability: str
    survives: str
    pools: list[str]
    tasks: list[str]


class WorkerStopping(WorkerEvent, frozen=True):
    """A worker takes no more jobs; those that run have `grace_seconds` to finish."""

    why: str
    grace_seconds: float


class WorkerStopped(WorkerEvent, frozen=True):
    """A worker has ended."""


class ProcessStarted(WorkerEvent, frozen=True):
    """A process of a worker is ready for jobs."""

    pid: int


class ProcessRetired(WorkerEvent, frozen=True):
    """A process finishes what it has and is replaced by a new one."""

    pid: int
    why: str


class ProcessEnded(WorkerEvent, frozen=True):
    """A process of a worker has ended its work."""

    pid: int


class ProcessDied(WorkerEvent, frozen=True):
    """A process of a worker died, and its jobs were taken care of."""

    pid: int
    how: str
    crashed: int
    returned: int


class LoopBlocked(WorkerEvent, frozen=True):
    """A handler keeps the event loop of its process from turning; `where` names its line.

    `returned` jobs, which the process had claimed and not started, were given back to others.
    """

    pid: int
    seconds: float
    where: str | None
    returned: int = 0


class StoreLost(WorkerEvent, frozen=True):
    """The store does not answer, or is full; the worker goes on trying."""

    problem: str


class StoreFound(WorkerEvent, frozen=True):
    """The store works again."""

    after_seconds: float


class Trouble(WorkerEvent, frozen=True):
    """Something that should not happen, told so that somebody can look into it."""

    problem: str


class NotTold(Event, frozen=True):
    """Runs that ended well, too many a second for a log line each; by queue."""

    runs: int
    queues: dict[str, int]


Subscriber = Callable[[Any], object]
"""Takes the events of the kind it subscribed to."""


class Bus:
    """Hand events to subscribers.

    A subscriber that raises harms neither the job nor the other subscribers;
    its error goes to `on_error`.
    """

    def __init__(self, on_error: Callable[[Event, Exception], object]) -> None:
        self._subscribers: list[tuple[type[Event], Subscriber]] = []
        self._by_kind: dict[type[Event], tuple[Subscriber, ...]] = {}
        self._on_error = on_error

    def subscribe(self, subscriber: Subscriber, kind: type[Event] = Event) -> Callable[[], None]:
        """Call `subscriber` for every event of this kind; returns the way to stop it."""
        entry = (kind, subscriber)
        # A new list each time: an emit under way goes on over the old one.
        self._subscribers = [*self._subscribers, entry]
        self._by_kind = {}

        def unsubscribe() -> None:
            self._subscribers = [other for other in self._subscribers if other is not entry]
            self._by_kind = {}

        return unsubscribe

    def wants(self, kind: type[Event]) -> bool:
        """Say whether anybody listens to this kind; producers of many events ask first."""
        return bool(self._of(kind))

    def _of(self, kind: type[Event]) -> tuple[Subscriber, ...]:
        """Return who asked for this kind. Every job asks several times, so it is remembered."""
        known = self._by_kind  # Not a newer one: what is found may be out of date by then.
        try:
            return known[kind]
        except KeyError:
            known[kind] = tuple(
                each for wanted, each in self._subscribers if issubclass(kind, wanted)
            )
            return known[kind]

    def emit(self, event: Event) -> None:
        """Tell everybody who asked."""
        for subscriber in self._of(type(event)):
            try:
                subscriber(event)
            except Exception as error:  # noqa: BLE001 (around a subscriber: not our code)
                self._on_error(event, error)
