"""Which jobs a command means: filters that combine, the same everywhere, or ids."""

import functools
from collections.abc import Callable
from shlex import quote
from typing import Any

import click

from fairlead.cli.words import Since, instant_text
from fairlead.core.admin import MOST_LISTED, Filter
from fairlead.core.job import State

Command = Callable[..., Any]

_OPTIONS = (
    click.option("--queue", "queues", multiple=True, metavar="NAME", help="In this queue."),
    click.option("--task", "tasks", multiple=True, metavar="NAME", help="Of this task."),
    click.option("--tag", "tags", multiple=True, help="With this tag; several mean all of them."),
    click.option(
        "--since",
        type=Since(),
        help="Ended, or if not yet, enqueued since: 15m, 2h, 7d or 2026-11-16T09:30.",
    ),
    click.option(
        "--error",
        metavar="TEXT",
        help="Whose last failure has this fingerprint, or this text in its class or message.",
    ),
)
_STATE = click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State]),
    help="In this state; several mean any of them.",
)


limit_option = click.option(
    "--limit",
    type=click.IntRange(1, MOST_LISTED - 1),
    default=20,
    show_default=True,
    help="How many to show.",
)
ids_argument = click.argument("ids", nargs=-1, metavar="[ID]...")


def filters(*, states: bool = True) -> Callable[[Command], Command]:
    """Give a command the options of a filter, and the filter as `which`."""

    def add(command: Command) -> Command:
        @functools.wraps(command)
        def with_filter(
            *args: Any,
            queues: tuple[str, ...],
            tasks: tuple[str, ...],
            tags: tuple[str, ...],
            since: int | None,
            error: str | None,
            **named: Any,
        ) -> Any:
            wanted = tuple(State(state) for state in named.pop("states", ()))
            which = Filter(queues, tasks, wanted, tags, since, error)
            return command(*args, which=which, **named)

        with_options = with_filter
        for option in reversed((*_OPTIONS, _STATE) if states else _OPTIONS):
            with_options = option(with_options)
        return with_options

    return add


def in_words(which: Filter) -> str:
    """Tell a filter as it would be typed, for the audit log."""
    parts = [f"--queue {name}" for name in which.queues]
    parts += [f"--task {name}" for name in which.tasks]
    parts += [f"--state {state}" for state in which.states]
    parts += [f"--tag {quote(tag)}" for tag in which.tags]
    parts += [f"--since {instant_text(which.since)}"] if which.since is not None else []
    parts += [f"--error {quote(which.error)}"] if which.error is not None else []
    return " ".join(parts) or "--all"
