"""What is said to a server: commands, and conversations made of them.

A verb is a conversation: a generator that yields commands to be done together, is sent
their answers, and returns what the verb returns. It never waits and knows no connection, so
the same one is held over an async connection, a blocking one, or with a cluster.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

from fairlead.core.clock import SECOND, Clock
from fairlead.core.errors import StoreDenied, StoreError, StoreRefused
from fairlead.stores.redis.functions import FUNCTIONS
from fairlead.stores.redis.keys import Keys

Word = str | bytes | int | float
Command = tuple[Any, ...]
"""The words of a command; a node before them says who is asked."""
T = TypeVar("T")
U = TypeVar("U")


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


_SIDE_BY_SIDE = 32
"""How many conversations are held at a time: each may be about many jobs."""


def side_by_side(talks: Iterable[Conversation[T]]) -> Conversation[list[T]]:
    """Hold conversations that do not depend on each other, some at a time; returns what each does.

    Their commands go together. So what is asked of a thousand queues takes some ten round trips,
    not thousands.
    """
    found: list[T] = []
    for some in pieces(list(talks), _SIDE_BY_SIDE):
        found += yield from _in_step(some)
    return found


def both(one: Conversation[T], other: Conversation[U]) -> Conversation[tuple[T, U]]:
    """Hold two conversations at a time."""
    first, second = yield from _in_step(cast("Sequence[Conversation[Any]]", (one, other)))
    return first, second


def _in_step(talks: Sequence[Conversation[T]]) -> Conversation[list[T]]:
    ended: dict[int, T] = {}
    heard: dict[int, list[Any] | None] = dict.fromkeys(range(len(talks)))
    while heard:
        wanted: dict[int, list[Command]] = {}
        for at, answers in heard.items():
            try:
                wanted[at] = go_on(talks[at], answers)
            except StopIteration as end:
                ended[at] = end.value
        if not wanted:
            break
        said = iter((yield [each for several in wanted.values() for each in several]))
        heard = {at: list(islice(said, len(several))) for at, several in wanted.items()}
    return [ended[at] for at in range(len(talks))]


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


def filled(keys: Keys, part: str, names: Sequence[str]) -> Conversation[list[tuple[str, int]]]:
    """Return those of these queues that have jobs in a place, and how many."""
    sizes = yield from spared([("ZCARD", keys.key(name, part)) for name in names], 0)
    return [(name, size) for name, size in zip(names, sizes, strict=True) if size]


def call(keys: Keys, verb: str, queue: str, *values: Word) -> Command:
    """Return the command that calls a function on a queue."""
    wanted = FUNCTIONS[verb]
    names = keys.of(queue, wanted.parts)
    return (wanted.command, wanted.name, len(names), *names, *values)


class Part(NamedTuple):
    """What one queue is asked: words of its own, and how many jobs that may touch."""

    queue: str
    words: tuple[Word, ...] = ()
    jobs: int = 1


MOST_AT_ONCE = 500
"""How many jobs one call may touch: it keeps everybody else waiting."""
_MOST_QUEUES = 16
"""How many queues one call may ask, for the same reason."""


def ask_each(
    keys: Keys, verb: str, shared: tuple[Word, ...], parts: Sequence[Part]
) -> Conversation[list[Any]]:
    """Call a function on many queues; returns for each what it answers, or its error.

    A call costs more than a short function does. So several queues are asked with one call, if one
    server keeps them. What that could not do is asked again for each queue alone.
    """
    calls = list(_calls(parts, 1 if keys.in_cluster else _MOST_QUEUES))
    said = yield [Tried(_call_each(keys, verb, shared, some)) for some in calls]
    answers: list[Any] = []
    for some, answer in zip(calls, said, strict=True):
        if len(some) == 1:
            answers.append(answer)
        elif isinstance(answer, StoreError):
            # If it was refused, that may be for the sake of one of them.
            is_refused = isinstance(answer, StoreDenied | StoreRefused)
            answers += [None if is_refused else answer] * len(some)
        else:
            answers += answer
    alone = [at for at, answer in enumerate(answers) if answer is None]
    if alone:
        try:
            said = yield [Tried(_call_each(keys, verb, shared, [parts[at]])) for at in alone]
        except StoreError as problem:  # What the others answered counts all the same.
            said = [problem] * len(alone)
        for at, answer in zip(alone, said, strict=True):
            answers[at] = answer
    return answers


def _calls(parts: Sequence[Part], most: int) -> Iterator[Sequence[Part]]:
    """Return parts in the calls that ask them."""
    first = jobs = 0
    for at, part in enumerate(parts):
        jobs += part.jobs
        if at > first and (jobs > MOST_AT_ONCE or at - first == most):
            yield parts[first:at]
            first, jobs = at, part.jobs
    if parts:
        yield parts[first:]


def _call_each(keys: Keys, verb: str, shared: tuple[Word, ...], parts: Sequence[Part]) -> Command:
    """Return the command that calls a function on queues; see `each` in lua/calls.lua."""
    if len(parts) == 1:
        return call(keys, verb, parts[0].queue, *shared, *parts[0].words)
    wanted = FUNCTIONS[verb]
    names = [name for part in parts for name in keys.of(part.queue, wanted.parts)]
    words = [word for part in parts for word in part.words]
    return (wanted.command, wanted.name, len(names), *names, len(shared), *shared, *words)


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


def call_over(keys: Keys, verb: str, part: str, queues: Sequence[str], *values: Word) -> Command:
    """Return the command that calls a function on the same key of many queues."""
    names = [keys.key(queue, part) for queue in queues]
    return (FUNCTIONS[verb].command, FUNCTIONS[verb].name, len(names), *names, *values)


def moment(at: int | None) -> Word:
    """Return a time for a function, or what lets it take the server's own."""
    return "" if at is None else at
