"""A shop in a folder, jobs in every state, and the `fairlead` command as people run it there."""

import asyncio
import codecs
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import NewJob, Reason
from fairlead.core.outcome import Done, Failed, Outcome
from fairlead.core.queue import Queue
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests import deeds
from tests.words import POLICY, by, claim, new_id, settled

Value = TypeVar("Value")

FAIRLEAD = str(Path(sys.executable).parent / "fairlead")
UNKNOWN = "01993e7c-5a52-7c43-9f0d-3a3e5f0b9c11"
APP = {"FAIRLEAD_APP": "shop:app"}
SHOP = """
from fairlead import Fairlead, Pool, Queue

app = Fairlead(
    "sqlite:///jobs.db",
    queues=[
        Queue("mail", weight=4),
        Queue("reports"),
        Queue("alarms", critical=True, tasks=["alarm"]),
    ],
    pools=[Pool("post", queues=["mail"], slots=7), Pool("rest")],
)
number = 7


@app.task(name="greet", queue="mail")
async def greet(name: str) -> str:
    return f"hello {name}"


@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b


@app.task(name="alarm", queue="alarms")
def alarm() -> None: ...
"""


def environment(**more: str) -> dict[str, str]:
    """Return this environment without what the command or the terminal would read from it."""
    ours = ("FAIRLEAD", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "EDITOR", "VISUAL")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return clean | {"TERM": "xterm"} | more


def run(
    folder: Path, *arguments: str, stdin: str = "", prefix: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command where no terminal is."""
    return subprocess.run(
        [*prefix, FAIRLEAD, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment(**environ),
        timeout=40,
    )


def told(folder: Path, *arguments: str, code: int = 0, **more: str) -> str:
    """Run the command in the shop, insist on its exit code, and return what it printed."""
    answer = run(folder, *arguments, **APP | more)
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in answer.stderr
    return answer.stdout


def objects(folder: Path, *arguments: str, code: int = 0, **more: str) -> list[dict[str, Any]]:
    """Run the command with --json; returns what each line holds."""
    text = told(folder, *arguments, "--json", code=code, **more)
    return [json.loads(line) for line in text.splitlines()]


def refused(folder: Path, *arguments: str, code: int = 2, **more: str) -> str:
    """Run the command, insist that it is refused in one sentence, and return that."""
    answer = run(folder, *arguments, **more)
    assert answer.returncode == code, answer.stderr
    assert answer.stdout == ""
    assert "Traceback" not in answer.stderr
    lines = [line for line in answer.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, answer.stderr
    return lines[0].removeprefix("Error: ")


class Terminal:
    """A command that runs on a terminal of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", handle: int) -> None:
        self.process = process
        self.text = ""
        self._handle = handle
        self._decode = codecs.getincrementaldecoder("utf-8")().decode

    def until(self, text: str, times: int = 1) -> str:
        """Read until the text has come so often; returns all that was read."""
        while self.text.count(text) < times:
            assert self._read(), f"{text!r} is not in {self.text!r}"
        return self.text

    def type(self, text: str) -> None:
        """Press keys; \x03 is Ctrl-C."""
        os.write(self._handle, text.encode())

    def end(self) -> int:
        """Read the rest, and return the exit code."""
        while self._read():
            pass
        return self.process.wait(20)

    def _read(self) -> bool:
        with suppress(OSError):  # So a terminal tells that nobody has it open any more.
            if read := os.read(self._handle, 65536):
                self.text += self._decode(read)
                return True
        return False


@contextmanager
def terminal(
    folder: Path, *arguments: str, columns: int = 80, lines: int = 24, **environ: str
) -> Iterator[Terminal]:
    """Run the command in the shop, on a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        [FAIRLEAD, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env=environment(**APP | environ),
        # The terminal must be its own for Ctrl-C to reach it.
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
        process.wait(20)


@contextmanager
def started(folder: Path, *arguments: str, **environ: str) -> Iterator["subprocess.Popen[str]"]:
    """Run the command in the shop, with its output to be read as it comes."""
    process = subprocess.Popen(
        [FAIRLEAD, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment(**APP | environ),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Read lines until one has the text; returns all of them."""
    assert process.stdout is not None
    lines = ""
    for line in process.stdout:
        lines += line
        if text in line:
            return lines
    raise AssertionError(f"{text!r} is not in {lines!r}")


def with_store(folder: Path, work: Callable[[Store], Awaitable[Value]]) -> Value:
    """Do something with the shop's store in this process."""

    async def use() -> Value:
        store = store_for(f"sqlite:///{folder}/jobs.db")
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(use())


def state_of(folder: Path, job_id: JobId) -> str | None:
    """Return the state of a job, or None if it is gone."""
    record = with_store(folder, lambda store: store.admin.find(job_id))
    return record.state if record else None


def audit_lines(folder: Path) -> list[tuple[str, str, int]]:
    """Return the audit log, newest first: what, to which jobs, how many; without the stock's line."""
    lines = with_store(folder, lambda store: store.admin.audit_log(100))
    return [(line.verb, line.target, line.count) for line in lines if line.verb != "stock"]


class Stock(NamedTuple):
    """A job in every state. `bad` and `worse` are dead letters; `later` is delayed."""

    done: JobId
    bad: JobId
    worse: JobId
    cancelled: JobId
    running: JobId
    waiting: JobId
    later: JobId


def listed(stock: Stock) -> list[JobId]:
    """The stock as a list shows it."""
    waiting = [stock.waiting, stock.later]
    return [*waiting, stock.running, stock.worse, stock.bad, stock.cancelled, stock.done]


def greeting(name: str, **options: Any) -> NewJob:
    """Return a job of the task `greet` in the queue `mail`."""
    options.setdefault("options", json.dumps({"tags": [name, "post"]}))
    return NewJob(new_id(), "greet", "mail", json.dumps({"name": name}), **options)


async def stocked(store: Store) -> Stock:
    """Put a job of every state into the store."""
    done = greeting("done")
    await _ended(store, done, Done('"hello done"'))
    bad = greeting("bad")
    await _ended(store, bad, _broken("ValueError", "no such name: bad"))
    worse = NewJob(new_id(), "add", "reports", '{"a":1,"b":"two"}')
    await _ended(store, worse, _broken("KeyError", "'two'"))
    cancelled = greeting("cancelled")
    await store.put([cancelled])
    await deeds.cancel(store, [cancelled.id], Reason.CANCELLED, by("stock"))
    running = greeting("running")
    await store.put([running])
    assert len(await claim(store, Queue("mail"), worker="w1/1", lease=3600)) == 1
    waiting, later = greeting("waiting"), greeting("later", delay=3_600_000_000)
    await store.put([waiting, later])
    return Stock(done.id, bad.id, worse.id, cancelled.id, running.id, waiting.id, later.id)


def _broken(error: str, message: str) -> Outcome:
    return Failed(described(error, message))


async def _ended(store: Store, job: NewJob, outcome: Outcome) -> None:
    await store.put([job])
    [claimed] = await claim(store, Queue(job.queue), worker="w1/1")
    await store.settle([settled(claimed, outcome, policy=POLICY)])


async def many_dead(store: Store, count: int) -> list[JobId]:
    """Put so many dead letters into the queue `default`; returns their ids."""
    jobs = [replace(greeting("many"), queue="default") for _ in range(count)]
    await store.put(jobs)
    claimed = await claim(store, Queue("default"), slots=count)
    await store.settle(
        [settled(job, _broken("Oops", "it broke"), policy=POLICY) for job in claimed]
    )
    return [job.id for job in jobs]


def eventually(true: Callable[[], Value], seconds: float = 20) -> Value:
    """Ask until the answer is one; for what another process does in its own time."""
    until = time.monotonic() + seconds
    while not (answer := true()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
    return answer
