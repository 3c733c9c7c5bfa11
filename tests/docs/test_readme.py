"""What the documents show is true."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fairlead

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
SHOP, *BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    command.split()[1:]
    for block in re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    for command in block.splitlines()
]


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "FAIRLEAD_URL"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("count", [1, len(BLOCKS)], ids=["the first block", "all blocks"])
def test_the_code_in_the_readme_runs_as_printed(tmp_path: Path, count: int) -> None:
    """Each `print(…)  # text` prints its text."""
    code = "\n".join(BLOCKS[:count])
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "program.py").write_text(code)
    run = python(tmp_path, "-W", "error", "program.py")
    assert run.stderr == ""
    assert run.stdout.split("\n")[:-1] == re.findall(r"print\(.*\)  # (.*)", code)
    assert run.stdout


def test_the_worker_of_the_readme_runs_the_jobs(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    assert python(tmp_path, "-c", BLOCKS[0]).returncode == 0
    (command,) = [words for words in COMMANDS if words[0] == "fairlead"]

    run = python(tmp_path, "-m", *command, "--drain")

    assert run.returncode == 0
    assert "jobs.db (durable" in run.stderr
    asked = "import shop; print(shop.app.bridge.run(shop.app.store.count()))"
    assert "DONE: 'done'>: 1" in python(tmp_path, "-c", asked).stdout


def test_the_first_code_comes_early_and_the_readme_is_short() -> None:
    lines = README.splitlines()
    assert lines.index("```python") < 40
    assert len(lines) <= 120
    assert len(README.split()) <= 700


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        named = set(re.findall(r"(?:\$ |`)make ([a-z]+)", (ROOT / name).read_text()))
        assert named <= targets, name


def test_bare_make_prints_its_targets() -> None:
    listing = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for target in ("test", "bench", "powercut", "clean"):
        assert re.search(rf"^  {target} +\w", listing, re.MULTILINE), listing


def test_every_file_that_is_named_exists() -> None:
    for name in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([A-Z]+\.md)\)", (ROOT / name).read_text()):
            assert (ROOT / target).is_file()
    named = re.findall(
        r"`((?:core|stores|runtime|tests)/[a-z_/]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text()
    )
    for path in named:
        assert (ROOT / "src/fairlead" / path).exists() or (ROOT / path).exists(), path
    assert named


@pytest.mark.parametrize("name", [name for name in fairlead.__all__ if name != "__version__"])
def test_every_public_name_is_documented(name: str) -> None:
    assert getattr(fairlead, name).__doc__


def test_the_import_is_light() -> None:
    """Neither the event loop's helpers nor any driver load before they are needed."""
    code = "import sys, fairlead; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"sqlite3", "multiprocessing", "click", "tomllib._parser2"} & set(loaded)
