"""Log lines: what they carry, how loud they are, and that nobody can forge one."""

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import Fairlead, Queue, Retry
from fairlead.core import events
from fairlead.core.events import Bus, Event, LogStyle
from fairlead.core.ids import JobId
from fairlead.log import LINES_A_SECOND, set_up, tell_events
from tests.runtime.heard import Heard, ended

WHOSE: tuple[Any, ...] = (JobId("0190-1"), "shop.pay", "mail", "order-7")


@pytest.fixture
def written(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """Returns what was written to stderr, by logging too once `fresh` was called."""
    root, ours = logging.getLogger(), logging.getLogger("fairlead")
    before = root.level, ours.level
    yield lambda: capsys.readouterr().err
    root.handlers = []
    root.setLevel(before[0])
    ours.setLevel(before[1])


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns the time by which the log paces itself, to be changed."""
    now = [1_000.0]
    monkeypatch.setattr("fairlead.log._monotonic", lambda: now[0])
    return now


def are_new() -> None:
    """Have logging as in a fresh program; pytest puts its own handlers back for the next test."""
    logging.getLogger().handlers = []


def lines(
    written: Callable[[], str],
    *told: Event,
    level: str = "debug",
    style: str = "plain",
    quiet: bool = False,
    messages: bool = True,
) -> list[str]:
    bus = Bus(lambda _, error: pytest.fail(repr(error)))
    are_new()
    set_up(bus, LogStyle(level, style, quiet, messages))
    for event in told:
        bus.emit(event)
    return written().splitlines()


STARTED = events.Started(*WHOSE, attempt=2, wait_seconds=0.5)
FINISHED = events.Finished(*WHOSE, attempt=2, run_seconds=1.25, wait_seconds=0.5)
SLOW = events.Finished(*WHOSE, attempt=2, run_seconds=61.0, wait_seconds=0.5)
RETRIED = events.Retried(*WHOSE, attempt=2, delay_seconds=4.0, error="Oops")
DIED = events.Died(*WHOSE, attempt=2, reason="exhausted", error="Oops")
SAID = events.Retried(*WHOSE, 2, 4.0, "Oops", "shop.py:3 in pay", "card 4111\n  is no good")
RAN = events.Retried(*WHOSE, 2, 4.0, "Oops", run_seconds=4.9, wait_seconds=0.02)
CRASH = "SIGSEGV, crash 3 of 3"
KILLED = events.Died(*WHOSE, 2, "poison", "Crashed", CRASH, CRASH)
CANCELLED = events.Cancelled(*WHOSE, reason="withdrawn")
EXPIRED = events.LeaseExpired(*WHOSE, worker="w2")
REFUSED = events.SettlementRefused(*WHOSE, fence=9, outcome="done")
PARKED = events.Parked(*WHOSE, version=2, jobs=1)
ALL_PARKED = events.Parked(*WHOSE, version=2, jobs=1_000)
RETURNED = events.Returned(*WHOSE, attempt=2)
SNOOZED = events.Snoozed(*WHOSE, attempt=2, delay_seconds=3.0)
OVERDUE = events.Overdue(*WHOSE, limit_seconds=5.0, where="shop.py:3 in pay")
STUCK = events.Overdue(*WHOSE, 5.0, "shop.py:3 in pay", 30.0)
ENQUEUED = events.Enqueued(*WHOSE)
OF_JOBS: list[tuple[Event, str, str]] = [
    (STARTED, "DEBUG", "started after 0.500 s"),
    (FINISHED, "INFO", "done in 1.250 s, waited 0.500 s"),
    (SLOW, "INFO", "done in 61.000 s, waited 0.500 s"),
    (SNOOZED, "INFO", "snoozed for 3.0 s"),
    (RETURNED, "INFO", "given back unfinished; the attempt does not count"),
    (CANCELLED, "INFO", "cancelled: withdrawn"),
    (replace(CANCELLED, reason="cancelled"), "INFO", "cancelled"),
    (RETRIED, "WARNING", "failed with Oops; again in 4.0 s"),
    (replace(RETRIED, delay_seconds=0.0), "WARNING", "failed with Oops; again at once"),
    (RAN, "WARNING", "failed with Oops; again in 4.0 s; ran 4.900 s, waited 0.020 s"),
    (SAID, "WARNING", "failed with Oops: card 4111 is no good (shop.py:3 in pay); again in 4.0 s"),
    (KILLED, "ERROR", "dead: poison, Crashed (SIGSEGV, crash 3 of 3)"),
    (EXPIRED, "WARNING", "lost by worker w2, whose lease passed without a word"),
    (REFUSED, "WARNING", "came too late: it is another worker's now (done dropped)"),
    (PARKED, "WARNING", "parked: no live worker knows this task in version 2"),
    (
        ALL_PARKED,
        "WARNING",
        "parked, one of 1,000 jobs: no live worker knows this task in version 2",
    ),
    (DIED, "ERROR", "dead: exhausted, Oops"),
    (OVERDUE, "ERROR", "runs past its time limit of 5 s, at shop.py:3 in pay"),
    (
        STUCK,
        "ERROR",
        "runs past its time limit of 5 s, at shop.py:3 in pay; its thread ends with this process, "
        "once the other jobs in it have ended, within 30 s at most; for a hard limit declare "
        'pools=[Pool("rest"), Pool("hard", queues=["mail"], runner="process")]',
    ),
]
OF_WORKERS: list[tuple[Event, str, str]] = [
    (events.WorkerStopping("w", "SIGTERM", 25.0), "INFO", "stopping (SIGTERM)"),
    (events.WorkerStopped("w"), "INFO", "stopped"),
    (events.ProcessStarted("w", 7), "INFO", "process 7 is ready"),
    (events.ProcessRetired("w", 7, "old"), "INFO", "process 7 is being replaced: old"),
    (events.ProcessEnded("w", 7), "DEBUG", "process 7 has ended its work"),
    (events.ProcessDied("w", 7, "SIGKILL", 1, 2), "ERROR", "process 7 died: SIGKILL; 1 of"),
    (
        events.ProcessDied("w", 7, "SIGKILL", 1, 1),
        "ERROR",
        "process 7 died: SIGKILL; 1 of its jobs had started, 1 was given back",
    ),
    (events.StoreLost("w", "away"), "ERROR", "the store cannot be used, trying on: away"),
    (events.StoreFound("w", 3.0), "WARNING", "the store can be used again, after 3.0 s"),
    (events.Trouble("w", "odd"), "ERROR", "odd"),
    (
        events.WorkerStarted("w", "a", "s", "durable", "all", ["p"], ["t"]),
        "INFO",
        "worker w of a started on s",
    ),
]


def name(value: object) -> str:
    return type(value).__name__ if isinstance(value, Event) else ""


@pytest.mark.parametrize(("event", "level", "words"), OF_JOBS, ids=name)
def test_a_plain_line_says_what_happened_to_which_job(
    written: Callable[[], str], event: Event, level: str, words: str
) -> None:
    [line] = lines(written, event)
    attempt = " attempt=2" if hasattr(event, "attempt") else ""
    assert line[9:] == (
        f"{level:7} {words}  job=0190-1 task=shop.pay queue=mail{attempt} correlation_id=order-7"
    )


@pytest.mark.parametrize(("event", "level", "words"), OF_JOBS, ids=name)
def test_a_json_line_carries_every_field(
    written: Callable[[], str], event: Event, level: str, words: str
) -> None:
    [text] = lines(written, event, style="json")
    line = json.loads(text)
    assert (line["level"], line["message"], line["event"]) == (
        level.lower(),
        words,
        type(event).__name__,
    )
    assert (line["job_id"], line["task"], line["queue"]) == ("0190-1", "shop.pay", "mail")
    assert line["correlation_id"] == "order-7"
    assert line.get("attempt") == getattr(event, "attempt", None)
    assert line["time"].endswith("Z")


@pytest.mark.parametrize(("event", "level", "words"), OF_WORKERS, ids=name)
def test_what_happens_to_workers_is_told_too(
    written: Callable[[], str], event: Event, level: str, words: str
) -> None:
    [line] = lines(written, event)
    assert line[9:].startswith(f"{level:7} {words}")


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_each_level_tells_what_it_should(written: Callable[[], str], level: str) -> None:
    told = lines(written, *(event for event, _, _ in [*OF_JOBS, *OF_WORKERS]), level=level)
    heard = [
        loud
        for _, loud, _ in [*OF_JOBS, *OF_WORKERS]
        if logging.getLevelName(loud) >= logging.getLevelName(level.upper())
    ]
    assert [line[9:].split()[0] for line in told] == heard


def test_one_queue_can_be_turned_up_and_another_down(written: Callable[[], str]) -> None:
    quiet = events.Died(JobId("2"), "t", "reports", None, attempt=1, reason="exhausted")
    loggers = [logging.getLogger(f"fairlead.queue.{queue}") for queue in ("mail", "reports")]
    loggers[0].setLevel("DEBUG")
    loggers[1].setLevel("CRITICAL")
    try:
        told = lines(written, STARTED, quiet, level="warning")
    finally:
        for logger in loggers:
            logger.setLevel(logging.NOTSET)
    assert [line[9:].partition("  job=")[0] for line in told] == ["DEBUG   started after 0.500 s"]


# Runs that end well, and how many of them are told


def test_above_a_rate_runs_that_end_well_are_counted(
    written: Callable[[], str], at: list[float]
) -> None:
    """The first 20 of a second have a line each; one more line then says how many there were."""
    bus = Bus(lambda _, error: pytest.fail(repr(error)))
    are_new()
    set_up(bus, LogStyle())
    other = replace(FINISHED, queue="reports")
    for event in [FINISHED] * 1_000 + [other] * 34:
        bus.emit(event)
    told = written().splitlines()
    assert len(told) == LINES_A_SECOND
    at[0] += 1.0
    bus.emit(other)
    summary, line = written().splitlines()
    assert summary[9:] == (
        "INFO    … and 1,014 more runs (mail 980, reports 34) ended well in the last second"
    )
    assert "queue=reports" in line


async def test_what_was_left_out_is_told_though_no_further_run_ends(
    written: Callable[[], str], at: list[float]
) -> None:
    later: list[Any] = []
    loop = asyncio.get_running_loop()
    bus = Bus(lambda _, error: pytest.fail(repr(error)))
    are_new()
    set_up(bus, LogStyle())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_later", lambda *given: later.append(given))
        for _ in range(LINES_A_SECOND + 1):
            bus.emit(FINISHED)
    written()
    [(seconds, tell)] = later
    assert seconds == 1.0
    tell()
    assert written()[17:] == "… and 1 more run of queue mail ended well in the last second\n"
    tell()
    assert written() == ""


def test_what_was_left_out_is_told_when_the_process_ends(
    written: Callable[[], str], at: list[float]
) -> None:
    told = lines(
        written,
        *[FINISHED] * (LINES_A_SECOND + 2),
        events.ProcessEnded("w", 7),
        level="info",
        style="json",
    )
    line = json.loads(told[-1])
    assert (line["event"], line["runs"], line["queues"]) == ("NotTold", 2, {"mail": 2})


def test_what_ends_badly_or_slowly_is_always_told(
    written: Callable[[], str], at: list[float]
) -> None:
    many = [FINISHED] * LINES_A_SECOND + [SLOW, RETRIED, DIED, FINISHED] * 30
    assert len(lines(written, *many, level="info")) == LINES_A_SECOND + 90


def test_debug_tells_of_every_run(written: Callable[[], str], at: list[float]) -> None:
    assert len(lines(written, *[FINISHED] * 100)) == 100


def test_a_queue_that_is_turned_down_takes_no_room_from_others(
    written: Callable[[], str], at: list[float]
) -> None:
    loud = logging.getLogger("fairlead.queue.reports")
    loud.setLevel("WARNING")
    try:
        other = replace(FINISHED, queue="reports")
        told = lines(written, *[other] * 100, *[FINISHED] * LINES_A_SECOND, level="info")
    finally:
        loud.setLevel(logging.NOTSET)
    assert len(told) == LINES_A_SECOND
    assert all("queue=mail" in line for line in told)


def test_quiet_leaves_out_what_ends_well(written: Callable[[], str]) -> None:
    ends = (FINISHED, SNOOZED, SLOW, RETRIED, DIED)
    told = lines(written, *ends, level="info", quiet=True)
    assert [line[9:].split()[0] for line in told] == ["INFO", "WARNING", "ERROR"]


# What producers tell


def test_a_producer_tells_of_what_it_enqueues_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    """Whenever the program sets its logging up; no worker is needed for that."""
    app = Fairlead("memory://", queues=[Queue("mail"), Queue("reports")])
    pay = app.task(name="pay", queue="mail")(lambda: None)
    pay.enqueue()
    assert caplog.messages == []
    with caplog.at_level("DEBUG", "fairlead.queue.mail"):
        pay.enqueue()
        pay.using(queue="reports").enqueue()
        app.enqueue_many([pay.call(), pay.call()])
    assert len(caplog.messages) == 3
    assert all(each.startswith("enqueued  job=") for each in caplog.messages)


async def test_a_worker_tells_of_what_is_enqueued_once(caplog: pytest.LogCaptureFixture) -> None:
    app = Fairlead("memory://")
    pay = app.task(name="pay")(lambda: None)
    with caplog.at_level("DEBUG", "fairlead"):
        tell_events(app.events, LogStyle())
        job = await pay.aenqueue()
    assert caplog.messages == [f"enqueued  job={job.id} task=pay queue=default"]


FORGED = "ok\n00:00:00 ERROR   dead: forged\r\n\x1b[2Kgone\x85next\u2028line"


@pytest.mark.parametrize("style", ["plain", "json"])
def test_no_name_can_forge_a_line(written: Callable[[], str], style: str) -> None:
    whose: tuple[Any, ...] = (JobId(FORGED), FORGED, "mail", FORGED)
    told = lines(
        written,
        events.Cancelled(*whose, reason=FORGED),
        events.Died(*whose, attempt=1, reason=FORGED, error=FORGED),
        events.StoreLost("w", FORGED),
        style=style,
    )
    assert len(told) == 3
    assert "\x1b" not in "".join(told)


SECRET = "cannot reach redis://u:c4n4ry@cache/0"


@pytest.mark.parametrize("style", ["plain", "json"])
def test_no_field_of_an_event_tells_a_password(written: Callable[[], str], style: str) -> None:
    whose: tuple[Any, ...] = (JobId(SECRET), SECRET, "mail", SECRET)
    told = lines(
        written,
        events.Trouble("w", SECRET),
        events.StoreLost("w", SECRET),
        events.Died(*whose, attempt=1, reason=SECRET, error=SECRET, detail=SECRET),
        events.WorkerStarted("w", "a", SECRET, "durable", "all", [SECRET], [SECRET]),
        style=style,
    )
    assert len(told) == 4
    assert "c4n4ry" not in "".join(told)
    assert "redis://u:***@cache/0" in told[0]
    if style == "json":
        assert json.loads(told[0])["problem"] == "cannot reach redis://u:***@cache/0"
        assert json.loads(told[3])["pools"] == ["cannot reach redis://u:***@cache/0"]


def test_a_program_that_set_up_logging_itself_keeps_its_handlers(
    written: Callable[[], str],
) -> None:
    are_new()
    own = logging.StreamHandler(io.StringIO())
    logging.getLogger().addHandler(own)
    bus = Bus(lambda *_: None)
    set_up(bus, LogStyle())
    bus.emit(DIED)
    logging.getLogger().removeHandler(own)
    assert written() == ""
    assert own.stream.getvalue() == (
        "dead: exhausted, Oops  job=0190-1 task=shop.pay queue=mail attempt=2 "
        "correlation_id=order-7\n"
    )


def test_no_name_forges_a_line_in_a_log_of_the_program_s_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bus = Bus(lambda *_: None)
    tell_events(bus, LogStyle())
    bus.emit(events.Died(JobId(FORGED), FORGED, "mail", None, 1, "poison", SECRET))
    [told] = caplog.messages
    assert told.isprintable()
    assert "c4n4ry" not in told


# What may be secret


@pytest.mark.parametrize("style", ["plain", "json"])
def test_what_failures_say_can_be_left_out(written: Callable[[], str], style: str) -> None:
    told = lines(written, SAID, KILLED, style=style, messages=False)
    assert len(told) == 2
    assert "4111" not in "".join(told)
    assert "failed with Oops (shop.py:3 in pay); again in 4.0 s" in told[0]
    assert "dead: poison, Crashed (SIGSEGV, crash 3 of 3)" in told[1]


@pytest.mark.parametrize("style", ["plain", "json"])
def test_what_a_handler_cancels_with_can_be_left_out(
    written: Callable[[], str], style: str
) -> None:
    expired = replace(CANCELLED, reason="expired")
    told = lines(written, CANCELLED, expired, style=style, messages=False)
    assert "withdrawn" not in "".join(told)
    assert "cancelled" in told[0]
    assert "cancelled: expired" in told[1]


def test_a_long_message_is_cut_in_the_line_and_whole_in_its_field(
    written: Callable[[], str],
) -> None:
    long = events.Retried(*WHOSE, 2, 4.0, "Oops", None, "x" * 4_000)
    [line] = lines(written, long)
    assert len(line) < 500
    [text] = lines(written, long, style="json")
    assert json.loads(text)["error_message"] == "x" * 4_000


@pytest.mark.parametrize("messages", [True, False])
async def test_no_payload_is_in_any_line_and_no_message_if_not_wanted(
    written: Callable[[], str], messages: bool
) -> None:
    app = Fairlead("memory://", queues=[Queue("mail")])
    are_new()
    set_up(app.events, LogStyle("debug", "json"))

    @app.task(name="pay", queue="mail", retry=Retry(attempts=1))
    async def pay(card: str) -> str:
        if card == "4111-bad":
            raise ValueError(f"no good: {card}")
        return card

    heard = Heard(app)
    async with app.worker(log_messages=messages):
        await ended(await pay.aenqueue("4111-good"))
        await ended(await pay.aenqueue("4111-bad"))
        await heard.until(events.Died)
    told = written()
    assert [json.loads(line)["event"] for line in told.splitlines()] == [
        "Enqueued",
        "Started",
        "Finished",
        "Enqueued",
        "Started",
        "Died",
        "ProcessEnded",
    ]
    assert "4111-good" not in told
    assert ("no good: 4111-bad" in told) is messages
    assert ("4111-bad" in told) is messages


def test_a_subscriber_that_failed_is_reported_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Fairlead("memory://")

    def angry(event: Event) -> None:
        raise ValueError("not with me")

    app.events.subscribe(angry)
    app.events.emit(DIED)
    assert "a subscriber failed on Died of job 0190-1; the job is not affected" in caplog.text
    assert "ValueError: not with me" in caplog.text


# What handlers log themselves


HOSTILE = "no\x1b[2Jgood\u200b\n12:00:00 ERROR   forged \u202e\nredis://:c4n4ry@cache\ud800"


def logged(written: Callable[[], str], style: str, log: Callable[[logging.Logger], None]) -> str:
    are_new()
    set_up(Bus(lambda *_: None), LogStyle("debug", style))
    log(logging.getLogger("shop"))
    return written()


def fail(logger: logging.Logger) -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        logger.exception("it broke: %s", HOSTILE, stack_info=True)


def test_a_traceback_in_the_plain_log_steers_nothing_and_forges_no_line(
    written: Callable[[], str],
) -> None:
    text = logged(written, "plain", fail)
    assert not any(char in text for char in "\x1b\u200b\u202e\ud800")
    assert "c4n4ry" not in text
    first, *rest = text.removesuffix("\n").split("\n")
    assert first[9:] == "ERROR   it broke: no\\x1b[2Jgood\\u200b"
    assert all(line.startswith("    ") for line in rest)
    assert "    12:00:00 ERROR   forged \\u202e" in rest
    assert "    Traceback (most recent call last):" in rest
    assert '      File "' in text
    assert "    Stack (most recent call last):" in rest
    assert rest.count("    redis://:***@cache\\ud800") == 2


def test_a_traceback_in_the_json_log_steers_nothing_either(written: Callable[[], str]) -> None:
    text = logged(written, "json", fail)
    assert text.count("\n") == 1
    assert not any(char in text for char in "\x1b\u200b\u202e\ud800")
    assert "c4n4ry" not in text
    line = json.loads(text)
    assert line["message"].startswith("it broke: no\x1b[2Jgood\u200b\n12:00:00")
    assert line["error"].startswith("Traceback (most recent call last):")
    assert line["stack"].startswith("Stack (most recent call last):")


def test_a_traceback_that_came_as_text_is_told_too(written: Callable[[], str]) -> None:
    def hand_over(logger: logging.Logger) -> None:
        given = {"msg": "from afar", "exc_text": "Traceback:\n\x1bboom", "levelno": 40}
        record = logging.makeLogRecord(given | {"levelname": "ERROR"})
        logger.handle(record)

    text = logged(written, "plain", hand_over)
    assert text.endswith("from afar\n    Traceback:\n    \\x1bboom\n")
