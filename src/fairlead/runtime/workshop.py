"""What the stations of a worker share: the app's parts, the terms of work, the pools."""

import os
from collections.abc import Collection, Iterable, Mapping
from random import Random

import msgspec

from fairlead.core.clock import SECOND, Clock
from fairlead.core.errors import ConfigError, did_you_mean
from fairlead.core.events import Bus
from fairlead.core.queue import Pool, Queue
from fairlead.core.store import Store
from fairlead.core.task import Registry
from fairlead.core.text import brief, listed
from fairlead.runtime.contact import Served

ASYNC_SLOTS, THREAD_SLOTS = 100, 10
MOST_AHEAD = 1_000
"""How many jobs a pool may claim beyond its slots, when jobs are that quick."""


class Terms(msgspec.Struct, frozen=True):
    """How a worker works; times in seconds.

    `grace` is what running jobs get to finish when the worker stops, `poll` how
    long it trusts in wake-ups, `patience` how long a handler may take to heed
    its cancellation. A process is replaced after `max_jobs` jobs, or when it is
    larger than `max_memory` bytes. With `drain` the worker ends when nothing is
    due any more.
    """

    lease: float = 20.0
    grace: float = 25.0
    poll: float = 1.0
    patience: float = 5.0
    processes: int = 1
    max_jobs: int | None = None
    max_memory: int | None = None
    drain: bool = False
    loop: str = "auto"

    @property
    def heartbeat(self) -> float:
        """How often leases are renewed: four times in their time."""
        return self.lease / 4

    @property
    def lease_micros(self) -> int:
        """The lease as stores take it."""
        return round(self.lease * SECOND)


DEFAULTS = Terms()
"""How a worker works unless somebody says otherwise."""


class PoolPlan(msgspec.Struct, frozen=True):
    """A pool with everything decided: its queues, its slots, its runner.

    It is self-serving if all its jobs run in threads, or all in processes, which
    then take one job after the other by themselves.
    """

    name: str
    queues: tuple[Queue, ...]
    slots: int
    runner: str
    self_serving: bool

    @property
    def capacity(self) -> int:
        """How many jobs may run at once: the slots, and the reserves of critical queues."""
        return self.slots + sum(queue.reserved for queue in self.queues)

    @property
    def ahead(self) -> int:
        """How many jobs it may claim beyond that. Reserves leave no room for guesses."""
        return 0 if any(queue.critical for queue in self.queues) else MOST_AHEAD


class Workshop:
    """What every station may use."""

    def __init__(
        self,
        store: Store,
        tasks: Registry,
        events: Bus,
        pools: tuple[PoolPlan, ...],
        keep: int,
        clock: Clock,
        terms: Terms,
        random: Random | None = None,
    ) -> None:
        self.store = store
        self.tasks = tasks
        self.events = events
        self.pools = pools
        self.keep = keep
        self.clock = clock
        self.terms = terms
        self.random = random or Random()
        self.served = Served()
        # Both sides of the board number the tasks alike.
        self.task_names = sorted(tasks.versions())
        self.task_numbers = {name: number for number, name in enumerate(self.task_names)}
        self.capable = tasks.versions()
        self.pool_of = {queue.name: pool.name for pool in pools for queue in pool.queues}

    @property
    def places(self) -> int:
        """How many jobs one process may have in hand, those not yet settled included."""
        return sum(2 * pool.capacity + 2 * pool.ahead for pool in self.pools) + 8


class Choice(msgspec.Struct, frozen=True):
    """What of an app one worker serves: all of it, unless something is named.

    `queues` names queues and, where not None, their weight in this worker;
    `slots` replaces those of every pool.
    """

    pools: tuple[str, ...] = ()
    queues: dict[str, int | None] = {}
    slots: int | None = None


def plan_pools(
    pools: Iterable[Pool], queues: Mapping[str, Queue], tasks: Registry, choice: Choice
) -> tuple[PoolPlan, ...]:
    """Decide what each pool of a worker serves, with how many slots, in which runner."""
    pools = tuple(pools)
    _check_known("pool", choice.pools, [pool.name for pool in pools])
    _check_known("queue", choice.queues, queues)
    plans = []
    for pool in pools:
        served = tuple(
            _weighted(queues[name], choice.queues.get(name))
            for name in pool.queues
            if not choice.queues or name in choice.queues
        )
        if served and (not choice.pools or pool.name in choice.pools):
            runner = pool.runner or _default_runner(tasks, served)
            size = choice.slots or pool.slots or _default_slots(runner)
            self_serving = runner == "process" or not any(task.is_async for task in tasks)
            plans.append(PoolPlan(pool.name, served, size, runner, self_serving))
    if not plans:
        raise ConfigError(
            "with this choice of pools and queues the worker would serve nothing; "
            "name a queue that is in one of the pools"
        )
    return tuple(plans)


def _check_known(kind: str, names: Iterable[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(
                f"the app has no {kind} {brief(name)}{did_you_mean(name, known)}; "
                f"it has {listed(sorted(known))}"
            )


def _weighted(queue: Queue, weight: int | None) -> Queue:
    return queue if weight is None else msgspec.structs.replace(queue, weight=weight)


def _default_runner(tasks: Registry, queues: tuple[Queue, ...]) -> str:
    """Count on threads, of which there should be few, where a plain function is at home."""
    names = {queue.name for queue in queues}
    at_home = [task for task in tasks if task.options.queue in names]
    return "async" if all(task.is_async for task in at_home) else "thread"


def _default_slots(runner: str) -> int:
    match runner:
        case "async":
            return ASYNC_SLOTS
        case "thread":
            return THREAD_SLOTS
    return os.cpu_count() or 1
