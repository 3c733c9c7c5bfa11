"""Everything Fairlead raises, grouped by who must act.

    FairleadError
    ├── ConfigError                 the developer: the program is set up wrong
    │   ├── UnknownTask             also LookupError
    │   ├── DuplicateTask
    │   ├── UnknownQueue            also EnqueueError and LookupError
    │   ├── InvalidOption           also EnqueueError
    │   ├── WaitsForItself
    │   └── MissingExtra            also ImportError
    ├── EnqueueError                the caller: this call cannot become a job
    │   ├── EncodeError             also TypeError
    │   ├── PayloadTooLarge
    │   └── TaskNotAllowed
    ├── StoreError                  the operator: the store cannot do it now
    │   ├── StoreUnavailable
    │   │   ├── Unanswered
    │   │   ├── StoreDenied         the user of its URL may not do this
    │   │   └── StoreFull
    │   ├── StoreGone               it was removed or replaced; nothing here can help
    │   ├── StoreRefused            it answered, and will say the same again
    │   └── SchemaOutdated
    ├── LeaseLost                   told to a handler that came too late
    ├── JobNotFound                 also LookupError
    ├── BadCursor                   also ValueError; the list must begin anew
    ├── DecodeError                 a stored job cannot be read; it becomes a dead letter
    └── JobFailed                   told to whoever waits for a result

    Signal                          raised by task code on purpose; not an error
    ├── RetryAfter(seconds)
    ├── Snooze(seconds)
    ├── Cancel(reason)
    ├── Permanent(reason)
    └── Ambiguous(evidence)

    FairleadWarning                 something that works, but will hurt later

Each error builds its message from its data and keeps the data as attributes.
"""

import difflib
from collections.abc import Collection
from itertools import islice
from typing import Any

from fairlead.core.clock import FAR_FUTURE, SECOND, SystemClock, as_datetime
from fairlead.core.ids import JobId, made_at
from fairlead.core.text import QUOTED, brief, cut, listed, sentence

_MOST_COMPARED = 1_000
_HOUR = 3600 * SECOND
_DAY = 24 * _HOUR
_FIRST = 1_704_067_200 * SECOND
"""The year 2024: no job is older."""

USUAL_KEEP = 7 * _DAY
"""How long ended jobs are kept, unless an app says otherwise."""


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Say ` (did you mean 'x'?)` when something known looks like `name`.

    Comparing takes time by the square of the length, so long names look like nothing.
    """
    if len(str(name)) > QUOTED:
        return ""
    short = [each for each in islice(known, _MOST_COMPARED) if len(each) <= QUOTED]
    near = difflib.get_close_matches(str(name), short, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _restore(kind: type[Exception], args: tuple[object, ...], data: dict[str, object]) -> Exception:
    error = kind.__new__(kind, *args)
    error.__dict__.update(data)
    return error


class FairleadError(Exception):
    """Anything that goes wrong in Fairlead."""

    def __reduce__(self) -> tuple[object, ...]:
        """Travel between processes: the message is kept, not made anew from itself."""
        return _restore, (type(self), self.args, self.__dict__)


class FairleadWarning(UserWarning):
    """Something that works, but will hurt later."""


class ConfigError(FairleadError):
    """The program is set up wrong: fix the code or the settings."""


class UnknownTask(ConfigError, LookupError):
    """A job or a caller names a task this program does not have."""

    def __init__(self, name: str, known: Collection[str]) -> None:
        self.name, self.known = name, known
        super().__init__(
            f"no task is registered as {brief(name)}{did_you_mean(name, known)}; "
            "import the module that defines it before you ask for it"
        )


class DuplicateTask(ConfigError):
    """Two functions claim the same task name."""

    def __init__(self, name: str, first: str, second: str) -> None:
        self.name, self.first, self.second = name, first, second
        super().__init__(
            f"two functions are registered as task {name!r}: {first} and {second}; "
            'give one of them another name, as in @app.task(name="…")'
        )


class MissingExtra(ConfigError, ImportError):
    """A feature needs a package that is not installed."""

    def __init__(self, extra: str, need: str) -> None:
        self.extra = extra
        super().__init__(
            f'{need} needs an extra package: pip install "fairlead[{extra}]", or ".[{extra}]" in a '
            "clone"
        )


class EnqueueError(FairleadError):
    """This call cannot become a job."""


class UnknownQueue(EnqueueError, ConfigError, LookupError):
    """A task or a caller names a queue the app does not declare."""

    def __init__(self, name: str, known: Collection[str]) -> None:
        self.name, self.known = name, known
        super().__init__(
            f"no queue is declared as {brief(name)}{did_you_mean(name, known)}; "
            f"declare it on the app, as in Fairlead(queues=[Queue({brief(name)})])"
        )


class InvalidOption(EnqueueError, ConfigError):
    """An option of a task, or of one enqueue, has a value it cannot have."""

    def __init__(self, option: str, wanted: str, value: object) -> None:
        self.option, self.wanted, self.value = option, wanted, value
        super().__init__(f"{option}= {wanted}, not {brief(value)}")


class WaitsForItself(ConfigError):
    """Who waits for the write lock of an SQLite file has it; `holder` says where."""

    def __init__(self, path: str, holder: str, *, in_coroutine: bool) -> None:
        self.path, self.holder, self.in_coroutine = path, holder, in_coroutine
        enqueue = "await {}.aenqueue(…)" if in_coroutine else "{}.enqueue(…)"
        super().__init__(
            f"{holder} has the write lock of {path}, so this call would wait for itself; to be "
            "part of that transaction pass its connection, as in "
            f"{enqueue.format('task.using(connection=conn)')} or job.commit(conn); or commit it "
            "first"
        )


class EncodeError(EnqueueError, TypeError):
    """An argument does not fit the task's signature, or cannot be stored."""

    def __init__(self, task: str, argument: str | None, problem: str) -> None:
        self.task, self.argument, self.problem = task, argument, problem
        where = f"argument {argument!r} of task {task!r}" if argument else f"call of task {task!r}"
        where = f"the result of task {task!r}" if argument == "return" else where
        super().__init__(f"{where}: {problem}")


class PayloadTooLarge(EnqueueError):
    """The encoded arguments are larger than a job may carry."""

    def __init__(self, task: str, size: int, limit: int) -> None:
        self.task, self.size, self.limit = task, size, limit
        super().__init__(
            f"the arguments of task {task!r} take {size:,} bytes, the limit is {limit:,}; "
            "put the data where both sides can reach it (a file, a row, a bucket) "
            "and pass its name"
        )


class TaskNotAllowed(EnqueueError):
    """A task wants to use a critical queue that does not list it."""

    def __init__(self, task: str, queue: str, allowed: Collection[str]) -> None:
        self.task, self.queue, self.allowed = task, queue, allowed
        super().__init__(
            f"task {task!r} may not use the critical queue {queue!r}, which is kept for "
            f"{listed(sorted(allowed))}; use an ordinary queue, or add the task to "
            "the queue's `tasks`"
        )


class StoreError(FairleadError):
    """The store cannot do it now."""


class StoreUnavailable(StoreError):
    """The store did not answer in time, or refused to work."""

    def __init__(self, url: str, problem: str) -> None:
        self.url, self.problem = url, problem
        super().__init__(f"{url}: {problem}")


class Unanswered(StoreUnavailable):
    """The store was asked and did not answer: it may have done what it was asked, or not."""

    def __init__(
        self,
        url: str,
        problem: str,
        job: Any = None,  # noqa: ANN401 (a handle; errors know nothing of producers)
        calls: tuple[Any, ...] = (),
        action: Any = None,  # noqa: ANN401 (who acted)
    ) -> None:
        super().__init__(url, problem)
        self.job, self.calls, self.action = job, calls, action
        if advice := self._advice():
            self.args = (f"{sentence(self.args[0])} {advice}",)

    @property
    def call(self) -> Any:  # noqa: ANN401 (a `Call`)
        """The call that may have been accepted, if it was one alone."""
        return self.calls[0] if len(self.calls) == 1 else None

    def _advice(self) -> str:
        """Say what may have happened, and how to repeat it."""
        if self.call is not None:
            return (
                f"Job {self.call.id} may exist all the same. Repeat app.enqueue_many([error.call]) "
                "until it returns: its id is known, so there is one job"
            )
        if self.calls:
            return (
                f"{len(self.calls):,} jobs may exist all the same. Repeat "
                "app.enqueue_many(error.calls) until it returns: their ids are known, so none is "
                "put twice"
            )
        if self.action is not None:
            return (
                f"It may have been done all the same ({self.action.verb} {self.action.target}). Do "
                "it again to make sure"
            )
        return ""

    def __reduce__(self) -> tuple[object, ...]:
        """Travel between processes, without the handle: that belongs to an app."""
        return _restore, (type(self), self.args, {**self.__dict__, "job": None})


class StoreDenied(StoreUnavailable):
    """The user whom the store's URL names may not do this."""


class StoreFull(StoreUnavailable):
    """The store has no room for another job."""


class StoreGone(StoreError):
    """The store was removed or replaced while this program used it."""

    def __init__(self, url: str, problem: str) -> None:
        self.url, self.problem = url, problem
        super().__init__(f"{url}: {problem}")


class StoreRefused(StoreError):
    """The store answered that it will not do this, because a row or a value is damaged."""

    def __init__(self, url: str, problem: str) -> None:
        self.url, self.problem = url, problem
        super().__init__(f"{url}: {problem}; `fairlead doctor` tells which job is damaged")


class SchemaOutdated(StoreError):
    """The store's tables and this program are of different versions."""

    def __init__(self, found: int, needed: int) -> None:
        self.found, self.needed = found, needed
        remedy = (
            "upgrade this program"
            if found > needed
            else "call app.open() once, before the transaction begins"
        )
        super().__init__(
            f"the store's schema is version {found}, this program needs {needed}; {remedy}"
        )


class LeaseLost(FairleadError):
    """The job was given to another worker; nothing done from here counts any more."""

    def __init__(self, job_id: str) -> None:
        self.job_id = job_id
        super().__init__(f"job {job_id} is no longer ours: its lease passed to another worker")


class JobNotFound(FairleadError, LookupError):
    """No job with this id is in the store."""

    def __init__(self, job_id: str, now: int | None = None) -> None:
        self.job_id, self.now = job_id, now
        super().__init__(f"no job has the id {cut(job_id, QUOTED)}{_missing(job_id, now)}")


def _missing(job_id: str, now: int | None) -> str:
    """Say why there may be no job of this id by now: an id tells when it was made."""
    made = made_at(JobId(job_id))
    if made is None:
        return "; that is not an id as Fairlead makes them: is it whole, and from this store?"
    at = f", made on {as_datetime(min(made, FAR_FUTURE)):%Y-%m-%d at %H:%M:%S} UTC"
    now = SystemClock().now() if now is None else now
    if made > now + _DAY:
        return f"{at}, a time to come: it is mistyped"
    if made < _FIRST:
        return f"{at}, before there was Fairlead: it is mistyped"
    if now - made < USUAL_KEEP:
        forgotten = "" if now - made < _HOUR else "; or your app's `keep` is shorter than its age"
        return (
            f"{at}: its transaction may not be committed, somebody may have deleted it, or it is "
            f"in another store{forgotten}"
        )
    return (
        f"{at}: ended jobs are forgotten after a time (the app's `keep`, 7 days by default); or "
        "somebody deleted it, or it is in another store"
    )


class BadCursor(FairleadError, ValueError):
    """A cursor does not lead into the list that is asked for."""

    def __init__(self, cursor: str, problem: str) -> None:
        self.cursor, self.problem = cursor, problem
        super().__init__(
            f"the cursor {brief(cursor)} leads nowhere here: {problem}; begin the list anew, "
            "without a cursor"
        )


class DecodeError(FairleadError):
    """A stored job or result cannot be read."""

    def __init__(self, what: str, problem: str) -> None:
        self.what, self.problem = what, problem
        super().__init__(f"{what} cannot be read: {cut(problem, 1_000)}")


class JobFailed(FairleadError):
    """The job ended without a result."""

    def __init__(
        self, job_id: str, task: str, state: str, reason: str | None, error: str | None
    ) -> None:
        self.job_id, self.task, self.state = job_id, task, state
        self.reason, self.error = reason, error
        told = f" ({reason})" if reason else ""
        super().__init__(
            f"job {job_id} of task {brief(task)} is {state}{told}" + (f": {error}" if error else "")
        )


class Signal(Exception):
    """Raised by task code to say how its run should end."""

    def __reduce__(self) -> tuple[object, ...]:
        """Travel between processes, such as out of a pool that task code uses."""
        return _restore, (type(self), self.args, self.__dict__)


class RetryAfter(Signal):
    """Try again after this many seconds, plus the task's jitter; counts as an attempt."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        self.seconds, self.reason = seconds, reason
        super().__init__(reason or f"retry after {seconds} s")


class Snooze(Signal):
    """Run again after this many seconds; does not count as an attempt."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"snooze for {seconds} s")


class Cancel(Signal):
    """Stop here; the job is cancelled, not failed."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Permanent(Signal):
    """Trying again cannot help; the job is a dead letter at once."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Ambiguous(Signal):
    """An outside effect may or may not have happened; `evidence` says what is known."""

    def __init__(self, evidence: str) -> None:
        self.evidence = evidence
        super().__init__(evidence)
