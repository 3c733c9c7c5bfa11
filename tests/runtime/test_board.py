"""The board: what a process has in hand, readable from outside, whatever becomes of it."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core.ids import JobId
from fairlead.runtime import board as module
from fairlead.runtime.board import ASYNC, NEVER, THREAD, UNCLEAR, Board, Mark

JOB = JobId("01890000-0000-7000-8000-000000000001")


def test_a_held_job_has_not_started() -> None:
    board = Board.private(3)
    board.hold(JOB, 42, 7, 10.0)
    assert list(board.marks()) == [Mark(False, 0, 7, 42, 0, NEVER, 10.0, 0.0, 0, JOB)]
    assert board.free == 2


def test_a_started_job_says_where_since_when_and_until_when() -> None:
    board = Board.private(3)
    place = board.hold(JOB, 42, 7, 10.0)
    board.start(place, THREAD, 1_700, 15.0, 11.0, thread=99)
    assert list(board.marks()) == [Mark(True, THREAD, 7, 42, 1_700, 15.0, 10.0, 11.0, 99, JOB)]


def test_a_run_that_ended_has_no_deadline_but_keeps_its_lease() -> None:
    board = Board.private(3)
    place = board.hold(JOB, 42, 7, 10.0)
    board.start(place, ASYNC, 1_700, 15.0, 11.0)
    board.end(place)
    [mark] = board.marks()
    assert (mark.running, mark.deadline, mark.started_at) == (True, NEVER, 1_700)


def test_a_run_that_is_asked_about_is_unclear() -> None:
    board = Board.private(3)
    place = board.hold(JOB, 42, 7, 10.0)
    board.start(place, ASYNC, 1_700, 15.0, 11.0)
    board.ask(place, 99.0)
    [mark] = board.marks()
    assert (mark.kind, mark.running) == (UNCLEAR, True)


def test_a_cleared_place_is_free_for_the_next() -> None:
    board = Board.private(1)
    place = board.hold(JOB, 42, 7, 10.0)
    board.start(place, ASYNC, 1_700, 15.0, 11.0)
    board.clear(place)
    assert (list(board.marks()), board.free) == ([], 1)
    board.hold(JOB, 43, 7, 12.0)
    [mark] = board.marks()
    assert (mark.running, mark.fence, mark.started_at, mark.deadline) == (False, 43, 0, NEVER)


def test_a_full_board_says_so() -> None:
    board = Board.private(2)
    for fence in (1, 2):
        board.hold(JOB, fence, 0, 0.0)
    assert board.free == 0
    with pytest.raises(IndexError):
        board.hold(JOB, 3, 0, 0.0)
    assert sorted(mark.fence for mark in board.marks()) == [1, 2]


def test_pulse_ended_and_spare_do_not_touch_each_other() -> None:
    board = Board.private(1)
    board.beat(12.5, 1_000)
    board.spare(99.0)
    assert (board.pulse, board.ended, board.spare_until) == (12.5, 1_000, 99.0)


def test_another_process_writes_and_we_read_even_after_it_died() -> None:
    board, handle = Board.shared(4)
    board.spare(77.0)
    code = (
        "import os, signal, sys\n"
        "from fairlead.runtime.board import Board, ASYNC\n"
        "board = Board.opened(int(sys.argv[1]))\n"
        "assert board.free == 4 and board.spare_until == 77.0\n"
        f"place = board.hold('{JOB}', 5, 1, 2.0)\n"
        f"board.hold('{JOB}', 6, 1, 2.0)\n"
        "board.start(place, ASYNC, 3, 4.0, 2.5)\n"
        "board.beat(8.0, 9)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    died = subprocess.run([sys.executable, "-c", code, str(handle)], pass_fds=[handle], check=False)
    os.close(handle)
    assert died.returncode == -9
    assert {(mark.fence, mark.running) for mark in board.marks()} == {(5, True), (6, False)}
    assert (board.pulse, board.ended) == (8.0, 9)
    board.close()


def test_without_memfd_a_file_nobody_can_see_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    board, handle = Board.shared(2)
    board.hold(JOB, 1, 0, 0.0)
    other = Board.opened(handle)
    assert [mark.fence for mark in other.marks()] == [1]
    for each in (board, other):
        each.close()
    os.close(handle)


@given(junk=st.binary(min_size=1, max_size=400), at=st.integers(0, 300))
def test_whatever_is_on_the_board_reading_it_does_not_raise(junk: bytes, at: int) -> None:
    board = Board.private(4)
    end = min(at + len(junk), len(board._memory))
    board._memory[at:end] = junk[: end - at]
    for mark in board.marks():
        assert isinstance(mark.job_id, str)
    assert isinstance(board.pulse + board.spare_until + board.ended, float)


@pytest.mark.parametrize("byte", [1, 2, 0x80, 0xFF])
def test_a_board_full_of_one_byte_can_be_read(byte: int) -> None:
    board = Board.private(4)
    board._memory[:] = bytes([byte]) * len(board._memory)
    assert len(list(board.marks())) == 4


def test_the_state_is_written_last() -> None:
    """A reader sees a whole record or none, whenever it looks."""
    board = Board.private(1)
    seen: list[int] = []

    class Watched(bytearray):
        def __setitem__(self, at: object, value: object) -> None:
            super().__setitem__(at, value)  # type: ignore[index,call-overload]
            if at == module._HEADER.size:
                seen.append(bytes(self).count(JOB.encode()))

    board._memory = Watched(board._memory[:])  # type: ignore[assignment]
    place = board.hold(JOB, 42, 7, 10.0)
    assert (seen, board._memory[module._HEADER.size]) == ([1], module.HELD)
    board.start(place, ASYNC, 1, 2.0, 3.0)
    assert board._memory[module._HEADER.size] == module.RUNNING
