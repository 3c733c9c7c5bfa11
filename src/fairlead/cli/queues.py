"""`fairlead queues`: what waits where; pause and resume."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from shlex import quote

import click
import msgspec

from fairlead.cli.command import AppCommand, Commands, Problem, hinted, say
from fairlead.cli.desk import Desk, action, at_desk
from fairlead.cli.output import Output, nothing, show, shown
from fairlead.cli.table import Column, screen_width, table
from fairlead.cli.which import queue_argument
from fairlead.cli.words import json_line, lasting, now
from fairlead.core.acts import Pause, Resume
from fairlead.core.admin import Filter, Part, Wait, Waiting, Worker
from fairlead.core.errors import did_you_mean
from fairlead.core.figures import Figures, figures_of
from fairlead.core.job import State
from fairlead.core.queue import Served
from fairlead.core.store import Store
from fairlead.core.text import brief, counted, escaped, listed
from fairlead.insight.explain import WINDOW

_LISTED = (State.RUNNING, State.DEAD)
_COUNTED = tuple(state for state in State if state is not State.WAITING)


class View(msgspec.Struct, frozen=True):
    """A queue as people see it; spans in microseconds, figures of the last ten minutes.

    `due_for` is how long its longest waiting due job has been due.
    """

    name: str
    paused: bool
    weight: int | None
    critical: bool
    served_by: tuple[str, ...]
    waiting: Waiting
    counts: Mapping[State, int]
    due_for: int | None
    figures: Figures | None


@click.group(cls=Commands, epilog="Example: fairlead queues list shop:app --watch")
def queues() -> None:
    """See what waits where; pause and resume."""


@queues.command(
    "list",
    cls=AppCommand,
    epilog="Example: fairlead queues list shop:app --watch",
    short_help="List queues: depth, age, waits, pace.",
)
@shown
@at_desk
def list_(desk: Desk, output: Output) -> None:
    """List queues with what is in them, how long jobs wait, and how many are done a second.

    Waiting jobs are due, delayed, retrying (they failed, and wait for their next attempt),
    or parked: no live worker knows their task, a limit has no room, or a newer
    program holds them.

    Waits and pace are those of the last ten minutes, or of the last 10,000 runs if
    there were more; --json tells spans in microseconds.
    """
    show(
        desk,
        output,
        lambda store: _views(desk, store, Filter(states=_LISTED)),
        _table,
        lambda views: map(json_line, views),
    )


@queues.command(
    "show",
    cls=AppCommand,
    epilog="Example: fairlead queues show shop:app mail",
    short_help="Show one queue.",
)
@queue_argument
@shown
@at_desk
def show_(desk: Desk, name: str, output: Output) -> None:
    """Show one queue: what is in it, who serves it, how it does."""

    async def gather(store: Store) -> View:
        await _check_known(desk, store, name)
        views = await _views(desk, store, Filter(queues=(name,), states=_COUNTED))
        return next(view for view in views if view.name == name)

    show(desk, output, gather, _page, lambda view: [json_line(view)])


@queues.command(
    cls=AppCommand,
    epilog="Example: fairlead queues pause shop:app reports",
    short_help="Let no further job of a queue start.",
)
@queue_argument
@at_desk
def pause(desk: Desk, name: str) -> None:
    """Let no further job of a queue start. Running ones go on; new ones are accepted."""

    async def pause(store: Store) -> tuple[bool, int]:
        await _check_known(desk, store, name)
        new = bool(await store.admin.act(Pause(name), action("pause", name)))
        counts = await store.admin.count(Filter(queues=(name,), states=(State.WAITING,)))
        return new, sum(counts.get(name, {}).values())

    new, waiting = desk.run(pause)
    told = f"paused queue {name}" if new else f"queue {name} was paused already"
    say(escaped(told))
    resume = hinted(escaped(f"`fairlead queues resume {quote(name)}` lets jobs run"))
    wait = "waits" if waiting == 1 else "wait"
    say(f"{counted(waiting, 'job')} {wait} in it; {resume}")


@queues.command(
    cls=AppCommand,
    epilog="Example: fairlead queues resume shop:app reports",
    short_help="Let jobs of a queue start again.",
)
@queue_argument
@at_desk
def resume(desk: Desk, name: str) -> None:
    """Let jobs of a queue start again."""

    async def resume(store: Store) -> bool:
        await _check_known(desk, store, name)
        return bool(await store.admin.act(Resume(name), action("resume", name)))

    told = f"resumed queue {name}" if desk.run(resume) else f"queue {name} was not paused"
    say(escaped(told))


async def _check_known(desk: Desk, store: Store, name: str) -> None:
    """Refuse the name of a queue that nobody declares, serves or fills."""
    names = {
        *(desk.app.queues if desk.app else ()),
        *(await store.admin.stats([Part.PAUSED])).paused,
    }
    names |= {
        queue.name for w in await store.admin.workers() for p in w.pools for queue in p.queues
    }
    if name not in names and not await store.admin.count(Filter(queues=(name,))):
        raise _no_queue(name, names or set(await store.admin.count()))


def _no_queue(name: str, names: Collection[str]) -> Problem:
    known = f"there is {listed(sorted(names))}" if names else "name your app if it declares it"
    return nothing(f"there is no queue {brief(name)}{did_you_mean(name, names)}; {known}")


async def _views(desk: Desk, store: Store, which: Filter) -> list[View]:
    counts = await store.admin.count(which)
    stats = await store.admin.stats([Part.PAUSED, Part.WAITING])
    paused, waiting = stats.paused, stats.waiting
    workers = await store.admin.workers()
    figures = figures_of(await store.admin.recent(now() - WINDOW), now())
    declared = desk.app.queues if desk.app else {}
    served = {queue.name: queue for w in workers for p in w.pools for queue in p.queues}
    known: dict[str, Served] = {**declared, **served}
    return [
        View(
            name,
            name in paused,
            known[name].weight if name in known else None,
            name in known and known[name].critical,
            _servers(workers, name),
            waiting.get(name, Waiting()),
            counts.get(name, {}),
            _age_of(waiting.get(name, Waiting())),
            figures.get(name),
        )
        for name in sorted({*known, *counts, *waiting, *paused})
    ]


def _servers(workers: Sequence[Worker], queue: str) -> tuple[str, ...]:
    return tuple(f"{w.id}: pool {pool.name}" for w in workers for pool in w.pools_for(queue))


def _table(views: Sequence[View]) -> list[str]:
    columns = (
        Column("QUEUE", least=8),
        Column("STATE"),
        Column("WEIGHT", right=True, goes=5),
        Column("DUE", right=True),
        Column("OLDEST", right=True, goes=2),
        Column("DELAYED", right=True, goes=1),
        Column("RETRYING", right=True),
        Column("PARKED", right=True),
        Column("RUNNING", right=True),
        Column("DEAD", right=True),
        Column("WAIT P50", right=True, goes=4),
        Column("P99", right=True, goes=3),
        Column("DONE/S", right=True, goes=6),
    )
    return table(columns, [_row(view) for view in views], screen_width())


def _row(view: View) -> Sequence[str]:
    figures = view.figures
    waiting = view.waiting
    running, dead = (f"{view.counts.get(state, 0):,}" for state in _LISTED)
    return (
        view.name,
        _state(view),
        _weight(view),
        f"{waiting.due:,}",
        _age(view),
        f"{waiting.delayed:,}",
        f"{waiting.retrying:,}",
        f"{waiting.parked:,}",
        running,
        dead,
        lasting(figures.wait_p50) if figures else "",
        lasting(figures.wait_p99) if figures else "",
        f"{figures.per_second:,.1f}" if figures else "",
    )


def _weight(view: View) -> str:
    return "critical" if view.critical else "" if view.weight is None else str(view.weight)


def _age_of(waiting: Waiting) -> int | None:
    return None if waiting.oldest is None else now() - waiting.oldest


def _age(view: View) -> str:
    return "" if view.due_for is None else lasting(view.due_for)


def _state(view: View) -> str:
    if view.paused:
        return "paused"
    return "served" if view.served_by else "no worker"


def _page(view: View) -> Iterable[str]:
    yield f"queue {escaped(view.name)}: {_state(view)}"
    facts = [("weight", _weight(view) or "not declared here")]
    facts += [(wait.value, f"{getattr(view.waiting, wait):,}") for wait in Wait]
    facts += [(state.value, f"{view.counts.get(state, 0):,}") for state in _COUNTED]
    facts += [("oldest due", _age(view) or "nothing is due")]
    if view.figures:
        f = view.figures
        runs = counted(f.runs, "run")
        facts += [
            ("waited", f"{lasting(f.wait_p50)} at the median, {lasting(f.wait_p99)} at p99"),
            ("took", f"{lasting(f.run_p50)} at the median, {lasting(f.run_p99)} at p99"),
            ("success", f"{f.done / f.runs:.1%} of {runs} in the last ten minutes"),
            ("pace", f"{f.per_second:,.1f} done a second"),
        ]
    facts += [("served by", server) for server in view.served_by or ("no live worker",)]
    for label, text in facts:
        yield f"  {label:11} {escaped(text)}"
