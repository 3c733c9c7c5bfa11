"""Tables for people: as wide as the terminal, no wider, and plain when nobody watches."""

import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from fairlead.core.text import QUOTED, escaped

_GAP = "  "
_WIDEST = 40
_MARKS = 8
"""How many accents and other marks one character may carry; no script needs more."""


class Column(NamedTuple):
    """One column: its title, its side, its colours, and what becomes of it in a narrow terminal.

    `paint` gets a cell that is padded already, and may only add colours. With `least`,
    the column gives way down to so many cells; without, it is cut only where it would be
    wider than an id. If that is not enough, columns with `goes` are left out, the highest
    number first. Even where no terminal is, a cell has at most `most` cells, so many as the
    longest name; sentences may have more.
    """

    title: str
    right: bool = False
    paint: Callable[[str], str] | None = None
    least: int | None = None
    goes: int = 0
    most: int = QUOTED


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[str]:
    """Return the lines of a table that fits into `width`, or is as wide as it is."""
    cells = [
        [cropped(escaped(cell), column.most) for column, cell in zip(columns, row, strict=True)]
        for row in rows
    ]
    widths = [
        max(len(column.title), *(cell_width(row[at]) for row in cells), 0)
        for at, column in enumerate(columns)
    ]
    if width is not None:
        widths = [
            wide if column.least else min(wide, _WIDEST)
            for column, wide in zip(columns, widths, strict=True)
        ]
        kept = _kept(columns, widths, width)
        columns = [columns[at] for at in kept]
        widths = [widths[at] for at in kept]
        cells = [[row[at] for at in kept] for row in cells]
        _shrink(widths, columns, width)
    titles = _GAP.join(
        _fit(column.title, widths[at], right=column.right) for at, column in enumerate(columns)
    )
    return [click.style(titles.rstrip(), bold=True), *(_line(columns, widths, r) for r in cells)]


def _kept(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Return which columns stay, so that all fit if each that can gives way."""
    kept = list(range(len(columns)))

    def least() -> int:
        return _whole([min(widths[at], columns[at].least or widths[at]) for at in kept])

    while least() > width and any(columns[at].goes for at in kept):
        kept.remove(max(kept, key=lambda at: columns[at].goes))
    return kept


def _whole(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _line(columns: Sequence[Column], widths: Sequence[int], row: Sequence[str]) -> str:
    parts = []
    for column, width, cell in zip(columns, widths, row, strict=True):
        text = _fit(cell, width, right=column.right)
        parts.append(text if column.paint is None else column.paint(text))
    return _GAP.join(parts).rstrip()


def _shrink(widths: list[int], columns: Sequence[Column], width: int) -> None:
    """Take from the widest column that gives way, until all fits or nobody can give more."""
    while _whole(widths) > width:
        able = [
            at
            for at, column in enumerate(columns)
            if column.least is not None and widths[at] > column.least
        ]
        if not able:
            return
        widths[max(able, key=lambda at: widths[at])] -= 1


def _fit(text: str, width: int, *, right: bool) -> str:
    text = cropped(text, width)
    space = " " * (width - cell_width(text))
    return space + text if right else text + space


def cropped(text: str, width: int) -> str:
    """Return the text, or as much of it as fits, with a mark where it was cut."""
    text = text if text.isascii() else _with_few_marks(text)
    if cell_width(text) <= width:
        return text
    kept, room = "", width - 1
    for char in text:
        room -= cell_width(char)
        if room < 0:
            break
        kept += char
    return kept + "…"


def _with_few_marks(text: str) -> str:
    """Leave out marks in excess: they take no cells, and could fill the screen all the same."""
    kept, marks = [], 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks <= _MARKS:
            kept.append(char)
    return "".join(kept)


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
