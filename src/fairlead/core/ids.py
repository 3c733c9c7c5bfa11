"""Job ids: uuid7, made by the producer.

The producer makes the id before the store sees the job, so a put that is
repeated after a lost answer is recognised. The time in front keeps ids of one
process in the order they were made, and index pages warm.
"""

import os
import time
from collections.abc import Callable
from typing import NewType

JobId = NewType("JobId", str)


class IdMaker:
    """Make uuid7 strings that sort by the time they were made.

    48 bits of milliseconds, 12 bits of the fraction below (RFC 9562, method 3),
    62 random bits. Two ids of one maker never share their first 60 bits.
    """

    def __init__(
        self,
        now_ns: Callable[[], int] = time.time_ns,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._now_ns = now_ns
        self._entropy = entropy
        self._last = 0

    def __call__(self) -> JobId:
        """Make the next id."""
        milliseconds, rest = divmod(self._now_ns(), 1_000_000)
        tick = max((milliseconds << 12) | (rest * 4096 // 1_000_000), self._last + 1)
        self._last = tick
        high = (tick >> 12) << 16 | 0x7000 | (tick & 0xFFF)
        low = int.from_bytes(self._entropy(8), "big") & 0x3FFF_FFFF_FFFF_FFFF | 1 << 63
        text = f"{high:016x}{low:016x}"
        return JobId(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")
