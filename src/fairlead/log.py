"""Log lines. The only module that imports `logging`.

What ends badly or slowly is always told, at INFO or above. A run that ends well is told
at INFO too, but only 20 of them a second in each process: one more line then says how
many there were besides, so a log costs next to nothing however quick the jobs are. The rest
is DEBUG, which leaves out nothing. Each queue has a logger of its own, `fairlead.queue.NAME`,
so that one can be turned up or down alone.
"""

import asyncio
import json
import logging
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fairlead.core.events import (
    Bus,
    Cancelled,
    Died,
    Enqueued,
    Event,
    Finished,
    JobEvent,
    LeaseExpired,
    LogStyle,
    LoopBlocked,
    NotTold,
    Overdue,
    Parked,
    ProcessDied,
    ProcessEnded,
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
from fairlead.core.job import Reason
from fairlead.core.passwords import without_passwords
from fairlead.core.queue import hard_limit
from fairlead.core.text import counted, escaped, escaped_json, escaped_lines, listed

SLOW_SECONDS = 60.0
"""A job that ran longer is always told of."""

LINES_A_SECOND = 20
"""How many runs that ended well a process tells of one by one, unless its level is DEBUG."""

_monotonic = time.monotonic
_logger = logging.getLogger("fairlead")
_loggers: dict[str, logging.Logger] = {"": _logger}
_tellers: "weakref.WeakKeyDictionary[Bus, _Teller]" = weakref.WeakKeyDictionary()


def report_subscriber(event: Event, error: Exception) -> None:
    """Report a subscriber that raised: its event is lost to it, the job is not."""
    _logger.error(
        "a subscriber failed on %s%s; the job is not affected",
        type(event).__name__,
        f" of job {event.job_id}" if isinstance(event, JobEvent) else "",
        exc_info=error,
    )


def set_up(events: Bus, style: LogStyle) -> None:
    """Write log lines to stderr, and have events told there."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style.format == "json" else _Plain())
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(logging.WARNING)
    _logger.setLevel(style.level.upper())
    tell_events(events, style)


def tell_events(events: Bus, style: LogStyle) -> None:
    """Have events told as log lines, once; where those go is up to the program's own logging."""
    if events in _tellers:
        _tellers[events].style = style
        return
    _tellers[events] = _Teller(style)
    _tellers[events].listen(events)


def logs_enqueued(queue: str) -> bool:
    """Say whether a new job of this queue is told of. Any program may ask for that, with DEBUG."""
    return _logger_of(queue).isEnabledFor(logging.DEBUG)


def tell_enqueued(event: Enqueued) -> None:
    """Tell of a new job."""
    _write(_logger_of(event.queue), logging.DEBUG, event)


def _logger_of(queue: str) -> logging.Logger:
    # To ask `logging` takes a lock, and a job does this several times.
    logger = _loggers.get(queue)
    if logger is None:
        logger = _loggers[queue] = logging.getLogger(f"fairlead.queue.{queue}")
    return logger


def _write(logger: logging.Logger, level: int, event: Event) -> None:
    if logger.isEnabledFor(level):
        logger.log(level, _line(event), extra={"fairlead": event})


def _line(event: Event) -> str:
    """Return what happened and to which job, in one line, whatever the program logs with."""
    parts = (_WORDS[type(event)](event), _whose(event))
    return "".join(escaped(without_passwords(part)) for part in parts)


class _Teller:
    """Tells the events of one bus."""

    def __init__(self, style: LogStyle) -> None:
        self.style = style
        self._pace = _Pace()

    def listen(self, events: Bus) -> None:
        """Subscribe to what is to be told; most jobs cost nothing here if nobody reads of them."""
        events.subscribe(self._tell_of_worker, WorkerEvent)
        for kind in _WORDS:
            if issubclass(kind, _Well) and _heard(logging.INFO):
                events.subscribe(self._tell_of_end, kind)
            elif issubclass(kind, JobEvent) and kind is not Enqueued and _heard(_level(kind)):
                events.subscribe(self._tell_of_job, kind)

    def _tell_of_end(self, event: Finished | Snoozed) -> None:
        """Tell that a run ended well, if there is room for it."""
        logger = _logger_of(event.queue)
        level = logging.INFO
        if not _is_slow(event):
            if self.style.quiet:
                level = logging.DEBUG
            elif not (logger.isEnabledFor(logging.DEBUG) or self._admits(logger, event.queue)):
                return
        _write(logger, level, event)

    def _admits(self, logger: logging.Logger, queue: str) -> bool:
        return logger.isEnabledFor(logging.INFO) and self._pace.admits(queue)

    def _tell_of_job(self, event: JobEvent) -> None:
        if not self.style.messages:
            event = _without_messages(event)
        _write(_logger_of(event.queue), _level(type(event)), event)

    def _tell_of_worker(self, event: WorkerEvent) -> None:
        if isinstance(event, ProcessEnded):
            self._pace.tell()
        if type(event) in _WORDS:
            _write(_logger, _LEVELS.get(type(event), logging.INFO), event)


class _Pace:
    """Lets so many lines a second through, and tells how many more there were."""

    def __init__(self) -> None:
        self._second_ends = 0.0
        self._room = 0
        self._left_out: Counter[str] = Counter()

    def admits(self, queue: str) -> bool:
        """Say whether there is room for a line; if not, it is counted."""
        now = _monotonic()
        if now >= self._second_ends:
            self.tell()
            self._second_ends, self._room = now + 1, LINES_A_SECOND
        if self._room:
            self._room -= 1
            return True
        if not self._left_out:
            self._tell_when_the_second_ends(now)
        self._left_out[queue] += 1
        return False

    def _tell_when_the_second_ends(self, now: float) -> None:
        """Have it told though no further run ends; where no loop runs, the next run's end does."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        loop.call_later(self._second_ends - now, self.tell)

    def tell(self) -> None:
        """Tell how many lines were left out, if any were."""
        left_out, self._left_out = self._left_out, Counter()
        if left_out:
            most = dict(left_out.most_common(_QUEUES_NAMED))
            _write(_logger, logging.INFO, NotTold(left_out.total(), most))


def _without_messages(event: JobEvent) -> JobEvent:
    """Return an event without what a handler or a person put in words."""
    if isinstance(event, Retried | Died):
        event = replace(event, error_message=None)
    elif isinstance(event, Cancelled) and event.reason not in set(Reason):
        event = replace(event, reason=Reason.CANCELLED)
    return event


_HERE = Path.cwd()
_QUEUES_NAMED = 20
_Well = (Finished, Snoozed)
"""How a run ends well."""


def _is_slow(event: Finished | Snoozed) -> bool:
    return isinstance(event, Finished) and event.run_seconds >= SLOW_SECONDS


def _level(kind: type[Event]) -> int:
    return _LEVELS.get(kind, logging.DEBUG)


def _heard(level: int) -> bool:
    """Say whether any queue's logger would write lines of this level."""
    names = [n for n in logging.root.manager.loggerDict if n.startswith("fairlead.queue.")]
    return any(logging.getLogger(name).isEnabledFor(level) for name in ("fairlead", *names))


_LEVELS: dict[type[Event], int] = {
    Retried: logging.WARNING,
    Died: logging.ERROR,
    Cancelled: logging.INFO,
    LeaseExpired: logging.WARNING,
    SettlementRefused: logging.WARNING,
    Parked: logging.WARNING,
    Overdue: logging.ERROR,
    Returned: logging.INFO,
    ProcessEnded: logging.DEBUG,
    ProcessDied: logging.ERROR,
    LoopBlocked: logging.WARNING,
    StoreLost: logging.ERROR,
    StoreFound: logging.WARNING,
    Trouble: logging.ERROR,
}


_ENDS = (
    "; its thread ends with this process, once the other jobs in it have ended, within {:g} s at "
    "most; for a hard limit declare {}"
)
_WORDS: dict[type[Event], Callable[..., str]] = {
    Enqueued: lambda _: "enqueued",
    Started: lambda e: f"started after {e.wait_seconds:.3f} s",
    Finished: lambda e: f"done in {e.run_seconds:.3f} s, waited {e.wait_seconds:.3f} s",
    NotTold: lambda e: f"… and {_more_runs(e)} well in the last second",
    Retried: lambda e: f"failed with {_error(e)}; again {_when(e)}{_times(e)}",
    Died: lambda e: f"dead: {e.reason}" + (f", {_error(e)}" if e.error else "") + _times(e),
    Cancelled: lambda e: (
        "cancelled" + (f": {e.reason}" if e.reason != Reason.CANCELLED else "") + _times(e)
    ),
    LeaseExpired: lambda e: f"lost by worker {e.worker}, whose lease passed without a word",
    SettlementRefused: lambda e: f"came too late: it is another worker's now ({e.outcome} dropped)",
    Parked: lambda e: f"parked{_one_of(e)}: no live worker knows this task in version {e.version}",
    Returned: lambda _: "given back unfinished; the attempt does not count",
    Snoozed: lambda e: f"snoozed for {e.delay_seconds:.1f} s{_times(e)}",
    Overdue: lambda e: (
        f"runs past its time limit of {e.limit_seconds:g} s, at {e.where}"
        + ("" if e.ends_within is None else _ENDS.format(e.ends_within, hard_limit(e.queue)))
    ),
    WorkerStarted: lambda e: f"worker {e.worker} of {e.app} started on {e.store}",
    WorkerStopping: lambda e: (
        f"stopping ({e.why}); running jobs get {e.grace_seconds:g} s, a second signal ends them now"
        if e.grace_seconds
        else f"stopping ({e.why}); running jobs are given back now"
    ),
    WorkerStopped: lambda _: "stopped",
    ProcessStarted: lambda e: f"process {e.pid} is ready",
    ProcessRetired: lambda e: f"process {e.pid} is being replaced: {e.why}",
    ProcessEnded: lambda e: f"process {e.pid} has ended its work",
    ProcessDied: lambda e: (
        f"process {e.pid} died: {e.how}; {e.crashed} of its jobs had started"
        f"{' and run again at once, apart from others' if e.crashed > 1 else ''}, "
        f"{counted(e.returned, 'was', 'were')} given back"
    ),
    LoopBlocked: lambda e: (
        f"the event loop of process {e.pid} has not turned for {e.seconds:.0f} s"
        + (f", at {e.where}; " if e.where else "; ")
        + (f"jobs given back that it had not started: {e.returned}; " if e.returned else "")
        + "what blocks belongs in a plain function, which runs in a thread"
    ),
    StoreLost: lambda e: f"the store cannot be used, trying on: {e.problem}",
    StoreFound: lambda e: f"the store can be used again, after {e.after_seconds:.1f} s",
    Trouble: lambda e: e.problem,
}


def _error(event: Retried | Died) -> str:
    # Where it was raised is told from here, as people write it.
    detail = event.detail and event.detail.removeprefix(f"{_HERE}/")
    return in_brief(event.error, detail, event.error_message)


def _when(event: Retried) -> str:
    return f"in {event.delay_seconds:.1f} s" if event.delay_seconds >= 0.05 else "at once"


def _times(event: Retried | Died | Cancelled | Snoozed) -> str:
    if event.run_seconds is None:
        return ""
    return f"; ran {event.run_seconds:.3f} s, waited {event.wait_seconds:.3f} s"


def _one_of(event: Parked) -> str:
    return f", one of {event.jobs:,} jobs" if event.jobs > 1 else ""


def _more_runs(event: NotTold) -> str:
    runs = counted(event.runs, "more run")
    if len(event.queues) == 1:
        return f"{runs} of queue {next(iter(event.queues))} ended"
    named = listed(f"{name} {number:,}" for name, number in event.queues.items())
    return f"{runs} ({named}) ended"


class _Plain(logging.Formatter):
    """One line for people: time, level, what happened, and to which job.

    What follows of a text of many lines is indented, so none of it can pass for a line of the log.
    """

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = escaped(f"{clock} {record.levelname:7}")
        event = getattr(record, "fairlead", None)
        if isinstance(event, Event):
            return f"{head} {record.getMessage()}"
        message = without_passwords(record.getMessage())
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
            line["message"] = _WORDS[type(event)](event)
            line["event"] = type(event).__name__
            line |= msgspec.structs.asdict(event)
        line |= _more(self, record)
        # All of it, as the last thing: a field that is added later cannot be forgotten.
        return escaped_json(json.dumps(_clean(line), ensure_ascii=False))
