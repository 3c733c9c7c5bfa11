"""Which version of our keys a server has, and whether that still serves this program.

Each version is noted under one key, with the least level of the programs that it serves. Everybody
reads that key at the beginning, workers with each heartbeat, people with each act, and who puts
jobs or writes entries every few seconds. What a program has claimed it may extend and settle all
the same: that touches only jobs of its level, under its fence.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from fairlead.core.errors import StoreError
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.layout import LATEST
from fairlead.stores.redis.talk import Command, Conversation, Tried, spared
from fairlead.stores.steps import check_served


class Step(NamedTuple):
    """A version of our keys, and the least level of the programs that it serves."""

    number: int
    serves: int = 1


STEPS = (Step(1),)
"""All versions of our keys; a new one is added, never changed."""
VERSION = STEPS[-1].number
"""The version that this program knows."""
CHECK_SECONDS = 5.0
"""How often a program that puts or writes reads whether it is still served."""
_REST_SECONDS = 60.0
"""When it does so again after it could not."""
_HIGHEST = 1_000
_LONGEST_NUMBER = 16


class Noted(NamedTuple):
    """When a version came into use, zero if nobody can tell; and the least level it serves."""

    at: int
    serves: int


def applied(keys: Keys) -> Conversation[dict[int, Noted]]:
    """Return which versions of our keys came into use; ours, if somebody damaged that."""
    [found] = yield from spared([("HGETALL", keys.schema)], None)
    if found is None:
        return {step.number: Noted(0, step.serves) for step in STEPS}
    return steps_of(dict(zip(found[::2], found[1::2], strict=True)))


def steps_of(noted: Mapping[bytes, bytes]) -> dict[int, Noted]:
    """Return the versions that are noted.

    Who notes a version notes all before it. So what stands after a gap is from somebody else.
    """
    steps: dict[int, Noted] = {}
    for number in count(1):
        text = noted.get(b"%d" % number)
        if text is None:
            break
        steps[number] = noted_of(text) or Noted(0, _HIGHEST)
    return steps


def noted_of(text: bytes) -> Noted | None:
    """Read what is noted of a version: two numbers at least; None for what cannot be."""
    at, serves = (*map(count_of, text.split(b" ")[:2]), None, None)[:2]
    if at is None or serves is None or not 1 <= serves <= _HIGHEST:
        return None
    return Noted(at, serves)


def count_of(raw: bytes) -> int | None:
    """Return a number that is kept as a text; None for what is none."""
    is_number = raw.isdigit() and len(raw) <= _LONGEST_NUMBER and raw == b"%d" % int(raw)
    return int(raw) if is_number and int(raw) <= LATEST else None


def note(keys: Keys, now: int) -> list[Command]:
    """Return what notes our versions.

    A full server does not take it, most users may not write it, and all of them must go on: unless
    there are programs that it is to keep away.
    """
    notes = [(step, ("HSETNX", keys.schema, step.number, f"{now} {step.serves}")) for step in STEPS]
    return [told if step.serves > 1 else Tried(told) for step, told in notes]


class Served:
    """Whether this program is still served, as far as it knows."""

    def __init__(self, keys: Keys, level: Callable[[], int]) -> None:
        self._keys = keys
        self.level = level
        self._asked_at = time.monotonic()
        self._is_refused = False

    def ask(self) -> Conversation[None]:
        """Raise `SchemaOutdated` if the versions that are noted no longer serve this program."""
        noted = yield from applied(self._keys)
        self._asked_at = time.monotonic()
        steps = [(number, each.serves) for number, each in noted.items()]
        self._is_refused = True
        check_served(steps, VERSION, self.level())
        self._is_refused = False

    def check(self) -> Conversation[None]:
        """Raise if it was refused, and still is; else ask nothing."""
        if self._is_refused:
            yield from self.ask()

    def is_due(self) -> bool:
        """Say whether it is time to ask."""
        return time.monotonic() - self._asked_at >= CHECK_SECONDS

    def look(self) -> Conversation[None]:
        """Ask after a call, whose answer counts whatever this brings: the next one is refused."""
        self._asked_at = time.monotonic() + _REST_SECONDS  # If it gets no answer.
        with suppress(StoreError):
            yield from self.ask()
