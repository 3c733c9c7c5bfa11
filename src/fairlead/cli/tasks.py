"""`fairlead tasks`: what an app can do."""

import click

from fairlead.cli.command import AppCommand, Commands, say
from fairlead.cli.desk import Desk, at_app
from fairlead.cli.output import json_option
from fairlead.cli.table import Column, screen_width, table
from fairlead.cli.words import json_line
from fairlead.core.task import Task
from fairlead.core.text import SHOWN


@click.group(cls=Commands, epilog="Example: fairlead tasks list shop:app")
def tasks() -> None:
    """See the tasks of an app."""


@tasks.command(
    "list",
    cls=AppCommand,
    epilog="Example: fairlead tasks list shop:app",
    short_help="List the tasks of an app.",
)
@json_option
@at_app
def list_(desk: Desk, json: bool) -> None:
    """List the tasks of an app, with their arguments and what holds for their jobs."""
    app = desk.need_app("the list of tasks")
    known = sorted(app.tasks, key=lambda task: task.name)
    if json:
        for task in known:
            say(json_line(_told(task)))
        return
    if not known:
        say("the app has no tasks; is the module that defines them imported?")
        return
    columns = (
        Column("TASK", least=12),
        Column("QUEUE", least=8),
        Column("RUNS", goes=3),
        Column("LIMIT", right=True, goes=1),
        Column("TRIES", right=True, goes=2),
        Column("ARGUMENTS", least=16, most=SHOWN),
    )
    rows = [
        (
            task.name,
            task.options.queue,
            "on the loop" if task.is_async else "in a thread",
            f"{task.options.timeout:g} s",
            str(task.options.retry.attempts),
            task.signature.takes,
        )
        for task in known
    ]
    for line in table(columns, rows, screen_width()):
        say(line)


def _told(task: Task) -> dict[str, object]:
    options = task.options
    return {
        "name": task.name,
        "aliases": task.aliases,
        "queue": options.queue,
        "async": task.is_async,
        "timeout": options.timeout,
        "attempts": options.retry.attempts,
        "priority": options.priority,
        "version": options.version,
        "effects": options.effects,
        "idempotent": options.idempotent,
        "arguments": task.signature.takes,
    }
