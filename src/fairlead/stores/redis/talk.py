"""What is said to a server: commands, and conversations made of them.

A verb is a conversation: a generator that yields commands to be done together, is sent
their answers, and returns what the verb returns. It never waits and knows no connection, so
the same one is held over an async connection, a blocking one, or with a cluster.
"""

from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar

from fairlead.core.clock import SECOND, Clock
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.scripts import SCRIPTS

Word = str | bytes | int | float
Command = tuple[Any, ...]
"""The words of a command; a node before them says who is asked."""
T = TypeVar("T")


class Tried(tuple[Any, ...]):
    """A command whose error is an answer: of several parts one may be out of reach."""

    __slots__ = ()


Conversation = Generator[list[Command], list[Any], T]
"""Yields commands, is sent an answer for each, and returns a T."""


def script(keys: Keys, verb: str, queue: str, *values: Word) -> Command:
    """Return the command that runs a script on a queue."""
    wanted = SCRIPTS[verb]
    names = keys.of(queue, wanted.parts)
    return ("EVALSHA", wanted.sha, len(names), *names, *values)


def pieces(items: Sequence[T], most: int) -> Iterable[Sequence[T]]:
    """Return items in pieces that are not too large to be done at once."""
    for first in range(0, len(items), most):
        yield items[first : first + most]


def present(clock: Clock | None) -> Conversation[int]:
    """Return what time it is: by the server's clock, unless there is another."""
    if clock is not None:
        return clock.now()
    [[seconds, rest]] = yield [("TIME",)]
    return int(seconds) * SECOND + int(rest)


def run(verb: str, key: str, *values: Word) -> Command:
    """Return the command that runs a script on a key that is of no queue."""
    return ("EVALSHA", SCRIPTS[verb].sha, 1, key, *values)


def moment(at: int | None) -> Word:
    """Return a time for a script, or what lets it take the server's own."""
    return "" if at is None else at
