"""The app that the worker trees of these tests serve. `tree.Shop` copies it into a test's folder.

Its handlers tell of themselves in a file of their own, one line per write, so
that what is checked afterwards does not come from the parts under test.
"""

import asyncio
import ctypes
import faulthandler
import locale
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fairlead import Fairlead, Pool, Queue, Retry, current_job, fixed
from fairlead.runtime import points

HERE = Path(__file__).parent
VERSION = 1

if "CLOCK" in os.environ:  # This machine's clock is wrong by so many seconds.
    _right, _wrong = time.time, int(os.environ["CLOCK"])
    time.time = lambda: _right() + _wrong
    _right_ns = time.time_ns
    time.time_ns = lambda: _right_ns() + _wrong * 1_000_000_000

app = Fairlead(
    os.environ.get("SHOP_URL") or f"sqlite:///{HERE}/jobs.db",
    queues=[Queue("loop"), Queue("thread"), Queue("process")],
    pools=[
        Pool("loop", ["loop"], slots=20, runner="async"),
        Pool("thread", ["thread"], slots=4, runner="thread"),
        Pool("process", ["process"], slots=2, runner="process"),
    ],
)
SOON = Retry(attempts=5, backoff=fixed(0.1, jitter=0))
_file = os.open(HERE / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
_kept: list[bytes] = []


def tell(what: str, detail: str = "-") -> None:
    """Write one line, whole."""
    job = current_job()
    line = (
        f"{what} {job.id} {job.fence} {job.attempt} {os.getpid()} {time.monotonic():.6f} {detail}\n"
    )
    os.write(_file, line.encode("utf-8", "backslashreplace"))


def steps(seconds: float) -> list[float]:
    """Divide a time that must be spent awake: a frozen process has it still before it."""
    count = max(1, round(seconds / 0.1))
    return [seconds / count] * count


# Handlers that end well, after a while


@app.task(queue="loop", retry=SOON)
async def quick(number: int = 0) -> int:
    tell("start")
    tell("end")
    return number


@app.task(queue="loop", retry=SOON)
async def carry(text: str) -> int:
    tell("start")
    tell("end")
    return len(text)


@app.task(queue="thread", retry=SOON)
def plain(number: int = 0) -> int:
    tell("start")
    tell("end")
    return number


@app.task(queue="loop", retry=SOON)
async def wait(seconds: float) -> str:
    tell("start")
    try:
        for pause in steps(seconds):
            await asyncio.sleep(pause)
            tell("tick")
    except asyncio.CancelledError as reason:
        tell("cancelled", type(reason.args[0]).__name__ if reason.args else "nothing")
        raise
    tell("end")
    return f"by {os.getpid()}"


@app.task(queue="thread", retry=SOON)
def nap(seconds: float) -> str:
    tell("start")
    for pause in steps(seconds):
        time.sleep(pause)
        tell("tick")
    tell("end")
    return f"by {os.getpid()}"


@app.task(queue="loop", retry=SOON)
async def sleep_on_loop(seconds: float) -> None:
    tell("start")
    time.sleep(seconds)
    tell("end")


@app.task(queue="loop", retry=SOON)
async def grip(seconds: int) -> float:
    """Hold the interpreter lock in C; returns how long another thread could not run."""
    tell("start")
    gaps = [0.0]
    over = threading.Event()

    def watch() -> None:
        last = time.monotonic()
        while not over.is_set():
            time.sleep(0.02)
            gaps[0], last = max(gaps[0], time.monotonic() - last), time.monotonic()

    watcher = threading.Thread(target=watch)
    watcher.start()
    await asyncio.sleep(0.05)
    child = subprocess.Popen(["sleep", str(seconds)])
    ctypes.PyDLL(None).waitpid(child.pid, None, 0)
    child.returncode = 0
    await asyncio.sleep(0.05)
    over.set()
    watcher.join()
    tell("end")
    return gaps[0]


@app.task(queue="loop", retry=SOON)
async def block() -> None:
    """Keep the loop from turning, until the test says otherwise."""
    tell("start")
    while not (HERE / "go-on").exists():
        time.sleep(0.01)
    tell("end")


@app.task(queue="thread", retry=SOON)
def hug(seconds: int) -> None:
    """Hold the interpreter lock in C, in a thread."""
    tell("start")
    ctypes.PyDLL(None).sleep(seconds)
    tell("end")


@app.task(queue="loop", retry=SOON)
async def hand_to_thread(seconds: float) -> None:
    tell("start")
    await asyncio.to_thread(time.sleep, seconds)
    tell("end")


@app.task(queue="loop")
async def version() -> int:
    return VERSION


@app.task(queue="loop", retry=SOON)
async def hoard(megabytes: int) -> None:
    tell("start")
    _kept.append(b"x" * (megabytes << 20))
    tell("end")


@app.task(queue="loop", retry=SOON)
async def second_time() -> int:
    """Fail once, so that somebody must say when the next try is."""
    tell("start")
    if current_job().attempt == 1:
        raise ValueError("not yet")
    tell("end")
    return current_job().attempt


# Handlers that use the same database


@app.task(queue="loop", retry=SOON)
async def shopkeeping(url: str, seconds: float) -> None:
    """Hold a transaction open, with locks, on a connection of the user's own."""
    import psycopg  # Here, so that trees on other stores start as quickly as they can.

    tell("start")
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("INSERT INTO stock VALUES (1)")
        await asyncio.sleep(seconds)
    tell("end")


# Handlers that end badly


class Rude(BaseException):
    """Nobody's business, and yet it comes."""


def _exhaust() -> None:
    _join_group()
    while True:
        _kept.append(b"x" * (8 << 20))


def _join_group() -> None:
    (Path(os.environ["SHOP_CGROUP"]) / "cgroup.procs").write_text(str(os.getpid()))


def _raise(error: BaseException) -> None:
    raise error


DEATHS: dict[str, Callable[[], object]] = {
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit3": lambda: os._exit(3),
    "exit0": lambda: os._exit(0),
    "sys.exit": lambda: sys.exit(4),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "rude": lambda: _raise(Rude("no manners")),
    "memory": _exhaust,
}


@app.task(queue="process", retry=SOON)
def die(how: str, seconds: float = 0.0) -> None:
    tell("start")
    faulthandler.disable()
    time.sleep(seconds)
    DEATHS[how]()


@app.task(queue="loop", retry=SOON)
async def adie(how: str, seconds: float = 0.0) -> None:
    tell("start")
    await asyncio.sleep(seconds)
    DEATHS[how]()


@app.task(queue="process", retry=SOON)
def fork_without_end() -> None:
    tell("start")
    _join_group()
    while True:
        subprocess.Popen(["sleep", "1000"])


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no comment")

    __repr__ = __str__


def _circle() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


ODDITIES: dict[str, Callable[[], object]] = {
    "mute": lambda: _raise(Mute()),
    "long": lambda: _raise(ValueError("x" * 100_000_000)),
    "surrogate": lambda: _raise(ValueError("half a pair: \ud800 and a \0")),
    "circle": _circle,
}


@app.task(queue="loop", retry=SOON)
async def odd(kind: str) -> None:
    tell("start")
    ODDITIES[kind]()


@app.task(queue="process", retry=SOON)
def odd_plain(kind: str) -> None:
    tell("start")
    ODDITIES[kind]()


def _change_surroundings() -> None:
    os.chdir("/")
    os.umask(0o777)
    os.environ.clear()
    locale.setlocale(locale.LC_ALL, "C")


def _close_standard_files() -> None:
    for handle in (0, 1, 2):
        with suppress(OSError):  # One before it in the same process may have done the same.
            os.close(handle)


def _write_without_end() -> None:
    for _ in range(50):
        os.write(1, b"x" * 1_000_000)


HABITS: dict[str, Callable[[], object]] = {
    "moves": _change_surroundings,
    "closes": _close_standard_files,
    "ignores": lambda: [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT)],
    "floods": _write_without_end,
}


@app.task(queue="process", retry=SOON)
def untidy(habit: str) -> str:
    """Leave the process in another state than it was."""
    tell("start")
    HABITS[habit]()
    tell("end")
    return habit


@app.task(queue="loop", retry=SOON)
async def untidy_on_loop(habit: str) -> str:
    tell("start")
    HABITS[habit]()
    tell("end")
    return habit


# Handlers that end their jobs in a transaction with rows of their own


@app.task(queue="loop", retry=SOON)
async def abook(before: float = 0.0, inside: float = 0.0) -> int:
    job = current_job()
    tell("start")
    await asyncio.sleep(before)
    async with job.commit(result=1) as conn:
        await conn.execute(f"INSERT INTO effect VALUES ('{job.id}')")
        await quick.aenqueue()
        await asyncio.sleep(inside)
    tell("end")
    return 1


@app.task(queue="thread", retry=SOON)
def book(before: float = 0.0, inside: float = 0.0, then: str = "") -> int:
    job = current_job()
    tell("start")
    time.sleep(before)
    with job.commit(result=1) as conn:
        conn.execute(f"INSERT INTO effect VALUES ('{job.id}')")
        quick.enqueue()
        time.sleep(inside)
    if then:
        faulthandler.disable()
        DEATHS[then]()
    tell("end")
    return 1


# Handlers that do not listen


@app.task(queue="loop", retry=SOON)
async def deaf(seconds: float) -> None:
    tell("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            tell("ignored")
        tell("tick")
    tell("end")


@app.task(queue="process", retry=SOON)
def stubborn(seconds: float) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        tell("tick")
    tell("end")


@app.task(queue="process", retry=SOON)
def parent(seconds: float) -> None:
    """Start a program that outlives everybody, if it is let."""
    tell("start")
    child = subprocess.Popen(["sleep", "1000"])
    tell("child", str(child.pid))
    time.sleep(seconds)
    child.kill()
    tell("end")


# Crash points


def _kill_tree() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _twice() -> None:
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(0.3)
    os.kill(os.getppid(), signal.SIGTERM)


ACTIONS: dict[str, Callable[[], object]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "tree": _kill_tree,
    "term": lambda: os.kill(os.getppid(), signal.SIGTERM),
    "twice": _twice,
}


def arm(order: str) -> None:
    """Do what POINT says, as in `started:kill:3`: at the third passing, once for all processes."""
    name, action, number = order.split(":")
    passed = [0]

    def listener(point: str) -> None:
        if point != name:
            return
        passed[0] += 1
        if passed[0] == int(number):
            try:
                os.close(os.open(HERE / "fired", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            (HERE / "fired").write_text(f"{time.monotonic()}")
            ACTIONS[action]()

    points.listen(listener)


def hold(order: str) -> None:
    """Wait at the first passing of each point that HOLD lists, in its order, for the test's word."""
    left = order.split(",")

    def listener(point: str) -> None:
        if left and point == left[0]:
            (HERE / f"at-{left.pop(0)}").touch()
            while not (HERE / f"go-{point}").exists():
                time.sleep(0.005)

    points.listen(listener)


if "POINT" in os.environ:
    arm(os.environ["POINT"])

if "HOLD" in os.environ:
    hold(os.environ["HOLD"])

if "PLAIN" in os.environ:  # Without coroutines, threads take one job after the other by themselves.
    for name in [name for name in app.tasks.versions() if app.tasks[name].is_async]:
        del app.tasks._tasks[name]
