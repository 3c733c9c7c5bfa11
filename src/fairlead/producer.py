"""What a producer holds: tasks that can be enqueued, calls on their way, handles to their jobs."""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from fairlead.core.acts import Action, Cancel
from fairlead.core.clock import FAR_FUTURE, SECOND, Clock, instant, span
from fairlead.core.details import JobDetails, details_of
from fairlead.core.errors import (
    ConfigError,
    EncodeError,
    EnqueueError,
    InvalidOption,
    JobFailed,
    JobNotFound,
    Unanswered,
)
from fairlead.core.ids import IdMaker, JobId
from fairlead.core.job import (
    LONGEST_ID,
    LONGEST_LABEL,
    MOST_LABELS,
    JobOptions,
    JobRecord,
    NewJob,
    Reason,
    State,
    decode_options,
    encode_options,
)
from fairlead.core.retry import Curve, Retry
from fairlead.core.store import Store
from fairlead.core.task import (
    Registry,
    Task,
    check_priority,
    check_retry,
    check_timeout,
)
from fairlead.runtime.commit import apart
from fairlead.runtime.names import user_name
from fairlead.sync import Bridge, refuse_to_block

P = ParamSpec("P")
R = TypeVar("R")

POLL_SECONDS = 1.0
"""How long a wait for a result trusts in hints before it looks again."""


OPTIONS_LIMIT = 256 * 1024
"""How many bytes the options of a job may take, as JSON."""


class Call(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """One call of a task, encoded and checked, with its id: ready to be enqueued."""

    job: NewJob

    @property
    def id(self) -> JobId:
        """The id its job has, or will have."""
        return self.job.id

    def __repr__(self) -> str:
        """Name the call; its arguments may be nobody's business."""
        return f"<call {self.id} of task {self.job.task!r}>"


class Producer(Protocol):
    """What tasks and handles need of their app."""

    store: Store
    bridge: Bridge
    tasks: Registry
    clock: Clock

    def new_id(self, queue: str) -> JobId:
        """Make an id for a job of this queue."""
        ...

    def check_queue(self, queue: str, task: str) -> None:
        """Raise unless the task may use the queue."""
        ...

    def put(self, call: Call[Any], connection: object) -> None:
        """Enqueue one call from synchronous code."""
        ...

    async def aput(self, call: Call[Any], connection: object) -> None:
        """Enqueue one call from a running loop."""
        ...


class BoundTask(Generic[P, R]):
    """A task of an app: call it as the function it is, or enqueue it to run later."""

    def __init__(
        self,
        task: Task,
        producer: Producer,
        template: NewJob | None = None,
        connection: object = None,
    ) -> None:
        self.task = task
        self._producer = producer
        self._template = template or task.template()
        self._expires = self._template.ends_at(0) is not None
        self._connection = connection
        self.__wrapped__ = task.function
        self.__doc__ = task.function.__doc__
        self.__name__ = getattr(task.function, "__name__", task.name)

    @property
    def name(self) -> str:
        """The name the task is registered under."""
        return self.task.name

    def __repr__(self) -> str:
        """Name the task and its queue."""
        return f"<task {self.name!r} on queue {self._template.queue!r}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to travel: a task belongs to its app, which holds connections."""
        raise TypeError(f"{self!r} cannot be copied or sent to a process; import it there")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:  # noqa: ANN401 (the function's)
        """Call the function here and now."""
        return self.task.function(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Prepare a call for `app.enqueue_many`; however often it is enqueued, it is one job."""
        if self._connection is not None:
            raise ConfigError("pass connection= to enqueue_many itself, not to using()")
        return self._call(args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> "JobHandle[R]":
        """Store a call of this task, to be run by a worker.

        Raises `StoreUnavailable` if the job was not accepted. If the store was asked and does not
        answer, it is asked again, for as long as an answer may take; then `Unanswered` says that
        the job may exist. Repeat `app.enqueue_many([error.call])` until it returns: there is one
        job, however often.
        """
        call = self._call(args, kwargs)
        try:
            self._producer.put(call, self._connection)
        except Unanswered as problem:
            raise self._unanswered(problem, call) from problem
        return JobHandle(call.id, self._producer)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> "JobHandle[R]":
        """Store a call of this task, from a running loop; see `enqueue`."""
        call = self._call(args, kwargs)
        try:
            await self._producer.aput(call, self._connection)
        except Unanswered as problem:
            raise self._unanswered(problem, call) from problem
        return JobHandle(call.id, self._producer)

    def _unanswered(self, problem: Unanswered, call: Call[R]) -> Unanswered:
        job = JobHandle[R](call.id, self._producer)
        return Unanswered(problem.url, problem.problem, job, (call,))

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R]:
        try:
            payload = self.task.signature.encode(args, kwargs)
        except EncodeError as problem:
            raise _pointed_to_using(problem, kwargs) from None
        return self.written(payload)

    def written(self, payload: str) -> Call[R]:
        """Prepare a call whose arguments are JSON already, as `Signature.read` returns it."""
        if self._expires:
            _check_can_start(self._template, self._producer.clock.now())
        job_id = self._producer.new_id(self._template.queue)
        return Call(replace(self._template, id=job_id, payload=payload))

    def using(
        self,
        *,
        queue: str | None = None,
        delay: float | timedelta | None = None,
        run_at: datetime | None = None,
        priority: int | None = None,
        expires: float | timedelta | datetime | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
        tags: Sequence[str] | None = None,
        correlation_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        connection: object = None,
    ) -> "BoundTask[P, R]":
        """Return the same task with other options for what is enqueued through it.

        `delay` and `run_at` put the start off; `priority` is a head start in
        seconds; a job that has not started by `expires` never will, and one that would
        be due only then is refused. With
        `connection`, the job is part of that connection's transaction.
        """
        changes: dict[str, Any] = {}
        if queue is not None:
            self._producer.check_queue(queue, self.task.name)
            changes["queue"] = queue
        if delay is not None and run_at is not None:
            raise EnqueueError("give delay= or run_at=, not both")
        if delay is not None:
            changes |= {"delay": _span("delay", delay), "run_at": None}
        if run_at is not None:
            changes |= {"run_at": _instant("run_at", run_at), "delay": 0}
        if priority is not None:
            changes["priority"] = check_priority(priority)
        if isinstance(expires, datetime):
            changes |= {"expires_at": _instant("expires", expires), "expires_in": None}
        elif expires is not None:
            changes |= {"expires_in": _span("expires", expires), "expires_at": None}
        options = self._changed(timeout, retry, tags, correlation_id, headers)
        template = replace(self._template, options=_encoded(options), **changes)
        connection = self._connection if connection is None else connection
        return BoundTask(self.task, self._producer, template, connection)

    def _changed(
        self,
        timeout: float | None,
        retry: Retry | None,
        tags: Sequence[str] | None,
        correlation_id: str | None,
        headers: Mapping[str, str] | None,
    ) -> JobOptions:
        changes: dict[str, Any] = {}
        if timeout is not None:
            changes["timeout"] = check_timeout(timeout)
        if retry is not None:
            backoff = _portable(retry)
            changes |= {"attempts": retry.attempts, "backoff": backoff}
        if tags is not None:
            changes["tags"] = _labels("tags", tags)
        if correlation_id is not None:
            (changes["correlation_id"],) = _labels("correlation_id", [correlation_id])
        if headers is not None:
            if not isinstance(headers, Mapping):
                raise InvalidOption("headers", "takes a dict of texts", headers)
            _labels("headers", tuple(headers))
            _labels("headers", tuple(headers.values()))
            changes["headers"] = dict(headers)
        return replace(decode_options(self._template.options), **changes)


class JobHandle(Generic[R]):
    """A job that was enqueued: wait for its result, look at it, cancel it."""

    def __init__(self, job_id: JobId, producer: Producer) -> None:
        self.id = job_id
        self._producer = producer

    def __repr__(self) -> str:
        """Name the job."""
        return f"<job {self.id}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to travel: a handle belongs to its app, which holds connections."""
        raise TypeError(f"{self!r} cannot be copied or sent to a process; send its id, app.job(id)")

    def result(self, timeout: float | None = None) -> R:
        """Wait for the job to end and return what the task returned.

        Raises `JobFailed` if it ended without a result, and `TimeoutError` if
        it has not ended in time; the job itself goes on.
        """
        refuse_to_block("await job.aresult()")
        return self._producer.bridge.run(self.aresult(timeout))

    async def aresult(self, timeout: float | None = None) -> R:  # noqa: ASYNC109 (public name)
        """Wait for the job to end and return what the task returned."""
        record = await ended(apart(self._producer.store), self.id, timeout)
        if record.state is not State.DONE:
            error = record.errors[-1] if record.errors else None
            text = f"{error.error}: {error.message}" if error else None
            raise JobFailed(self.id, record.task, record.state, record.reason, text)
        value: R = self._producer.tasks[record.task].signature.decode_result(record.result)
        return value

    def status(self) -> State:
        """Return the state the job is in."""
        return self._producer.bridge.run(self.astatus())

    async def astatus(self) -> State:
        """Return the state the job is in."""
        return (await found(apart(self._producer.store), self.id)).state

    def record(self) -> JobDetails:
        """Return everything the store knows about the job: values and times, ready to use."""
        return self._producer.bridge.run(self.arecord())

    async def arecord(self) -> JobDetails:
        """Return everything the store knows about the job: values and times, ready to use."""
        record = await found(apart(self._producer.store), self.id)
        return details_of(record, self._producer.tasks)

    def cancel(self, reason: str = Reason.CANCELLED) -> State:
        """Cancel the job; returns the state it is in then.

        A waiting job is cancelled at once. A running one is told, and keeps
        running until it notices; its result will not be kept. To cancel again is safe, above
        all after `Unanswered`.
        """
        return self._producer.bridge.run(self.acancel(reason))

    async def acancel(self, reason: str = Reason.CANCELLED) -> State:
        """Cancel the job; returns the state it is in then."""
        store = apart(self._producer.store)
        await store.admin.act(Cancel([self.id], reason), _by_program(self.id))
        return await self.astatus()


def _by_program(job_id: JobId) -> Action:
    """Say that a program cancels a job, for the audit log."""
    return Action(str(_new_action_id()), f"{user_name()}, a program", "cancel", f"job {job_id}")


_new_action_id = IdMaker()


async def ended(store: Store, job_id: JobId, timeout: float | None = None) -> JobRecord:  # noqa: ASYNC109 (public name)
    """Wait for a job to end, one way or the other, and return it."""
    _check_patience(timeout)
    mark = await store.wait(0)
    record = await found(store, job_id)
    try:
        async with asyncio.timeout(timeout):
            while not record.state.final:
                mark = await store.wait(POLL_SECONDS, mark)
                record = await found(store, job_id)
    except TimeoutError:
        raise TimeoutError(f"job {job_id} has not ended after {timeout:g} s") from None
    return record


async def found(store: Store, job_id: JobId) -> JobRecord:
    """Return a job, or say that there is none."""
    record = await store.admin.find(job_id) if len(job_id) <= LONGEST_ID else None
    if record is None:
        raise JobNotFound(job_id)
    return record


_USING = frozenset(inspect.signature(BoundTask.using).parameters) - {"self"}


def _pointed_to_using(problem: EncodeError, kwargs: Mapping[str, object]) -> EncodeError:
    """Help those who pass an option among the arguments."""
    options = sorted(_USING & kwargs.keys())
    if problem.argument is not None or not options:
        return problem
    hint = f"options go before: write task.using({options[0]}=…).enqueue(…)"
    return EncodeError(problem.task, None, f"{problem.problem}; {hint}")


def _check_patience(timeout: float | None) -> None:
    if timeout is not None and not isinstance(timeout, int | float):
        raise InvalidOption("timeout", "must be seconds or None", timeout)


def _span(name: str, value: float | timedelta) -> int:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, int | float) or not 0 <= seconds <= 100 * 366 * 24 * 3600:
        raise InvalidOption(name, "must be seconds or a timedelta from 0 to 100 years", value)
    return span(seconds)


def _instant(name: str, value: datetime) -> int:
    if not isinstance(value, datetime):
        raise InvalidOption(name, "must be a datetime with a time zone", value)
    try:
        at = instant(value)
    except ValueError as problem:
        raise EnqueueError(f"{name}=: {problem}") from None
    return min(max(at, 0), FAR_FUTURE)


def _check_can_start(job: NewJob, now: int) -> None:
    """Refuse a job that would be due only when it has expired.

    By this machine's clock, from which the caller has its instants.
    """
    due, ends = job.due_at(now), job.ends_at(now)
    if ends is not None and now < due >= ends:
        raise EnqueueError(
            f"the job would never start: it is due in {(due - now) / SECOND:,.0f} s, and expires "
            f"in {(ends - now) / SECOND:,.0f} s; start it earlier, or let it expire later"
        )


def _labels(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidOption(name, "takes a list of texts", texts)
    if len(texts) > MOST_LABELS:
        raise EnqueueError(f"{name}= takes at most {MOST_LABELS} texts, not {len(texts):,}")
    for text in texts:
        if not isinstance(text, str) or len(text) > LONGEST_LABEL or "\0" in text:
            wanted = f"takes texts of at most {LONGEST_LABEL} characters without NUL"
            raise InvalidOption(name, wanted, text)
        try:
            text.encode()
        except UnicodeError:
            raise EnqueueError(f"{name}= holds characters that are no valid Unicode") from None
    return tuple(texts)


def _encoded(options: JobOptions) -> str | None:
    text = encode_options(options)
    if text is not None and len(text.encode()) > OPTIONS_LIMIT:
        raise EnqueueError(
            f"the options of a job have {len(text.encode()):,} bytes, and may have "
            f"{OPTIONS_LIMIT:,}; shorten its tags and headers"
        )
    return text


def _portable(retry: Retry) -> Curve:
    """Return the curve of a Retry that travels with its job, as JSON."""
    check_retry(retry)
    if retry.on or retry.never or retry.when or not isinstance(retry.backoff, Curve):
        raise EnqueueError(
            "using(retry=…) travels with the job, so it can only hold attempts and one of the "
            "curves exponential(), linear() and fixed(); put functions and exception classes on "
            "the task, as in @app.task(retry=…)"
        )
    return retry.backoff
