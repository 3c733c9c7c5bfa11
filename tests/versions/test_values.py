"""What processes say to each other, and what they keep as text, with fields that only one of them knows.

A supervisor outlives an upgrade of the program on disk, and the processes that it starts then are
newer ones. So they are programs of two versions, too.
"""

import mmap
import os
import socket
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from fairlead.core.answers import answer_in, mark_of, with_answer
from fairlead.core.events import LogStyle
from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import (
    Attempt,
    Job,
    JobOptions,
    PastAttempt,
    decode_errors,
    decode_options,
    encode_options,
)
from fairlead.core.outcome import (
    Ambiguous,
    Cancelled,
    Committed,
    Crashed,
    Done,
    Failed,
    Lost,
    Outcome,
    Returned,
    Snoozed,
)
from fairlead.core.retry import exponential, fixed, linear
from fairlead.runtime import board as boards
from fairlead.runtime import child, group, messages, solo
from fairlead.runtime.board import HELD, RUNNING, THREAD, Board
from fairlead.runtime.child import Child
from fairlead.runtime.frames import Frames, frame
from fairlead.runtime.process import first_word
from fairlead.runtime.takeover import Unclear
from fairlead.runtime.workshop import Choice, Terms
from fairlead.stores.news import WORK, News
from fairlead.stores.postgres.wake import Listener
from fairlead.stores.redis.wake import heard, told_of
from tests.words import new_id

ID = new_id()
JOB = Job(ID, "t", 1, "mail", "{}", '{"tags":["a"]}', 1, 0, 5, 1, 2, None, 3, 4, "w1", True, 2)
FAILED = Failed(described("Oops", "it broke"), after=3.0)
OUTCOMES: list[Outcome] = [
    *(Done("1"), FAILED, Snoozed(1.0), Cancelled("no"), Lost(), Crashed("SIGKILL"), Returned()),
    *(Ambiguous("who knows", FAILED, "done"), Committed(FAILED, "none")),
]
TO_PROCESS: list[messages.ToProcess] = [
    messages.Begin("w/1", Terms(lease=3.0), Choice(("p",), {"mail": 4}, 7), LogStyle("debug")),
    messages.Stop(0.5),
    messages.Lost(((ID, 5),)),
    messages.Cancel(((ID, 5),)),
    messages.Inherit(Unclear(JOB, FAILED, "p", 9)),
]
TO_SUPERVISOR: list[messages.ToSupervisor] = [
    *(messages.Ready(), messages.Outdated("too old"), messages.Leaving()),
    *(messages.Hired(7), messages.Gone(7)),
]
TO_GROUP: list[group.Message] = [
    [solo.Order(1, JOB, "p", (1, 2.0))],
    solo.Recall(),
    *(group.CallOff(1, outcome) for outcome in OUTCOMES if not isinstance(outcome, Committed)),
]
WORDS = [
    solo.Word(1, outcome, 0.5, starts=2, recalled=(3,), thread=4) for outcome in (*OUTCOMES, None)
]


def grown(value: object) -> object:
    """Return a value as a newer program sends it: every struct in it has a field more."""
    if isinstance(value, list | tuple):
        return [grown(each) for each in value]
    if isinstance(value, dict):
        return {key: grown(each) for key, each in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    config = value.__struct_config__
    fields = {name: grown(getattr(value, name)) for name in value.__struct_fields__}
    if config.array_like:
        return [*fields.values(), {"new": 1}]
    tagged = {config.tag_field: config.tag} if config.tag_field is not None else {}
    return {"before": [1], **tagged, **fields, "new": {"a": None}}


SPOKEN = [
    *((messages.ToProcess, each) for each in TO_PROCESS),
    *((messages.ToSupervisor, each) for each in TO_SUPERVISOR),
    *((group.Message, each) for each in TO_GROUP),
    *((list[solo.Order] | solo.Recall, each) for each in TO_GROUP[:2]),
    *((solo.Word, each) for each in WORDS),
]


def test_every_message_is_among_them() -> None:
    for kind, said in (
        (messages.ToProcess, TO_PROCESS),
        (messages.ToSupervisor, TO_SUPERVISOR),
        (Outcome, OUTCOMES),
    ):
        assert {type(each) for each in said} == set(get_args(kind))
    kinds = {type(each) for each in TO_GROUP} - {list}
    assert kinds == set(get_args(group.Message)) - {list[solo.Order]}


@pytest.mark.parametrize(
    ("kind", "value"),
    SPOKEN,
    ids=[f"{type(value).__name__}-{n}" for n, (_, value) in enumerate(SPOKEN)],
)
def test_a_message_with_fields_that_nobody_knows_is_heard(kind: Any, value: object) -> None:
    frames: Frames[Any] = Frames(kind)
    assert list(frames.feed(frame(grown(value)))) == [value]


READERS = [messages.ToProcess, messages.ToSupervisor, group.Message]
READERS += [list[solo.Order] | solo.Recall, solo.Word]
"""What each reader of messages knows: a process and its supervisor, a group, a solo, who has those."""


@pytest.mark.parametrize("kind", READERS, ids=str)
def test_a_message_of_a_kind_that_nobody_knows_is_passed_over(kind: Any) -> None:
    frames: Frames[Any] = Frames(kind)
    [known, *_] = [value for each, value in SPOKEN if each == kind]
    new = [{"type": "Pause"}, {"until": 3, "type": "Pause"}, {"type": 7, "runs": [[1]]}]
    said = b"".join(frame(each) for each in (new[0], known, *new, known, new[0]))
    assert list(frames.feed(said)) == [known, known]


@pytest.fixture
def newer_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Child, socket.socket]]:
    """A process as its supervisor sees it, and the other end of its socket."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    spawned = SimpleNamespace(socket=ours, pid=7)
    monkeypatch.setattr(child, "Spawned", lambda *_: spawned)
    begin = TO_PROCESS[0]
    assert isinstance(begin, messages.Begin)
    process = Child(begin, "shop:app", 4)
    yield process, theirs
    process.close()
    theirs.close()


def test_a_supervisor_hears_a_newer_process_to_the_end(
    newer_process: tuple[Child, socket.socket],
) -> None:
    process, theirs = newer_process
    for message in (messages.Ready(), {"type": "Resting", "until": 9.0}, messages.Hired(8)):
        theirs.sendall(frame(message))
    process.listen()
    assert process.ready
    assert process.groups == {7, 8}


def test_a_process_begins_whatever_a_newer_supervisor_says_before() -> None:
    theirs, ours = socket.socketpair()
    with theirs, ours:
        theirs.sendall(frame({"type": "Greeting"}) + frame(TO_PROCESS[0]))
        assert first_word(ours) == TO_PROCESS[0]


# The board


@pytest.fixture
def newer_board() -> Iterator[mmap.mmap]:
    """A board of four places, as a newer supervisor makes it: header and records are longer."""
    header, record = boards._HEADER.size + 24, boards._RECORD.size + 16
    memory = mmap.mmap(-1, header + 4 * record)
    boards._LENGTHS.pack_into(memory, boards._LENGTHS_AT, header, record)
    for at in _beyond(memory):
        memory[at] = 0x77
    yield memory
    memory.close()


def _beyond(memory: mmap.mmap) -> list[int]:
    """Where a newer program's fields are, which this one does not know."""
    header, record = boards._HEADER.size + 24, boards._RECORD.size + 16
    places = [*range(boards._HEADER.size, header)]
    for first in range(header, len(memory), record):
        places += range(first + boards._RECORD.size, first + record)
    return places


def test_a_board_with_longer_records_is_used_as_it_is(newer_board: mmap.mmap) -> None:
    board = Board(newer_board)
    assert board.free == 4
    ids = [JobId(new_id()) for _ in range(4)]
    places = [board.hold(job_id, number, 7, 10.0) for number, job_id in enumerate(ids)]
    assert board.start(places[1], THREAD, 1_700, 15.0, 11.0, thread=99)
    board.prolong(places[1], 17.0)
    board.revoke(10.0)
    assert not board.send(places[2])
    board.beat(12.5, 1_000)
    marks = {mark.job_id: mark for mark in Board(newer_board).marks()}
    assert set(marks) == set(ids)
    assert {job_id for job_id, mark in marks.items() if mark.running} == {ids[1]}
    assert (marks[ids[1]].deadline, marks[ids[1]].thread) == (17.0, 99)
    assert (board.pulse, board.ended, board.revoked_at) == (12.5, 1_000, 10.0)
    for place in places:
        board.clear(place)
    assert list(board.marks()) == []
    assert {newer_board[at] for at in _beyond(newer_board)} == {0x77}


def test_the_places_of_the_fields_are_for_good() -> None:
    """A supervisor of this version reads what a process of a later one writes, and the reverse."""
    board, handle = Board.shared(1)
    board.beat(1.5, 3)
    board.spare(2.5)
    place = board.hold(ID, 42, 7, 10.0)
    memory = board._memory
    first, length = boards._LENGTHS.unpack_from(memory, 49)
    assert (first, length) == (53, 88)
    assert boards._TIME.unpack_from(memory, 0) == (1.5,)
    assert boards._TIME.unpack_from(memory, 8) == (2.5,)
    assert boards._COUNT.unpack_from(memory, 16) == (3,)
    assert memory[first] == HELD
    assert memory[first + 52 : first + 88] == ID.encode()
    board.start(place, THREAD, 1_700, 15.0, 11.0)
    assert (memory[first], memory[first + 1]) == (RUNNING, THREAD)
    board.close()
    os.close(handle)


# Texts


@pytest.mark.parametrize("backoff", [exponential(1, 2, 30), linear(2, 9), fixed(3), None])
def test_options_with_more_keys_are_read(backoff: Any) -> None:
    options = JobOptions(timeout=3.0, attempts=2, backoff=backoff, tags=("a",), headers={"a": "b"})
    text = encode_options(options)
    assert text is not None
    more = msgspec.json.encode(grown(msgspec.json.decode(text, type=JobOptions))).decode()
    assert decode_options(more) == options


def test_a_history_with_more_keys_is_read() -> None:
    past = PastAttempt(1, "failed", "w1", 1, 2, 3, "Oops", "it broke", None, "f")
    assert decode_errors(msgspec.json.encode(grown([past])).decode()) == (past,)


def test_a_line_of_the_attempt_log_with_more_fields_is_read() -> None:
    line = Attempt(ID, 1, 1, "t", "mail", "p", "w1", 1, 2, 3, 4, "done", None)
    assert msgspec.json.decode(msgspec.json.encode(grown(line)), type=Attempt) == line


def test_an_answer_is_found_among_whatever_newer_programs_write_beside_it() -> None:
    mark, other = mark_of("cancel", "a"), mark_of("cancel", "b")
    answers = with_answer(f"!new:{{}};{other}:1.+what", mark, ["x", "y"], ["y"])
    answers = with_answer(answers + "+what", other[::-1], ["x"], ["x"])
    assert answer_in(answers, mark, ["x", "y"]) == ["y"]
    assert answer_in(answers, other, ["x", "y"]) == ["x"]
    assert "!new:{}" in answers


def test_news_that_say_more_are_heard() -> None:
    assert heard(told_of(WORK, "mail")) == (WORK, "mail")
    assert heard(f"{told_of(WORK, 'mail')}\nnew 5") == (WORK, "mail")
    assert heard(WORK) == (WORK, "")


async def test_notices_that_say_more_are_heard() -> None:
    said: list[tuple[int, Sequence[str]]] = []

    async def tell(_word: str) -> None: ...

    address: Any = SimpleNamespace(listen=None)
    listener = Listener(address, News(), lambda at, queues: said.append((at, queues)), tell)
    for payload in ("work/mail/pdf 7", "work/mail 7 new 5", "work 7 new", "work", "new 7"):
        listener._take(payload)
    assert said == [(7, ["mail", "pdf"]), (7, ["mail"]), (7, [])]
