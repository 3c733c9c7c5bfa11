"""What the processes of a worker do; `process.py` lists them."""

import asyncio
import os
import signal
import socket
import sys
import warnings

from fairlead.cli.load import load_app
from fairlead.core.errors import FairleadError, FairleadWarning
from fairlead.core.outcome import Returned
from fairlead.core.passwords import without_passwords
from fairlead.core.text import escaped
from fairlead.log import set_up
from fairlead.runtime.board import Board
from fairlead.runtime.contact import Troubles
from fairlead.runtime.group import serve as serve_group
from fairlead.runtime.loop import loop_factory
from fairlead.runtime.process import first_word, serve
from fairlead.runtime.recruit import Recruit
from fairlead.runtime.settling import Ended, Settling
from fairlead.runtime.solo import Solo
from fairlead.runtime.spawn import die_with_parent
from fairlead.runtime.stacks import answer

_LEAVE_SECONDS = 10


def play(role: str, target: str, rest: list[str], recruit: Recruit | None) -> None:
    """Do what a role says."""
    warnings.simplefilter("ignore", FairleadWarning)  # Who started us was warned already.
    try:
        match role:
            case "worker" | "heir":
                _worker(target, recruit, *map(int, rest))
            case "solo":
                _solo(target, *map(int, rest))
            case "group":
                _group(target, *map(int, rest))
            case "check":
                load_app(target)
            case "leave":
                _leave(target, *rest)
    except FairleadError as problem:
        print(f"fairlead: {escaped(without_passwords(str(problem)))}", file=sys.stderr)
        sys.exit(1)


def _worker(target: str, recruit: Recruit | None, channel: int, board: int, stacks: int) -> None:
    die_with_parent(os.getppid())
    answer(stacks)
    # The supervisor decides what a signal means; it would reach us only from a stranger.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    connection = socket.socket(fileno=channel)
    begin = first_word(connection)
    # A store's thread gives the interpreter lock away at every step of a statement. Beside a busy
    # loop or handler it gets it back after this long, and would wait ten times as long by default.
    sys.setswitchinterval(0.0005)
    app = load_app(target)
    set_up(app.events, begin.log)
    workshop = app.workshop(begin.terms, begin.choice)
    with asyncio.Runner(loop_factory=loop_factory(begin.terms.loop)) as runner:
        runner.run(serve(workshop, begin, target, connection, Board.opened(board), recruit))
        # Inside, for to leave is to wait for threads, and one that never ends must not keep us;
        # what they run is on the board.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _solo(target: str, channel: int, stacks: int) -> None:
    die_with_parent(os.getppid())
    answer(stacks)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    app = load_app(target)
    Solo(app.tasks, app.store, socket.socket(fileno=channel)).serve()


def _group(target: str, channel: int, stacks: int, board: int | None = None) -> None:
    die_with_parent(os.getppid())
    answer(stacks)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    app = load_app(target)
    shared = None if board is None else Board.opened(board)
    asyncio.run(serve_group(app.tasks, app.store, socket.socket(fileno=channel), shared))


def _leave(target: str, worker: str, *command: str) -> None:
    signal.alarm(_LEAVE_SECONDS)  # Signals are ignored here, so nothing may hang.
    app = load_app(target)

    async def give_back() -> None:
        workshop, now = app.workshop(), app.clock.now()
        ended = [
            Ended.unseen(workshop, job, Returned(cut_off=True), None, now)
            for job in await app.store.held(worker)
            if not job.taken_over
        ]
        for settlement in await Settling(workshop, Troubles(worker, app.events)).settle(ended):
            if settlement is not None:
                told = escaped(f"job {settlement.id} was cut off: {settlement.state}")
                print(f"fairlead: {told}", file=sys.stderr)
        await app.aclose()

    asyncio.run(give_back())
    signal.alarm(0)
    if command:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.execv(sys.executable, command)  # noqa: S606 (what we were started with)
