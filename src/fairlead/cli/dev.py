"""`fairlead dev`: run jobs while you write them.

Everything happens in this one process, so a breakpoint in a handler stops in this
terminal. When a file changes, the new code is tried in a process of its own; only
if it can be imported, this one gives its jobs back and begins anew with it.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from fairlead.app import Fairlead
from fairlead.cli.command import AppCommand, named_app, say
from fairlead.cli.desk import Desk
from fairlead.cli.worker import announced, begin_anew, greet, log_level_option, queue_option
from fairlead.core.errors import ConfigError, MissingExtra
from fairlead.core.events import Died, LogStyle, Retried
from fairlead.core.failure import TRACEBACK_LIMIT
from fairlead.core.passwords import without_passwords
from fairlead.core.text import cut, escaped, listed
from fairlead.log import set_up
from fairlead.runtime.embedded import EmbeddedWorker
from fairlead.runtime.workshop import Choice

_GRACE = 5.0
_FIRST_LOOK = 500
_AGAIN = "FAIRLEAD_DEV_AGAIN"


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
@queue_option
@log_level_option("debug")
def dev(
    folders: tuple[Path, ...], slots: int | None, queues: dict[str, int | None], log_level: str
) -> None:
    """Run jobs in this one process, and begin anew when a Python file changes.

    For development: a breakpoint() in a handler stops here, and tracebacks are shown.
    Code that cannot be imported is told of, and the old code runs on. In production use
    `fairlead worker`.
    """
    _check_extra()
    # Python takes code of the same size and second for the same; here it may well be new.
    sys.dont_write_bytecode = True
    # To be told to stop is the same by either signal, also while the code loads.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run(folders or (Path(),), Choice((), queues, slots), LogStyle(log_level))
    except KeyboardInterrupt:
        say("stopped", err=True)


def _run(watched: Sequence[Path], choice: Choice, log: LogStyle) -> None:
    """Load the app and work, or wait for code that can be loaded."""
    began = time.time()
    desk = Desk(named_app(), None)
    try:
        app = desk.need_app("a worker")
    except ConfigError as problem:
        if not desk.target:
            raise
        say(f"{escaped(without_passwords(str(problem)))}\nwaiting for a change", err=True)
        if asyncio.run(_until_change(watched, began)):
            _begin_anew()
        return
    workshop = app.workshop(choice=choice)
    desk.store  # noqa: B018 (says what is wrong with it)
    app.open()
    if os.environ.pop(_AGAIN, None):
        say("reloaded", err=True)
    else:
        greet(announced(desk.target or "", f"dev {os.getpid()}", workshop), _GRACE, log)
    set_up(app.events, log)
    worker = app.worker(queues=choice.queues, slots=choice.slots, grace=_GRACE)
    try:
        left, again = asyncio.run(_serve(app, worker, desk.target or "", watched, began))
    except KeyboardInterrupt:  # A second one, from who would not wait for the grace time.
        left, again = True, False
    if left:
        _give_back(desk.target or "", worker.name, again=again)
    if again:
        _begin_anew()


def _check_extra() -> None:
    try:
        import watchfiles  # noqa: F401, PLC0415 (an extra)
    except ImportError:
        raise MissingExtra("cli", "fairlead dev (by watchfiles)") from None


async def _serve(
    app: Fairlead, worker: EmbeddedWorker, target: str, folders: Sequence[Path], began: float
) -> tuple[bool, bool]:
    """Work until told to stop; says whether jobs are left in threads, and whether new code came."""
    again = False
    try:
        with _stopped_by_signals(), _tracebacks(app):
            async with worker:
                async for names in _changes(folders, began):
                    say(f"changed: {escaped(listed(names))}", err=True)
                    again = await _can_be_imported(target)
                    if again:
                        break
                    say("not reloaded; the old code runs on", err=True)
        left = await app.store.held(worker.name)
    finally:
        await app.aclose()
    return bool(left), again


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
    try:
        yield
    except asyncio.CancelledError:
        _ignore_signals()
        say("stopped", err=True)


def _ignore_signals() -> None:
    """Let nobody who is impatient cut off what is left to do, also across an exec: it is short."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _tracebacks(app: Fairlead) -> Iterator[None]:
    """Show the traceback of every failure, which is not in the log for what may stand in it."""
    telling: set[asyncio.Task[None]] = set()

    async def tell(event: Retried | Died) -> None:
        job = await app.store.admin.find(event.job_id)
        if job is not None and job.errors:
            for line in cut(job.errors[-1].traceback or "", 2 * TRACEBACK_LIMIT).splitlines():
                say(f"    {escaped(line)}", err=True)

    def on_failure(event: Retried | Died) -> None:
        task = asyncio.get_running_loop().create_task(tell(event))
        telling.add(task)
        task.add_done_callback(telling.discard)

    ends = [app.events.subscribe(on_failure, kind) for kind in (Retried, Died)]
    try:
        yield
    finally:
        for end in ends:
            end()


async def _changes(folders: Sequence[Path], began: float) -> AsyncIterator[list[str]]:
    """Tell the names of files as they change, and first of those that did since we began."""
    from watchfiles import PythonFilter, awatch  # noqa: PLC0415 (an extra)

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


async def _can_be_imported(target: str) -> bool:
    """Try the new code in a process of its own, which says what is wrong with it."""
    check = await asyncio.create_subprocess_exec(
        sys.executable, "-B", "-m", "fairlead.cli.process", "check", target
    )
    try:
        return await check.wait() == 0
    finally:
        if check.returncode is None:  # We are told to stop, and it may hang.
            check.kill()
            await check.wait()


def _give_back(target: str, worker: str, *, again: bool) -> None:
    """Become a program that gives back what our threads would not let go of.

    A thread cannot be stopped, but it ends with the program it belongs to; only then
    its job may run elsewhere.
    """
    _ignore_signals()
    if again:
        os.environ[_AGAIN] = "1"
    then = sys.orig_argv if again else []
    command = [sys.executable, "-m", "fairlead.cli.process", "leave", target, worker, *then]
    os.execv(sys.executable, command)  # noqa: S606 (our own module)


def _begin_anew() -> None:
    os.environ[_AGAIN] = "1"
    begin_anew()
