"""Job ids: uuid7, made by the producer.

The producer makes the id before the store sees the job, so a put that is
repeated after a lost answer is recognised. The time in front keeps ids of one
process in the order they were made, and index pages warm. The end is a mark of the queue,
so that a store in many parts knows in which of them a job is. The rest is the operating system's
randomness: nobody can guess the id of a job from ids he has seen (T26).
"""

import os
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from itertools import product
from typing import NewType
from zlib import crc32

JobId = NewType("JobId", str)

_AT_ONCE = 512
_WHOLE = 36
_VARIANT = bytes(0x80 | byte & 0x3F for byte in range(256))
"""What a byte becomes that begins the fourth part of a UUID: RFC 9562 gives two of its bits."""
_DIGITS = "0123456789abcdef"
_FRACTIONS = tuple(map("".join, product(_DIGITS, _DIGITS, _DIGITS, "-")))
"""From `000-` to `fff-`: 4,096 of them make a millisecond."""

_ends: list[str] = []
"""Random ends of ids, many at a time: to ask the operating system for each takes a microsecond.

A child of a fork throws away what its parent has, and would make the same ids with.
"""
os.register_at_fork(after_in_child=_ends.clear)


def _make_ends() -> None:
    """Make ends like `9a27-06d76e66`; the mark of the queue comes behind them."""
    fourth = bytearray(os.urandom(2 * _AT_ONCE))
    fourth[::2] = fourth[::2].translate(_VARIANT)
    fifth = os.urandom(4 * _AT_ONCE)
    _ends.extend(
        map("-".join, zip(fourth.hex(" ", 2).split(), fifth.hex(" ", 4).split(), strict=True))
    )


def made_at(job_id: JobId) -> int | None:
    """Return when an id was made, by its maker's clock; None for one that does not tell."""
    if len(job_id) != _WHOLE or job_id[14] != "7":
        return None
    try:
        return int(job_id[:8] + job_id[9:13], 16) * 1_000
    except ValueError:
        return None


SHORT = 18
"""How many characters of an id lists show: its time, to a quarter of a microsecond."""


def shortened(ids: Collection[str]) -> dict[str, str]:
    """Return how each of these ids is shown: its first characters, as many as tell them apart.

    A producer's thread makes no two ids in the same quarter of a microsecond, so the time tells
    most of them apart, in the whole store too.
    """
    for length in (SHORT, SHORT + 5, _WHOLE):
        short = {each: each[:length].rstrip("-") for each in ids}
        if len(set(short.values())) == len(short):
            break
    return short


@lru_cache(maxsize=10_000)
def mark_of(queue: str) -> str:
    """Return the four hexadecimal digits with which ids of jobs of this queue end."""
    return f"{crc32(queue.encode(errors='surrogatepass')) & 0xFFFF:04x}"


@lru_cache(maxsize=8)
def _beginning(milliseconds: int) -> str:
    """Return how ids begin that are made in this millisecond."""
    digits = f"{milliseconds:012x}"
    return f"{digits[:8]}-{digits[8:]}-7"


class IdMaker:
    """Make uuid7 strings that sort by the time they were made.

    48 bits of milliseconds, 12 bits of the fraction below (RFC 9562, method 3),
    46 random bits, and 16 bits that tell the queue, or are random as well. Ids that one
    thread makes sort in the order it made them.
    """

    def __init__(
        self,
        now_ns: Callable[[], int] = time.time_ns,
        random_end: Callable[[], str] = _ends.pop,
    ) -> None:
        self._now_ns = now_ns
        self._random_end = random_end  # To pop one is one step: no two threads get the same.
        self._last = 0

    def __call__(self, queue: str | None = None) -> JobId:
        """Make the next id, for a job of this queue."""
        try:
            end = self._random_end()
        except IndexError:
            _make_ends()
            return self(queue)
        tick = self._now_ns() * 512 // 125_000  # In fractions.
        if tick <= self._last:
            tick = self._last + 1
        self._last = tick
        mark = os.urandom(2).hex() if queue is None else mark_of(queue)
        return JobId(f"{_beginning(tick >> 12)}{_FRACTIONS[tick & 4095]}{end}{mark}")
