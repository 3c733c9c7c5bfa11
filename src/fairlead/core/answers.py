"""The answers to what people did, as the audit log keeps them: a repeated call gets the first one.

A line of the audit log keeps, for each call of its action, a mark of what was asked, and to which
of it nothing was done, by place. `;8c1f…:.` says that it was done to all of them, `;8c1f…:0,4.`
to all but the first and the fifth. So an answer takes some twenty bytes, for one job or a thousand.
What cannot be read there is no answer: then the call is done as if it were the first.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from typing import TypeVar

import msgspec

T = TypeVar("T")

_LENGTH = 16


def mark_of(verb: str, *asked: object) -> str:
    """Return the mark of a call: another for whatever else is asked."""
    return sha256(msgspec.json.encode([verb, *asked])).hexdigest()[:_LENGTH]


def with_answer(answers: object, mark: str, asked: Sequence[T], done: Collection[T]) -> str:
    """Return the answers of an action with that of one more call."""
    missed = ",".join(str(n) for n, each in enumerate(asked) if each not in done)
    return f"{answers if isinstance(answers, str) else ''};{mark}:{missed}."


def answer_in(answers: object, mark: str, asked: Iterable[T]) -> list[T] | None:
    """Return to which of what is asked the call of this mark was done; None if it is new."""
    if not isinstance(answers, str):
        return None
    found = re.search(rf";{mark}:([0-9,]*)\.", answers)
    if found is None:
        return None
    missed = set(found[1].split(","))
    return [each for n, each in enumerate(asked) if str(n) not in missed]
