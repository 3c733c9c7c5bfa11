"""Pictures in a terminal: drawn in place, cut to fit, and absent where nobody watches."""

import os
import shutil

import click
import pytest

from fairlead.cli.screen import Screen

UP_TWO, HIDE, SHOW = "\x1b[2A", "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A screen that takes its output for a terminal of 20 columns and 4 lines."""
    # pytest -v asks as well, before the patch is undone.
    monkeypatch.setattr(
        shutil, "get_terminal_size", lambda fallback=None: os.terminal_size((20, 4))
    )
    screen = Screen()
    screen.live = True
    return screen


def test_a_picture_is_drawn_over_the_last_one_and_below_what_is_told(
    terminal: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.draw(["one", "two"])
    assert UP_TWO not in capsys.readouterr().out
    terminal.draw(["three", "four"])
    assert capsys.readouterr().out.startswith(HIDE + UP_TWO)
    terminal.tell("told")
    told = capsys.readouterr().out
    assert told.startswith(UP_TWO)
    assert told.endswith("told\n")
    terminal.draw(["five"])
    assert UP_TWO not in capsys.readouterr().out
    terminal.close()
    assert capsys.readouterr().out == SHOW


def test_a_picture_fits_into_the_terminal(
    terminal: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal.draw(["x" * 20, "a line that is far too long", "z"])
    drawn = click.unstyle(capsys.readouterr().out)
    assert drawn.strip().splitlines() == ["x" * 20, "a line that is far", "    too long"]


def test_without_colours_the_cursor_still_moves(
    terminal: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    with click.Context(click.Command("demo"), color=False):
        terminal.draw([click.style("one", fg="red"), "two"])
        terminal.draw(["three", "four"])
    drawn = capsys.readouterr().out
    assert "\x1b[31m" not in drawn
    assert UP_TWO in drawn


def test_nothing_is_drawn_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.draw(["one"])
    screen.tell("told")
    screen.close()
    assert capsys.readouterr().out == "told\n"


def test_a_terminal_that_cannot_move_its_cursor_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert Screen().live
    monkeypatch.setenv("TERM", "dumb")
    assert not Screen().live
