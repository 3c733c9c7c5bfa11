"""Tables for people: as wide as the terminal, no wider, and plain when nobody watches."""

import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from fairlead.log import escaped

_GAP = "  "
_NARROWEST = 6


class Column(NamedTuple):
    """One column: its title, its side, whether it gives way in a narrow terminal, its colours.

    `paint` gets a cell that is padded already, and may only add colours.
    """

    title: str
    right: bool = False
    gives_way: bool = False
    paint: Callable[[str], str] | None = None


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[str]:
    """Return the lines of a table that fits into `width`, or is as wide as it is.

    Where there is no room even for narrow columns, the last ones are left out.
    """
    cells = [[escaped(cell) for cell in row] for row in rows]
    natural = [
        max(len(column.title), *(cell_width(row[at]) for row in cells), 0)
        for at, column in enumerate(columns)
    ]
    widths = natural if width is None else _fitting(natural, columns, width)
    columns, cells = columns[: len(widths)], [row[: len(widths)] for row in cells]
    titles = _GAP.join(
        _fit(column.title, widths[at], right=column.right) for at, column in enumerate(columns)
    )
    return [click.style(titles.rstrip(), bold=True), *(_line(columns, widths, r) for r in cells)]


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str]) -> str:
    parts = []
    for column, width, cell in zip(columns, widths, row, strict=True):
        text = _fit(cell, width, right=column.right)
        parts.append(text if column.paint is None else column.paint(text))
    return _GAP.join(parts).rstrip()


def _fitting(natural: list[int], columns: Sequence[Column], width: int) -> list[int]:
    """Take from the widest column that gives way, until all fits; or leave out the last one."""
    widths = list(natural)
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width:
        able = [at for at, own in enumerate(widths) if columns[at].gives_way and own > _NARROWEST]
        if able:
            widths[max(able, key=lambda at: widths[at])] -= 1
        elif len(widths) > 1:
            widths = natural[: len(widths) - 1]
        else:
            break
    return widths


def _fit(text: str, width: int, *, right: bool) -> str:
    text = cropped(text, width)
    space = " " * (width - cell_width(text))
    return space + text if right else text + space


def cropped(text: str, width: int) -> str:
    """Return the text, or as much of it as fits, with a mark where it was cut."""
    if cell_width(text) <= width:
        return text
    kept, room = "", width - 1
    for char in text:
        room -= cell_width(char)
        if room < 0:
            break
        kept += char
    return kept + "…"


def cell_width(text: str) -> int:
    """Return how many cells of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def screen_width() -> int | None:
    """Return the terminal's width, or None when the output goes elsewhere and may be as wide."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
