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
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
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
_FIRST_LOOK = 500


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
    # Python takes code of the same size and second for the same; here it may well be new.
    sys.dont_write_bytecode = True
    # To be told to stop is the same by either signal, also while the code loads.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        changed = _run(folders or (Path(),), Choice((), queues, slots), log_level)
    except KeyboardInterrupt:
        changed = False
    if changed:
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606 (this very command again)
    click.echo("stopped", err=True)


def _run(watched: Sequence[Path], choice: Choice, log_level: str) -> bool:
    """Load the app and work; says whether a change is why it ends."""
    began = time.time()
    desk = Desk(named_app(), None)
    try:
        app = desk.need_app("a worker")
    except ConfigError as problem:
        if not desk.target:
            raise
        click.echo(f"{problem}\nwaiting for a change", err=True)
        return asyncio.run(_until_change(watched, began))
    workshop = app.workshop(choice=choice)
    app.open()
    greet(announced(desk.target or "", f"dev {os.getpid()}", workshop), _GRACE, log_level)
    set_up(app.events, log_level, "plain")
    return asyncio.run(_serve(app, desk.target or "", choice, watched, began))


async def _serve(
    app: Fairlead, target: str, choice: Choice, folders: Sequence[Path], began: float
) -> bool:
    """Work until told to stop; says whether new code is why."""
    worker = app.worker(queues=choice.queues, slots=choice.slots, grace=_GRACE)
    try:
        with _stopped_by_signals():
            async with worker:
                async for names in _changes(folders, began):
                    click.echo(f"changed: {', '.join(names)}", err=True)
                    if await asyncio.to_thread(_can_be_imported, target):
                        return True
                    click.echo("not reloaded; the old code runs on", err=True)
    finally:
        await app.aclose()
    return False


async def _until_change(folders: Sequence[Path], began: float) -> bool:
    """Wait for a change; says whether there was one, and nobody stopped us."""
    with _stopped_by_signals():
        async for _ in _changes(folders, began):
            return True
    return False


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Cancel this task when the process is told to stop, and take that for a good end."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        yield


async def _changes(folders: Sequence[Path], began: float) -> AsyncIterator[list[str]]:
    """Tell the names of files as they change, and first of those that did since we began."""
    try:
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415 (an extra)
    except ImportError:
        raise MissingExtra("cli", "fairlead dev") from None
    watch = awatch(
        *folders,
        watch_filter=PythonFilter(),
        raise_interrupt=False,
        yield_on_timeout=True,
        rust_timeout=_FIRST_LOOK,
    )
    looked = False
    async for changes in watch:
        names = {Path(path).name for _, path in changes}
        if not looked:
            # Only now the watch is known to stand; what was saved before it would be missed.
            names |= _newer_than(began)
        looked = True
        if names:
            yield sorted(names)


def _newer_than(began: float) -> set[str]:
    """Name the files of loaded modules that were saved after we began to load them."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    paths = [Path(file) for file in files if file]
    return {path.name for path in paths if path.exists() and path.stat().st_mtime > began}


def _can_be_imported(target: str) -> bool:
    """Try the new code in a process of its own, which says what is wrong with it."""
    command = [sys.executable, "-B", "-m", "fairlead.cli.process", "check", target]
    return subprocess.run(command, check=False).returncode == 0  # noqa: S603 (our own module)
