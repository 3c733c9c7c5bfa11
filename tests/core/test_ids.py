import os
import threading
import uuid
from collections.abc import Iterator
from functools import reduce
from operator import and_, or_

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.core import ids
from fairlead.core.ids import SHORT, IdMaker, JobId, shortened

NOON = 1_700_000_000_000_000_000


class Clock:
    """Nanoseconds that stand still until they are set."""

    def __init__(self, now: int = NOON) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def no_bits() -> str:
    return "8000-00000000"


@pytest.fixture
def no_ends() -> Iterator[None]:
    """Nothing is left of what was made before, nor afterwards of what a test makes."""
    ids._ends.clear()
    yield
    ids._ends.clear()


@pytest.mark.usefixtures("no_ends")
@pytest.mark.parametrize("byte", [0x00, 0x3F, 0x40, 0x80, 0xC0, 0xFF])
def test_an_id_is_a_uuid7_whatever_the_random_bits(
    byte: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", lambda size: bytes([byte] * size))
    made = uuid.UUID(IdMaker()("mail"))

    assert made.version == 7
    assert made.variant == uuid.RFC_4122


def test_an_id_is_written_the_way_uuids_are_written() -> None:
    """Stores compare ids as text, so there is only one way to write one."""
    made = IdMaker()()

    assert made == str(uuid.UUID(made))


@given(st.integers(min_value=0, max_value=(1 << 48) * 1_000_000 - 1))
def test_an_id_begins_with_the_milliseconds_it_was_made_at(now_ns: int) -> None:
    made = uuid.UUID(IdMaker(now_ns=lambda: now_ns)())

    assert made.version == 7
    assert made.int >> 80 == now_ns // 1_000_000


def test_ids_sort_in_the_order_they_were_made() -> None:
    make = IdMaker()

    made = [make() for _ in range(20_000)]

    assert made == sorted(made)
    assert len(set(made)) == len(made)


@given(st.lists(st.integers(min_value=0, max_value=3_000_000), min_size=2, max_size=50))
def test_ids_sort_by_a_clock_finer_than_a_millisecond(steps: list[int]) -> None:
    clock = Clock()
    make = IdMaker(clock, random_end=no_bits)
    made = []
    for step in steps:
        clock.now += step
        made.append(make())

    assert made == sorted(set(made))


@given(st.lists(st.integers(min_value=-(10**12), max_value=10**12), min_size=2, max_size=50))
def test_a_clock_that_goes_back_neither_repeats_nor_disorders_ids(steps: list[int]) -> None:
    """Random bits would hide a repeated tick, so there are none here."""
    clock = Clock()
    make = IdMaker(clock, random_end=no_bits)
    made = []
    for step in steps:
        clock.now += step
        made.append(make())

    assert made == sorted(set(made))


def test_a_clock_that_stands_still_is_enough_for_many_milliseconds_of_ids() -> None:
    """More ids than the 4,096 fractions of one millisecond: the count runs over into the next."""
    make = IdMaker(Clock(), random_end=no_bits)

    made = [make() for _ in range(10_000)]

    assert made == sorted(set(made))
    assert all(uuid.UUID(one).version == 7 for one in made)


def test_ids_made_by_many_threads_are_unique() -> None:
    """One maker, a clock that stands still and no random bits: the worst case."""
    make = IdMaker(Clock(), random_end=no_bits)
    made: list[list[JobId]] = [[] for _ in range(8)]
    start = threading.Barrier(len(made))

    def work(mine: list[JobId]) -> None:
        start.wait()
        mine.extend(make("mail") for _ in range(5_000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert all(mine == sorted(mine) for mine in made)
    assert len({one for mine in made for one in mine}) == 8 * 5_000


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    """Parent and child share the maker's last tick, and here the time too: only the bits differ."""
    make = IdMaker(Clock())
    make()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            os.write(write, "\n".join(make() for _ in range(1_000)).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        theirs = pipe.read().split("\n")
    os.waitpid(child, 0)
    ours = [make() for _ in range(1_000)]

    assert len(theirs) == 1_000
    assert [one[:18] for one in ours] == [one[:18] for one in theirs]
    assert not set(ours) & set(theirs)


@pytest.mark.usefixtures("no_ends")
def test_the_random_bits_are_the_operating_system_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has seen ids of a process must not be able to foretell the next (T26)."""
    monkeypatch.setattr(os, "urandom", lambda size: b"\xab" * size)
    make = IdMaker()
    assert {make()[-17:] for _ in range(2_000)} == {"abab-abababababab"}


def test_random_bits_do_not_run_out() -> None:
    make = IdMaker()
    assert len({make()[-17:] for _ in range(2_000)}) == 2_000


def test_every_random_bit_is_both_set_and_not() -> None:
    make = IdMaker()
    made = [uuid.UUID(make()).int & (1 << 62) - 1 for _ in range(1_000)]
    assert reduce(or_, made) == (1 << 62) - 1
    assert reduce(and_, made) == 0


def test_ids_of_one_thread_are_told_apart_by_their_times() -> None:
    make = IdMaker()
    ids = [make("mail") for _ in range(1_000)]
    short = shortened(ids)
    assert {len(each) for each in short.values()} == {SHORT}
    assert all(each.startswith(short[each]) for each in ids)


def test_ids_of_the_same_moment_are_shown_as_long_as_it_takes() -> None:
    first = "01993e7c-5a52-7c43-9f0d-3a3e5f0b9c11"
    assert shortened([first]) == {first: "01993e7c-5a52-7c43"}
    second = "01993e7c-5a52-7c43-9f0e-3a3e5f0b9c11"
    assert shortened([first, second])[first] == "01993e7c-5a52-7c43-9f0d"
    third = "01993e7c-5a52-7c43-9f0d-3a3e5f0b9c12"
    assert shortened([first, second, third]) == {each: each for each in (first, second, third)}


def test_ids_of_others_are_shown_as_they_are() -> None:
    assert shortened(["7", "order-7", ""]) == {"7": "7", "order-7": "order-7", "": ""}
