"""Job ids: uuid7, made by the producer.

The producer makes the id before the store sees the job, so a put that is
repeated after a lost answer is recognised. The time in front keeps ids of one
process in the order they were made, and index pages warm. The end is a mark of the queue,
so that a store in many parts knows in which of them a job is. The rest is the operating system's
randomness: nobody can guess the id of a job from ids he has seen (T26).
"""

import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import NewType
from zlib import crc32

JobId = NewType("JobId", str)

_POOL_BYTES = 8 * 512


_words: list[int] = []
"""Random words of the operating system, many at a time: to ask for each id takes a microsecond.

A child of a fork throws away what its parent has, and would make the same ids with.
"""
os.register_at_fork(after_in_child=_words.clear)


def _get_words() -> None:
    _words.extend(memoryview(os.urandom(_POOL_BYTES)).cast("Q"))


def made_at(job_id: JobId) -> int | None:
    """Return when an id was made, by its maker's clock; None for one that does not tell."""
    if len(job_id) != 36 or job_id[14] != "7":
        return None
    try:
        return int(job_id[:8] + job_id[9:13], 16) * 1_000
    except ValueError:
        return None


@lru_cache(maxsize=10_000)
def mark_of(queue: str) -> str:
    """Return the four hexadecimal digits with which ids of jobs of this queue end."""
    return f"{crc32(queue.encode(errors='surrogatepass')) & 0xFFFF:04x}"


class IdMaker:
    """Make uuid7 strings that sort by the time they were made.

    48 bits of milliseconds, 12 bits of the fraction below (RFC 9562, method 3),
    46 random bits, and 16 bits that tell the queue, if one is given. Ids that one
    thread makes sort in the order it made them.
    """

    def __init__(
        self,
        now_ns: Callable[[], int] = time.time_ns,
        random_word: Callable[[], int] = _words.pop,
    ) -> None:
        self._now_ns = now_ns
        self._random_word = random_word  # To pop one is one step: no two threads get the same.
        self._last = 0

    def __call__(self, queue: str | None = None) -> JobId:
        """Make the next id, for a job of this queue."""
        try:
            word = self._random_word()
        except IndexError:
            _get_words()
            return self(queue)
        now = self._now_ns()
        # 1/3906 ms is near enough to 1/4096 ms, and a shift is cheaper than a division.
        tick = (now // 1_000_000 << 12) | (now % 1_000_000 >> 8)
        if tick <= self._last:
            tick = self._last + 1
        self._last = tick
        # A bit in front keeps the zeros. To cut these apart takes half the time of a format.
        ticks, tail = hex(tick | 1 << 60), hex(word >> 2 | 1 << 63)
        mark = tail[14:] if queue is None else mark_of(queue)
        return JobId(f"{ticks[3:11]}-{ticks[11:15]}-7{ticks[15:]}-{tail[2:6]}-{tail[6:14]}{mark}")
