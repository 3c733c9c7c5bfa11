"""The program of the version before this one, built from the history.

`previous_version.txt` names its commit. It is not installed: its source goes before ours on the
path, and it uses the libraries that are there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, Self

from fairlead.core.ids import JobId
from fairlead.stores.postgres import catalog
from tests.compare.build import NoSource, take_out
from tests.needs import without
from tests.system.tree import COMMAND, Shop, Tree

FILE = Path(__file__).with_name("previous_version.txt")
SECONDS = 60


class Functions(NamedTuple):
    """Which functions and views a program brings to PostgreSQL, as one of another version sees it."""

    revision: int
    functions: str
    views: str

    @classmethod
    def of_today(cls) -> Self:
        return cls(catalog.REVISION, catalog.functions_digest(), catalog.views_digest())

    def may_follow(self, before: "Functions") -> bool:
        """Say whether they replace those of the version before, and never the other way round."""
        return self.revision > before.revision or self == before


class Previous:
    """A program of another version, in a folder."""

    def __init__(self, name: str, source: Path) -> None:
        self.name = name
        self.path = str(source)

    def migrate(self, url: str, folder: Path) -> None:
        """Let it bring a store up to date, as an administrator does."""
        self._run(folder, "-c", COMMAND, "migrate", "up", "--url", url)

    def put(self, shop: Shop, **tasks: tuple[int, float]) -> dict[str, list[JobId]]:
        """Let it enqueue so many jobs of each task, with so many seconds."""
        told = self._run(shop.folder, "shop.py", json.dumps(tasks), SHOP_URL=shop.url)
        found: dict[str, list[JobId]] = json.loads(told)
        for ids in found.values():
            shop.accepted += ids
        return found

    def start(self, shop: Shop, *options: str) -> Tree:
        """Start a worker of it."""
        return shop.start(*options, PYTHONPATH=self.path)

    def file_of(self, module: str, folder: Path) -> str:
        """Say where it has a module from."""
        told = self._run(folder, "-c", f"import {module}; print({module}.__file__)")
        return told.strip()

    def functions(self, folder: Path) -> Functions:
        """Say which functions it brings to PostgreSQL."""
        code = (
            "from fairlead.stores.postgres.catalog import *\n"
            "print(REVISION, functions_digest(), views_digest())"
        )
        revision, functions, views = self._run(folder, "-c", code).split()
        return Functions(int(revision), functions, views)

    def _run(self, folder: Path, *words: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=os.environ | {"SHOP": str(folder), "PYTHONPATH": self.path} | env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


def build(folder: Path, name: str = "") -> Previous:
    """Build the program that the file names; where there is no history, end the test."""
    name = name or FILE.read_text().strip()
    try:
        take_out(name, folder)
    except NoSource as problem:
        without(
            f"the program of the version before cannot be built, because {problem}; it takes a "
            "clone with the whole history (git fetch --unshallow)"
        )
    return Previous(name, folder)
