"""A build: a folder with its source, and processes that measure it."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).parent.parent.parent
MEASURE = Path(__file__).with_name("measure.py")


class Build(NamedTuple):
    """One of the two, with the folder that has its package."""

    name: str
    source: Path


class Took(NamedTuple):
    """How long a slice took, and how much of that this process computed."""

    seconds: float
    cpu: float


class Unable(Exception):
    """A build cannot do what is to be measured; says why."""

    def __init__(self, build: Build, what: str, why: str) -> None:
        super().__init__(f"the {build.name} build cannot run {what}: {why}")
        self.build = build


def working_tree(folder: Path) -> Build:
    """Copy the source as it is now, so that nobody who edits it disturbs the measurement."""
    source = folder / "n"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src" / "fairlead", source / "fairlead", ignore=ignored)
    return Build("new", source)


class NoSource(Exception):
    """Git does not have the source of a commit; says why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"git has no source at {name!r}: {why}")


def take_out(name: str, folder: Path) -> None:
    """Take the source of a commit out of git."""
    command = ["git", "archive", f"{name}:src"]
    try:
        packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    except OSError as problem:
        raise NoSource(name, str(problem)) from problem
    if packed.returncode:
        raise NoSource(name, packed.stderr.decode().strip())
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder, filter="data")


def commit(name: str, folder: Path) -> Build:
    """Take the source of a commit out of git, for who named it on the command line."""
    source = folder / "b"
    try:
        take_out(name, source)
    except NoSource as problem:
        told = f"{problem}; name a commit, as in make bench-compare BASE=HEAD~1"
        raise SystemExit(told) from None
    return Build("base", source)


def described(name: str) -> str:
    """Return a commit's short number and subject."""
    command = ["git", "log", "-1", "--format=%h, %s", name]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return told.stdout.strip()


class Process:
    """A process in which one build works on one store, as long as the block lasts."""

    def __init__(self, build: Build, url: str, *options: str) -> None:
        self._build = build
        # The order of sets must not differ from process to process; it costs or saves per cent.
        environment = {**os.environ, "PYTHONPATH": str(build.source), "PYTHONHASHSEED": "0"}
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(MEASURE), url, *options],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def __enter__(self) -> Self:
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()
        self._said.close()

    def took(self, row: str, jobs: int) -> Took:
        """Measure a row once."""
        self.step(row, jobs, "prepare")
        answer = self.step(row, jobs, "run")
        self.step(row, jobs, "clean")
        return Took(answer["seconds"], answer["cpu"])

    def step(self, row: str, jobs: int, step: str) -> Any:
        """Carry out one step of a row."""
        assert self._process.stdin is not None
        request = json.dumps({"row": row, "jobs": jobs, "step": step})
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise Unable(self._build, "it", answer["error"])
        return answer

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._said.seek(0)
            last = (self._said.read().strip().splitlines() or ["it ended without a word"])[-1]
            raise Unable(self._build, "at all", last)
        return json.loads(line)
