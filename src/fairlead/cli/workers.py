"""`fairlead workers`: who runs jobs."""

from collections.abc import Sequence

import click
import msgspec

from fairlead.cli.command import AppCommand, Commands, hinted
from fairlead.cli.desk import Desk, at_desk
from fairlead.cli.output import Output, show, shown
from fairlead.cli.table import Column, screen_width, table
from fairlead.cli.words import ago, as_json, lasting, now
from fairlead.core.admin import Part, Running, Worker
from fairlead.core.store import Store
from fairlead.core.text import SHOWN, listed

_TASKS_NAMED = 5
Seen = tuple[Sequence[Worker], Sequence[Running]]


@click.group(cls=Commands, epilog="Example: fairlead workers list shop:app --watch")
def workers() -> None:
    """See who runs jobs."""


@workers.command(
    "list",
    cls=AppCommand,
    epilog="Example: fairlead workers list shop:app --watch",
    short_help="List live workers.",
)
@shown
@at_desk
def list_(desk: Desk, output: Output) -> None:
    """List live workers: their processes, slots and queues, and what each of them runs now.

    How long is told of the job that runs longest. A worker that was killed is listed until its
    lease has passed.
    """

    async def gather(store: Store) -> Seen:
        # First, for it takes the greater right.
        stats = await store.admin.stats([Part.RUNNING])
        return await store.admin.workers(), stats.running

    show(desk, output, gather, _table, _objects)


def _table(seen: Seen) -> list[str]:
    found, running = seen
    if not found:
        return [hinted("no worker is live; start one with: fairlead worker MODULE:APP")]
    columns = (
        Column("WORKER"),
        Column("STARTED", right=True, goes=3),
        Column("PROCESSES", right=True, goes=4),
        Column("SLOTS", right=True, goes=1),
        Column("RUNNING", right=True),
        Column("TASKS", right=True, goes=5),
        Column("QUEUES", least=8, most=SHOWN, goes=2),
        Column("RUNS NOW", least=24, most=SHOWN),
    )
    rows = [
        (
            worker.id,
            ago(worker.started_at or None),
            str(worker.processes),
            f"{sum(pool.slots for pool in worker.pools) * worker.processes:,}",
            f"{sum(each.count for each in _of(worker, running)):,}",
            str(len(worker.capable)),
            listed(queue.name for pool in worker.pools for queue in pool.queues),
            _now(worker, running),
        )
        for worker in found
    ]
    return table(columns, rows, screen_width())


def _of(worker: Worker, running: Sequence[Running]) -> list[Running]:
    return [each for each in running if worker.owns(each.worker)]


def _now(worker: Worker, running: Sequence[Running]) -> str:
    """Tell what a worker runs: each task with its number, and how long the first of them runs."""
    found: dict[str, tuple[int, int]] = {}
    for each in _of(worker, running):
        count, since = found.get(each.task, (0, each.claimed_at))
        found[each.task] = count + each.count, min(since, each.claimed_at)
    largest = sorted(found.items(), key=lambda item: (-item[1][0], item[0]))
    return listed(
        (
            f"{f'{count:,} ' if count > 1 else ''}{task} for {lasting(now() - since)}"
            for task, (count, since) in largest
        ),
        _TASKS_NAMED,
    )


def _objects(seen: Seen) -> list[str]:
    found, running = seen
    return [as_json(worker, running=_counts(worker, running)) for worker in found]


def _counts(worker: Worker, running: Sequence[Running]) -> list[msgspec.Raw]:
    return [msgspec.Raw(as_json(each).encode()) for each in _of(worker, running)]
