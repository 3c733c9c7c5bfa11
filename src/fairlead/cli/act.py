"""Do something to jobs: count them, ask, do it in batches, say what was done."""

import functools
import signal
import sys
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from fairlead.cli.command import Exit, Problem, hinted, say
from fairlead.cli.desk import Desk, action, on_ctrl_c
from fairlead.cli.listing import job_table
from fairlead.cli.output import json_option
from fairlead.cli.which import first_jobs, in_words, whole
from fairlead.cli.words import json_line
from fairlead.core.acts import FINAL, LIVE, Action, Cancel, Deed, Delete, Revive
from fairlead.core.admin import ALL, MOST_LISTED, Filter, Wait
from fairlead.core.ids import JobId
from fairlead.core.job import JobRecord, Reason, State
from fairlead.core.store import Store
from fairlead.core.text import counted, escaped, listed
from fairlead.producer import found

_SHOWN = 10
_ONWARD = (Wait.DELAYED, Wait.RETRYING, Wait.DUE, Wait.PARKED)
"""What jobs wait for, in the order in which they go from one to the next."""
Command = Callable[..., Any]
Meant = Callable[[Collection[JobId], Collection[State]], Deed]


class Operation(NamedTuple):
    """Something that can be done to jobs in some states; by filter only in the usual ones.

    `instead` says what to do with a job in another state, `others` what became of
    those that were not changed, `after` what is still to come of running ones.
    """

    verb: str
    past: str
    states: frozenset[State]
    usual: frozenset[State]
    deed: Meant
    noun: str = "job"
    instead: str = ""
    others: str = "changed meanwhile"
    after: str = ""
    destructive: bool = True

    def counting(self, number: int) -> str:
        """Count the jobs."""
        return counted(number, self.noun)


def _cancel(ids: Collection[JobId], states: Collection[State]) -> Deed:
    return Cancel(ids, Reason.CANCELLED, states)


_DEAD = frozenset({State.DEAD})
CANCEL = Operation(
    "cancel",
    "cancelled",
    LIVE,
    LIVE,
    _cancel,
    others="were asked before, or ended meanwhile",
    after="; a running one ends when its handler notices",
)
RETRY = Operation(
    "retry",
    "retried",
    frozenset(State) - {State.RUNNING},
    frozenset({State.WAITING, State.DEAD}),
    Revive,
    others="are due already, or changed meanwhile",
    destructive=False,
)
DELETE = Operation(
    "delete", "deleted", FINAL, FINAL, Delete, instead="; cancel it first: fairlead jobs cancel"
)
REPLAY = Operation(
    "replay",
    "replayed",
    _DEAD,
    _DEAD,
    Revive,
    noun="dead letter",
    instead="; fairlead jobs retry runs other jobs again",
    destructive=False,
)
DELETE_DEAD = Operation("delete", "deleted", _DEAD, _DEAD, Delete, noun="dead letter")


class Care(NamedTuple):
    """How careful the caller is: all without a filter, without asking, only a look."""

    everything: bool
    yes: bool
    dry_run: bool
    json: bool


def carefully(command: Command) -> Command:
    """Give a command --all, --yes, --dry-run and --json, as `care`."""

    @click.option("--all", "everything", is_flag=True, help="All of them, without a filter.")
    @click.option("--yes", is_flag=True, help="Do not ask; for scripts.")
    @click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
    @json_option
    @functools.wraps(command)
    def with_care(
        *args: Any, everything: bool, yes: bool, dry_run: bool, json: bool, **named: Any
    ) -> Any:
        return command(*args, care=Care(everything, yes, dry_run, json), **named)

    return with_care


def act(desk: Desk, operation: Operation, ids: Sequence[str], which: Filter, care: Care) -> None:
    """Do it to the jobs of these ids, or to those the filter means."""
    if bool(ids) == (which != ALL or care.everything):
        raise click.UsageError(
            f"which {operation.noun}s? Name them by ids, or by a filter such as --queue, or all of "
            "them by --all"
        )
    if ids:
        desk.run(lambda store: _by_ids(store, operation, ids, care))
        return
    states = which.states or tuple(sorted(operation.usual))
    for state in states:
        if state not in operation.states:
            raise click.UsageError(f"a {state} job cannot be {operation.past}{operation.instead}")
    desk.run(lambda store: _by_filter(store, operation, replace(which, states=states), care))


async def _by_ids(store: Store, operation: Operation, named: Sequence[str], care: Care) -> None:
    ids = list(dict.fromkeys([await whole(store, each) for each in named]))
    records = [await found(store, job_id) for job_id in ids]
    misfits = {record.id: _misfit(store, operation, record) for record in records}
    for told in filter(None, misfits.values()):
        say(hinted(escaped(told)), err=True)
    fit = [record for record in records if misfits[record.id] is None]
    if not fit:
        raise Problem("nothing was done", Exit.UNSUCCESSFUL)
    if care.dry_run:
        _tell_dry_run(operation, len(fit), fit, care)
        return
    uncertain = _uncertain(operation, fit)
    if operation.destructive or uncertain:
        _ask(operation, operation.counting(len(fit)), uncertain, care)
    by = action(operation.verb, " ".join(ids[:_SHOWN]) + (" …" if len(ids) > _SHOWN else ""))
    done = await _do(store, operation, fit, operation.states, by)
    running = any(record.state is State.RUNNING for record in fit)
    _tell(operation, len(fit), done, care, running=running)


def _misfit(store: Store, operation: Operation, job: JobRecord) -> str | None:
    """Say why something cannot be done to a job; None if it can."""
    if job.state not in operation.states:
        return f"job {job.id} is {job.state}: not {operation.past}{operation.instead}"
    if job.level > store.level:
        return (
            f"job {job.id} is of a newer Fairlead: not {operation.past}; use the command of that "
            "version"
        )
    return None


async def _by_filter(store: Store, operation: Operation, which: Filter, care: Care) -> None:
    begun = (await store.admin.page(which, 0)).at
    counts = await store.admin.count(which)
    total = sum(sum(states.values()) for states in counts.values())
    if care.dry_run or not total:
        listed_ = await first_jobs(store, which, _SHOWN) if total else None
        _tell_dry_run(operation, total, listed_.jobs if listed_ else [], care)
        return
    per_queue = listed(f"{name} {sum(counts[name].values()):,}" for name in sorted(counts))
    if not care.yes:
        uncertain = 0
        async for batch in _batches(store, operation, which, begun):
            uncertain += _uncertain(operation, batch)
        _ask(operation, f"{operation.counting(total)} ({per_queue})", uncertain, care)
    by = action(operation.verb, in_words(which))
    done = 0
    async for batch in _batches(store, operation, which, begun):
        done += await _do(store, operation, batch, which.states, by)
    running = any(State.RUNNING in states for states in counts.values())
    _tell(operation, total, done, care, running=running)


async def _batches(
    store: Store, operation: Operation, which: Filter, begun: int
) -> AsyncIterator[list[JobRecord]]:
    """Go through what a filter means; what was enqueued since it began is not meant.

    What is to be cancelled is met where it goes next, should it move on: delayed jobs come first,
    running ones last. A running job may be met again whenever its lease is renewed.
    """
    if operation.deed is _cancel:
        waits = tuple(wait for wait in _ONWARD if wait in which.waits or not which.waits)
        states = tuple(sorted(which.states, reverse=True))
        which = replace(which, states=states, waits=waits, at=which.at or begun)
    cursor, running = None, set[JobId]()
    while True:
        page = await store.admin.page(which, MOST_LISTED, cursor)
        new = [job for job in page.jobs if job.id not in running]
        if fresh := [job for job in new if job.enqueued_at <= begun]:
            yield fresh
        running.update(job.id for job in new if job.state is State.RUNNING)
        cursor = page.cursor
        if cursor is None or (page.jobs and not new):
            return


async def _do(
    store: Store,
    operation: Operation,
    jobs: Sequence[JobRecord],
    states: Collection[State],
    by: Action,
) -> int:
    """Act on each job as it was seen; what has changed since is left alone.

    To cancel is meant either way: a job may well have started since.
    """
    done = 0
    for state in sorted({job.state for job in jobs}):
        ids = [job.id for job in jobs if job.state is state]
        deed = operation.deed(ids, states if operation.deed is _cancel else {state})
        done += len(await store.admin.act(deed, by))
    return done


def _uncertain(operation: Operation, jobs: Sequence[JobRecord]) -> int:
    """Count those whose outside effect may have happened, if they are to run again."""
    if operation.deed is not Revive:
        return 0
    return sum(job.reason == Reason.UNCERTAIN for job in jobs)


def _ask(operation: Operation, what: str, uncertain: int, care: Care) -> None:
    """Ask a person; a script must have said yes before."""
    if care.yes:
        return
    if uncertain:
        told = counted(uncertain, "uncertain job")
        say(f"among them: {told}, whose outside effect may have happened", err=True)
    if not sys.stdin.isatty():
        raise Problem(
            f"this would {operation.verb} {what}; nobody is here to ask, so add --yes, or look "
            "first with --dry-run",
            Exit.MISUSED,
        )
    try:
        with on_ctrl_c(signal.default_int_handler):
            sure = click.confirm(escaped(f"{operation.verb} {what}?"), err=True)
    except click.Abort:
        say(err=True)
        sure = False
    if not sure:
        raise Problem("nothing was done", Exit.UNSUCCESSFUL)


def _tell_dry_run(operation: Operation, count: int, jobs: Sequence[JobRecord], care: Care) -> None:
    if care.json:
        _tell_json(operation, count, 0, care)
        return
    if not count:
        say(f"no {operation.noun} matches")
        return
    say(f"would {operation.verb} {operation.counting(count)}:")
    for line in job_table(jobs[:_SHOWN]):
        say(line)
    if count > _SHOWN:
        say(f"… and {count - _SHOWN:,} more")


def _tell(operation: Operation, matched: int, count: int, care: Care, *, running: bool) -> None:
    if care.json:
        _tell_json(operation, matched, count, care)
        return
    less = f" of {matched:,} that were found; the others {operation.others}"
    say(
        f"{operation.past} {operation.counting(count)}"
        f"{less if count < matched else ''}{operation.after if running else ''}"
    )


def _tell_json(operation: Operation, matched: int, count: int, care: Care) -> None:
    told = {"verb": operation.verb, "matched": matched, "count": count, "dry_run": care.dry_run}
    say(json_line(told))
