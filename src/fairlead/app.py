"""The app: tasks, queues and a store, wired together. Nothing else wires."""

import asyncio
import sys
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

from fairlead.config import Settings, choose_url, load
from fairlead.core.clock import Clock, SystemClock, span
from fairlead.core.errors import (
    USUAL_KEEP,
    ConfigError,
    EnqueueError,
    TaskNotAllowed,
    Unanswered,
    UnknownQueue,
    did_you_mean,
)
from fairlead.core.events import Bus, Enqueued, LogStyle
from fairlead.core.ids import IdMaker, JobId
from fairlead.core.job import Job, NewJob, decode_options, size_of
from fairlead.core.outcome import Knowledge
from fairlead.core.queue import DEFAULT_QUEUE, Pool, Queue, allot, declare, hard_limit
from fairlead.core.retry import Retry
from fairlead.core.store import Accepted, Upkeep
from fairlead.core.task import Registry, Task, TaskOptions, default_name
from fairlead.core.text import QUOTED, brief, counted, cut
from fairlead.log import logs_enqueued, report_subscriber, tell_enqueued, tell_events
from fairlead.producer import BoundTask, Call, JobHandle
from fairlead.runtime.commit import apart, joined
from fairlead.runtime.embedded import EmbeddedWorker
from fairlead.runtime.workshop import DEFAULTS, Choice, Terms, Workshop, plan_pools
from fairlead.stores import store_for
from fairlead.sync import Bridge

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Problem = TypeVar("Problem", bound=BaseException)

Progress = Callable[[int], object]
"""Called with the number of jobs accepted so far."""

DEFAULT_KEEP = timedelta(microseconds=USUAL_KEEP)


class TaskSettings(TypedDict, total=False):
    """What `@app.task(…)` takes: a name, former names, and the fields of `TaskOptions`.

    `timeout` is how many seconds a run may take. A coroutine is cancelled then, a process of
    `runner="process"` is killed. A plain function in a thread cannot be: it ends with its worker
    process, which first lets the other jobs in it finish, for up to the worker's grace time
    and five seconds more (30 s by default). Put what needs a hard limit into a queue whose pool
    has `runner="process"`, as `Pool` shows, or call `current_job().checkpoint()` where it can stop.
    """

    name: str
    aliases: Sequence[str]
    queue: str
    retry: Retry
    timeout: float
    priority: int
    version: int
    effects: Literal["none", "external"]
    idempotent: bool
    crash_limit: int
    reconcile: Callable[[Job], Knowledge | Awaitable[Knowledge]]


class TaskDecorator(Protocol):
    """What `@app.task(…)` with options returns: types of the function are kept."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> BoundTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> BoundTask[P, R]: ...


class Fairlead:
    """A job queue: declare queues and tasks, enqueue calls, let workers run them.

    Without a URL, $FAIRLEAD_URL is used, else `sqlite:///fairlead.db`. The
    store opens at first use. `keep` is how long finished jobs and their results
    stay; dead letters stay until a person removes them.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queues: Iterable[Queue] = (),
        pools: Iterable[Pool] = (),
        keep: timedelta = DEFAULT_KEEP,
        clock: Clock | None = None,
        settings: Settings | None = None,
    ) -> None:
        settings = settings or Settings()
        if not isinstance(keep, timedelta) or keep < timedelta(0):
            raise ConfigError(f"keep takes a timedelta; write timedelta(days=7), not {brief(keep)}")
        self.queues = declare([*settings.queues, *_listed("queues", "Queue", queues)])
        self.pools = allot([*settings.pools, *_listed("pools", "Pool", pools)], self.queues)
        self.store = store_for(choose_url(url, settings), clock)
        self.tasks = Registry()
        self.events = Bus(report_subscriber)
        self.bridge = Bridge()
        self.new_id: Callable[[str], JobId] = IdMaker()
        self.keep = span(keep)
        self.clock = clock or SystemClock()

    @classmethod
    def from_toml(cls, path: str | Path = "pyproject.toml", url: str | None = None) -> Self:
        """Build an app from a settings file; a URL given here or in $FAIRLEAD_URL wins."""
        return cls(url, settings=load(path))

    # Tasks

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> BoundTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> BoundTask[P, R]: ...
    @overload
    def task(self, /, **settings: Unpack[TaskSettings]) -> TaskDecorator: ...
    def task(
        self, function: Callable[..., Any] | None = None, /, **settings: Unpack[TaskSettings]
    ) -> Any:
        """Make a task of a function, so that calls of it can be enqueued.

        Use it bare or with settings, which `TaskSettings` explains. A task is known by its
        name, by default module and function; give one yourself before you move the function,
        or list the old name in `aliases`.
        """
        if isinstance(function, str):
            raise ConfigError(
                f"a queue is named by keyword; write @app.task(queue={brief(function)})"
            )
        given: dict[str, Any] = dict(settings)
        name, aliases = given.pop("name", None), given.pop("aliases", ())
        if isinstance(aliases, str):
            raise ConfigError(f"aliases takes a list of former names; write [{brief(aliases)}]")
        unknown = given.keys() - set(TaskOptions.__struct_fields__)
        if unknown:
            known = TaskSettings.__optional_keys__
            if "runner" in unknown:
                wanted = hard_limit(cut(str(given.get("queue", DEFAULT_QUEUE)), QUOTED))
                raise ConfigError(
                    f"a task has no runner, the pool of its queue has one: Fairlead({wanted})"
                )
            raise ConfigError(
                f"a task has no setting {brief(min(unknown))}{did_you_mean(min(unknown), known)}; "
                f"it takes {', '.join(sorted(known))}"
            )
        options = TaskOptions(**given)

        def register(function: Callable[..., Any]) -> BoundTask[..., Any]:
            task = Task(name or default_name(function), function, options, tuple(aliases))
            self.check_queue(options.queue, task.name)
            self.tasks.add(task)
            return BoundTask(task, self)

        return register if function is None else register(function)

    def check_queue(self, queue: str, task: str) -> None:
        """Raise unless the queue is declared and, if critical, lists the task."""
        declared = self.queues.get(queue)
        if declared is None:
            raise UnknownQueue(queue, self.queues)
        if declared.critical and task not in declared.tasks:
            raise TaskNotAllowed(task, queue, declared.tasks)

    # Enqueueing

    def put(self, call: Call[Any], connection: object = None) -> None:
        """Enqueue one call. Tasks do this; `task.enqueue` reads better."""
        connection = joined(self.store) if connection is None else connection
        if connection is not None:
            self.store.put_within(connection, [call.job]).run()
            return
        accepted = self.store.put_blocking([call.job], shared=True)
        if self.events.wants(Enqueued) or logs_enqueued(call.job.queue):
            self._announce([call.job], accepted)

    async def aput(self, call: Call[Any], connection: object = None) -> None:
        """Enqueue one call from a running loop."""
        connection = joined(self.store) if connection is None else connection
        if connection is not None:
            await self.store.put_within(connection, [call.job]).arun()
            return
        accepted = await self.store.put([call.job], shared=True)
        if self.events.wants(Enqueued) or logs_enqueued(call.job.queue):
            self._announce([call.job], accepted)

    def enqueue_many(
        self,
        calls: Iterable[Call[Any]],
        *,
        progress: Progress | None = None,
        connection: object = None,
    ) -> int:
        """Enqueue any number of calls, as a stream of batches; returns how many were new.

        Takes a generator of any length in bounded memory, and calls `progress`
        with the number accepted so far. Each batch is accepted as a whole. If
        something fails in between, the batches before stay accepted and the
        error says how many; to repeat the same calls is safe, because their ids
        are recognised. `Unanswered` names the calls of the batch that may have been accepted:
        repeat `app.enqueue_many(error.calls)` until it returns. Any other `StoreUnavailable` says
        that this call put nothing of the batch; one before it may have. A batch that the store
        had to be asked for twice may count as known. With `connection`, or inside a block
        of `job.commit()`, all of them are part of that transaction, accepted when it commits.
        """
        connection = joined(self.store) if connection is None else connection
        tally = _Tally(self, progress)
        with tally:
            for jobs in self._batches(calls):
                tally.sending = jobs
                if connection is not None:
                    accepted = self.store.put_within(connection, jobs).run()
                else:
                    accepted = self.store.put_blocking(jobs)
                    if self._tells(jobs):
                        self._announce(jobs, accepted)
                tally.add(accepted)
        return tally.new

    async def aenqueue_many(
        self,
        calls: Iterable[Call[Any]],
        *,
        progress: Progress | None = None,
        connection: object = None,
    ) -> int:
        """Enqueue any number of calls from a running loop; see `enqueue_many`."""
        connection = joined(self.store) if connection is None else connection
        tally = _Tally(self, progress)
        with tally:
            for jobs in self._batches(calls):
                tally.sending = jobs
                if connection is not None:
                    accepted = await self.store.put_within(connection, jobs).arun()
                else:
                    accepted = await self.store.put(jobs)
                    if self._tells(jobs):
                        self._announce(jobs, accepted)
                tally.add(accepted)
        return tally.new

    def _batches(self, calls: Iterable[Call[Any]]) -> Iterator[list[NewJob]]:
        if isinstance(calls, Call) or not isinstance(calls, Iterable):
            raise EnqueueError(
                f"enqueue_many takes a list or a stream of calls, not {brief(calls)}; "
                "write [task.call(…)]"
            )
        most, most_bytes = self.store.jobs_per_put, self.store.bytes_per_put
        batch: list[NewJob] = []
        size = 0
        for call in calls:
            if not isinstance(call, Call):
                raise EnqueueError(
                    f"enqueue_many takes calls, as task.call(…) makes them, not {brief(call)}"
                )
            job = call.job
            if job.queue not in self.queues:
                raise UnknownQueue(job.queue, self.queues)
            batch.append(job)
            size += size_of(job)
            if size >= most_bytes or len(batch) >= most:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _announce(self, jobs: Sequence[NewJob], accepted: Sequence[Accepted]) -> None:
        for job, answer in zip(jobs, accepted, strict=True):
            if answer.is_new:
                correlation_id = decode_options(job.options).correlation_id
                event = Enqueued(job.id, job.task, job.queue, correlation_id)
                self.events.emit(event)
                tell_enqueued(event)

    def _tells(self, jobs: Sequence[NewJob]) -> bool:
        """Say whether anybody listens to what is enqueued; most often nobody does."""
        if self.events.wants(Enqueued):
            return True
        return any(map(logs_enqueued, {job.queue for job in jobs}))

    # Looking

    def job(self, job_id: str) -> JobHandle[Any]:
        """Return the handle of a job by its id, as stored in your own database, say."""
        return JobHandle(JobId(job_id), self)

    def upkeep(self) -> Upkeep:
        """Do one round of housekeeping, as workers do: above all, forget what is past `keep`."""
        return self.bridge.run(self.aupkeep())

    async def aupkeep(self) -> Upkeep:
        """Do one round of housekeeping from a running loop."""
        return await apart(self.store).upkeep(self.keep)

    # Working

    def workshop(self, terms: Terms | None = None, choice: Choice | None = None) -> Workshop:
        """Return what the stations of a worker need of this app."""
        pools = plan_pools(self.pools, self.queues, self.tasks, choice or Choice())
        return Workshop(
            self.store, self.tasks, self.events, pools, self.keep, self.clock, terms or DEFAULTS
        )

    def worker(
        self,
        *,
        pools: Sequence[str] = (),
        queues: Iterable[str] | Mapping[str, int | None] = (),
        slots: int | None = None,
        grace: float = DEFAULTS.grace,
        lease: float = DEFAULTS.lease,
        log_messages: bool = True,
    ) -> EmbeddedWorker:
        """Run jobs inside this program: `async with app.worker(): …`.

        `queues` names the queues to serve, with their weights here if it is a
        mapping. What happens is told to the logger `fairlead`: with INFO each run that
        ends, 20 a second of those that end well; a failure with its message, unless
        `log_messages` is False because messages may hold secrets.

        For tests and small programs. Handlers share this program's process and
        event loop, so what is stronger in `fairlead worker` is weaker here: leases
        are renewed by a thread, which a handler that holds the interpreter lock
        can stop; a plain function past its time limit is reported but cannot be
        ended; and a handler that kills the process kills this program.
        """
        weights = dict(queues) if isinstance(queues, Mapping) else dict.fromkeys(queues)
        choice = Choice(tuple(pools), weights, slots)
        terms = Terms(lease=lease, grace=grace)
        tell_events(self.events, LogStyle(messages=log_messages))
        return EmbeddedWorker(self.workshop(terms, choice), _target_of(self))

    # Opening and closing

    def open(self) -> None:
        """Open the store and bring its schema up to date; otherwise done at first use."""
        self.bridge.run(self.store.open())

    async def aopen(self) -> None:
        """Open the store from a running loop."""
        await self.store.open()

    def close(self) -> None:
        """Finish what was handed over and let go of the store."""
        # Whoever waits is told first; it would open the store again otherwise.
        self.bridge.close()
        self.bridge.run(self.store.close())
        self.bridge.close()

    async def aclose(self) -> None:
        """Close from a running loop."""
        await asyncio.to_thread(self.bridge.close)
        await self.store.close()

    def __enter__(self) -> Self:
        """Open the store."""
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store."""
        self.close()

    async def __aenter__(self) -> Self:
        """Open the store."""
        await self.aopen()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the store."""
        await self.aclose()


def _target_of(app: Fairlead) -> str | None:
    """Return how another process can import this app, if it can."""
    for module_name, module in list(sys.modules.items()):
        if module_name != "__main__":
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if value is app:
                    return f"{module_name}:{name}"
    return None


def _listed(name: str, kind: str, values: Iterable[T]) -> list[T]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} takes a list of {kind}(…) values, not {brief(values)}")
    return list(values)


class _Tally:
    """Counts what a stream of batches has come to, and tells it when the stream breaks."""

    def __init__(self, app: Fairlead, progress: Progress | None) -> None:
        self._app = app
        self._progress = progress
        self.accepted = self.new = 0
        self.sending: Sequence[NewJob] = ()

    def add(self, answers: Sequence[Accepted]) -> None:
        self.accepted += len(answers)
        self.new += sum(answer.is_new for answer in answers)
        self.sending = ()
        if self._progress is not None:
            self._progress(self.accepted)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        if isinstance(error, Unanswered):
            calls = tuple(Call[Any](job) for job in self.sending)
            job = self._app.job(calls[0].id) if len(calls) == 1 else None
            told = Unanswered(error.url, error.problem, job, calls)
            raise self._noted(told) from error
        if error is not None:
            self._noted(error)

    def _noted(self, error: Problem) -> Problem:
        if self.accepted:
            error.add_note(f"{counted(self.accepted, 'job was', 'jobs were')} put before this")
        return error
