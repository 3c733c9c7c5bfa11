"""Log lines. The only module that imports `logging`.

What ends badly or slowly is told at INFO or above, everything else at DEBUG.
Each queue has a logger of its own, `fairlead.queue.NAME`, so that one can be
turned up or down alone.
"""

import json
import logging
import sys
import time
import weakref
from collections.abc import Callable

import msgspec

from fairlead.core.events import (
    Bus,
    Cancelled,
    Died,
    Enqueued,
    Event,
    Finished,
    JobEvent,
    LeaseExpired,
    LoopBlocked,
    Overdue,
    Parked,
    ProcessDied,
    ProcessRetired,
    ProcessStarted,
    Retried,
    Returned,
    SettlementRefused,
    Snoozed,
    Started,
    StoreFound,
    StoreLost,
    Trouble,
    WorkerEvent,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from fairlead.core.failure import in_brief
from fairlead.core.passwords import without_passwords
from fairlead.core.text import escaped, escaped_json, escaped_lines

SLOW_SECONDS = 60.0
"""A job that ran longer is told of at INFO."""

_logger = logging.getLogger("fairlead")
_told: weakref.WeakSet[Bus] = weakref.WeakSet()


def report_subscriber(event: Event, error: Exception) -> None:
    """Report a subscriber that raised: its event is lost to it, the job is not."""
    _logger.error(
        "a subscriber failed on %s%s; the job is not affected",
        type(event).__name__,
        f" of job {event.job_id}" if isinstance(event, JobEvent) else "",
        exc_info=error,
    )


def set_up(events: Bus, level: str, style: str) -> None:
    """Write log lines to stderr, and have events told there."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Plain())
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(logging.WARNING)
    _logger.setLevel(level.upper())
    tell_events(events)


def tell_events(events: Bus) -> None:
    """Have events told as log lines, once; where those go is up to the program's own logging."""
    if events in _told:
        return
    _told.add(events)
    events.subscribe(_tell_of_worker, WorkerEvent)
    for kind in _WORDS:
        if issubclass(kind, JobEvent) and _heard(kind):
            events.subscribe(_tell_of_job, kind)


def _heard(kind: type[JobEvent]) -> bool:
    """Say whether any queue's logger would write such an event; most jobs cost nothing here."""
    level = logging.INFO if kind is Finished else _LEVELS.get(kind, logging.DEBUG)
    names = [n for n in logging.root.manager.loggerDict if n.startswith("fairlead.queue.")]
    return any(logging.getLogger(name).isEnabledFor(level) for name in ("fairlead", *names))


def _tell_of_job(event: JobEvent) -> None:
    level = _LEVELS.get(type(event), logging.DEBUG)
    if isinstance(event, Finished) and event.run_seconds >= SLOW_SECONDS:
        level = logging.INFO
    logger = logging.getLogger(f"fairlead.queue.{event.queue}") if event.queue else _logger
    if logger.isEnabledFor(level):
        logger.log(level, _WORDS[type(event)](event), extra={"fairlead": event})


def _tell_of_worker(event: WorkerEvent) -> None:
    level = _LEVELS.get(type(event), logging.INFO)
    words = _WORDS.get(type(event))
    if words is not None and _logger.isEnabledFor(level):
        _logger.log(level, words(event), extra={"fairlead": event})


_LEVELS: dict[type[Event], int] = {
    Retried: logging.WARNING,
    Died: logging.ERROR,
    Cancelled: logging.INFO,
    LeaseExpired: logging.WARNING,
    SettlementRefused: logging.WARNING,
    Parked: logging.WARNING,
    Overdue: logging.ERROR,
    Returned: logging.INFO,
    ProcessDied: logging.ERROR,
    LoopBlocked: logging.WARNING,
    StoreLost: logging.ERROR,
    StoreFound: logging.WARNING,
    Trouble: logging.ERROR,
}


_WORDS: dict[type[Event], Callable[..., str]] = {
    Enqueued: lambda _: "enqueued",
    Started: lambda e: f"started after {e.wait_seconds:.3f} s",
    Finished: lambda e: f"done in {e.run_seconds:.3f} s",
    Retried: lambda e: f"failed with {_error(e)}; again in {e.delay_seconds:.1f} s",
    Died: lambda e: f"dead: {e.reason}" + (f", {_error(e)}" if e.error else ""),
    Cancelled: lambda e: f"cancelled: {e.reason}",
    LeaseExpired: lambda e: f"lost by worker {e.worker}, whose lease passed without a word",
    SettlementRefused: lambda e: f"came too late: it is another worker's now ({e.outcome} dropped)",
    Parked: lambda e: f"parked: no live worker knows this task in version {e.version}",
    Returned: lambda _: "given back unfinished; the attempt does not count",
    Snoozed: lambda e: f"snoozed for {e.delay_seconds:.1f} s",
    Overdue: lambda e: f"runs past its time limit of {e.limit_seconds:g} s, at {e.where}",
    WorkerStarted: lambda e: f"worker {e.worker} of {e.app} started on {e.store}",
    WorkerStopping: lambda e: (
        f"stopping ({e.why}); running jobs get {e.grace_seconds:g} s, a second signal ends them now"
        if e.grace_seconds
        else f"stopping ({e.why}); running jobs are given back now"
    ),
    WorkerStopped: lambda _: "stopped",
    ProcessStarted: lambda e: f"process {e.pid} is ready",
    ProcessRetired: lambda e: f"process {e.pid} is being replaced: {e.why}",
    ProcessDied: lambda e: (
        f"process {e.pid} died: {e.how}; {e.crashed} of its jobs had started"
        f"{' and run again at once, apart from others' if e.crashed > 1 else ''}, "
        f"{e.returned} were given back"
    ),
    LoopBlocked: lambda e: (
        f"the event loop of process {e.pid} has not turned for {e.seconds:.0f} s, at {e.where}; "
        "what blocks belongs in a plain function, which runs in a thread"
    ),
    StoreLost: lambda e: f"the store does not answer, trying on: {e.problem}",
    StoreFound: lambda e: f"the store answers again, after {e.after_seconds:.1f} s",
    Trouble: lambda e: e.problem,
}


def _error(event: Retried | Died) -> str:
    return in_brief(event.error, event.detail)


class _Plain(logging.Formatter):
    """One line for people: time, level, what happened, and to which job.

    What follows of a text of many lines is indented, so none of it can pass for a line of the log.
    """

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = escaped(f"{clock} {record.levelname:7}")
        event = getattr(record, "fairlead", None)
        message = without_passwords(record.getMessage())
        if isinstance(event, Event):
            return f"{head} {escaped(message)}{escaped(without_passwords(_whose(event)))}"
        texts = (message, *_more(self, record).values())
        first, *rest = (line for text in texts for line in escaped_lines(text))
        return f"\n{_INDENT}".join([f"{head} {first}", *rest])


_INDENT = " " * 4


def _whose(event: Event) -> str:
    """Name the job of an event, if it is about one."""
    if not isinstance(event, JobEvent):
        return ""
    attempt = getattr(event, "attempt", None)
    parts = [f"job={event.job_id}", f"task={event.task}"]
    parts += [f"queue={event.queue}"] if event.queue else []
    parts += [f"attempt={attempt}"] if attempt is not None else []
    parts += [f"correlation_id={event.correlation_id}"] if event.correlation_id else []
    return "  " + " ".join(parts)


def _more(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, str]:
    """Return the traceback and the stack of a record, if it has them."""
    # A record that came from another process has its traceback as text.
    raised = formatter.formatException(record.exc_info) if record.exc_info else record.exc_text
    found = {"error": raised, "stack": record.stack_info}
    return {name: without_passwords(text) for name, text in found.items() if text}


def _clean(value: object) -> object:
    """Return a value without the passwords in any text of it."""
    match value:
        case str():
            return without_passwords(value)
        case dict():
            return {_clean(key): _clean(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_clean(each) for each in value]
        case int() | float() | None:
            return value
    return without_passwords(str(value))


class _Json(logging.Formatter):
    """One JSON object per line, for machines."""

    def format(self, record: logging.LogRecord) -> str:
        told = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{told}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "fairlead", None)
        if isinstance(event, Event):
            line["event"] = type(event).__name__
            line |= msgspec.structs.asdict(event)
        line |= _more(self, record)
        # All of it, as the last thing: a field that is added later cannot be forgotten.
        return escaped_json(json.dumps(_clean(line), ensure_ascii=False))
