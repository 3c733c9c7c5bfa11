"""Do something to jobs: count them, ask, do it in batches, say what was done."""

import functools
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple

import click
import msgspec
from msgspec.structs import replace

from fairlead.cli.command import Exit, Problem
from fairlead.cli.desk import Desk, action, on_ctrl_c
from fairlead.cli.listing import job_table
from fairlead.cli.output import json_option
from fairlead.cli.which import in_words
from fairlead.core.admin import Action, Filter
from fairlead.core.ids import JobId
from fairlead.core.job import State
from fairlead.core.store import Backend
from fairlead.producer import found

_BATCH = 500
_SHOWN = 10
Command = Callable[..., Any]


class Deed(NamedTuple):
    """Something that can be done to jobs in some states; by filter only in the usual ones."""

    verb: str
    past: str
    states: frozenset[State]
    usual: frozenset[State]
    do: Callable[[Backend, Collection[JobId], Collection[State], Action], Awaitable[int]]
    asks_for_ids: bool = True
    noun: str = "job"
    others: str = "changed meanwhile"

    def tell(self, count: int) -> str:
        """Count the jobs."""
        return f"{count:,} {self.noun}{'' if count == 1 else 's'}"


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


def act(desk: Desk, deed: Deed, ids: Sequence[str], which: Filter, care: Care) -> None:
    """Do it to the jobs of these ids, or to those the filter means."""
    named = which != Filter()
    if bool(ids) == (named or care.everything):
        raise click.UsageError(
            f"which {deed.noun}s? Give ids, or a filter such as --queue, or --all; one of these"
        )
    job_ids = [JobId(job_id) for job_id in dict.fromkeys(ids)]
    if job_ids:
        desk.run(lambda store: _by_ids(store, deed, job_ids, care))
        return
    usual = which.states or tuple(sorted(deed.usual))
    wrong = [state for state in usual if state not in deed.states]
    if wrong:
        raise click.UsageError(f"a {wrong[0]} job cannot be {deed.past}")
    desk.run(lambda store: _by_filter(store, deed, replace(which, states=tuple(usual)), care))


async def _by_ids(store: Backend, deed: Deed, ids: list[JobId], care: Care) -> None:
    records = [await found(store, job_id) for job_id in ids]
    fit = [record for record in records if record.state in deed.states]
    for record in records:
        if record.state not in deed.states:
            click.echo(f"job {record.id} is {record.state}: not {deed.past}", err=True)
    if not fit:
        raise Problem("nothing was done", Exit.UNSUCCESSFUL)
    if care.dry_run:
        _tell_dry_run(deed, len(fit), job_table(fit), care)
        return
    if deed.asks_for_ids:
        _ask(deed, deed.tell(len(fit)), care)
    by = action(deed.verb, " ".join(ids[:_SHOWN]) + (" …" if len(ids) > _SHOWN else ""))
    count = await deed.do(store, [record.id for record in fit], deed.states, by)
    _tell(deed, len(fit), count, care)


async def _by_filter(store: Backend, deed: Deed, which: Filter, care: Care) -> None:
    counts = await store.count(which)
    total = sum(sum(states.values()) for states in counts.values())
    if care.dry_run:
        _tell_dry_run(deed, total, job_table(await store.jobs(which, _SHOWN)), care)
        return
    if total:
        per_queue = ", ".join(f"{name} {sum(counts[name].values()):,}" for name in sorted(counts))
        _ask(deed, f"{deed.tell(total)} ({per_queue})", care)
    by = action(deed.verb, in_words(which))
    done, last = 0, None
    while batch := await store.jobs(which, _BATCH, last):
        last = batch[-1].id
        done += await deed.do(store, [record.id for record in batch], which.states, by)
    _tell(deed, total, done, care)


def _ask(deed: Deed, what: str, care: Care) -> None:
    """Ask a person; a script must have said yes before."""
    if care.yes:
        return
    if not sys.stdin.isatty():
        raise Problem(
            f"this would {deed.verb} {what}; nobody is here to ask, so add --yes, or look first "
            "with --dry-run",
            Exit.MISUSED,
        )
    try:
        with on_ctrl_c(signal.default_int_handler):
            sure = click.confirm(f"{deed.verb} {what}?", err=True)
    except click.Abort:
        click.echo(err=True)
        sure = False
    if not sure:
        raise Problem("nothing was done", Exit.UNSUCCESSFUL)


def _tell_dry_run(deed: Deed, count: int, lines: list[str], care: Care) -> None:
    if care.json:
        _tell_json(deed, count, 0, care)
        return
    click.echo(f"would {deed.verb} {deed.tell(count)}{':' if count else ''}")
    for line in lines if count else ():
        click.echo(line)
    if count > _SHOWN:
        click.echo(f"… and {count - _SHOWN:,} more")


def _tell(deed: Deed, matched: int, count: int, care: Care) -> None:
    if care.json:
        _tell_json(deed, matched, count, care)
        return
    less = f" of {matched:,} that were found; the others {deed.others}" if count < matched else ""
    click.echo(f"{deed.past} {deed.tell(count)}{less}")


def _tell_json(deed: Deed, matched: int, count: int, care: Care) -> None:
    told = {"verb": deed.verb, "matched": matched, "count": count, "dry_run": care.dry_run}
    click.echo(msgspec.json.encode(told).decode())
