"""`fairlead demo` through its real entry point: with a terminal, without one, stopped, failing."""

import codecs
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead.cli.demo import _plainly

FAIRLEAD = str(Path(sys.executable).parent / "fairlead")
BREAK_A_CHECK = """
from fairlead.demo import checks


def shares(*_):
    raise checks.Unexpected("the shares are wrong")


checks.shares = shares
"""
BREAK_THE_WORKER = """
from fairlead.demo import stage

stage.SLOTS = "none"
"""
RUN = "\nfrom fairlead.cli.main import main\nmain()"


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Have the temporary folder made in this one; whatever the demo starts carries its name."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD", "NO_COLOR"))}
    path = f"{Path(FAIRLEAD).parent}{os.pathsep}{clean['PATH']}"
    return clean | {"TMPDIR": str(folder), "TERM": "xterm", "PATH": path} | more


def processes(folder: Path) -> list[int]:
    """Return the processes that carry the folder's name, whoever their parent is now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if f"TMPDIR={folder}\0".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def test_the_demo_shows_everything_in_plain_lines_and_leaves_nothing(tmp_path: Path) -> None:
    answer = subprocess.run(
        [FAIRLEAD, "demo"],
        capture_output=True,
        env=environment(tmp_path),
        cwd=tmp_path,
        check=False,
    )
    told = answer.stdout.decode()
    assert (answer.returncode, answer.stderr) == (0, b""), told
    for words in (
        "Queues share the slots by weight",
        "✓ all 630 jobs are done",
        "attempt 4  done",
        "$ fairlead dead show ",
        "$ fairlead dead edit ",
        "$ fairlead dead replay ",
        '✓ done: "order 1042: 19.90 EUR"',
        "$ kill -9 ",
        "✓ all 8 videos are done",
        "key refund-977",
        "✓ a dead letter, uncertain",
        "wait p99",
        "All as it should be, in ",
        "Try next",
    ):
        assert words in told
    assert "\x1b" not in told
    assert "░" not in told
    assert list(tmp_path.iterdir()) == []
    assert processes(tmp_path) == []


def on_a_terminal(folder: Path, columns: int, lines: int, **more: str) -> tuple[int, str]:
    """Run the demo on a terminal of its own; returns its exit code and all it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        [FAIRLEAD, "demo"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(folder, **more),
        cwd=folder,
    )
    os.close(theirs)
    written = b""
    with suppress(OSError):  # So a terminal tells that nobody has it open any more.
        while read := os.read(ours, 65536):
            written += read
    os.close(ours)
    return process.wait(10), written.decode()


def test_on_a_terminal_bars_move_in_place(tmp_path: Path) -> None:
    code, written = on_a_terminal(tmp_path, 80, 24)
    assert code == 0, written
    assert len(re.findall(r"\x1b\[3A\r   mail .*░", written)) > 5
    assert len(re.findall(r"\x1b\[8A\r   video 1 ", written)) > 5
    assert "\x1b[32m" in written
    assert written.count("\x1b[?25h") == 1
    told = re.sub(r"\x1b\[[?0-9;]*[a-zA-Z]", "", written)
    assert max(map(len, told.split("\r\n"))) <= 80
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_stops_the_demo_finds_nothing_left(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [FAIRLEAD, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(tmp_path),
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "Queues share" in line:
            break
    assert len(processes(tmp_path)) >= 4, "the demo, a supervisor and two processes"
    process.send_signal(number)
    told = process.stdout.read()
    process.stdout.close()
    assert process.wait(20) == 130
    assert told.endswith("Stopped; nothing is left behind.\n")
    assert processes(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def failing(folder: Path, code: str, *options: str) -> tuple[str, str]:
    """Run a demo that cannot end well; returns what it wrote, and what of that were errors."""
    answer = subprocess.run(
        [sys.executable, "-c", code + RUN, "demo", *options],
        capture_output=True,
        text=True,
        env=environment(folder),
        check=False,
    )
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert "All as it should be" not in answer.stdout
    assert processes(folder) == []
    return answer.stdout, answer.stderr


def test_a_check_that_fails_fails_the_demo_with_the_workers_last_words(tmp_path: Path) -> None:
    _, told = failing(tmp_path, BREAK_A_CHECK)
    assert "This should not have happened: the shares are wrong" in told
    assert '"event": "Finished"' in told
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_does_not_start_is_quoted_and_the_folder_kept_on_request(
    tmp_path: Path,
) -> None:
    shown, told = failing(tmp_path, BREAK_THE_WORKER, "--keep")
    assert "the worker ended before its processes were ready" in told
    assert "Invalid value for '--slots'" in told
    (folder,) = tmp_path.iterdir()
    assert f"Everything is kept in {folder}" in shown
    assert f"FAIRLEAD_URL=sqlite:///{folder}/jobs.db" in shown


def test_help_has_an_example() -> None:
    answer = subprocess.run(
        [FAIRLEAD, "demo", "--help"], capture_output=True, text=True, check=True
    )
    assert "Example: fairlead demo --keep" in answer.stdout


def test_a_terminal_without_our_signs_gets_others() -> None:
    codecs.register_error("plainly", _plainly)
    assert "✓ █▓░ ☃".encode("ascii", "plainly") == b"* #=. ?"
