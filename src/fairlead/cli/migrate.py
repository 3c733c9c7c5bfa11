"""`fairlead migrate`: the schema of the store."""

from collections.abc import Sequence

import click

from fairlead.cli.command import AppCommand, Commands, Exit, say
from fairlead.cli.desk import Desk, action, at_desk
from fairlead.cli.output import json_option
from fairlead.cli.table import Column, screen_width, table
from fairlead.cli.words import as_json, moment
from fairlead.core.acts import Note
from fairlead.core.admin import Migration, missing
from fairlead.core.store import Store
from fairlead.core.text import escaped


@click.group(cls=Commands, epilog="Example: fairlead migrate status shop:app")
def migrate() -> None:
    """Bring the store's schema up to date.

    Programs do this by themselves when they open the store; here it can be done
    before, and looked at.
    """


@migrate.command(
    cls=AppCommand,
    epilog="Example: fairlead migrate up shop:app",
    short_help="Apply what is missing.",
)
@at_desk
def up(desk: Desk) -> None:
    """Apply what is missing. Safe while workers run, and when repeated."""

    async def apply(store: Store) -> list[Migration]:
        lacking = missing(await store.admin.migrations())
        await store.open()
        if lacking:
            await store.admin.act(Note(len(lacking)), action("migrate", store.url))
        return lacking

    for step in desk.run(apply, check=False):
        say(escaped(f"applied {step.number} {step.name}"))
    say(escaped(f"{desk.store.url} is up to date"))


@migrate.command(
    cls=AppCommand,
    epilog="Example: fairlead migrate status shop:app",
    short_help="Show what was applied, and when.",
)
@json_option
@at_desk
def status(desk: Desk, json: bool) -> None:
    """Show every step and when it was applied. Exit code 4 says that some are missing."""
    steps = _steps(desk)
    if json:
        for step in steps:
            say(as_json(step))
    else:
        columns = (Column("STEP", right=True), Column("NAME"), Column("APPLIED"))
        rows = [(str(s.number), s.name, moment(s.applied_at) or "missing") for s in steps]
        for line in table(columns, rows, screen_width()):
            say(line)
    if missing(steps):
        raise SystemExit(Exit.UNSUCCESSFUL)


@migrate.command(
    cls=AppCommand,
    epilog="Example: fairlead migrate plan shop:app",
    short_help="Print the SQL that `up` would run.",
)
@at_desk
def plan(desk: Desk) -> None:
    """Print the SQL that `up` would run now; nothing, if all is applied."""
    _print(missing(_steps(desk)))


@migrate.command(
    cls=AppCommand,
    epilog="Example: fairlead migrate sql shop:app > schema.sql",
    short_help="Print the SQL of the whole schema.",
)
@at_desk
def sql(desk: Desk) -> None:
    """Print the SQL of every step, to review it or to apply it by other means."""
    _print(_steps(desk))


def _steps(desk: Desk) -> list[Migration]:
    return desk.run(lambda store: store.admin.migrations(), check=False)


def _print(steps: Sequence[Migration]) -> None:
    for step in steps:
        say(f"-- {step.number} {step.name}\n{step.sql.strip()}\n")
