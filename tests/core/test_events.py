import pytest

from fairlead.core.events import Bus, Enqueued, Event, Finished, Started
from fairlead.core.ids import JobId

ENQUEUED = Enqueued(JobId("018f"), "mail.send", "mail", "c-1")
STARTED = Started(JobId("018f"), "mail.send", "mail", "c-1", attempt=1, wait_seconds=0.5)
FINISHED = Finished(
    JobId("018f"), "mail.send", "mail", "c-1", attempt=1, run_seconds=2.0, wait_seconds=0.5
)


class Complaints:
    """Collect what subscribers raised."""

    def __init__(self) -> None:
        self.heard: list[tuple[Event, Exception]] = []

    def __call__(self, event: Event, error: Exception) -> None:
        self.heard.append((event, error))


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def bus(complaints: Complaints) -> Bus:
    return Bus(complaints)


def test_a_subscriber_hears_everything_in_order(bus: Bus) -> None:
    heard: list[Event] = []
    bus.subscribe(heard.append)

    for event in (ENQUEUED, STARTED, FINISHED):
        bus.emit(event)

    assert heard == [ENQUEUED, STARTED, FINISHED]


def test_a_subscriber_can_ask_for_one_kind(bus: Bus) -> None:
    heard: list[Event] = []
    bus.subscribe(heard.append, Started)

    for event in (ENQUEUED, STARTED, FINISHED):
        bus.emit(event)

    assert heard == [STARTED]


def test_subscribers_are_told_in_the_order_they_came(bus: Bus) -> None:
    told: list[str] = []
    bus.subscribe(lambda _: told.append("first"))
    bus.subscribe(lambda _: told.append("second"), Enqueued)
    bus.subscribe(lambda _: told.append("third"))

    bus.emit(ENQUEUED)

    assert told == ["first", "second", "third"]


def test_who_unsubscribed_hears_nothing_more(bus: Bus) -> None:
    heard: list[Event] = []
    stop = bus.subscribe(heard.append)
    bus.emit(ENQUEUED)

    stop()
    bus.emit(STARTED)
    stop()
    bus.emit(FINISHED)

    assert heard == [ENQUEUED]


def test_one_subscription_of_two_by_the_same_subscriber_can_end(bus: Bus) -> None:
    heard: list[Event] = []
    subscriber = heard.append
    stop = bus.subscribe(subscriber)
    bus.subscribe(subscriber)

    stop()
    bus.emit(ENQUEUED)

    assert heard == [ENQUEUED]


def test_a_subscriber_may_leave_while_it_is_told(bus: Bus) -> None:
    told: list[str] = []

    def once(_: Event) -> None:
        told.append("once")
        stop()

    stop = bus.subscribe(once)
    bus.subscribe(lambda _: told.append("always"))
    bus.emit(ENQUEUED)
    bus.emit(STARTED)

    assert told == ["once", "always", "always"]


def test_who_subscribes_during_an_event_hears_the_next(bus: Bus) -> None:
    heard: list[Event] = []
    stop = bus.subscribe(lambda _: bus.subscribe(heard.append))
    bus.emit(ENQUEUED)
    stop()
    bus.emit(STARTED)

    assert heard == [STARTED]


def test_a_failing_subscriber_harms_nobody(bus: Bus, complaints: Complaints) -> None:
    heard: list[Event] = []
    error = RuntimeError("the log is full")

    def fail(_: Event) -> None:
        raise error

    bus.subscribe(heard.append)
    bus.subscribe(fail)
    bus.subscribe(heard.append)
    bus.emit(ENQUEUED)

    assert heard == [ENQUEUED, ENQUEUED]
    assert complaints.heard == [(ENQUEUED, error)]


def test_a_subscriber_that_failed_is_told_again(bus: Bus, complaints: Complaints) -> None:
    def fail(event: Event) -> None:
        raise RuntimeError(type(event).__name__)

    bus.subscribe(fail)
    bus.emit(ENQUEUED)
    bus.emit(STARTED)

    assert [str(error) for _, error in complaints.heard] == ["Enqueued", "Started"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_the_end_of_the_program_is_no_failure_of_a_subscriber(
    bus: Bus, complaints: Complaints, error: type[BaseException]
) -> None:
    def leave(_: Event) -> None:
        raise error

    bus.subscribe(leave)
    with pytest.raises(error):
        bus.emit(ENQUEUED)

    assert complaints.heard == []


def test_a_bus_knows_whether_anybody_listens(bus: Bus) -> None:
    assert not bus.wants(Finished)

    stop = bus.subscribe(print, Finished)
    assert bus.wants(Finished)
    assert not bus.wants(Started), "one who listens to one kind costs the others nothing"

    stop()
    assert not bus.wants(Finished)


def test_who_listens_to_everything_wants_every_kind(bus: Bus) -> None:
    assert not bus.wants(Started)
    bus.subscribe(print)
    assert bus.wants(Started)


def test_an_event_without_listeners_goes_nowhere(bus: Bus, complaints: Complaints) -> None:
    bus.emit(ENQUEUED)

    assert complaints.heard == []
