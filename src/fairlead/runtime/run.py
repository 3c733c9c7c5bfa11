"""One run of a job in this process, from its claim to its settlement."""

import asyncio
import contextvars
import sys
from datetime import datetime
from math import inf
from types import CodeType, FrameType
from typing import Any

from msgspec.structs import replace

from fairlead.core.clock import as_datetime
from fairlead.core.errors import Cancel, ConfigError, DecodeError, LeaseLost
from fairlead.core.failure import describe, described
from fairlead.core.ids import JobId
from fairlead.core.job import Job, decode_options, size_of
from fairlead.core.outcome import (
    Cancelled,
    Committed,
    Done,
    Ending,
    Failed,
    Lost,
    Outcome,
    Returned,
    decide,
    outcome_of,
)
from fairlead.core.store import Store
from fairlead.core.task import Task
from fairlead.runtime.commit import ONCE, Commit, Fate

Pair = tuple[JobId, int]
"""A job and a fence: one run of it, and no other."""


class Run:
    """A claimed job on its way through the stations.

    `called_off` says how the run is to end if it does not come to an end of its
    own: it was told so, by cancellation or through `current_job().checkpoint()`.
    """

    __slots__ = (
        "called_off",
        "commit",
        "deadline",
        "handle",
        "job",
        "pair",
        "place",
        "pool",
        "since",
        "size",
        "started_at",
        "store",
        "task",
        "timeout",
        "unreadable",
    )

    def __init__(self, job: Job, task: Task, pool: str, place: int, store: Store) -> None:
        self.job = job
        self.pair = (job.id, job.fence)
        self.task = task
        self.pool = pool
        self.place = place
        self.size = size_of(job)
        self.timeout = task.options.timeout
        self.unreadable: DecodeError | None = None
        if job.options is not None:
            self._heed_options(job.options)
        self.started_at: int | None = None
        self.since = 0.0
        self.deadline = inf
        self.called_off: Ending | None = None
        self.handle: Any = None
        self.store = store
        self.commit: Commit | None = None

    def _heed_options(self, text: str) -> None:
        """Take what this job alone asks for; unreadable ones must not be passed over."""
        try:
            self.timeout = decode_options(text).timeout or self.timeout
        except DecodeError as problem:
            self.unreadable = problem

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what the handler is called with, or raise `DecodeError`."""
        if self.unreadable is not None:
            raise self.unreadable
        return self.task.signature.decode(self.job.payload)

    def returns(self, value: object) -> Outcome:
        """Return the outcome of a handler that returned."""
        commit = self.commit
        if commit is None or commit.fate is Fate.NOTHING_WRITTEN:
            return Done(self.task.signature.encode_result(value))
        unstored = value is not None and commit.settlement.result is None
        unless = None if commit.fate is Fate.COMMITTED else _NOT_COMMITTED
        return Committed(unless, _UNSTORED if unstored else None)

    def raises(self, error: BaseException) -> Outcome:
        """Return the outcome of a handler that raised; after its commit that changes nothing."""
        commit, ending = self.commit, self._ends_with(error)
        if commit is None or commit.fate is Fate.NOTHING_WRITTEN:
            return ending
        failure = describe(error)
        at = f" ({failure.detail})" if failure.detail else ""
        told = f"its handler raised {failure.error} after that{at}"
        return Committed(None if commit.fate is Fate.COMMITTED else ending, told)

    def _ends_with(self, error: BaseException) -> Ending:
        """Say what the error means by itself: as called off, if the run was."""
        if self.called_off is not None:
            return self.called_off
        if isinstance(error, asyncio.CancelledError):
            return Failed(describe(error))  # Its own doing: nobody here cancelled it.
        return outcome_of(error, self.task.options)

    def timed_out(self, where: str | None) -> Failed:
        """Return the outcome of a run that was ended at its time limit."""
        at = f", at {where}" if where else ""
        told = f"ran past its time limit of {self.timeout:g} s{at}"
        return Failed(described("TimedOut", told), timed_out=True)

    def reason(self) -> BaseException:
        """Return what a handler is told when it is called off."""
        match self.called_off:
            case Lost():
                return LeaseLost(self.job.id)
            case Failed(failure=failure):
                return TimeoutError(failure.message)
            case Cancelled(reason):
                return Cancel(reason)
        return Cancel("the worker stops; the job is given back and will run again")


_NOT_COMMITTED = Failed(
    described(
        "NotCommitted",
        "the transaction given to job.commit() was not committed; commit it after the block, or "
        "give no connection, and the block commits one of its own",
    )
)
_UNSTORED = (
    "what its handler returned after that is not stored; pass it to the block, as in "
    "job.commit(result=…)"
)


class RunningJob:
    """The job a handler runs for, as `current_job()` gives it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._job = run.job

    @property
    def id(self) -> JobId:
        """The job's id; the same in every attempt."""
        return self._job.id

    @property
    def task(self) -> str:
        """The name it was enqueued under."""
        return self._job.task

    @property
    def queue(self) -> str:
        """The queue it came from."""
        return self._job.queue

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._job.attempt

    @property
    def fence(self) -> int:
        """A number that grows with every run of this job, for what must refuse late ones."""
        return self._job.fence

    @property
    def enqueued_at(self) -> datetime:
        """When the store accepted it."""
        return as_datetime(self._job.enqueued_at)

    @property
    def correlation_id(self) -> str | None:
        """What its producer said it belongs to."""
        return decode_options(self._job.options).correlation_id

    @property
    def headers(self) -> dict[str, str]:
        """What its producer sent along."""
        return dict(decode_options(self._job.options).headers)

    def checkpoint(self) -> None:
        """Raise if this run was called off: `LeaseLost`, `Cancel`, or `TimeoutError`.

        A thread cannot be cancelled from outside. A plain function that may run
        long calls this where it can stop.
        """
        if self._run.called_off is not None:
            raise self._run.reason()

    def commit(self, conn: Any = None, *, result: Any = None) -> Commit:  # noqa: ANN401 (the user's)
        """End this job in one transaction with rows of your own: all of it happens, or nothing.

            with job.commit(result=total) as conn:        # async with, in a coroutine
                conn.execute("UPDATE report SET …")
                tell_customer.enqueue(report_id)

        The block gives a connection to the store and commits at its end; if it
        raises, everything is rolled back and the run fails as usual. With `conn`
        the transaction is yours: commit it after the block, or the job is tried
        again. Jobs that this app enqueues inside are part of it.

        The job is done when the transaction is committed, with `result`; what the
        handler returns or raises after that changes nothing and is only told in
        the log. The block raises `LeaseLost` if the job was given to another
        worker meanwhile, and `Cancel` if a person cancelled it. Keep it short: on
        SQLite nobody else can write while it lasts.
        """
        run = self._run
        if run.commit is not None:
            raise ConfigError(ONCE)
        done = Done(run.task.signature.encode_result(result))
        settlement = decide(run.job, done, run.task.options, now=0)
        settlement = replace(settlement, started_at=run.started_at, pool=run.pool)
        run.commit = Commit(run.store, settlement, conn)
        return run.commit

    def __repr__(self) -> str:
        """Name the job; its payload may be nobody's business."""
        return f"<running job {self.id} of task {self.task!r}, attempt {self.attempt}>"


current: contextvars.ContextVar[Run] = contextvars.ContextVar("fairlead_run")


def current_job() -> RunningJob:
    """Return the job whose handler calls this."""
    try:
        run = current.get()
    except LookupError:
        raise ConfigError(
            "current_job() works only inside a handler that a worker runs; "
            "pass what you need as arguments to be able to call the function directly too"
        ) from None
    return RunningJob(run)


def call(run: Run) -> Outcome:
    """Run a plain function, in this thread."""
    current.set(run)
    try:
        args, kwargs = run.arguments()
        return run.returns(run.task.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 (user code: sys.exit() must not end the worker)
        return run.raises(error)


async def acall(run: Run) -> Outcome:
    """Run a coroutine function, in this task."""
    current.set(run)
    try:
        args, kwargs = run.arguments()
        return run.returns(await run.task.function(*args, **kwargs))
    except BaseException as error:  # noqa: BLE001 (user code: sys.exit() must not end the worker)
        return run.raises(error)


def where_is(frame: FrameType | None, code: CodeType | None) -> str | None:
    """Say at which line of which file a stack is, in the handler's own file if it is there."""
    innermost = None
    while frame is not None:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        innermost = innermost or place
        if code is not None and frame.f_code.co_filename == code.co_filename:
            return place
        frame = frame.f_back
    return innermost


def where_is_thread(ident: int, code: CodeType | None) -> str | None:
    """Say at which line a thread is."""
    return where_is(sys._current_frames().get(ident), code)  # noqa: SLF001 (the documented way)


GIVEN_BACK = Returned()
CUT_OFF = Returned(cut_off=True)
