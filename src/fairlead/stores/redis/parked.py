"""Parked jobs. They stand by gate and key, and whoever looks for some leaps from key to key.

A call of a function looks at a bounded number of keys, however many there are, and says where the
next one goes on.
"""

from collections.abc import Mapping, Sequence

from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.records import parked_of
from fairlead.stores.redis.talk import Command, Conversation, call, filled, pieces, spared

_QUEUES_AT_ONCE = 100
_MEMBERS_AT_ONCE = 1_000

Kind = tuple[bytes, int, int]
"""A gate and a key: how many jobs wait for it, and the runs of how many were lost."""


def parked(keys: Keys, names: Sequence[str]) -> Conversation[dict[str, list[Kind]]]:
    """Count the parked jobs of these queues by gate and key."""
    found: dict[str, list[Kind]] = {}
    for some in pieces(names, _QUEUES_AT_ONCE):
        left = {name: b"" for name, _ in (yield from filled(keys, "parked", some))}
        while left:
            asked = [call(keys, "kinds", name, at) for name, at in left.items()]
            answers = yield from spared(asked, (b"", []))
            for name, (at, told) in zip(list(left), answers, strict=True):
                kinds = zip(told[::3], told[1::3], told[2::3], strict=True)
                found.setdefault(name, []).extend(kinds)
                left[name] = at
            left = {name: at for name, at in left.items() if at}
    return found


def lost_parked(
    keys: Keys, asked: Mapping[str, tuple[bytes, int]]
) -> Conversation[list[tuple[bytes, list[bytes]]]]:
    """Return parked jobs of some queues whose run was lost: so many after a member.

    With those of each queue comes what to go on after, or nothing at its end. They may be fewer
    than were asked for, or none, before the end.
    """
    commands = [_lost(keys, name, *words) for name, words in asked.items()]
    return (yield from spared(commands, (b"", [])))


def all_leased(keys: Keys, queue: str) -> Conversation[list[bytes]]:
    """Return the ids of all jobs of a queue that run, or whose run was lost, parked or not."""
    places = [("ZRANGE", keys.key(queue, part), 0, -1) for part in ("leases", "lost")]
    aside = _lost(keys, queue, b"", _MEMBERS_AT_ONCE)
    leases, lost, found = yield from spared([*places, aside], None)
    at, members = found or (b"", [])
    while at:
        [(at, more)] = yield from lost_parked(keys, {queue: (at, _MEMBERS_AT_ONCE)})
        members += more
    return [*(leases or ()), *(lost or ()), *(parked_of(member)[1] for member in members)]


def _lost(keys: Keys, queue: str, after: bytes, most: int) -> Command:
    return call(keys, "lost_parked", queue, after, most)
