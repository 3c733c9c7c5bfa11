"""Which jobs a command means: filters that combine, the same everywhere, or ids."""

import functools
from collections.abc import Callable
from shlex import quote
from typing import Any

import click

from fairlead.cli.words import Since, instant_text
from fairlead.core.admin import MOST_LISTED, Filter
from fairlead.core.failure import MESSAGE_LIMIT
from fairlead.core.job import LONGEST_ID, LONGEST_LABEL, LONGEST_NAME, State
from fairlead.core.text import brief

Command = Callable[..., Any]


class Name(click.ParamType[str]):
    """A text that cannot mean anything if it is longer than what it names."""

    name = "text"

    def __init__(self, what: str, longest: int) -> None:
        self._what, self._longest = what, longest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it."""
        if len(value) > self._longest:
            told = f"{brief(value)} is too long for {self._what}"
            self.fail(f"{told}, which has at most {self._longest:,} characters", param, ctx)
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            self.fail(f"{brief(value)} is no valid UTF-8", param, ctx)
        return str(value)


_QUEUE = Name("the name of a queue", LONGEST_NAME)
_ID = Name("the id of a job", LONGEST_ID)
_OPTIONS = (
    click.option(
        "--queue", "queues", multiple=True, type=_QUEUE, metavar="NAME", help="In this queue."
    ),
    click.option(
        "--task",
        "tasks",
        multiple=True,
        type=Name("the name of a task", LONGEST_NAME),
        metavar="NAME",
        help="Of this task.",
    ),
    click.option(
        "--tag",
        "tags",
        multiple=True,
        type=Name("a tag", LONGEST_LABEL),
        help="With this tag; several mean all of them.",
    ),
    click.option(
        "--since",
        type=Since(),
        help="Ended, or if not yet, enqueued since: 15m, 2h, 7d or 2026-11-16T09:30.",
    ),
    click.option(
        "--error",
        type=Name("what an error says", MESSAGE_LIMIT),
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
id_argument = click.argument("id_", type=_ID, metavar="ID")
ids_argument = click.argument("ids", nargs=-1, type=_ID, metavar="[ID]...")
queue_argument = click.argument("name", type=_QUEUE)


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
    parts = [f"--queue {quote(name)}" for name in which.queues]
    parts += [f"--task {quote(name)}" for name in which.tasks]
    parts += [f"--state {state}" for state in which.states]
    parts += [f"--tag {quote(tag)}" for tag in which.tags]
    parts += [f"--since {instant_text(which.since)}"] if which.since is not None else []
    parts += [f"--error {quote(which.error)}"] if which.error is not None else []
    return " ".join(parts) or "--all"
