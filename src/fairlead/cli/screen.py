"""Lines drawn again and again in one place of a terminal."""

import shutil
import sys
from collections.abc import Sequence

import click

from fairlead.cli.table import cropped

_UP, _CLEAR = "\x1b[{}A", "\x1b[J"
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"


class Screen:
    """A picture at the bottom of the terminal, with told lines above it.

    Where no terminal is, told lines are printed and the picture is not.
    """

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._drawn = 0

    def tell(self, *lines: str) -> None:
        """Print lines that stay, above the picture."""
        self._wipe()
        for line in lines:
            click.echo(line)

    def draw(self, picture: Sequence[str]) -> None:
        """Draw the picture in place of the last one."""
        if not self.live:
            return
        self._wipe()
        width, height = shutil.get_terminal_size()
        # What has scrolled away cannot be drawn over.
        visible = picture[: height - 1]
        click.echo(_HIDE, nl=False)
        for line in visible:
            click.echo(_crop(line, width))
        self._drawn = len(visible)

    def close(self) -> None:
        """Leave the last picture where it is, and give the cursor back."""
        self._drawn = 0
        if self.live:
            click.echo(_SHOW, nl=False)

    def _wipe(self) -> None:
        if self._drawn:
            click.echo(_UP.format(self._drawn) + "\r" + _CLEAR, nl=False)
        self._drawn = 0


def _crop(line: str, width: int) -> str:
    """Cut a line that would wrap; colours are not counted, and go when it must be cut."""
    plain = click.unstyle(line)
    fits = cropped(plain, width)
    return line if fits == plain else fits
