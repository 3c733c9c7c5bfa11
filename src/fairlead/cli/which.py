"""Which jobs a command means: filters that combine, the same everywhere, or ids."""

import functools
from collections.abc import Callable, Sequence
from shlex import quote
from typing import Any, NamedTuple

import click
from msgspec.structs import replace

from fairlead.cli.command import Exit, Problem, say
from fairlead.cli.listing import job_table
from fairlead.cli.words import Since, instant_text, now
from fairlead.core.admin import MOST_LISTED, Filter, Wait
from fairlead.core.failure import MESSAGE_LIMIT
from fairlead.core.ids import JobId
from fairlead.core.job import LONGEST_ID, LONGEST_LABEL, LONGEST_NAME, JobRecord, State
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
_STRIDE = 100
"""How many jobs a page is asked for where few are found: it looks at some for each of them."""
_MOST_LOOKED = 100_000
"""How many jobs a command looks at for a list, at most."""
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
    type=click.IntRange(1, MOST_LISTED),
    default=20,
    show_default=True,
    help="How many to show.",
)


class View(NamedTuple):
    """How much of a list is shown, from where on, and with whole ids or with short ones."""

    limit: int
    after: str | None
    full: bool


def listing(command: Command) -> Command:
    """Give a command --limit, --after and --full, and their choice as `view`."""

    @limit_option
    @click.option("--after", metavar="CURSOR", help="Go on where a list ended that told of more.")
    @click.option("--full", is_flag=True, help="Show whole ids.")
    @functools.wraps(command)
    def with_view(*args: Any, limit: int, after: str | None, full: bool, **named: Any) -> Any:
        return command(*args, view=View(limit, after, full), **named)

    return with_view


id_argument = click.argument("id_", type=_ID, metavar="ID")
ids_argument = click.argument("ids", nargs=-1, type=_ID, metavar="[ID]...")
queue_argument = click.argument("name", type=_QUEUE)


async def whole(store: Store, id_: str) -> JobId:
    """Return the id of the job that is meant: this one, or the only one that begins so.

    Who may list jobs may shorten their ids.
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
    found = await _beginning(store, part)
    if len(found) == 1:
        return found[0].id
    if not found:
        raise Problem(
            f"no job has an id that is or begins with {brief(id_)}; `fairlead jobs list` shows ids",
            Exit.NOT_FOUND,
        )
    for line in job_table(found[:_CANDIDATES], full=True):
        say(line, err=True)
    many = f"{len(found)}" if len(found) <= _CANDIDATES else f"more than {_CANDIDATES}"
    told = f"{many} jobs have ids that begin with {brief(id_)}; write more of the one you mean"
    raise Problem(told, Exit.MISUSED)


async def _beginning(store: Store, part: str) -> list[JobRecord]:
    """Return the jobs whose ids begin so, newest first; one more than are shown, if there are."""
    found: dict[JobId, JobRecord] = {}
    cursor = None
    while len(found) <= _CANDIDATES:
        wanted = _CANDIDATES + 1 - len(found)
        page = await store.admin.page(Filter(begins=part), wanted, cursor)
        found |= {job.id: job for job in page.jobs}
        cursor = page.cursor
        if cursor is None:
            break
    return [found[each] for each in sorted(found, reverse=True)]


class Listed(NamedTuple):
    """The first jobs of a list, how many were looked at for them, and where it goes on."""

    jobs: list[JobRecord]
    looked: int
    cursor: str | None


async def first_jobs(store: Store, which: Filter, limit: int, cursor: str | None = None) -> Listed:
    """Return the first jobs that a filter means, over as many pages as that takes within bounds."""
    found: list[JobRecord] = []
    looked = 0
    while len(found) < limit and looked < _MOST_LOOKED:
        wanted = limit - len(found)
        page = await store.admin.page(which, max(wanted, _STRIDE if looked else 0), cursor)
        if len(page.jobs) > wanted:
            page = await store.admin.page(which, wanted, cursor)
        found += page.jobs
        looked += page.looked
        cursor = page.cursor
        if cursor is None:
            return Listed(found, looked, None)
    next_ = await store.admin.page(which, 1, cursor)
    return Listed(found, looked, cursor if next_.jobs or next_.cursor else None)


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
