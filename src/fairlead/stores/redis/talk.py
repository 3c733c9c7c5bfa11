"""What is said to a server: commands, and conversations made of them.

A verb is a conversation: a generator that yields commands to be done together, is sent
their answers, and returns what the verb returns. It never waits and knows no connection, so
the same one is held over an async connection, a blocking one, or with a cluster.
"""

from collections.abc import Generator, Iterable, Sequence
from typing import Any, TypeVar

from fairlead.core.clock import SECOND, Clock
from fairlead.core.errors import StoreError, StoreRefused
from fairlead.stores.redis.functions import FUNCTIONS
from fairlead.stores.redis.keys import Keys

Word = str | bytes | int | float
Command = tuple[Any, ...]
"""The words of a command; a node before them says who is asked."""
T = TypeVar("T")


class Tried(tuple[Any, ...]):
    """A command whose error is an answer: of several parts one may be out of reach."""

    __slots__ = ()


Conversation = Generator[list[Command], list[Any], T]
"""Yields commands, is sent an answer for each, and returns a T."""


def go_on(talk: Conversation[T], heard: list[Any] | StoreError | None) -> list[Command]:
    """Let a conversation begin, or go on with the answers, or with what kept them from coming."""
    if isinstance(heard, StoreError):
        return talk.throw(heard)
    return next(talk) if heard is None else talk.send(heard)


def raise_outage(answers: Iterable[Any]) -> None:
    """Raise the answer that says that the store is out of reach, if there is one."""
    for answer in answers:
        if isinstance(answer, StoreError) and not isinstance(answer, StoreRefused):
            raise answer


def spared(commands: Sequence[Command], instead: Any) -> Conversation[list[Any]]:  # noqa: ANN401 (any answer)
    """Return the answers to commands, and something else instead of what a damaged key refuses.

    A key of another type than ours, or a value that a function stumbles over, must not keep
    anybody from all other keys.
    """
    if not commands:
        return []
    answers = yield [Tried(command) for command in commands]
    raise_outage(answers)
    return [instead if isinstance(each, StoreRefused) else each for each in answers]


def call(keys: Keys, verb: str, queue: str, *values: Word) -> Command:
    """Return the command that calls a function on a queue."""
    wanted = FUNCTIONS[verb]
    names = keys.of(queue, wanted.parts)
    return (wanted.command, wanted.name, len(names), *names, *values)


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


def call_on(verb: str, key: str, *values: Word) -> Command:
    """Return the command that calls a function on a key that is of no queue."""
    return (FUNCTIONS[verb].command, FUNCTIONS[verb].name, 1, key, *values)


def moment(at: int | None) -> Word:
    """Return a time for a function, or what lets it take the server's own."""
    return "" if at is None else at
