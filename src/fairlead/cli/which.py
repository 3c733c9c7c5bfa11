"""Which jobs a command means: filters that combine, the same everywhere, or ids."""

import functools
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any

import click
from msgspec.structs import replace

from fairlead.cli.command import Exit, Problem, say
from fairlead.cli.listing import job_table
from fairlead.cli.words import Since, instant_text, now
from fairlead.core.admin import ALL, MOST_LISTED, Filter, Wait
from fairlead.core.failure import MESSAGE_LIMIT
from fairlead.core.ids import JobId
from fairlead.core.job import LONGEST_ID, LONGEST_LABEL, LONGEST_NAME, State
from fairlead.core.store import Store
from fairlead.core.text import brief

Command = Callable[..., Any]


class Name(click.ParamType[str]):
    """A text that cannot mean anything if it is longer than what it names."""

    name = "text"

    def __init__(self, what: str, longest: int) -> None:
        self._what, self._longest = what, longest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it."""
        if not value:
            self.fail(f"{self._what} cannot be empty", param, ctx)
        if len(value) > self._longest:
            told = f"{brief(value)} is too long for {self._what}"
            self.fail(f"{told}, which has at most {self._longest:,} characters", param, ctx)
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            self.fail(f"{brief(value)} is no valid UTF-8", param, ctx)
        return str(value)


_SHORTEST = 4
"""How many characters of an id mean a job, at least; a slip of the finger has fewer."""
_CANDIDATES = 10
"""How many jobs are shown that a part of an id may mean."""
_AFTER_DIGITS = "~"
"""What comes after every character of an id, in each store's order."""
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
    type=click.Choice([each.value for each in (*State, *Wait)]),
    help="In this state; several mean any of them. Waiting ones are due, delayed, retrying "
    "or parked.",
)


limit_option = click.option(
    "--limit",
    type=click.IntRange(1, MOST_LISTED - 1),
    default=20,
    show_default=True,
    help="How many to show.",
)
full_option = click.option("--full", is_flag=True, help="Show whole ids.")
id_argument = click.argument("id_", type=_ID, metavar="ID")
ids_argument = click.argument("ids", nargs=-1, type=_ID, metavar="[ID]...")
queue_argument = click.argument("name", type=_QUEUE)


async def whole(store: Store, id_: str) -> JobId:
    """Return the id of the job that is meant: this one, or the only one that begins so.

    Who may list jobs may shorten their ids. A list goes backwards by id from any place, so
    this costs each store what the first page of a list does.
    """
    if len(id_) >= LONGEST_ID or await store.admin.find(JobId(id_)) is not None:
        return JobId(id_)
    part = id_.lower().rstrip("…")
    if len(part) < _SHORTEST:
        raise Problem(
            f"{brief(id_)} is too short for the beginning of an id; write at least {_SHORTEST} "
            "characters",
            Exit.MISUSED,
        )
    found = await store.admin.jobs(ALL, _CANDIDATES + 1, JobId(part + _AFTER_DIGITS))
    ids = [job.id for job in found if job.id.startswith(part)]
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise Problem(
            f"no job has an id that is or begins with {brief(id_)}; `fairlead jobs list` shows ids",
            Exit.NOT_FOUND,
        )
    for line in job_table(found[: min(len(ids), _CANDIDATES)], full=True):
        say(line, err=True)
    many = f"{len(ids)}" if len(ids) <= _CANDIDATES else f"more than {_CANDIDATES}"
    told = f"{many} jobs have ids that begin with {brief(id_)}; write more of the one you mean"
    raise Problem(told, Exit.MISUSED)


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
            wanted = _states(named.pop("states", ()))
            which = Filter(queues, tasks, (), tags, since, error)
            return command(*args, which=replace(which, **wanted), **named)

        with_options = with_filter
        for option in reversed((*_OPTIONS, _STATE) if states else _OPTIONS):
            with_options = option(with_options)
        return with_options

    return add


def _states(given: Sequence[str]) -> dict[str, Any]:
    """Return the states that are meant; what jobs wait for is a part of one."""
    waits = tuple(Wait(each) for each in given if each in set(Wait))
    states = [State(each) for each in given if each not in set(Wait)]
    if not waits or State.WAITING in states:
        return {"states": tuple(states)}
    return {"states": (*states, State.WAITING), "waits": waits, "at": now()}


def in_words(which: Filter) -> str:
    """Tell a filter as it would be typed, for the audit log."""
    parts = [f"--queue {quote(name)}" for name in which.queues]
    parts += [f"--task {quote(name)}" for name in which.tasks]
    states = [state for state in which.states if state is not State.WAITING or not which.waits]
    parts += [f"--state {state}" for state in (*states, *which.waits)]
    parts += [f"--tag {quote(tag)}" for tag in which.tags]
    parts += [f"--since {instant_text(which.since)}"] if which.since is not None else []
    parts += [f"--error {quote(which.error)}"] if which.error is not None else []
    return " ".join(parts) or "--all"
