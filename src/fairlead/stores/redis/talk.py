"""What is said to a server: commands, and conversations made of them.

A verb is a conversation: a generator that yields commands to be done together, is sent
their answers, and returns what the verb returns. It never waits and knows no connection, so
the same one is held over an async connection, a blocking one, or with a cluster.
"""

from collections.abc import Generator
from typing import Any, TypeVar

from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.scripts import SCRIPTS

Word = str | bytes | int | float
Command = tuple[Any, ...]
"""The words of a command; a node before them says who is asked."""
T = TypeVar("T")
Conversation = Generator[list[Command], list[Any], T]
"""Yields commands, is sent an answer for each, and returns a T."""


def script(keys: Keys, verb: str, queue: str, *values: Word) -> Command:
    """Return the command that runs a script on a queue."""
    names = keys.of(queue)
    return ("EVALSHA", SCRIPTS[verb].sha, len(names), *names, *values)


def moment(at: int | None) -> Word:
    """Return a time for a script, or what lets it take the server's own."""
    return "" if at is None else at
