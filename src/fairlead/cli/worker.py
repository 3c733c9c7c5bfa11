"""`fairlead worker`: run jobs."""

import asyncio
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fairlead.app import Fairlead
from fairlead.cli.command import AppCommand, Exit, named_app, say
from fairlead.cli.desk import Desk
from fairlead.core.errors import ConfigError
from fairlead.core.events import LogStyle, WorkerStarted
from fairlead.core.text import brief, escaped, escaped_lines, listed
from fairlead.log import LINES_A_SECOND, set_up
from fairlead.runtime.loop import loop_factory
from fairlead.runtime.names import worker_name
from fairlead.runtime.supervisor import Supervisor
from fairlead.runtime.workshop import DEFAULTS, Choice, PoolPlan, Terms, Workshop

_WEIGHT = re.compile("0*[1-9][0-9]{0,6}")


def _queue_choices(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, int | None]:
    chosen: dict[str, int | None] = {}
    for value in values:
        name, _, weight = value.partition("=")
        if (weight or value.endswith("=")) and not _WEIGHT.fullmatch(weight):
            told = f"{brief(value)}: a weight is a whole number from 1, as in mail=4"
            raise click.BadParameter(told)
        chosen[name] = int(weight) if weight else None
    return chosen


Command = Callable[..., Any]
queue_option = click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME[=WEIGHT]",
    callback=_queue_choices,
    help="Serve this queue, with this weight here; repeat for more.  [default: all]",
)


def log_level_option(default: str) -> Callable[[Command], Command]:
    """Return the option --log-level."""
    return click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default=default,
        show_default=True,
        envvar="FAIRLEAD_LOG_LEVEL",
        help="debug tells each step of every job, info each run that ends, warning what fails.",
    )


@click.command(
    cls=AppCommand,
    epilog="Example: fairlead worker shop:app --processes 2 --queue mail=4 --queue reports",
    short_help="Run jobs.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    envvar="FAIRLEAD_PROCESSES",
    help="How many processes claim and run jobs.",
)
@click.option(
    "--slots",
    type=click.IntRange(1, 10_000),
    envvar="FAIRLEAD_SLOTS",
    help="Jobs at once, per pool and process.  [default: 100 if all tasks of its queues are "
    "async, 10 if any is a plain function, one per core for runner=process]",
)
@queue_option
@click.option(
    "--pool", "pools", multiple=True, metavar="NAME", help="Serve this pool.  [default: all]"
)
@click.option("--drain", is_flag=True, help="Stop when no job is due; later ones and retries stay.")
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=DEFAULTS.grace,
    show_default=True,
    envvar="FAIRLEAD_GRACE",
    help="Seconds that running jobs get to finish when the worker stops.",
)
@click.option(
    "--lease",
    type=click.FloatRange(0.2),
    default=DEFAULTS.lease,
    show_default=True,
    envvar="FAIRLEAD_LEASE",
    help="Seconds after which the jobs of a dead machine run again.",
)
@click.option(
    "--max-jobs",
    type=click.IntRange(1),
    envvar="FAIRLEAD_MAX_JOBS",
    help="Replace a process after so many jobs.",
)
@click.option(
    "--max-memory",
    type=click.IntRange(1),
    metavar="MB",
    envvar="FAIRLEAD_MAX_MEMORY",
    help="Replace a process that takes more memory.",
)
@click.option(
    "--loop",
    type=click.Choice(["auto", "asyncio", "uvloop"]),
    default="auto",
    show_default=True,
    envvar="FAIRLEAD_LOOP",
    help="The event loop; auto takes uvloop if it is installed.",
)
@log_level_option("info")
@click.option(
    "--log-format",
    type=click.Choice(["plain", "json"]),
    default="plain",
    show_default=True,
    envvar="FAIRLEAD_LOG_FORMAT",
    help="How log lines look.",
)
@click.option(
    "--quiet",
    is_flag=True,
    envvar="FAIRLEAD_QUIET",
    help="No lines for runs that end well, unless they take more than a minute.",
)
@click.option(
    "--log-messages/--no-log-messages",
    default=True,
    show_default=True,
    envvar="FAIRLEAD_LOG_MESSAGES",
    help="Whether log lines have what failures and cancelled runs say, which may hold secrets.",
)
def worker(
    processes: int,
    slots: int | None,
    queues: dict[str, int | None],
    pools: tuple[str, ...],
    drain: bool,
    grace: float,
    lease: float,
    max_jobs: int | None,
    max_memory: int | None,
    loop: str,
    log_level: str,
    log_format: str,
    quiet: bool,
    log_messages: bool,
) -> None:
    r"""Run the jobs of an app until told to stop.

    Stop with Ctrl-C or SIGTERM: no further job is taken, running ones get the
    grace time, the rest is given back and burns no attempt. A second signal gives
    everything back now. SIGHUP starts anew with new code; SIGQUIT (Ctrl-\) prints
    what each slot does.

    When the store's schema becomes too new for this program, the worker stops as with
    SIGTERM, and exits with code 1: update the program, and start the worker again.
    """
    choice = Choice(pools, queues, slots)
    terms = Terms(
        lease=lease,
        grace=grace,
        processes=processes,
        max_jobs=max_jobs,
        max_memory=max_memory * 1_000_000 if max_memory else None,
        drain=drain,
        loop=loop,
    )
    loop_factory(loop)
    desk = Desk(named_app(), None)
    app = desk.need_app("a worker")
    workshop = app.workshop(terms, choice)
    _open(app)
    log = LogStyle(log_level, log_format, quiet, log_messages)
    supervisor = _supervise(desk.target or "", app, workshop, choice, log)
    if supervisor.reloading:
        begin_anew()
    if supervisor.failed or supervisor.outdated:
        sys.exit(Exit.FAILED)


def begin_anew() -> None:
    """Become this very command again, with new code."""
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606 (what we were started with)


def _open(app: Fairlead) -> None:
    """Open the store here and now, so that what is wrong with it is told in one sentence."""
    if app.store.url == "memory://":
        raise ConfigError(
            "memory:// lives in one program, so a worker of its own would find no jobs; use "
            "`async with app.worker():` inside that program, or a sqlite:/// URL"
        )
    app.open()
    app.close()


def _supervise(
    target: str, app: Fairlead, workshop: Workshop, choice: Choice, log: LogStyle
) -> Supervisor:
    """Run the worker to its end."""
    name = worker_name()
    started = announced(target, name, workshop)
    if log.format == "plain":
        greet(started, workshop.terms.grace, log)
    else:
        set_up(app.events, log)
    # Told before the log listens, where the greeting has said it in better words.
    app.events.emit(started)
    if log.format == "plain":
        set_up(app.events, log)

    async def supervise() -> Supervisor:
        supervisor = Supervisor(workshop, name, target, choice, log, _tell)
        try:
            await supervisor.run()
        finally:
            await app.aclose()
        return supervisor

    return asyncio.run(supervise())


_TOLD = {
    "debug": "each step of every job",
    "info": f"each run that ends, {LINES_A_SECOND} a second at most of those that end well",
    "warning": "what fails",
    "error": "what fails for good",
}
_QUIET = "what fails or takes more than a minute"


def announced(target: str, name: str, workshop: Workshop) -> WorkerStarted:
    """Return what there is to say about a worker that is about to start."""
    store = workshop.store
    pools = [_describe(pool, workshop.terms.processes) for pool in workshop.pools]
    tasks = sorted({task.name for task in workshop.tasks})
    return WorkerStarted(name, target, store.url, store.durability, store.survives, pools, tasks)


def _tell(text: str) -> None:
    say("\n".join(escaped_lines(text)), err=True)


def greet(started: WorkerStarted, grace: float, log: LogStyle) -> None:
    """Say what this worker is about to do."""
    names = started.tasks
    shown = listed(names, 8)
    say(escaped(f"fairlead worker {started.worker}"), err=True)
    for label, text in [
        ("app", started.app),
        ("store", f"{started.store} ({started.durability}: {started.survives})"),
        ("folder", str(Path.cwd())),
        ("tasks", shown or "none; is the module that defines them imported?"),
        *(("pool", pool) for pool in started.pools),
        ("log", _QUIET if log.quiet and log.level == "info" else _TOLD[log.level]),
        ("stop", f"Ctrl-C; running jobs then get {grace:g} s to finish"),
    ]:
        say(f"  {label:6} {escaped(text)}", err=True)


def _describe(pool: PoolPlan, processes: int) -> str:
    queues = ", ".join(
        f"{queue.name} ({'critical' if queue.critical else queue.weight})" for queue in pool.queues
    )
    reserve = f" + {pool.capacity - pool.slots} reserved" if pool.capacity > pool.slots else ""
    times = f" in each of {processes} processes" if processes > 1 else ""
    where = {"async": "on the loop", "thread": "on the loop and in threads"}
    slots = f"{pool.slots}{reserve} slots {where.get(pool.runner, 'in processes')}"
    return f"{pool.name}: {slots}{times}; queues {queues}"
