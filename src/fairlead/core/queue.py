"""Queues and pools: where resources are allocated, explicitly.

A queue is named for the work in it, never for an importance. A pool is a share
of a worker that serves some queues from its slots.
"""

import re
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import msgspec

from fairlead.core.errors import ConfigError, FairleadWarning, UnknownQueue
from fairlead.core.job import LONGEST_NAME
from fairlead.core.text import brief

DEFAULT_QUEUE = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_IMPORTANCE = re.compile(
    r"(very[-_.])?(high|low|medium|normal|urgent|important|critical|prio|priority|asap|express"
    r"|(high|low)(er|est)|(high|low|top)[-_.]?prio(rity)?)",
    re.IGNORECASE,
)
_RUNNERS = ("async", "thread", "process")


def hard_limit(queue: str) -> str:
    """Return what an app declares so that jobs of a queue end in time, whatever they do."""
    return f'pools=[Pool("rest"), Pool("hard", queues=["{queue}"], runner="process")]'


_MOST = 1_000_000


def check_name(kind: str, name: str) -> str:
    """Return the name, or say which names a queue, pool or task may have."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{brief(name)} cannot name a {kind}: use 1 to {LONGEST_NAME} letters, digits "
            "and . _ : - and start with a letter or digit"
        )
    return name


def _check_count(what: str, value: int, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise ConfigError(
            f"{what} must be a whole number from {least} to {_MOST:,}, not {brief(value)}"
        )


def _names(kind: str, names: object) -> tuple[str, ...]:
    """Return a list of names as a tuple, so that the value that holds it is frozen."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        told = brief(names)
        raise ConfigError(f"{told} is not a list of {kind} names; write [{told}]")
    return tuple(check_name(kind, name) for name in names)


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named line of jobs.

    `weight` is its share of a pool's slots while others have work too. A
    `critical` queue is asked first and owns `reserve` slots besides the pool's;
    which tasks may use it is declared in `tasks` and enforced.
    """

    name: str
    weight: int = 1
    critical: bool = False
    tasks: Sequence[str] = ()
    reserve: int | None = None

    def __post_init__(self) -> None:
        """Refuse what could never work, and warn of names that invite misuse."""
        check_name("queue", self.name)
        _check_count(f"the weight of queue {self.name!r}", self.weight, 1)
        msgspec.structs.force_setattr(self, "tasks", _names("task", self.tasks))
        if self.reserve is not None:
            _check_count(f"the reserve of queue {self.name!r}", self.reserve, 0)
        self._check_critical()
        if _IMPORTANCE.fullmatch(self.name):
            warnings.warn(
                f"queue {self.name!r} is named for an importance: sooner or later everything is "
                "important and the name says nothing; name it for the work in it, and give that "
                "work a weight, a head start or a pool of its own",
                FairleadWarning,
                stacklevel=2,
            )

    def _check_critical(self) -> None:
        if self.critical and not self.tasks:
            raise ConfigError(
                f"the critical queue {self.name!r} must list the tasks that may use it, as in "
                f"Queue({self.name!r}, critical=True, tasks=[…]); open to all, it soon is no "
                "longer critical"
            )
        if not self.critical and (self.tasks or self.reserve is not None):
            raise ConfigError(
                f"`tasks` and `reserve` belong to critical queues; add critical=True to queue "
                f"{self.name!r}, or drop them"
            )

    @property
    def reserved(self) -> int:
        """How many slots besides the pool's are kept for this queue."""
        if not self.critical:
            return 0
        return 1 if self.reserve is None else self.reserve

    @property
    def share(self) -> "Share":
        """What a worker announces of it."""
        return Share(self.name, self.weight, self.critical, self.reserved)


class Served(Protocol):
    """What the selection rule must know of a queue."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def weight(self) -> int:
        """Its share of a pool's slots while others have work too."""
        ...

    @property
    def critical(self) -> bool:
        """Whether it is asked first."""
        ...

    @property
    def reserved(self) -> int:
        """How many slots besides the pool's are kept for it."""
        ...


class Share(msgspec.Struct, frozen=True):
    """A queue as a worker announces that it serves it.

    Unlike a declared one it is read from the store, where a worker of another version
    may have written it: what is unknown is passed over, and nothing is refused.
    """

    name: str
    weight: int = 1
    critical: bool = False
    reserved: int = 0


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A share of a worker: some queues, a number of slots, a runner.

    Without `queues` a pool serves every queue that no other pool names. `runner="process"` runs
    each job in a process that is killed when the task's `timeout` is over. Otherwise coroutines run
    on the event loop and plain functions in threads; `"async"` and `"thread"` differ by
    their slots. Without `slots` those are 100 for `async`, 10 for `thread`, the number of cores for
    `process`. An app that gives one queue a hard limit:

        Fairlead(
            queues=[Queue("mail"), Queue("pdf")],
            pools=[Pool("rest"), Pool("hard", queues=["pdf"], runner="process")],
        )
    """

    name: str
    queues: Sequence[str] = ()
    slots: int | None = None
    runner: str | None = None

    def __post_init__(self) -> None:
        """Refuse what could never work."""
        check_name("pool", self.name)
        msgspec.structs.force_setattr(self, "queues", _names("queue", self.queues))
        if self.slots is not None:
            _check_count(f"the slots of pool {self.name!r}", self.slots, 1)
        if self.runner is not None and self.runner not in _RUNNERS:
            raise ConfigError(
                f"pool {self.name!r}: runner must be one of {', '.join(_RUNNERS)}, "
                f"not {brief(self.runner)}"
            )


def declare(queues: Iterable[Queue]) -> dict[str, Queue]:
    """Collect declared queues by name; the default queue always exists."""
    declared: dict[str, Queue] = {}
    for queue in queues:
        if not isinstance(queue, Queue):
            raise ConfigError(f"queues takes a list of Queue(…) values, not {brief(queue)}")
        if queue.name in declared:
            raise ConfigError(f"queue {queue.name!r} is declared twice; keep one of them")
        declared[queue.name] = queue
    declared.setdefault(DEFAULT_QUEUE, Queue(DEFAULT_QUEUE))
    return declared


def allot(pools: Iterable[Pool], queues: Collection[str]) -> tuple[Pool, ...]:
    """Give every queue to exactly one pool, and every pool its queues."""
    pools = tuple(pools) or (Pool("default"),)
    taken: dict[str, str] = {}
    for pool in pools:
        if not isinstance(pool, Pool):
            raise ConfigError(f"pools takes a list of Pool(…) values, not {brief(pool)}")
        for queue in pool.queues:
            if queue not in queues:
                raise UnknownQueue(queue, queues)
            if taken.get(queue) == pool.name:
                raise ConfigError(f"pool {pool.name!r} names queue {queue!r} twice; once is enough")
            if queue in taken:
                raise ConfigError(
                    f"queue {queue!r} is in two pools, {taken[queue]!r} and {pool.name!r}; "
                    "a queue belongs to one"
                )
            taken[queue] = pool.name
    if len({pool.name for pool in pools}) < len(pools):
        raise ConfigError("two pools have the same name; give each its own")
    rest = tuple(queue for queue in queues if queue not in taken)
    open_pools = [pool for pool in pools if not pool.queues]
    if len(open_pools) > 1:
        names = " and ".join(repr(pool.name) for pool in open_pools)
        raise ConfigError(f"pools {names} name no queues; only one pool may take the rest")
    if rest and not open_pools and rest != (DEFAULT_QUEUE,):
        unserved = next(queue for queue in rest if queue != DEFAULT_QUEUE)
        raise ConfigError(
            f"no pool serves queue {unserved!r}; name it in a pool, or add a pool without "
            f'queues for the rest, as in pools=[Pool("rest"), Pool("{pools[0].name}", …)]'
        )
    # The default queue exists whether declared or not, so somebody must serve it.
    heir = open_pools[0] if open_pools else pools[0]
    return tuple(
        msgspec.structs.replace(pool, queues=(*pool.queues, *rest)) if pool is heir else pool
        for pool in pools
    )
