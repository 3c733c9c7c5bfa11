"""A page of a list of jobs, and the cursor that leads to the next one.

A cursor says where a page ended: in which of the lists that were asked for, and after which key of
its order. It holds nothing that lives in a process or in a session, so it serves every program
that reaches the store, for as long as people like. The job it was made at may be gone: what comes
after its key is still known. Only the kind of store that made a cursor can read it.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from types import NoneType
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from fairlead.core.errors import BadCursor
from fairlead.core.job import JobRecord

KeyPart = str | int | float | bytes | None
Key = tuple[KeyPart, ...]
"""Where a job stands in an order that a store keeps."""

_IN_KEYS = (str, int, float, bytes, NoneType)
_LONGEST = 8_192
"""More than a cursor that a store made: its key has at most three texts (stores/listing.py)."""
OTHER_LIST = "it was made for a list with other filters"
_CHECK = 4
"""How many bytes of a cursor tell that the others are whole."""


class Page(msgspec.Struct, frozen=True):
    """Some jobs of a list, in its order; `cursor` leads to what follows, and is None at the end.

    A page may have fewer jobs than were asked for, or none, and go on all the same: it looks at a
    bounded number of jobs (`looked`), whatever of them is meant. `at` is the store's time.
    """

    jobs: list[JobRecord]
    cursor: str | None
    looked: int
    at: int


class Spot(NamedTuple):
    """Where a page begins: in which list, of which queue, and after which key of its order.

    The list is named, and not numbered, because another program may have more of them.
    """

    order: str
    queue: str | None = None
    after: Key | None = None


class _Inside(msgspec.Struct, frozen=True, array_like=True):
    asked: int
    order: str
    queue: str | None
    after: tuple[Any, ...] | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Inside).decode


def digest_of(asked: object) -> int:
    """Return a number that tells what was asked for: a cursor leads on in the same lists only.

    Programs that know different filters agree on it if what was asked for leaves out its defaults.
    """
    return crc32(_encode(asked))


def cursor_of(store: str, asked: int, spot: Spot) -> str:
    """Return the cursor of a kind of store that leads to a spot in what was asked for."""
    inside = _encode(_Inside(asked, *spot))
    whole = inside + crc32(inside).to_bytes(_CHECK, "big")
    return f"{store}.{urlsafe_b64encode(whole).decode().rstrip('=')}"


def spot_of(store: str, asked: int, cursor: str) -> Spot:
    """Return the spot that a cursor leads to, in what was asked for."""
    maker, _, text = cursor.partition(".")
    if not text or len(cursor) > _LONGEST:
        raise BadCursor(cursor, "it is none that a store made")
    if maker != store:
        raise BadCursor(cursor, f"another kind of store made it, and this one is {store}")
    inside = _opened(cursor, text)
    if inside.asked != asked:
        raise BadCursor(cursor, OTHER_LIST)
    return Spot(inside.order, inside.queue, inside.after)


def _opened(cursor: str, text: str) -> _Inside:
    try:
        whole = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        inside, check = whole[:-_CHECK], whole[-_CHECK:]
        if crc32(inside).to_bytes(_CHECK, "big") == check:
            found = _decode(inside)
            if all(isinstance(part, _IN_KEYS) for part in found.after or ()):
                return found
    except (ValueError, msgspec.MsgspecError):
        pass
    raise BadCursor(cursor, "it is damaged, or not whole")
