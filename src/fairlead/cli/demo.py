"""`fairlead demo`: a shop, a worker, and everything that goes wrong, in about 15 seconds."""

import codecs
import os
import shlex
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from fairlead.cli.command import Command, say
from fairlead.cli.screen import Screen, crop
from fairlead.cli.table import Column, cell_width, screen_width, table
from fairlead.core.errors import FairleadError
from fairlead.demo.teller import Bar

_INDENT = "   "
_BAR_CELLS = 24
_WIDEST = 90
_STOPPED = 128 + signal.SIGINT  # As shells tell it.


@click.command(cls=Command, epilog="Example: fairlead demo --keep")
@click.option("--keep", is_flag=True, help="Keep the folder, to look into it.")
def demo(keep: bool) -> None:
    """Watch a shop whose jobs fail in every way, and what becomes of them.

    A real worker with two processes runs on an SQLite file in a temporary folder,
    for about 15 seconds; nothing else is needed, and nothing is left behind. Every
    scene is checked against what the store kept: the exit code is 0 only if every
    job ended as it should.
    """
    began = time.monotonic()
    if hasattr(sys.stdout, "reconfigure"):
        codecs.register_error("fairlead.plain", _plainly)
        sys.stdout.reconfigure(errors="fairlead.plain")
    folder = Path(tempfile.mkdtemp(prefix="fairlead-demo-"))
    teller = ScreenTeller(Screen())
    code = 1
    try:
        with _any_stop_as_interrupt():
            code = _play(folder, teller)
    except KeyboardInterrupt:
        code = _STOPPED
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        teller.close()  # Last: the terminal may be gone.
    if code == _STOPPED:
        teller.say("Stopped." if keep else "Stopped; nothing is left behind.")
    if code == 0:
        say(f"\n{click.style('All as it should be', fg='green', bold=True)}, ", nl=False)
        say(f"in {time.monotonic() - began:.0f} s.")
        _what_next(folder if keep else None)
    elif keep:
        _how_to_look(folder)
    sys.exit(code)


_PLAINLY = {"█": "#", "▓": "=", "░": ".", "✓": "*", "…": "..."}


def _plainly(problem: UnicodeError) -> tuple[str, int]:
    """Write other signs on a terminal that does not have ours."""
    assert isinstance(problem, UnicodeEncodeError)
    signs = problem.object[problem.start : problem.end]
    return "".join(_PLAINLY.get(sign, "?") for sign in signs), problem.end


def _play(folder: Path, teller: "ScreenTeller") -> int:
    """Play the story to its end; returns the exit code. No process is left behind."""
    from fairlead.demo.stage import Stage, url_of  # noqa: PLC0415 (only this command needs it)

    os.environ["FAIRLEAD_URL"] = url_of(folder)  # The shop reads it when it is imported.
    from fairlead.demo import shop  # noqa: PLC0415
    from fairlead.demo.checks import Unexpected  # noqa: PLC0415
    from fairlead.demo.story import Story  # noqa: PLC0415

    stage = Stage(folder, shop.app, shop.TARGET)
    try:
        Story(stage, teller).play()
    except (Unexpected, FairleadError) as problem:
        teller.close()
        say(click.style(f"\nThis should not have happened: {problem}", fg="red"), err=True)
        say("The worker's last words:", err=True)
        for line in stage.last_words():
            say(f"  {line}", err=True)
        return 1
    finally:
        with _deaf():
            stage.close()
            shop.app.close()
    return 0


@contextmanager
def _any_stop_as_interrupt() -> Iterator[None]:
    """Have a closed terminal and a polite kill end us as Ctrl-C does: with everything tidied up."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _deaf() -> Iterator[None]:
    """Let nobody interrupt the tidying up; it takes a few seconds at most."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _what_next(kept: Path | None) -> None:
    program = _program()
    if kept is not None:
        _how_to_look(kept)
    else:
        say("\nTry next:")
        _rows(
            [
                (f"{program} demo --keep", "the same, and keep the folder to look into"),
                (f"{program} --help", "everything else it can do"),
                ("README.md", "a shop of your own, in 15 lines"),
            ]
        )


def _how_to_look(folder: Path) -> None:
    from fairlead.demo.stage import url_of  # noqa: PLC0415 (only this command needs it)

    program = _program()
    url = shlex.quote(url_of(folder))
    say(f"\nEverything is kept in {folder}; to look into it:")
    for line in (
        f"export FAIRLEAD_URL={url} FAIRLEAD_APP=fairlead.demo.shop:app",
        f"{program} jobs list",
        f"{program} dead list",
        f"rm -r {shlex.quote(str(folder))}    # when you have seen enough",
    ):
        say(f"{_INDENT}$ {line}")


def _rows(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(left) for left, _ in rows)
    for left, right in rows:
        say(f"{_INDENT}{click.style(left.ljust(width), bold=True)}  {right}")


def _program() -> str:
    """Return how a person calls this program from here."""
    if shutil.which("fairlead"):
        return "fairlead"
    beside = Path(sys.executable).parent / "fairlead"
    return os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside)


class ScreenTeller:
    """Tells the story on a terminal, or as plain lines where none is."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._number = 0
        self._width = min(screen_width() or _WIDEST, _WIDEST)

    def scene(self, title: str, watch: str) -> None:
        """Begin a scene with a heading."""
        self._number += 1
        number = click.style(f"{self._number}", fg="cyan", bold=True)
        heading = click.style(title, bold=True)
        self._screen.tell("", f"{number}  {heading}", *self._wrapped(watch), "")

    def say(self, text: str) -> None:
        """Tell a sentence or two."""
        self._screen.tell(*self._wrapped(text))

    def show(self, *lines: str) -> None:
        """Show lines as they are, cut where the terminal ends."""
        width = screen_width()
        told = [f"{_INDENT}{line}".rstrip() for line in lines]
        self._screen.tell(*(told if width is None else [crop(line, width) for line in told]))

    def table(
        self, titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()
    ) -> None:
        """Show a table."""
        columns = [Column(title, right=title in right) for title in titles]
        self.show(*table(columns, rows, self._width - len(_INDENT)))

    def typed(self, words: Sequence[str], answer: Sequence[str]) -> None:
        """Show a command and what it answered; what is too long goes on in the next line."""
        command = [f"$ fairlead {shlex.join(words)}"]
        if len(_INDENT + command[0]) > self._width:
            command = [f"$ fairlead {shlex.join(words[:-1])} \\", f"    {shlex.quote(words[-1])}"]
        self.show(*(click.style(line, bold=True) for line in command))
        for line in answer:
            margin = _INDENT + "  " + " " * (len(line) - len(line.lstrip()))
            more = margin + "    "
            told = textwrap.wrap(
                line.strip(), self._width, initial_indent=margin, subsequent_indent=more
            )
            self._screen.tell(*told)

    def proved(self, text: str) -> None:
        """Tell that a check held."""
        lines = self._wrapped(text, "✓ ")
        self._screen.tell(*(click.style(line, fg="green") for line in lines))

    def draw(self, bars: Sequence[Bar]) -> None:
        """Draw the bars."""
        names = max((cell_width(bar.name) for bar in bars), default=0)
        self._screen.draw(
            [f"{_INDENT}{bar.name.ljust(names)}  {_drawn(bar)}  {bar.text}" for bar in bars]
        )

    def close(self) -> None:
        """Give the cursor back."""
        self._screen.draw([])
        self._screen.close()

    def _wrapped(self, text: str, mark: str = "") -> list[str]:
        first, rest = _INDENT + mark, _INDENT + " " * len(mark)
        return textwrap.wrap(text, self._width, initial_indent=first, subsequent_indent=rest)


def _drawn(bar: Bar) -> str:
    """Return the bar as colours and shades, which say the same."""
    total = (bar.done + bar.running + bar.waiting) or 1
    done = round(_BAR_CELLS * bar.done / total)
    running = min(
        _BAR_CELLS - done,
        max(round(_BAR_CELLS * bar.running / total), bar.running > 0),
    )
    return (
        click.style("█" * done, fg="green")
        + click.style("▓" * running, fg="yellow")
        + click.style("░" * (_BAR_CELLS - done - running), dim=True)
    )
