"""`fairlead dead`: look at dead letters, mend them, let them run again."""

import signal
import sys
from collections.abc import Sequence

import click
from msgspec.structs import replace

from fairlead.cli.act import DELETE_DEAD, REPLAY, Care, act, carefully
from fairlead.cli.command import AppCommand, Commands, Exit, Problem, hinted, say
from fairlead.cli.desk import Desk, action, at_app, at_desk, on_ctrl_c
from fairlead.cli.jobs import list_jobs, show_job
from fairlead.cli.output import Output, show, shown
from fairlead.cli.table import Column, screen_width, table
from fairlead.cli.which import View, filters, id_argument, ids_argument, listing, whole
from fairlead.cli.words import ago, as_json, formatted
from fairlead.core.acts import Edit
from fairlead.core.admin import ErrorGroup, Filter
from fairlead.core.codec import TEXT_LIMIT, Signature
from fairlead.core.errors import DecodeError, EnqueueError
from fairlead.core.failure import short_name
from fairlead.core.job import State
from fairlead.core.store import Store
from fairlead.core.text import SHOWN, escaped, listed
from fairlead.producer import found

_ID = "01993e7c-5a52-7c43-9f0d-3a3e5f0b9c11"


@click.group(cls=Commands, epilog="Example: fairlead dead list shop:app --by-error")
def dead() -> None:
    """Look at dead letters, mend them, let them run again."""


@dead.command(
    "list",
    cls=AppCommand,
    epilog="Example: fairlead dead list shop:app --by-error",
    short_help="List dead letters, the last one first, or by error.",
)
@filters(states=False)
@click.option("--by-error", is_flag=True, help="One line per error fingerprint, largest first.")
@listing
@shown
@at_desk
def list_(desk: Desk, which: Filter, by_error: bool, view: View, output: Output) -> None:
    """List dead letters, the last one first. Filters combine."""
    which = replace(which, states=(State.DEAD,))
    if not by_error:
        list_jobs(desk, which, view, output, "dead letter")
        return

    async def gather(store: Store) -> list[ErrorGroup]:
        return (await store.admin.groups(which))[: view.limit]

    show(desk, output, gather, _group_table, lambda groups: map(as_json, groups))


def _group_table(groups: Sequence[ErrorGroup]) -> list[str]:
    if not groups:
        return ["no dead letter matches"]
    columns = (
        Column("FINGERPRINT"),
        Column("COUNT", right=True),
        Column("LAST", right=True),
        Column("ERROR", least=16, most=SHOWN),
        Column("TASKS", least=10, goes=1, most=SHOWN),
    )
    rows = [
        (
            group.fingerprint or "none",
            f"{group.count:,}",
            ago(group.last_at),
            f"{short_name(group.error)}: {group.message}" if group.error else "",
            listed(group.tasks),
        )
        for group in groups
    ]
    hint = "`fairlead dead replay --error FINGERPRINT` lets a group run again"
    return [*table(columns, rows, screen_width()), hinted(hint)]


@dead.command(
    "show",
    cls=AppCommand,
    epilog=f"Example: fairlead dead show shop:app {_ID}",
    short_help="Show a dead letter and why it died.",
)
@id_argument
@shown
@at_desk
def show_(desk: Desk, id_: str, output: Output) -> None:
    """Show a dead letter: its arguments, every attempt, the last failure, what people did."""
    show_job(desk, id_, output, State.DEAD)


@dead.command(
    cls=AppCommand,
    epilog=f"""Example: fairlead dead edit shop:app {_ID} '{{"user_id": 42}}'""",
    short_help="Replace the arguments of a dead letter.",
)
@id_argument
@click.argument("json", required=False)
@at_app
def edit(desk: Desk, id_: str, json: str | None) -> None:
    """Replace the arguments of a dead letter.

    JSON is an object of arguments by name, or `-` to read it from stdin; without it,
    $EDITOR opens with the old ones. They are checked against the task's signature
    before they are saved. The old ones are kept in the audit log.
    """
    app = desk.need_app("the check of the new arguments")

    async def edit(store: Store) -> bool:
        job = await found(store, await whole(store, id_))
        if job.state is not State.DEAD:
            raise Problem(f"job {id_} is {job.state}, not dead", Exit.UNSUCCESSFUL)
        task = app.tasks[job.task]
        payload = _written(task.signature, json, job.payload)
        if payload == job.payload:
            return False
        edit = Edit(job.id, job.payload, payload, task.options.version)
        if not await store.admin.act(edit, action("edit", job.id)):
            raise Problem(
                f"somebody changed job {id_} meanwhile; look at it, and try again",
                Exit.UNSUCCESSFUL,
            )
        return True

    if desk.run(edit):
        say(hinted(f"saved; `fairlead dead replay {id_}` lets it run again"))
    else:
        say("nothing to change: the arguments are the same")


def _indented(payload: str) -> str:
    try:
        return formatted(payload, 2) + "\n"
    except DecodeError:
        return payload  # Not JSON: that is what is to be mended.


def _written(signature: Signature, given: str | None, old: str) -> str:
    """Return the new payload: as it was given, or as a person writes it in an editor."""
    if given is not None:
        return signature.read(sys.stdin.read(TEXT_LIMIT + 1) if given == "-" else given)
    if not sys.stdin.isatty():
        raise click.UsageError("no new arguments; give them as JSON, or - to read them from stdin")
    text = _indented(old)
    while True:
        try:
            with on_ctrl_c(lambda *_: None):  # It is meant for the editor.
                edited = click.edit(text, extension=".json")
        except (OSError, UnicodeError) as problem:
            raise Problem(
                f"what the editor saved cannot be read: {problem}; give JSON instead"
            ) from None
        if edited is None:
            raise Problem("nothing was saved", Exit.UNSUCCESSFUL)
        try:
            return signature.read(edited)
        except EnqueueError as problem:
            say(escaped(str(problem)), err=True)
        with on_ctrl_c(signal.default_int_handler):
            click.confirm("edit again?", default=True, abort=True, err=True)
        text = edited


@dead.command(
    cls=AppCommand,
    epilog="Example: fairlead dead replay shop:app --error TimeoutError --dry-run",
    short_help="Let dead letters run again.",
)
@ids_argument
@filters(states=False)
@carefully
@at_desk
def replay(desk: Desk, ids: Sequence[str], which: Filter, care: Care) -> None:
    """Let dead letters run again, by id, filter or error fingerprint.

    Id and history stay, the attempts are counted anew.
    """
    act(desk, REPLAY, ids, which, care)


@dead.command(
    cls=AppCommand,
    epilog="Example: fairlead dead delete shop:app --task shop.welcome --since 7d",
    short_help="Delete dead letters for good.",
)
@ids_argument
@filters(states=False)
@carefully
@at_desk
def delete(desk: Desk, ids: Sequence[str], which: Filter, care: Care) -> None:
    """Delete dead letters for good, by id or by filter. Nothing else ever removes them."""
    act(desk, DELETE_DEAD, ids, which, care)
