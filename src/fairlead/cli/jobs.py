"""`fairlead jobs`: look at jobs, wait for one, cancel, retry and delete them."""

from collections.abc import Collection, Iterator, Sequence

import click
import msgspec

from fairlead.cli.act import CANCEL, DELETE, RETRY, Care, act, carefully
from fairlead.cli.command import AppCommand, Commands, Exit, Problem, say
from fairlead.cli.desk import Desk, at_desk
from fairlead.cli.listing import job_table, page, why
from fairlead.cli.output import Output, json_option, nothing, show, shown
from fairlead.cli.which import (
    Listed,
    View,
    filters,
    first_jobs,
    id_argument,
    ids_argument,
    listing,
    whole,
)
from fairlead.cli.words import Span, as_json, stored_json
from fairlead.core.acts import AuditLine
from fairlead.core.admin import MOST_LISTED, Filter, Part
from fairlead.core.errors import StoreDenied
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, JobRecord, State
from fairlead.core.store import Store
from fairlead.core.text import counted
from fairlead.producer import ended, found


@click.group(cls=Commands, epilog="Example: fairlead jobs list shop:app --state dead --since 2h")
def jobs() -> None:
    """Look at jobs, wait for one, cancel, retry and delete them."""


@jobs.command(
    "list",
    cls=AppCommand,
    epilog="Example: fairlead jobs list shop:app --state dead --since 2h",
    short_help="List jobs.",
)
@filters()
@listing
@shown
@at_desk
def list_(desk: Desk, which: Filter, view: View, output: Output) -> None:
    """List jobs, state by state. Filters combine.

    Waiting ones come in the order in which they start, and delayed ones by due time. Then come
    running ones, and then dead, cancelled and done ones, each by the time they ended, newest first.

    The beginning of an id does wherever an id is asked for, as long as no other begins so.
    """
    list_jobs(desk, which, view, output)


def list_jobs(desk: Desk, which: Filter, view: View, output: Output, noun: str = "job") -> None:
    """Show the jobs that a filter means."""

    async def gather(store: Store) -> tuple[Listed, Collection[str]]:
        listed = await first_jobs(store, which, view.limit, view.after)
        return listed, (await store.admin.stats([Part.PAUSED])).paused

    def lines(seen: tuple[Listed, Collection[str]]) -> Iterator[str]:
        listed, paused = seen
        if listed.jobs:
            yield from job_table(listed.jobs, full=view.full, paused=paused)
        elif listed.cursor is None:
            yield f"no {noun} matches"
        yield from _more(listed, view.limit)

    def objects(seen: tuple[Listed, Collection[str]]) -> Iterator[str]:
        yield from map(as_json, seen[0].jobs)
        for line in _more(seen[0], view.limit, json=True):
            say(line, err=True)

    show(desk, output, gather, lines, objects)


def _more(listed: Listed, limit: int, *, json: bool = False) -> Iterator[str]:
    """Say that a list goes on, and how to see more of it."""
    if listed.cursor is None:
        return
    if len(listed.jobs) < limit:
        yield f"looked at {counted(listed.looked, 'job')}; go on with --after {listed.cursor}"
    elif limit < MOST_LISTED and not json:
        yield f"there are more; --limit {min(2 * limit, MOST_LISTED)} shows them"
    else:
        yield f"there are more; go on with --after {listed.cursor}"


@jobs.command(
    "show",
    cls=AppCommand,
    epilog="Example: fairlead jobs show shop:app 01993e7c-5a52-7c43-9f0d-3a3e5f0b9c11",
    short_help="Show everything about a job.",
)
@id_argument
@shown
@at_desk
def show_(desk: Desk, id_: str, output: Output) -> None:
    """Show everything about a job: arguments, result, attempts, the last failure."""
    show_job(desk, id_, output)


def show_job(desk: Desk, id_: str, output: Output, state: State | None = None) -> None:
    """Show one job, which must be in this state if one is given."""

    async def gather(
        store: Store,
    ) -> tuple[JobRecord, list[Attempt], list[AuditLine]]:
        record = await found(store, await whole(store, id_))
        if state is not None and record.state is not state:
            raise nothing(f"job {id_} is {record.state}, not {state}; see `fairlead jobs show`")
        return record, await store.admin.attempts(record.id), await _acts(store, record.id)

    show(
        desk,
        output,
        gather,
        lambda told: page(*told),
        lambda told: [as_json(told[0], attempts=[msgspec.Raw(as_json(a)) for a in told[1]])],
    )


async def _acts(store: Store, job_id: JobId) -> list[AuditLine]:
    """Return what people did to a job; nothing to whom that is none of his business."""
    try:
        return await store.admin.audit_log(20, job_id)
    except StoreDenied:
        return []


@jobs.command(
    "wait",
    cls=AppCommand,
    epilog="Example: fairlead jobs wait shop:app 01993e7c-5a52-7c43-9f0d-3a3e5f0b9c11 --timeout 5m",
    short_help="Wait for a job to end; prints its result.",
)
@id_argument
@click.option(
    "--timeout", type=Span(), metavar="SPAN", help="How long: 30, 5m.  [default: for ever]"
)
@json_option
@at_desk
def wait(desk: Desk, id_: str, timeout: float | None, json: bool) -> None:
    """Wait for a job to end, and print its result as JSON.

    Exit code 4 says that it is dead or cancelled, 5 that the time is over.
    """

    async def waited(store: Store) -> JobRecord:
        return await ended(store, await whole(store, id_), timeout)

    try:
        record = desk.run(waited)
    except KeyboardInterrupt:
        raise Problem(f"stopped waiting; job {id_} goes on") from None
    except TimeoutError as problem:
        raise Problem(f"{problem}; `fairlead explain {id_}` says why", Exit.TIME_OVER) from None
    if json:
        say(as_json(record))
    elif record.state is State.DONE:
        say(stored_json(record.result))
    if record.state is not State.DONE:
        raise Problem(f"job {id_} is {record.state} ({why(record)})", Exit.UNSUCCESSFUL)


@jobs.command(
    cls=AppCommand,
    epilog="Example: fairlead jobs cancel shop:app --queue reports --state waiting",
    short_help="Cancel waiting and running jobs.",
)
@ids_argument
@filters()
@carefully
@at_desk
def cancel(desk: Desk, ids: Sequence[str], which: Filter, care: Care) -> None:
    """Cancel jobs, by id or by filter.

    A waiting job never starts. A running one is told with the next heartbeat, and
    keeps running until it notices.
    """
    act(desk, CANCEL, ids, which, care)


@jobs.command(
    cls=AppCommand,
    epilog="Example: fairlead jobs retry shop:app --task shop.welcome --error TimeoutError",
    short_help="Run jobs again, or sooner.",
)
@ids_argument
@filters()
@carefully
@at_desk
def retry(desk: Desk, ids: Sequence[str], which: Filter, care: Care) -> None:
    """Run jobs again, or sooner, by id or by filter.

    A delayed or retrying job is due now; a dead, cancelled or done one runs again,
    with its attempts counted anew. A filter means waiting and dead jobs, unless
    --state names others.
    """
    act(desk, RETRY, ids, which, care)


@jobs.command(
    cls=AppCommand,
    epilog="Example: fairlead jobs delete shop:app --state cancelled --yes",
    short_help="Delete ended jobs for good.",
)
@ids_argument
@filters()
@carefully
@at_desk
def delete(desk: Desk, ids: Sequence[str], which: Filter, care: Care) -> None:
    """Delete ended jobs for good, by id or by filter. Cancel a live one first."""
    act(desk, DELETE, ids, which, care)
