"""Tables and live views: as wide as the terminal, in cells and not in characters."""

import re
import signal
from pathlib import Path

import click
import pytest

from fairlead.cli.table import Column, cell_width, cropped, table
from fairlead.core.job import NewJob
from tests.cli.shop import Stock, many_dead, run, started, terminal, told, with_store
from tests.words import new_id

COLUMNS = (Column("NAME", least=6), Column("COUNT", right=True, goes=1), Column("WHY", goes=2))


def plain(lines: list[str]) -> list[str]:
    return [click.unstyle(line) for line in lines]


# Tables


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    rows = [("a", "1", "because"), ("bcdef", "1,234,567", "")]
    assert plain(table(COLUMNS, rows)) == [
        "NAME       COUNT  WHY",
        "a              1  because",
        "bcdef  1,234,567",
    ]


def test_a_table_may_have_no_rows() -> None:
    assert plain(table(COLUMNS, [], 80)) == ["NAME  COUNT  WHY"]


def test_a_wide_column_gives_way_and_shows_where_it_was_cut() -> None:
    rows = [("a name that is long", "1", "because")]
    assert plain(table(COLUMNS, rows, 26)) == [
        "NAME        COUNT  WHY",
        "a name th…      1  because",
    ]


def test_where_there_is_no_room_the_last_columns_are_left_out() -> None:
    rows = [("a name that is long", "1", "because")]
    assert plain(table(COLUMNS, rows, 20)) == ["NAME           COUNT", "a name that …      1"]
    assert plain(table(COLUMNS, rows, 3)) == ["NAME", "a nam…"]


def test_wide_characters_take_two_cells_and_accents_none() -> None:
    assert [cell_width(text) for text in ("abc", "漢字", "é", "e\u0301")] == [3, 4, 1, 1]
    lines = plain(table(COLUMNS, [("漢字", "1", "x"), ("abcd", "2", "y"), ("e\u0301", "3", "z")]))
    assert {cell_width(line) for line in lines[1:]} == {14}
    assert cropped("漢字漢字", 5) == "漢字…"
    assert cropped("漢字漢字", 6) == "漢字…"
    assert cell_width(cropped("漢字漢字", 6)) <= 6


def test_no_character_carries_marks_without_end() -> None:
    """They take no cells, so a line of them was as long as whoever wrote it liked."""
    lines = table(COLUMNS, [("a" + "\u0301" * 4_000 + "b\u0301", "1", "x" + "\u0301" * 4_000)], 40)
    assert max(map(len, lines)) < 100
    assert cropped("a" + "\u0301" * 9 + "b", 2) == "a" + "\u0301" * 8 + "b"


def test_what_would_steer_the_terminal_is_escaped_before_it_is_measured() -> None:
    [_, line] = plain(table(COLUMNS, [("\x1b[31m\n\r\u202e", "1", "x")]))
    assert "\x1b" not in line
    assert not re.search(r"[\n\r\u202e]", line)
    assert line.endswith("      1  x")


def test_paint_changes_no_widths() -> None:
    columns = (Column("STATE", paint=lambda cell: click.style(cell, fg="red")), Column("X"))
    painted = table(columns, [("dead", "1"), ("cancelled", "2")])
    assert "\x1b[31mdead     \x1b[0m  1" in painted
    assert plain(painted)[1:] == ["dead       1", "cancelled  2"]


# On a terminal


@pytest.fixture
def crowd(folder: Path, stock: Stock) -> None:
    long = NewJob(new_id(), "a.task.with.a.name.that.is.long", "a-queue-with-a-long-name", "{}")
    wide = NewJob(new_id(), "greet", "mail", '{"name":"漢字"}')
    with_store(folder, lambda store: store.put([long, wide]))


@pytest.mark.usefixtures("crowd")
def test_nothing_is_wider_than_the_terminal(folder: Path) -> None:
    for arguments in (
        ["jobs", "list"],
        ["dead", "list", "--by-error"],
        ["queues", "list"],
        ["tasks", "list"],
    ):
        with terminal(folder, *arguments, columns=80) as screen:
            assert screen.end() == 0, screen.text
        lines = click.unstyle(screen.text).split("\r\n")
        assert len(lines) > 3
        assert max(map(cell_width, lines)) <= 80, screen.text


@pytest.mark.usefixtures("crowd")
def test_nothing_is_cut_where_no_terminal_is(folder: Path) -> None:
    text = told(folder, "jobs", "list")
    assert "a.task.with.a.name.that.is.long" in text
    assert "exhausted: ValueError: no such name: bad" in text


def test_colours_are_for_terminals_that_want_them(folder: Path, stock: Stock) -> None:
    with terminal(folder, "jobs", "list", "--state", "dead") as screen:
        assert screen.end() == 0
    assert "\x1b[31mdead \x1b[0m" in screen.text
    with terminal(folder, "jobs", "list", "--state", "dead", NO_COLOR="1") as screen:
        assert screen.end() == 0
    assert "dead" in screen.text
    assert "\x1b" not in screen.text
    assert "\x1b" not in told(folder, "jobs", "list")


# Live views


def test_a_live_view_is_drawn_in_place_until_ctrl_c(folder: Path, stock: Stock) -> None:
    with terminal(folder, "queues", "list", "--watch", "--every", "0.1") as screen:
        screen.until("no worker", times=10)
        with_store(folder, lambda store: many_dead(store, 42))
        screen.until("  42")
        screen.type("\x03")
        assert screen.end() == 0
    assert screen.text.count("\x1b[5A\r") >= 2
    assert "Traceback" not in screen.text
    assert "Aborted" not in screen.text
    assert screen.text.index("\x1b[?25l") < screen.text.index("\x1b[?25h")


def test_a_live_view_is_no_longer_than_the_terminal(folder: Path, stock: Stock) -> None:
    with terminal(folder, "jobs", "list", "--watch", "--every", "0.1", lines=5) as screen:
        screen.until("\x1b[4A\r")
        screen.type("\x03")
        assert screen.end() == 0
    assert screen.text.count(stock.later[:18]) >= 1
    assert stock.done[:18] not in screen.text


def test_without_a_terminal_a_live_view_is_printed_again(folder: Path, stock: Stock) -> None:
    """And so it is for programs, as lines of JSON."""
    options = ("--json", "--watch", "--every", "0.1", "--state", "done")
    with started(folder, "jobs", "list", *options) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert all(line.startswith(f'{{"id":"{stock.done}"') for line in lines)


@pytest.mark.parametrize("seconds", ["0", "9999", "often"])
def test_a_pace_that_cannot_be_is_refused(folder: Path, seconds: str) -> None:
    answer = run(folder, "jobs", "list", "--watch", "--every", seconds)
    assert answer.returncode == 2
    assert "Invalid value for '--every'" in answer.stderr
