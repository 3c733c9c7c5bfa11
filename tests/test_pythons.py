"""Which Pythons `make pythons` finds, and what it makes of those that it cannot use."""

from pathlib import Path

import pytest

from tests import pythons
from tests.pythons import Ended, Python, found, named, places


def interpreter(folder: Path, name: str, script: str) -> Path:
    """Make a program that answers as a Python would."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_pyenvs_versions_are_looked_through_beside_the_path(tmp_path: Path) -> None:
    (tmp_path / "pyenv" / "versions" / "3.12.1" / "bin").mkdir(parents=True)
    inside = tmp_path / "pyenv" / "versions" / "3.12.1" / "bin"
    environment = {"PATH": "/usr/bin:/opt", "HOME": str(tmp_path)}
    assert list(places(environment | {"PYENV_ROOT": str(tmp_path / "pyenv")})) == [
        *(Path("/usr/bin"), Path("/opt"), inside)
    ]
    (tmp_path / "pyenv").rename(tmp_path / ".pyenv")
    assert list(places(environment))[2:] == [tmp_path / ".pyenv/versions/3.12.1/bin"]


def test_of_each_python_the_newest_is_taken_and_no_older_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    interpreter(one, "python3.9", "echo 3 9 1")
    interpreter(one, "python3.12", "echo 3 12 1")
    newer = interpreter(two, "python3.12", "echo 3 12 10")
    newest = interpreter(two, "python3.14", "echo 3 14 0")
    interpreter(two, "python3.13-config", "echo 3 13 0")
    pythons, wrong = found([one, tmp_path / "none", two], (3, 11))
    assert pythons == [Python((3, 12, 10), newer), Python((3, 14, 0), newest)]
    assert wrong == []


def test_a_python_that_does_not_run_is_told_and_pyenvs_names_are_not(tmp_path: Path) -> None:
    broken = interpreter(tmp_path, "python3.12", "echo no module named sqlite3 >&2; exit 1")
    interpreter(tmp_path, "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    assert found([tmp_path], (3, 11)) == ([], [f"{broken}: no module named sqlite3"])


@pytest.mark.parametrize(
    ("minor", "fails"), [(named()[-1], True), ("3.99", False)], ids=["named", "newer"]
)
def test_a_python_without_our_packages_fails_only_if_the_project_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minor: str, fails: bool
) -> None:
    monkeypatch.setattr(pythons, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        (Path(__file__).parent.parent / "pyproject.toml").read_text()
    )
    path = interpreter(tmp_path, f"python{minor}", "echo no wheels >&2; exit 1")
    version = tuple(map(int, minor.split(".")))
    ended = pythons.try_on(Python((*version, 0), path), jobs=1)
    assert ended == Ended(Python((*version, 0), path), "could not run: no wheels", fails)
