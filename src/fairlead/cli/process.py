"""Where the processes of a worker begin. Started by us, never by hand.

worker TARGET SOCKET BOARD STACKS    claims and runs jobs
solo   TARGET SOCKET STACKS          runs one handler at a time for a worker process
group  TARGET SOCKET STACKS [BOARD]  runs a group of suspects at once for a worker process
check  TARGET                        loads the app, for a reload, and says whether it could
leave  TARGET WORKER [COMMAND...]    gives back what a worker that is no more had in hand, and
                                     becomes the command, if there is one
"""

import asyncio
import os
import signal
import socket
import sys
import warnings

from fairlead.cli.load import load_app
from fairlead.core.errors import FairleadError, FairleadWarning
from fairlead.core.outcome import Policy, Returned, decide
from fairlead.core.passwords import without_passwords
from fairlead.core.text import escaped
from fairlead.log import set_up
from fairlead.runtime.board import Board
from fairlead.runtime.group import serve as serve_group
from fairlead.runtime.loop import loop_factory
from fairlead.runtime.process import first_word, serve
from fairlead.runtime.solo import Solo
from fairlead.runtime.spawn import die_with_parent
from fairlead.runtime.stacks import answer

_LEAVE_SECONDS = 10


def main() -> None:
    """Do what the first argument says."""
    role, target, *rest = sys.argv[1:]
    warnings.simplefilter("ignore", FairleadWarning)  # Who started us was warned already.
    try:
        match role:
            case "worker":
                _worker(target, *map(int, rest))
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


def _worker(target: str, channel: int, board: int, stacks: int) -> None:
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
        runner.run(serve(workshop, begin, target, connection, Board.opened(board)))
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
        now = app.clock.now()
        policies = {task.name: task.options for task in app.tasks}
        returned = [
            decide(job, Returned(cut_off=True), policies.get(job.task, Policy()), now)
            for job in await app.store.held(worker)
        ]
        for settlement in (await app.store.settle(returned)).values():
            told = escaped(f"job {settlement.id} was cut off: {settlement.state}")
            print(f"fairlead: {told}", file=sys.stderr)
        await app.aclose()

    asyncio.run(give_back())
    signal.alarm(0)
    if command:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.execv(sys.executable, command)  # noqa: S606 (what we were started with)


if __name__ == "__main__":
    main()
