import msgspec
import pytest

from fairlead.core.events import LogStyle
from fairlead.runtime.frames import Frames, frame
from fairlead.runtime.messages import Begin, Lost, Stop, ToProcess
from fairlead.runtime.workshop import Choice, Terms

MESSAGES: list[ToProcess] = [
    Begin(
        "w/1",
        Terms(),
        Choice(("p",), {"mail": 4, "reports": None}, 7),
        LogStyle("debug", "json", quiet=True, messages=False),
    ),
    Lost((("job-1", 2**62), ("job-2", 1))),  # type: ignore[arg-type]
    Lost(()),
    Stop(0.5),
]
WIRE = b"".join(map(frame, MESSAGES))


def frames() -> "Frames[ToProcess]":
    return Frames(ToProcess)  # type: ignore[arg-type]


@pytest.mark.parametrize("at", range(len(WIRE) + 1))
def test_values_arrive_whole_wherever_the_bytes_are_cut(at: int) -> None:
    ours = frames()
    assert [*ours.feed(WIRE[:at]), *ours.feed(WIRE[at:])] == MESSAGES


def test_values_arrive_byte_by_byte() -> None:
    ours = frames()
    assert [value for byte in WIRE for value in ours.feed(bytes([byte]))] == MESSAGES


def test_nothing_comes_of_nothing() -> None:
    assert list(frames().feed(b"")) == []


def test_a_value_of_the_wrong_kind_is_refused_and_the_next_still_arrives() -> None:
    ours = frames()
    with pytest.raises(msgspec.ValidationError):
        list(ours.feed(frame({"type": "Stop", "grace": "soon"}) + frame(Stop(1.0))))
    assert list(ours.feed(b"")) == [Stop(1.0)]


@pytest.mark.parametrize("value", [{"grace": 1.0}, {"type": None}, [1], "Stop", 7])
def test_what_does_not_say_its_kind_is_refused(value: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        list(frames().feed(frame(value)))
