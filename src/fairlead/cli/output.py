"""How a command shows what it found: a table, lines of JSON, or a live view."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import click

from fairlead.cli.command import Exit, Problem, say
from fairlead.cli.desk import Desk
from fairlead.cli.screen import Screen
from fairlead.core.store import Store

Value = TypeVar("Value")
Command = Callable[..., Any]


class Output(NamedTuple):
    """What the caller wants to see, and how often."""

    json: bool
    watch: float | None = None


json_option = click.option("--json", "json", is_flag=True, help="One JSON object per line.")
_watch_option = click.option(
    "--watch", is_flag=True, help="Show it again and again; Ctrl-C ends it."
)
_every_option = click.option(
    "--every",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often --watch looks.",
)


def shown(command: Command) -> Command:
    """Give a command --json, --watch and --every, and their choice as `output`."""

    @json_option
    @_watch_option
    @_every_option
    @functools.wraps(command)
    def with_output(*args: Any, json: bool, watch: bool, every: float, **named: Any) -> Any:
        return command(*args, output=Output(json, every if watch else None), **named)

    return with_output


def show(
    desk: Desk,
    output: Output,
    gather: Callable[[Store], Awaitable[Value]],
    lines: Callable[[Value], Iterable[str]],
    objects: Callable[[Value], Iterable[str]],
) -> None:
    """Gather something and print it, once or for as long as somebody watches."""

    async def once(store: Store) -> None:
        value = await gather(store)
        for line in objects(value) if output.json else lines(value):
            say(line)

    async def again(store: Store, seconds: float) -> None:
        screen = Screen()
        try:
            while True:
                if output.json or not screen.live:
                    await once(store)
                else:
                    screen.draw(list(lines(await gather(store))))
                await asyncio.sleep(seconds)
        finally:
            screen.close()

    if output.watch is None:
        desk.run(once)
        return
    seconds = output.watch
    try:
        desk.run(lambda store: again(store, seconds))
    except KeyboardInterrupt:
        raise SystemExit(Exit.DONE) from None


def nothing(what: str) -> Problem:
    """Say that what was asked for is not there."""
    return Problem(what, Exit.NOT_FOUND)
