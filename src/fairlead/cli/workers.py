"""`fairlead workers`: who runs jobs."""

from collections.abc import Mapping, Sequence

import click

from fairlead.cli.command import AppCommand, Commands, hinted
from fairlead.cli.desk import Desk, at_desk
from fairlead.cli.output import Output, show, shown
from fairlead.cli.table import Column, screen_width, table
from fairlead.cli.words import ago, as_json
from fairlead.core.admin import Worker
from fairlead.core.store import Backend
from fairlead.core.text import SHOWN, listed

Seen = tuple[Sequence[Worker], Mapping[str, Mapping[str, int]]]


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
    """List live workers: their processes, slots, running jobs, queues and tasks.

    A worker that was killed is listed until its lease has passed.
    """

    async def gather(store: Backend) -> Seen:
        return await store.workers(), await store.running()

    show(desk, output, gather, _table, _objects)


def _table(seen: Seen) -> list[str]:
    found, running = seen
    if not found:
        return [hinted("no worker is live; start one with: fairlead worker MODULE:APP")]
    columns = (
        Column("WORKER", least=12),
        Column("STARTED", right=True, goes=1),
        Column("PROCESSES", right=True),
        Column("SLOTS", right=True),
        Column("RUNNING", right=True),
        Column("TASKS", right=True, goes=2),
        Column("QUEUES", least=12, most=SHOWN),
    )
    rows = [
        (
            worker.id,
            ago(worker.started_at or None),
            str(worker.processes),
            f"{sum(pool.slots for pool in worker.pools) * worker.processes:,}",
            f"{_running(worker, running):,}",
            str(len(worker.capable)),
            listed(queue.name for pool in worker.pools for queue in pool.queues),
        )
        for worker in found
    ]
    return table(columns, rows, screen_width())


def _running(worker: Worker, running: Mapping[str, Mapping[str, int]]) -> int:
    return sum(sum(counts.values()) for process, counts in running.items() if worker.owns(process))


def _objects(seen: Seen) -> list[str]:
    found, running = seen
    return [as_json(worker, running=_running(worker, running)) for worker in found]
