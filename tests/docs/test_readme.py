"""What the documents show is true."""

import html
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import fairlead

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
SHOP, *BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(command.removeprefix("$ "))
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


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fairlead as the README installs it, in an environment of its own; returns its commands."""
    folder = tmp_path_factory.mktemp("installed")
    # A pip of its own would take longer to install than all else; ours does the same there.
    venv.create(folder / "venv")
    commands = folder / "venv" / "bin"
    [[_, *install]] = [words for words in COMMANDS if words[0] == "pip"]
    pip = [sys.executable, "-m", "pip", "--python", commands / "python", "--quiet"]
    subprocess.run([*pip, *install], cwd=ROOT, check=True, timeout=300)
    return commands


@pytest.mark.timeout(300)
def test_every_command_of_the_readme_works_as_installed(tmp_path: Path, installed: Path) -> None:
    """In the order they are shown, on a folder with nothing but shop.py."""
    (tmp_path / "shop.py").write_text(SHOP)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FAIRLEAD")}
    said: dict[str, str] = {}
    job_id = ""
    enqueued = subprocess.run(
        [installed / "python", "-c", BLOCKS[0]], cwd=tmp_path, env=environment, check=True
    )
    assert enqueued.returncode == 0
    for words in COMMANDS:
        if words[0] != "fairlead":
            continue
        words = [job_id if word == "ID" else word for word in words[1:]]
        words += ["--drain"] if words[0] == "worker" else []
        run = subprocess.run(
            [installed / "fairlead", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert run.returncode == (4 if words[0] == "doctor" else 0), (words, run.stderr, run.stdout)
        said[words[0]] = run.stdout
        if words[0] == "enqueue":
            job_id = run.stdout.strip()
    assert job_id[:18] in said["jobs"]
    assert "no dead letter matches" in said["dead"]
    assert re.search(r"^mail +no worker +4 +\d", said["queues"], re.MULTILINE)
    assert "no live worker can run it" in said["explain"]
    assert "fairlead worker shop:app" in said["doctor"]  # A job waits, and nobody is there.


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
        for target in re.findall(r"\]\(([\w./]+)\)", (ROOT / name).read_text()):
            assert (ROOT / target).is_file(), target
    named = re.findall(
        r"`((?:core|stores|runtime|tests)/[a-z_/]+\.py)`", (ROOT / "ARCHITECTURE.md").read_text()
    )
    for path in named:
        assert (ROOT / "src/fairlead" / path).exists() or (ROOT / path).exists(), path
    assert named


def test_the_picture_of_the_demo_shows_what_the_demo_tells_today() -> None:
    picture = html.unescape((ROOT / "docs/demo.svg").read_text()).replace("\xa0", " ")
    story = (ROOT / "src/fairlead/demo/story.py").read_text()
    titles = re.findall(r'tell\.scene\(\s*"([^"]+)"', story)
    shown = [title for title in titles if title in picture]
    assert len(shown) == len(re.findall(r">\d</text>", picture)) == 4, shown


@pytest.mark.parametrize("name", [name for name in fairlead.__all__ if name != "__version__"])
def test_every_public_name_is_documented(name: str) -> None:
    assert getattr(fairlead, name).__doc__


def loaded_by(code: str) -> set[str]:
    told = subprocess.run(
        [sys.executable, "-c", f"{code}; import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return set(told.split())


def test_the_import_is_light() -> None:
    """Neither the event loop's helpers nor any driver load before they are needed."""
    assert "fairlead.app" not in loaded_by("import fairlead")
    loaded = loaded_by("from fairlead import Fairlead")
    assert not {"sqlite3", "multiprocessing", "click", "tomllib._parser2"} & loaded
