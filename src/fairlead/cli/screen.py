"""Lines drawn again and again in one place of a terminal."""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

import click
from click.globals import resolve_color_default

from fairlead.cli.command import say
from fairlead.cli.table import cell_width, cropped
from fairlead.core.text import steady

_UP, _CLEAR_LINE, _CLEAR = "\x1b[{}A", "\x1b[K", "\x1b[J"
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"


class Screen:
    """A picture at the bottom of the terminal, with told lines above it.

    Where no terminal is, or one that cannot move its cursor, told lines are
    printed and the picture is not.
    """

    def __init__(self) -> None:
        self.live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = 0

    def tell(self, *lines: str) -> None:
        """Print lines that stay, above the picture."""
        if self._drawn:
            self._write(self._start() + _CLEAR)
        self._drawn = 0
        for line in lines:
            say(line)

    def draw(self, picture: Sequence[str]) -> None:
        """Draw the picture in place of the last one, as much of it as the terminal has room for."""
        if not self.live:
            return
        width, height = shutil.get_terminal_size()
        lines = [part for line in picture for part in _folded(steady(line), width)][: height - 1]
        if resolve_color_default() is False:
            lines = [click.unstyle(line) for line in lines]
        # Line over line in one write: to clear everything first would flicker.
        text = "".join(f"{line}{_CLEAR_LINE}\n" for line in lines)
        self._write(_HIDE + self._start() + text + _CLEAR)
        self._drawn = len(lines)

    def close(self) -> None:
        """Leave the last picture where it is, and give the cursor back."""
        self._drawn = 0
        if self.live:
            self._write(_SHOW)

    def _start(self) -> str:
        """Return what moves the cursor to the first line of the picture."""
        return (_UP.format(self._drawn) if self._drawn else "") + "\r"

    def _write(self, text: str) -> None:
        # Without colours, too, the cursor must move.
        click.echo(text, nl=False, color=True)


def _folded(line: str, width: int) -> list[str]:
    """Let a line that is too long go on in the next; its colours go then."""
    plain = click.unstyle(line)
    if cell_width(plain) <= width:
        return [line]
    return textwrap.wrap(plain, width - 1, subsequent_indent="    ") or [line]


def crop(line: str, width: int) -> str:
    """Cut a line that would wrap; colours are not counted, and go when it must be cut."""
    plain = click.unstyle(line)
    fits = cropped(plain, width)
    return line if fits == plain else fits
