"""Run the mutants of `tests/mutants.py`, in pieces that add up: `make mutants`.

A mutant that was killed is remembered in `.mutants.json` with a digest of its source file,
its change and its tests. As long as none of them changes it is not tried again, so a run
that was cut goes on where it stopped. Survivors are always tried again.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from tests.mutants import EXTRAS, MUTANTS, Mutant

ROOT = Path(__file__).parent.parent
SOURCE = "src/fairlead"
MEMORY = ROOT / ".mutants.json"
PATIENCE = 900
OF_WORKERS = ("tests/system", "tests/versions/test_workers.py")
LEFT_OVER = 3
"""The exit code that says: nothing is wrong so far, and some mutants were not tried yet."""


class Fate(StrEnum):
    """What became of a mutant; everything but the first is a fault."""

    KILLED = "killed"
    SURVIVED = "SURVIVED"
    UNFIT = "DOES NOT APPLY"
    FAILED = "COULD NOT BE TRIED"


class Trial(NamedTuple):
    """A mutant that was tried."""

    mutant: Mutant
    fate: Fate
    seconds: float = 0.0
    said: str = ""

    @property
    def by(self) -> str:
        """Which test noticed, for readers who wonder whether it was the right one."""
        found = re.search(r"^(?:FAILED|ERROR) \S+?::(\w+)", self.said, re.MULTILINE)
        return f", by {found[1]}" if found and self.fate is Fate.KILLED else ""


class Killed:
    """The memory of what was killed: by promise, the digest of all that it depends on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = threading.Lock()
        try:
            self._digests: dict[str, str] = json.loads(path.read_text())
        except (OSError, ValueError):
            self._digests = {}

    def __contains__(self, mutant: Mutant) -> bool:
        return self._digests.get(mutant.promise) == digest(mutant)

    def note(self, trial: Trial) -> None:
        """Write it down at once, so that nothing is lost if this run is cut."""
        with self._writing:
            self._digests.pop(trial.mutant.promise, None)
            if trial.fate is Fate.KILLED:
                self._digests[trial.mutant.promise] = digest(trial.mutant)
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self._digests, indent=1, sort_keys=True) + "\n")
            new.replace(self._path)


def digest(mutant: Mutant) -> str:
    """Sum up the change, the file that it changes, and the tests that it names."""
    summed = hashlib.sha256(repr((mutant, EXTRAS.get(mutant.file))).encode())
    for path in (ROOT / SOURCE / mutant.file, *_test_files(mutant)):
        summed.update(path.read_bytes() if path.exists() else b"missing")
    return summed.hexdigest()


def _test_files(mutant: Mutant) -> Iterator[Path]:
    path = ROOT / mutant.tests.partition("::")[0]
    yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def applies(mutant: Mutant) -> bool:
    """Whether the code that it changes stands in its file exactly once."""
    path = ROOT / SOURCE / mutant.file
    return path.exists() and path.read_text().count(mutant.code) == 1


# Which ones


def chosen(
    mutants: Sequence[Mutant], *, files: Sequence[str], only: str, since: str, part: str
) -> list[Mutant]:
    """Return the mutants that the options name, in the order of the list."""
    touched = _touched(since) if since else None
    named = [
        mutant
        for mutant in mutants
        if (not files or any(part in f"{SOURCE}/{mutant.file}" for part in files))
        and only.lower() in mutant.promise.lower()
        and (touched is None or touched & {f"{SOURCE}/{mutant.file}", *_test_names(mutant)})
    ]
    number, of = (int(figure) for figure in part.split("/"))
    if not 1 <= number <= of:
        raise SystemExit(f"--slice {part}: write 1/4 for the first of four slices")
    return named[number - 1 :: of]


def _touched(commit: str) -> set[str]:
    """Return the files that differ from a commit, new ones included."""
    changed = ["git", "diff", "--name-only", commit, "--"]
    new = ["git", "ls-files", "--others", "--exclude-standard"]
    found = set()
    for command in (changed, new):
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if told.returncode:
            raise SystemExit(f"git does not know {commit}: {told.stderr.strip()}")
        found |= set(told.stdout.splitlines())
    return found


def _test_names(mutant: Mutant) -> Iterator[str]:
    return (str(path.relative_to(ROOT)) for path in _test_files(mutant))


# One of them


def tried(mutant: Mutant) -> Trial:
    """Apply the mutant to a copy of the source, and see whether its tests notice."""
    if not applies(mutant):
        return Trial(mutant, Fate.UNFIT)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fairlead-mutant-") as folder:
        source = Path(folder) / "src" / "fairlead"
        shutil.copytree(ROOT / SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
        path = source / mutant.file
        text = path.read_text().replace(mutant.code, mutant.broken)
        path.write_text(text + EXTRAS.get(mutant.file, ""))
        code, said = _run_tests(mutant.tests, source.parent)
    fate = {0: Fate.SURVIVED, 1: Fate.KILLED}.get(code, Fate.FAILED)
    return Trial(mutant, fate, time.monotonic() - began, said)


def _run_tests(tests: str, source: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", tests]
    try:
        run = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return -1, f"its tests did not end within {PATIENCE} seconds"
    return run.returncode, run.stdout + run.stderr


# All of them


class Run:
    """Tries mutants, two at a time where they cannot disturb each other."""

    def __init__(self, killed: Killed, minutes: float, jobs: int) -> None:
        self._killed = killed
        self._end = time.monotonic() + minutes * 60
        self._jobs = jobs
        self._printing = threading.Lock()
        self._number = 0

    def trials(self, mutants: Sequence[Mutant]) -> list[Trial]:
        """Try them until time is up; those that came too late are not in the answer."""
        # Tests of whole workers look at the clock, and would suffer from company.
        alone = [mutant for mutant in mutants if mutant.tests.startswith(OF_WORKERS)]
        together = [mutant for mutant in mutants if mutant not in alone]
        found: list[Trial | None] = []
        for some, jobs in ((together, self._jobs), (alone, 1)):
            with ThreadPoolExecutor(jobs) as pool:
                found += pool.map(lambda mutant: self._try(mutant, len(mutants)), some)
        return [trial for trial in found if trial is not None]

    def _try(self, mutant: Mutant, of: int) -> Trial | None:
        if time.monotonic() > self._end:
            return None
        trial = tried(mutant)
        self._killed.note(trial)
        with self._printing:
            self._number += 1
            number = f"{self._number:>{len(str(of))}} of {of}"
            told = f"{trial.fate}  {mutant.promise}{trial.by}"
            print(f"{number}  {trial.seconds:5.0f} s  {told}", flush=True)
        return trial


def report(trials: Sequence[Trial], known: int, left: int) -> int:
    """Print what was found; returns the exit code."""
    faults = [trial for trial in trials if trial.fate is not Fate.KILLED]
    for mutant, fate, _, said in faults:
        print(f"\n{fate}: {mutant.promise}\n  {SOURCE}/{mutant.file}, {mutant.tests}")
        if fate is Fate.FAILED:
            print("  " + "\n  ".join(said.strip().splitlines()[-15:]))
    killed = len(trials) - len(faults)
    print(f"\n{killed} of {len(trials)} mutants killed, {known} more were killed before", end="")
    print(f"; {left} are left: run it again to go on" if left else "")
    return 1 if faults else LEFT_OVER if left else 0


def main() -> int:
    """Try the mutants that were asked for; returns 0 if all of them are killed."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--files", default="", help="parts of paths: 'sqlite core/job.py'")
    parser.add_argument("--only", default="", help="a part of the promise")
    parser.add_argument("--since", default="", help="files and tests changed since this commit")
    parser.add_argument("--slice", default="1/1", help="1/4 is every fourth, from the first on")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin none after so long")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--all", action="store_true", help="also those that were killed before")
    asked = parser.parse_args()
    killed = Killed(MEMORY)
    mutants = chosen(
        MUTANTS, files=asked.files.split(), only=asked.only, since=asked.since, part=asked.slice
    )
    new = [mutant for mutant in mutants if asked.all or mutant not in killed]
    trials = Run(killed, asked.minutes, asked.jobs).trials(new)
    return report(trials, known=len(mutants) - len(new), left=len(new) - len(trials))


if __name__ == "__main__":
    sys.exit(main())
