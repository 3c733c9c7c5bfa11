"""The audit log: what people did, in one line for each action.

A queue keeps its own lines, written in the same step as the change they tell of; an action
on several queues has one in each. What met no queue is kept `NOWHERE`. Read together, the
lines of an action are one, and its place is that of the first of them.
"""

import hashlib
from collections.abc import Collection, Sequence
from contextlib import suppress
from math import inf

import msgspec

from fairlead.core.acts import Action, AuditLine
from fairlead.core.clock import Clock
from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId
from fairlead.core.job import read
from fairlead.stores.redis.keys import NOWHERE, Keys
from fairlead.stores.redis.layout import Act
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import pack, score_of
from fairlead.stores.redis.talk import Conversation, call, call_on, moment, present, spared

_PIECE = 200


class _Told(msgspec.Struct, frozen=True):
    """An action as a whole."""

    number: int
    line: AuditLine
    job_id: str | None


_line = msgspec.msgpack.Decoder(Act).decode


class Acts:
    """Writes down what people do, and reads it."""

    def __init__(self, keys: Keys, queues: Queues, clock: Clock | None) -> None:
        self._keys = keys
        self._queues = queues
        self._clock = clock

    def told(self, by: Action, job_ids: Collection[str] = ()) -> Conversation[bytes]:
        """Return who does something, as functions write it down."""
        number = yield from next_number(self._keys, self._clock)
        job_id = next(iter(job_ids)) if len(job_ids) == 1 else None
        return pack([_key_of(by), number, by.who, by.verb, by.target, job_id])

    def write(self, told: bytes, count: int) -> Conversation[None]:
        """Write down what was done to no queue."""
        at = moment(self._clock.now() if self._clock else None)
        yield [call(self._keys, "note", NOWHERE, at, told, count)]

    def log(self, limit: int, job_id: JobId | None) -> Conversation[list[AuditLine]]:
        """Return the audit log, newest first."""
        names = [*(yield from self._queues.names()), NOWHERE]
        marks = dict.fromkeys(names, "+inf")  # Where to read on, in queues that have more.
        found: dict[bytes, _Told] = {}
        while True:
            new = yield from self._read(marks)
            found |= yield from self._whole([each for each in new if each not in found], names)
            # An action that has a line before all that was read may have begun there.
            floor = max((int(mark[1:]) for mark in marks.values()), default=-inf)
            sure = [
                told
                for told in found.values()
                if told.number > floor and job_id in (None, told.job_id)
            ]
            if len(sure) >= limit or not marks:
                newest = sorted(sure, key=lambda told: told.number, reverse=True)
                return [told.line for told in newest[:limit]]

    def _read(self, marks: dict[str, str]) -> Conversation[list[bytes]]:
        """Read on where the marks say, and move them; those of queues that are read go."""
        names = list(marks)
        asked = [
            (
                *("ZREVRANGEBYSCORE", self._keys.key(name, "acts"), marks[name], "-inf"),
                *("WITHSCORES", "LIMIT", 0, _PIECE),
            )
            for name in names
        ]
        answers = yield from spared(asked, [])
        found: dict[bytes, None] = {}
        for name, answer in zip(names, answers, strict=True):
            found |= dict.fromkeys(answer[::2])
            if len(answer) == 2 * _PIECE:
                marks[name] = f"({score_of(answer[-1])}"
            else:
                del marks[name]
        return list(found)

    def _whole(
        self, actions: Sequence[bytes], names: Sequence[str]
    ) -> Conversation[dict[bytes, _Told]]:
        """Return actions with the lines that they have in all queues."""
        if not actions:
            return {}
        asked = [
            command
            for name in names
            for command in (
                ("HMGET", self._keys.key(name, "acted"), *actions),
                ("ZMSCORE", self._keys.key(name, "acts"), *actions),
            )
        ]
        answers = yield from spared(asked, [None] * len(actions))
        lines: dict[bytes, list[tuple[int, Act]]] = {}
        for texts, numbers in zip(answers[::2], answers[1::2], strict=True):
            for action, text, number in zip(actions, texts, numbers, strict=True):
                if text is not None and number is not None:
                    with suppress(DecodeError):  # The audit tells of what cannot be read.
                        line = (score_of(number), line_of(text))
                        lines.setdefault(action, []).append(line)
        return {action: _joined(each) for action, each in lines.items()}


def next_number(keys: Keys, clock: Clock | None) -> Conversation[int]:
    """Count an action; if somebody damaged the count, by the time, which comes after it."""
    [number] = yield from spared([call_on("count", keys.number)], None)
    if number is None:
        number = yield from present(clock)
    return int(number)


def _key_of(by: Action) -> str:
    """Return what the lines of an action have in common; another one with its id has another."""
    told = pack([by.who, by.verb, by.target])
    return f"{by.id} {hashlib.sha256(told).hexdigest()[:16]}"


def line_of(text: bytes) -> Act:
    """Return what a queue keeps of an action."""
    return read(_line, "a line of the audit log", text)


def _joined(lines: list[tuple[int, Act]]) -> _Told:
    number, first = min(lines, key=lambda each: each[0])
    count = sum(line.count for _, line in lines)
    last = max(line.done_at for _, line in lines)
    line = AuditLine(last, first.who, first.verb, first.target, count, first.before)
    return _Told(number, line, first.job_id)
