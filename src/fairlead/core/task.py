"""A task: a Python function plus its options, known by name.

The registry is the only way from a stored name to code. A name that nobody
registered leads nowhere; it is never imported.
"""

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import PurePath
from typing import Any

from fairlead.core.codec import Signature
from fairlead.core.errors import ConfigError, DuplicateTask, InvalidOption, UnknownTask
from fairlead.core.ids import JobId
from fairlead.core.job import LONGEST_HEAD_START, Job, NewJob
from fairlead.core.outcome import Knowledge, Policy
from fairlead.core.queue import DEFAULT_QUEUE, check_name
from fairlead.core.retry import Retry
from fairlead.core.text import brief

DEFAULT_TIMEOUT = 300.0
LONGEST_TIMEOUT = 30 * 24 * 3600


class TaskOptions(Policy, frozen=True):
    """What a task says about how its jobs are run, and about their failures.

    `timeout` is when a coroutine is cancelled and a process killed. A plain function in a thread
    ends later: when its neighbours in the same process have ended, at most the grace time and
    five seconds. Only a pool with `runner="process"` is a hard limit for those.
    """

    queue: str = DEFAULT_QUEUE
    timeout: float = DEFAULT_TIMEOUT
    priority: int = 0
    version: int = 1
    reconcile: Callable[[Job], Knowledge | Awaitable[Knowledge]] | None = None

    def __post_init__(self) -> None:
        """Refuse what could never work."""
        check_retry(self.retry)
        check_timeout(self.timeout)
        check_priority(self.priority)
        if self.effects not in ("none", "external"):
            raise InvalidOption("effects", 'must be "none" or "external"', self.effects)
        for name in ("version", "crash_limit"):
            value = getattr(self, name)
            if not _is_whole(value) or value < 1:
                raise InvalidOption(name, "must be a whole number from 1", value)


def check_retry(retry: Retry) -> Retry:
    """Return it, or say what it must be."""
    if not isinstance(retry, Retry):
        raise InvalidOption("retry", "takes a Retry(…)", retry)
    return retry


def check_timeout(timeout: float) -> float:
    """Return the time limit of a run, or say what it may be."""
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not (number and 0 < timeout <= LONGEST_TIMEOUT):
        raise InvalidOption("timeout", "must be seconds from 0 to 30 days", timeout)
    return float(timeout)


def check_priority(priority: int) -> int:
    """Return the head start, or say what it may be."""
    if not _is_whole(priority) or abs(priority) > LONGEST_HEAD_START:
        wanted = f"is a head start in whole seconds, at most a day ({LONGEST_HEAD_START})"
        raise InvalidOption("priority", wanted, priority)
    return priority


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Task:
    """A function with its options and its signature."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        options: TaskOptions,
        aliases: tuple[str, ...] = (),
    ) -> None:
        if not inspect.isroutine(function):
            raise ConfigError(
                f"a task must be a function, not {brief(function)}; wrap it with `def`"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"a task cannot be a generator like {function.__qualname__!r}: to call one runs "
                "none of its code; return a list instead of yielding, or loop inside the task"
            )
        self.name = check_name("task", name)
        self.aliases = tuple(check_name("task", alias) for alias in aliases)
        self.function = function
        self.options = options

    @functools.cached_property
    def signature(self) -> Signature:
        """The function's parameters; read at first use, when every type is defined."""
        return Signature(self.name, self.function)

    def template(self) -> NewJob:
        """Return a job of this task that lacks only its id and payload."""
        options = self.options
        return NewJob(
            JobId(""),
            self.name,
            options.queue,
            "",
            version=options.version,
            priority=options.priority,
        )

    @functools.cached_property
    def is_async(self) -> bool:
        """Whether the function is `async def`."""
        return inspect.iscoroutinefunction(self.function)

    @property
    def place(self) -> str:
        """Where the function is defined, for messages."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        return f"{self.function.__module__}.{self.function.__qualname__}{where}"


class Registry:
    """The tasks of one app, by name and by former name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def add(self, task: Task) -> None:
        """Register a task under its name and its aliases."""
        for name in (task.name, *task.aliases):
            other = self._tasks.get(name)
            if other is not None:
                raise DuplicateTask(name, other.place, task.place)
        for name in (task.name, *task.aliases):
            self._tasks[name] = task

    def __getitem__(self, name: str) -> Task:
        """Return the task of this name, or say what is close to it."""
        try:
            return self._tasks[name]
        except KeyError:
            raise UnknownTask(name, self._tasks) from None

    def __contains__(self, name: object) -> bool:
        """Say whether a task has this name."""
        return name in self._tasks

    def __iter__(self) -> Iterator[Task]:
        """Go through the tasks, each once."""
        return iter(dict.fromkeys(self._tasks.values()))

    def versions(self) -> dict[str, int]:
        """Return the newest payload version known for every name: what this program can run."""
        return {name: task.options.version for name, task in self._tasks.items()}


def default_name(function: Callable[..., Any]) -> str:
    """Name a task after its module and function.

    A script that is run directly is called `__main__` there and by its file
    name in the worker that imports it; the worker's name is the one that counts.
    """
    if not inspect.isroutine(function):
        return "main"  # No function at all; `Task` says so.
    if function.__name__ == "<lambda>":
        raise ConfigError('a lambda has no name of its own; give it one: @app.task(name="…")')
    module = function.__module__
    if module in ("__main__", "__mp_main__"):
        main = sys.modules[module]
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        module = spec.name if spec else PurePath(file).stem if file else "main"
        if module == "__main__":
            module = PurePath(file).parent.name if file else "main"
    name = f"{module.removesuffix('.__main__')}.{function.__qualname__}"
    return name.replace(".<locals>", "")
