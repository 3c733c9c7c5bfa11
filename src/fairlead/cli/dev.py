"""`fairlead dev`: run jobs while you write them.

Everything happens in this one process, so a breakpoint in a handler stops in this
terminal. When a file changes, the new code is tried in a process of its own; only
if it can be imported, this one gives its jobs back and begins anew with it.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import click

from fairlead.app import Fairlead
from fairlead.cli.command import AppCommand, named_app
from fairlead.cli.desk import Desk
from fairlead.cli.worker import announced, greet, queue_choices
from fairlead.core.errors import ConfigError, MissingExtra
from fairlead.log import set_up
from fairlead.runtime.workshop import Choice

_GRACE = 5.0


@click.command(
    cls=AppCommand,
    epilog="Example: fairlead dev shop:app",
    short_help="Run jobs while you write them: reloads when files change.",
)
@click.option(
    "--watch",
    "folders",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Reload when a Python file in this folder changes; repeat for more.  [default: .]",
)
@click.option("--slots", type=click.IntRange(1, 10_000), help="Jobs at once, per pool.")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME[=WEIGHT]",
    callback=queue_choices,
    help="Serve this queue; repeat for more.  [default: all]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="debug",
    show_default=True,
    help="debug tells of every job.",
)
def dev(
    folders: tuple[Path, ...], slots: int | None, queues: dict[str, int | None], log_level: str
) -> None:
    """Run jobs in this one process, and begin anew when a Python file changes.

    For development: a breakpoint() in a handler stops here. Code that cannot be
    imported is told of, and the old code runs on. In production use `fairlead worker`.
    """
    watched = folders or (Path(),)
    desk = Desk(named_app(), None)
    try:
        app = desk.need_app("a worker")
    except ConfigError as problem:
        if not desk.target:
            raise
        click.echo(f"{problem}\nwaiting for a change", err=True)
        asyncio.run(_next_change(watched))
        _begin_anew()
    choice = Choice((), queues, slots)
    workshop = app.workshop(choice=choice)
    app.open()
    greet(announced(desk.target or "", f"dev {os.getpid()}", workshop), _GRACE, log_level)
    set_up(app.events, log_level, "plain")
    if asyncio.run(_serve(app, desk.target or "", choice, watched)):
        _begin_anew()


async def _serve(app: Fairlead, target: str, choice: Choice, folders: Sequence[Path]) -> bool:
    """Work until told to stop; says whether new code is why."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    worker = app.worker(queues=choice.queues, slots=choice.slots, grace=_GRACE)
    try:
        async with worker:
            async for names in _changes(folders):
                click.echo(f"changed: {', '.join(names)}", err=True)
                if await asyncio.to_thread(_can_be_imported, target):
                    return True
                click.echo("not reloaded; the old code runs on", err=True)
    except asyncio.CancelledError:
        click.echo("stopped", err=True)
    finally:
        await app.aclose()
    return False


async def _changes(folders: Sequence[Path]) -> AsyncIterator[list[str]]:
    try:
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415 (an extra)
    except ImportError:
        raise MissingExtra("cli", "fairlead dev") from None
    async for changes in awatch(*folders, watch_filter=PythonFilter(), raise_interrupt=False):
        yield sorted({Path(path).name for _, path in changes})


async def _next_change(folders: Sequence[Path]) -> None:
    async for _ in _changes(folders):
        return


def _can_be_imported(target: str) -> bool:
    """Try the new code in a process of its own, which says what is wrong with it."""
    command = [sys.executable, "-m", "fairlead.cli.process", "check", target]
    return subprocess.run(command, check=False).returncode == 0  # noqa: S603 (our own module)


def _begin_anew() -> None:
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 (this very command again)
