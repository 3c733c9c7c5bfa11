"""The fast suites on every Python of this machine: `make pythons`.

Looks for Pythons from the oldest that pyproject.toml allows: on the PATH, and among
pyenv's versions, which need not be on it. Of each 3.x the newest is taken, with a venv of its
own (`.venv-3.13`). A Python that pyproject.toml names must pass; a newer one is tried and told
of, for its packages may not be there yet.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SUITES = (
    *("core", "simulation", "stores", "versions", "face", "runtime", "insight", "cli"),
    "test_log.py",
)
NO_SERVERS = "not postgres and not redis and not cluster"
ASK = "import sqlite3, ssl, sys; print(*sys.version_info[:3])"


class Python(NamedTuple):
    """An interpreter that runs."""

    version: tuple[int, ...]
    path: Path

    @property
    def minor(self) -> str:
        """Its version as pyproject.toml names it."""
        return ".".join(map(str, self.version[:2]))


class Ended(NamedTuple):
    """How it went with one Python."""

    python: Python
    told: str
    failed: bool


def named() -> list[str]:
    """Return the versions that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    return [each.rpartition(" ")[2] for each in project["classifiers"] if each.startswith(prefix)]


def places(environment: dict[str, str]) -> Iterator[Path]:
    """Return where Pythons may be: the PATH, and each of pyenv's versions."""
    for folder in environment.get("PATH", "").split(os.pathsep):
        yield Path(folder)
    root = environment.get("PYENV_ROOT") or Path(environment.get("HOME", "/")) / ".pyenv"
    yield from sorted(Path(root).glob("versions/*/bin"))


def found(folders: Iterable[Path], oldest: tuple[int, ...]) -> tuple[list[Python], list[str]]:
    """Return the newest Python of each 3.x, oldest first, and what is wrong with others."""
    best: dict[tuple[int, ...], Python] = {}
    wrong: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")) if folder.is_dir() else ():
            name = re.fullmatch(r"python(3)\.(\d+)", path.name)
            if name is None or tuple(map(int, name.groups())) < oldest:
                continue
            asked = subprocess.run([path, "-c", ASK], capture_output=True, text=True, check=False)
            if asked.returncode:
                # pyenv puts a name on the PATH for every version, and runs those that are chosen.
                if "pyenv" not in asked.stderr:
                    wrong[str(path)] = _last(asked.stderr)
                continue
            python = Python(tuple(map(int, asked.stdout.split())), path)
            if python.version > best.get(python.version[:2], Python((), path)).version:
                best[python.version[:2]] = python
    return [best[key] for key in sorted(best)], [f"{path}: {why}" for path, why in wrong.items()]


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it fails"])[-1]


def try_on(python: Python, jobs: int) -> Ended:
    """Make the venv of a Python if need be, and run the fast suites there."""
    venv = ROOT / f".venv-{python.minor}"
    ready = venv / ".ready"
    project = ROOT / "pyproject.toml"
    if not ready.exists() or ready.stat().st_mtime < project.stat().st_mtime:
        print(f"==> setting up {venv.name} with {python.path}", flush=True)
        for command in (
            [python.path, "-m", "venv", "--clear", venv],
            [venv / "bin" / "pip", "install", "-q", "--disable-pip-version-check", "-e", ".[dev]"],
        ):
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                told = f"could not run: {_last(done.stderr)}"
                return Ended(python, told, failed=python.minor in named())
        ready.touch()
    print(f"==> pytest on Python {'.'.join(map(str, python.version))}", flush=True)
    suites = [f"tests/{suite}" for suite in SUITES]
    words = ["-q", "-n", str(jobs), "--dist", "worksteal", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [venv / "bin" / "python", "-m", "pytest", *words, "-k", NO_SERVERS, *suites],
        cwd=ROOT,
        env=os.environ | {"FAIRLEAD_STORES": "memory sqlite"},
        check=False,
    )
    told = "passed" if done.returncode == 0 else "failed"
    return Ended(python, told, failed=done.returncode != 0 and python.minor in named())


def main() -> None:
    """Try every Python that is found, and say which there were."""
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__)
    parser.add_argument("--only", default="", help="these alone, as in 3.12,3.13")
    parser.add_argument("--jobs", type=int, default=3, help="how many tests at a time")
    wanted = parser.parse_args()
    oldest = min(tuple(map(int, each.split("."))) for each in named())
    pythons, wrong = found(places(dict(os.environ)), oldest)
    if wanted.only:
        pythons = [python for python in pythons if python.minor in wanted.only.split(",")]
    ended = [try_on(python, wanted.jobs) for python in pythons]
    print()
    for python, told, _ in ended:
        beyond = "" if python.minor in named() else ", which pyproject.toml does not name"
        print(f"Python {'.'.join(map(str, python.version))}{beyond}: {told} ({python.path})")
    for each in wrong:
        print(f"could not run {each}")
    missing = [each for each in named() if each not in {python.minor for python in pythons}]
    if missing:
        print(f"not found on this machine: Python {', '.join(missing)}")
    sys.exit(any(failed for *_, failed in ended) or not ended)


if __name__ == "__main__":
    main()
