"""Worker trees as real processes, and what must hold whatever happened to them."""

import importlib.util
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Self, TypeVar

import pytest

from fairlead import Fairlead, State
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt, JobRecord

Value = TypeVar("Value")
COMMAND = "from fairlead.cli.main import main; main()"

LIGHT = ("--pool", "loop", "--pool", "thread")
ALL_POOLS = (*LIGHT, "--pool", "process")
"""Options for trees with handlers in processes of their own.

The others do without: two more processes that load the app are almost half of what a tree costs.
"""

on_every_store = pytest.mark.parametrize("shop", ["sqlite", "postgres", "redis"], indirect=True)
"""Runs a test with a shop on each store."""


def in_short(argument: str, values: Sequence[Any], *on_servers: Any) -> pytest.MarkDecorator:
    """Run a test with all values of an argument on SQLite, and with some of them on the servers."""
    cases = [("sqlite", value) for value in values]
    cases += [(server, value) for server in ("postgres", "redis") for value in on_servers]
    return pytest.mark.parametrize(("shop", argument), cases, indirect=["shop"])


def until(condition: Callable[[], Value], seconds: float = 20.0, what: str = "") -> Value:
    """Wait for something to be true, and return it."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds:g} s: {what or condition}"
        time.sleep(0.02)


def send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


# Processes


def _parents() -> dict[int, int]:
    """Return the parent of every process that runs; one that nobody has buried yet does not."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    found[int(entry.name)] = int(parent)
    return found


def alive(pid: int) -> bool:
    return pid in _parents()


def children(pid: int) -> list[int]:
    return sorted(child for child, parent in _parents().items() if parent == pid)


def descendants(pid: int) -> list[int]:
    found = children(pid)
    for child in found:
        found.extend(children(child))
    return found


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Tree:
    """A worker: its supervisor, and through it the processes it started."""

    def __init__(
        self, folder: Path, number: int, options: Iterable[str], env: dict[str, str]
    ) -> None:
        self.path = folder / f"log-{number}"
        with self.path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, "worker", "shop:app", *options],
                cwd=folder,
                env=os.environ | {"SHOP": str(folder), "FAIRLEAD_LOOP": "asyncio"} | env,
                stderr=log,
                stdout=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def workers(self) -> list[int]:
        """The processes that claim and run jobs."""
        return [pid for pid in children(self.pid) if b"fairlead.cli.process" in command_of(pid)]

    @property
    def log(self) -> str:
        return self.path.read_text("utf-8", "replace")

    def until_log(self, words: str, seconds: float = 20.0) -> str:
        """Wait for a line with these words, and return it."""

        def find() -> str | None:
            return next((line for line in self.log.splitlines() if words in line), None)

        return until(find, seconds, f"{words!r} in the log") or ""

    def signal(self, number: int) -> None:
        send(self.pid, number)

    def signal_all(self, number: int) -> None:
        for pid in (self.pid, *descendants(self.pid)):
            send(pid, number)

    def kill(self) -> None:
        """Kill the whole tree, the supervisor first, so that nobody can tidy up."""
        self.signal_all(signal.SIGKILL)
        self.process.wait(10)

    def ended(self, seconds: float = 20.0) -> int:
        """Wait for it to end by itself; returns its exit code."""
        return self.process.wait(seconds)

    def stop(self, seconds: float = 20.0) -> int:
        """Ask it to stop, once it is able to listen; returns its exit code."""
        until(lambda: self.process.poll() is not None or self.workers, what="a worker")
        self.signal(signal.SIGTERM)
        return self.ended(seconds)


# Witnesses


class Line(NamedTuple):
    """What a handler told of itself."""

    what: str
    job: JobId
    fence: int
    attempt: int
    pid: int
    time: float
    detail: str


def _line(text: str) -> Line:
    what, job, fence, attempt, pid, at, detail = text.split(" ", 6)
    return Line(what, JobId(job), int(fence), int(attempt), int(pid), float(at), detail)


# Everything of one test


class Shop:
    """A folder with the app, its store, its trees, and every job that was accepted.

    When a test leaves it, all must be in order: `finish` says what that means.
    """

    source = Path(__file__).with_name("shop.py")
    """The app of its workers."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.accepted: list[JobId] = []
        self.waiting: set[JobId] = set()
        """Jobs that are expected to wait at the end."""
        self.doubled: set[JobId] = set()
        """Jobs whose runs may overlap, because the lease of the first has passed."""
        self.trees: list[Tree] = []
        self.url = url or f"sqlite:///{folder}/jobs.db"
        shutil.copy(self.source, folder / "shop.py")
        self.module = self._load()
        self.app: Fairlead = self.module.app
        self.app.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, problem: object, *_: object) -> None:
        try:
            if problem is None:
                self.finish()
        finally:
            self.close()
            self.app.close()

    def _load(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location("shop", self.folder / "shop.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        os.environ["SHOP_URL"] = self.url
        try:
            spec.loader.exec_module(module)
        finally:
            del os.environ["SHOP_URL"]
        return module

    @property
    def owner_url(self) -> str:
        """The URL by which one may do anything with the store."""
        return self.url

    # Doing

    def put(self, task: str, *args: Any, **using: Any) -> JobId:
        job = getattr(self.module, task).using(**using).enqueue(*args)
        self.accepted.append(job.id)
        return job.id  # type: ignore[no-any-return]

    def put_many(self, task: str, count: int, *args: Any, **using: Any) -> list[JobId]:
        bound = getattr(self.module, task).using(**using)
        calls = [bound.call(*args) for _ in range(count)]
        self.app.enqueue_many(calls)
        ids = [call.id for call in calls]
        self.accepted += ids
        return ids

    def start(self, *options: str, **env: str) -> Tree:
        """Start a worker, without the pool of processes unless the options name it."""
        if not {"--pool", "--queue"}.intersection(options):
            options = (*LIGHT, *options)
        env = {"SHOP_URL": self.url} | env
        tree = Tree(self.folder, len(self.trees) + 1, options, env)
        self.trees.append(tree)
        return tree

    def freeze(self, tree: Tree) -> None:
        """Stop a whole tree at a moment when others can write without it.

        A file has one lock for all who write. A process that is stopped with it keeps it.
        """
        for _ in range(200):
            tree.signal_all(signal.SIGSTOP)
            time.sleep(0.02)
            if self._nobody_writes():
                return
            tree.signal_all(signal.SIGCONT)
            time.sleep(0.01)
        raise AssertionError("somebody writes at every moment")

    def _nobody_writes(self) -> bool:
        if not self.url.startswith("sqlite"):
            return True
        with closing(sqlite3.connect(self.folder / "jobs.db", timeout=0.02)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            connection.rollback()
            return True

    # Looking

    def record(self, job_id: JobId) -> JobRecord:
        found = self.app.bridge.run(self.app.store.admin.find(job_id))
        assert found is not None, f"job {job_id} is lost"
        return found

    def attempts(self, job_id: JobId) -> list[Attempt]:
        return self.app.bridge.run(self.app.store.admin.attempts(job_id))

    def outcomes(self, job_id: JobId) -> list[str]:
        return [line.outcome for line in self.attempts(job_id)]

    def lines(self, job_id: JobId | None = None, what: str | None = None) -> list[Line]:
        path = self.folder / "witness"
        if not path.exists():
            return []
        text = path.read_text()
        lines = map(_line, text[: text.rfind("\n") + 1].splitlines())
        return [x for x in lines if job_id in (None, x.job) and what in (None, x.what)]

    def starts(self, job_id: JobId | None = None) -> list[Line]:
        return self.lines(job_id, "start")

    def states(self) -> dict[State, int]:
        found: dict[State, int] = defaultdict(int)
        for counts in self.app.bridge.run(self.app.store.admin.count()).values():
            for state, number in counts.items():
                found[state] += number
        return found

    def processes(self) -> list[int]:
        """Return every process that belongs to this test, whoever its parent is now."""
        mark = f"SHOP={self.folder}\0".encode()
        found = []
        for pid in _parents():
            with suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found

    # Waiting

    def until_started(self, job_id: JobId, count: int = 1, seconds: float = 20.0) -> Line:
        """Wait for the n-th start of a job."""
        return until(
            lambda: self.starts(job_id)[count - 1 : count], seconds, f"start {count} of {job_id}"
        )[0]

    def until_final(self, *job_ids: JobId, seconds: float = 30.0) -> None:
        """Wait for these jobs, or for all, to be done, dead or cancelled."""
        if job_ids:
            for job_id in job_ids:
                until(lambda: self.record(job_id).state.final, seconds, f"the end of {job_id}")
        else:

            def all_ended() -> bool:
                states = self.states()
                return not states[State.WAITING] and not states[State.RUNNING]

            until(all_ended, seconds, "the end of all jobs")

    def until_fired(self, seconds: float = 20.0) -> float:
        """Wait for the crash point to be passed; returns when it was."""
        path = self.folder / "fired"
        until(lambda: path.exists() and path.read_text(), seconds, "the crash point")
        return float(path.read_text())

    # The end

    def close(self) -> None:
        """End every process of this test, by force."""
        for pid in self.processes():
            send(pid, signal.SIGKILL)
        for tree in self.trees:
            tree.process.wait(10)
        for tree in self.trees:
            print(f"--- {tree.path.name}\n{tree.log[-20_000:]}")

    def finish(self) -> None:
        """Stop what still runs, and check what must hold after every test."""
        codes = {tree.pid: tree.stop(40) for tree in self.trees if tree.process.poll() is None}
        assert set(codes.values()) <= {0}, f"a worker did not end in peace: {codes}"
        until(lambda: not self.processes(), what="the end of all processes")
        self.check()

    def check(self) -> None:
        """Nothing lost, nothing settled twice, no two runs at once, all marks agree."""
        assert self.app.bridge.run(self.app.store.admin.audit()) == []
        runs = defaultdict(list)
        for line in self.lines():
            runs[line.job].append(line)
        for job_id in self.accepted:
            record = self.record(job_id)
            assert record.state.final != (job_id in self.waiting), record
            assert record.state is not State.RUNNING, record
            self._check_log(record, self.attempts(job_id), runs[job_id])

    def _check_log(self, record: JobRecord, log: list[Attempt], lines: list[Line]) -> None:
        fences = [line.fence for line in log]
        assert fences == sorted(set(fences)), f"settled twice: {log}"
        assert "done" not in [line.outcome for line in log[:-1]], f"ran after its end: {log}"
        if record.state is State.DONE:
            assert log[-1].outcome == "done"
        pools = {queue: pool.name for pool in self.app.pools for queue in pool.queues}
        assert all(line.pool == pools[line.queue] for line in log), f"without its pool: {log}"
        started = [line.fence for line in lines if line.what == "start"]
        if record.id not in self.doubled:
            assert started == sorted(set(started)), f"fences do not grow: {lines}"
            assert overlaps(lines) == []
        assert len(started) <= len(log) or not record.state.final, f"{started}, but {log}"


def overlaps(lines: Collection[Line]) -> list[Line]:
    """Return what a run of one job told after a later run of it had started."""
    newest = 0
    late = []
    for line in sorted(lines, key=lambda line: line.time):
        newest = max(newest, line.fence)
        if line.fence < newest:
            late.append(line)
    return late
