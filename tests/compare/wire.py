"""Count what passes a proxy, so that no build counts for itself."""

import re
from collections import Counter
from collections.abc import Iterator

from tests.servers.talk import PostgresTalk, RedisTalk, Talk

SCRIPT = re.compile(rb"(EVAL|EVALSHA|FCALL)(_RO)? ", re.IGNORECASE)


class Counted:
    """One connection, read along and counted.

    A round trip begins when the client speaks and has the answers to all that it asked
    before; so a pipeline is one.
    """

    def __init__(self, talk: Talk, counts: "Counter[str]", word: str) -> None:
        self._talk = talk
        self._counts = counts
        self._word = word
        self._last = -1
        self._answers = 0

    def asked(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        self._counts["bytes sent"] += len(data)
        rested = self._answers > self._last
        for number, asked in self._talk.asked(data):
            self._counts["round trips"] += rested
            rested = False
            self._counts[self._word] += 1
            self._counts["scripts"] += SCRIPT.match(asked) is not None
            self._last = number
            yield number, asked

    def answered(self, data: bytes) -> Iterator[int]:
        self._counts["bytes received"] += len(data)
        for end in self._talk.answered(data):
            self._answers += 1
            yield end


def counted_postgres(counts: "Counter[str]") -> Talk:
    """Count statements as often as they are executed."""
    return Counted(PostgresTalk(), counts, "statements")


def counted_redis(counts: "Counter[str]") -> Talk:
    """Count commands; those that run a script are also counted as scripts."""
    return Counted(RedisTalk(), counts, "commands")
