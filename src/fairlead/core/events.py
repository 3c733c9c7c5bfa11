"""What happened, as a typed catalogue.

Events are emitted only after the store said yes. Logs, metrics and live views
are subscribers; nothing that a job's life depends on listens here.
"""

from collections.abc import Callable

import msgspec

from fairlead.core.ids import JobId


class Event(msgspec.Struct, frozen=True):
    """Something that happened to a job."""

    job_id: JobId
    task: str
    queue: str
    correlation_id: str | None


class Enqueued(Event, frozen=True):
    """The store accepted a new job."""


class Started(Event, frozen=True):
    """A handler began to run."""

    attempt: int
    wait_seconds: float


class Finished(Event, frozen=True):
    """A job is done."""

    attempt: int
    run_seconds: float


class Retried(Event, frozen=True):
    """A run failed, and the job waits for its next attempt."""

    attempt: int
    delay_seconds: float
    error: str


class Died(Event, frozen=True):
    """A job became a dead letter."""

    attempt: int
    reason: str
    error: str | None = None


class Cancelled(Event, frozen=True):
    """A job was cancelled."""

    reason: str


class LeaseExpired(Event, frozen=True):
    """A worker fell silent, and its job was taken over."""

    worker: str


class SettlementRefused(Event, frozen=True):
    """A worker came too late: the job's fence had moved on, and nothing was written."""

    fence: int
    outcome: str


class Parked(Event, frozen=True):
    """No live worker knows the job's task; it waits for one that does."""

    version: int


Subscriber = Callable[[Event], object]


class Bus:
    """Hand events to subscribers.

    A subscriber that raises harms neither the job nor the other subscribers;
    its error goes to `on_error`.
    """

    def __init__(self, on_error: Callable[[Event, Exception], object]) -> None:
        self._subscribers: list[tuple[type[Event], Subscriber]] = []
        self._on_error = on_error

    def subscribe(self, subscriber: Subscriber, kind: type[Event] = Event) -> Callable[[], None]:
        """Call `subscriber` for every event of this kind; returns the way to stop it."""
        entry = (kind, subscriber)
        # A new list each time: an emit under way goes on over the old one.
        self._subscribers = [*self._subscribers, entry]

        def unsubscribe() -> None:
            self._subscribers = [other for other in self._subscribers if other is not entry]

        return unsubscribe

    @property
    def heard(self) -> bool:
        """Whether anybody listens; producers of many events ask first."""
        return bool(self._subscribers)

    def emit(self, event: Event) -> None:
        """Tell everybody who asked."""
        for kind, subscriber in self._subscribers:
            if isinstance(event, kind):
                try:
                    subscriber(event)
                except Exception as error:  # noqa: BLE001 (around a subscriber: not our code)
                    self._on_error(event, error)
