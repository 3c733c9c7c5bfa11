"""Small values beside the jobs: those of a job in its queue, those of nobody spread over slots.

What belongs to a job lies in its queue from the first write until the job is forgotten, each entry
by itself: so a write costs what it writes, and the job's ways out and back need not touch it.
What belongs to nobody is in one of a fixed number of slots, by a sum of its name: so in a cluster
all nodes share it, and a range is read from all slots at once.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from zlib import crc32

import msgspec
from msgspec.structs import replace

from fairlead.core.clock import SECOND, Clock
from fairlead.core.entries import Change, Entries, Entry, Wanted, check_changes, meant
from fairlead.core.errors import ConfigError, DecodeError, LeaseLost, StoreError
from fairlead.core.ids import JobId
from fairlead.core.job import read
from fairlead.core.store import BATCH
from fairlead.core.text import brief
from fairlead.stores.redis.keys import SLOTS, Keys
from fairlead.stores.redis.lane import Lane
from fairlead.stores.redis.layout import LATEST, Small, change_of
from fairlead.stores.redis.queues import Queues, is_stray
from fairlead.stores.redis.records import pack
from fairlead.stores.redis.served import Served
from fairlead.stores.redis.talk import (
    MOST_AT_ONCE,
    Command,
    Conversation,
    Part,
    Word,
    ask_each,
    call,
    moment,
    pieces,
    raise_outage,
    spared,
)

_KEYS_AT_ONCE = 16
"""How many entries one command reads by their keys: they have 64 KiB at most."""
_MOST_BYTES = 1_000_000
"""How many bytes of entries one call brings, about: it keeps everybody else waiting."""
_STEP = 200
"""How many expired entries of a slot one call removes."""
_FRAME = 100
"""How many bytes an entry has at most beside its names and its value."""

_small = msgspec.msgpack.Decoder(Small).decode


def slot_of(kind: str, key: str) -> str:
    """Return where an entry is that belongs to nobody."""
    return SLOTS[crc32(_name(kind, key)) % len(SLOTS)]


def _name(kind: str, key: str) -> bytes:
    return f"{kind}\0{key}".encode()


class RedisEntries(Entries):
    """Entries under the keys of one prefix."""

    def __init__(
        self,
        keys: Keys,
        queues: Queues,
        clock: Clock | None,
        lane: Callable[[], Awaitable[Lane]],
        served: Served,
    ) -> None:
        self._keys = keys
        self._queues = queues
        self._clock = clock
        self._lane = lane
        self._served = served

    def _at(self) -> Word:
        return moment(self._clock.now() if self._clock else None)

    # Reading

    async def read(self, wanted: Wanted) -> list[Entry]:
        """Return entries that have not expired."""
        if wanted.owner is not None:
            talk = self._of_job(wanted, wanted.owner)
        elif wanted.keys is not None:
            talk = self._by_key(wanted, wanted.keys)
        else:
            talk = self._in_order(wanted)
        return await (await self._lane()).hold(talk)

    def _of_job(self, wanted: Wanted, owner: JobId) -> Conversation[list[Entry]]:
        for _ in range(2):
            for queue in (yield from self._queues.where([owner])):
                if wanted.keys is not None:
                    found = yield from self._owned_by_key(wanted, owner, queue)
                else:
                    found = yield from self._owned_in_order(wanted, owner, queue)
                if found or not is_stray(owner, queue):
                    return found
            self._queues.drop([owner])  # It may have come to another queue since.
        return []

    def _owned_by_key(self, wanted: Wanted, owner: JobId, queue: str) -> Conversation[list[Entry]]:
        names = [f"{owner}\0{wanted.kind}\0{key}" for key in dict.fromkeys(wanted.keys or ())]
        key = self._keys.key(queue, "entries")
        asked = [("HMGET", key, *some) for some in pieces(names, _KEYS_AT_ONCE)]
        return (yield from self._kept(wanted, asked, owner))

    def _owned_in_order(
        self, wanted: Wanted, owner: JobId, queue: str
    ) -> Conversation[list[Entry]]:
        place, end = _span(replace(wanted, due_before=None), f"{owner}\0")
        found: list[Entry] = []
        while True:
            words = (self._at(), place, end, wanted.limit)
            [answer] = yield from spared([call(self._keys, "read_owned", queue, *words)], None)
            if answer is None:
                return []  # Somebody damaged the keys, and the audit tells of that.
            now, last, texts = answer
            found += _entries(texts, owner)
            chosen = meant(wanted, found, now)
            is_full = len(chosen) == wanted.limit and wanted.due_before is None
            if is_full or not last:
                return chosen
            place = b"(" + last

    def _by_key(self, wanted: Wanted, keys: Iterable[str]) -> Conversation[list[Entry]]:
        by_slot: dict[str, list[bytes]] = {}
        for key in dict.fromkeys(keys):
            by_slot.setdefault(slot_of(wanted.kind, key), []).append(_name(wanted.kind, key))
        asked = [
            ("HMGET", self._keys.key(slot, "loose"), *some)
            for slot, names in by_slot.items()
            for some in pieces(names, _KEYS_AT_ONCE)
        ]
        return (yield from self._kept(wanted, asked))

    def _kept(
        self, wanted: Wanted, asked: Sequence[Command], owner: JobId | None = None
    ) -> Conversation[list[Entry]]:
        """Return those of the entries that commands answer which are wanted."""
        now, answers = yield from self._now_and(asked)
        texts = (text for answer in answers for text in answer or () if text is not None)
        return meant(wanted, _entries(texts, owner), now)

    def _now_and(self, asked: Sequence[Command]) -> Conversation[tuple[int, list[Any]]]:
        """Return what time it is, and the answers to commands."""
        if self._clock is not None:
            return self._clock.now(), (yield from spared(asked, None))
        (seconds, rest), *answers = yield from spared([("TIME",), *asked], None)
        return int(seconds) * SECOND + int(rest), answers

    def _in_order(self, wanted: Wanted) -> Conversation[list[Entry]]:
        """Read a range: of each slot its share, and more of those that have more before the end."""
        part = "listed" if wanted.due_before is None else "awaited"
        first, end = _span(wanted)
        places = dict.fromkeys(SLOTS, first)
        share = min(wanted.limit, wanted.limit * 3 // (2 * len(SLOTS)) + 4)
        shared = (self._at(), part, end, share)
        found: dict[str, Entry] = {}
        chosen: list[Entry] = []
        while places:
            parts = [Part(slot, (place,), share) for slot, place in places.items()]
            answers = yield from ask_each(self._keys, "read_loose", shared, parts)
            raise_outage(answers)
            places, now = {}, 0
            for asked, answer in zip(parts, answers, strict=True):
                if isinstance(answer, StoreError):
                    continue  # Somebody damaged its keys, and the audit tells of that.
                now, last, texts = answer
                found |= {entry.key: entry for entry in _entries(texts)}
                if last:
                    places[asked.queue] = b"(" + last
            chosen = meant(wanted, found.values(), now)
            if len(chosen) == wanted.limit:
                last_place = b"(" + _place(chosen[-1], part)
                places = {slot: place for slot, place in places.items() if place < last_place}
        return chosen

    # Writing

    async def write(
        self, changes: Sequence[Change], fence: tuple[JobId, int] | None = None
    ) -> list[int | None]:
        """Write entries, each if the version it expects is there."""
        check_changes(changes)
        for change in changes:
            _check_instants(change)
        return await (await self._lane()).hold(self._write(changes, fence))

    def _write(
        self, changes: Sequence[Change], fence: tuple[JobId, int] | None
    ) -> Conversation[list[int | None]]:
        yield from self._served.check()
        if self._served.is_due():
            yield from self._served.ask()
        try:
            return (yield from self._write_once(changes, fence))
        except LeaseLost as lost:
            # It may have gone from where it was, and have come to another queue since.
            self._queues.drop([lost.job_id])
        return (yield from self._write_once(changes, fence))

    def _write_once(
        self, changes: Sequence[Change], fence: tuple[JobId, int] | None
    ) -> Conversation[list[int | None]]:
        owners = {change.owner for change in changes if change.owner is not None}
        found = yield from self._queues.where([*owners, *(fence[:1] if fence else ())])
        queue_of = {job_id: queue for queue, ids in found.items() for job_id in ids}
        answers: list[int | None] = [None] * len(changes)
        in_queues: dict[str, list[int]] = {}
        in_slots: dict[str, list[int]] = {}
        for at, change in enumerate(changes):
            if change.owner is None:
                in_slots.setdefault(slot_of(change.kind, change.key), []).append(at)
            elif change.owner in queue_of:
                in_queues.setdefault(queue_of[change.owner], []).append(at)
        if fence is not None:  # First, so that nothing is written if it is not current.
            queue = queue_of.get(fence[0], "")
            yield from self._write_fenced(changes, in_queues.pop(queue, []), queue, fence, answers)
        shared = (self._at(), self._served.level(), "", 0)
        yield from self._write_all("write_entries", shared, changes, in_queues, answers)
        yield from self._write_all("write_loose", shared[:1], changes, in_slots, answers)
        # Who was refused may have a job that is elsewhere by now.
        told = zip(changes, answers, strict=True)
        refused = [each.owner for each, said in told if said is None and each.owner is not None]
        self._queues.drop(refused)
        return answers

    def _write_fenced(
        self,
        changes: Sequence[Change],
        some: Sequence[int],
        queue: str,
        fence: tuple[JobId, int],
        answers: list[int | None],
    ) -> Conversation[None]:
        """Ask for the fence, and write what is in the same queue, in one step."""
        if not queue:
            raise LeaseLost(fence[0])
        values = pack([_told(changes[at]) for at in some])
        words = (self._at(), self._served.level(), *fence, values)
        [answer] = yield [call(self._keys, "write_entries", queue, *words)]
        if answer == 0:
            raise LeaseLost(fence[0])
        for at, said in zip(some, answer, strict=True):
            answers[at] = said

    def _write_all(
        self,
        verb: str,
        shared: tuple[Word, ...],
        changes: Sequence[Change],
        grouped: dict[str, list[int]],
        answers: list[int | None],
    ) -> Conversation[None]:
        """Write changes where they belong, one piece after the other: they may be about one key."""
        rests = {place: _pieces(changes, some) for place, some in grouped.items()}
        problems: list[StoreError] = []
        while rests:
            pieces_now = [(place, next(rest, [])) for place, rest in rests.items()]
            pieces_now = [(place, some) for place, some in pieces_now if some]
            rests = {place: rests[place] for place, _ in pieces_now}
            parts = [
                Part(place, (pack([_told(changes[at]) for at in some]),), _weight(changes, some))
                for place, some in pieces_now
            ]
            said = yield from ask_each(self._keys, verb, shared, parts)
            raise_outage(said)
            for (_, some), answer in zip(pieces_now, said, strict=True):
                if isinstance(answer, StoreError):
                    problems.append(answer)
                    continue
                for at, version in zip(some, answer, strict=True):
                    answers[at] = version
        if problems:
            raise problems[0]

    # Upkeep

    def prune(self) -> Conversation[int]:
        """Remove some of what has expired; returns how many."""
        pruned, slots = 0, list(SLOTS)
        while slots and pruned < BATCH:
            parts = [Part(slot, jobs=_STEP) for slot in slots]
            answers = yield from ask_each(self._keys, "prune_loose", (self._at(), _STEP), parts)
            pruned += sum(each for each in answers if not isinstance(each, StoreError))
            slots = [slot for slot, said in zip(slots, answers, strict=True) if said == _STEP]
        return pruned


def _check_instants(change: Change) -> None:
    for name in ("due_at", "expires_at"):
        at = getattr(change, name)
        if at is not None and at > LATEST:
            raise ConfigError(
                f"{name} of entry {brief(change.key)} is after the year 2255, which Redis cannot "
                "hold exactly"
            )


def _told(change: Change) -> tuple[Any, ...]:
    """Return a change as functions read it; what no version can be is expected in vain."""
    if change.expect is not None and not 0 <= change.expect <= LATEST:
        change = replace(change, expect=-1)
    return change_of(change)


def _size(change: Change) -> int:
    return _FRAME + 4 * len(change.key) + 4 * len(change.value or "")


def _pieces(changes: Sequence[Change], some: Sequence[int]) -> Iterator[list[int]]:
    """Return changes in pieces that are not too large for one call."""
    piece: list[int] = []
    size = 0
    for at in some:
        size += _size(changes[at])
        if piece and (size > _MOST_BYTES or len(piece) == MOST_AT_ONCE):
            yield piece
            piece, size = [], _size(changes[at])
        piece.append(at)
    if piece:
        yield piece


def _weight(changes: Sequence[Change], some: Sequence[int]) -> int:
    """Return how many jobs so many bytes are worth."""
    size = sum(_size(changes[at]) for at in some)
    return max(len(some), size * MOST_AT_ONCE // _MOST_BYTES)


def _entries(texts: Iterable[Any], owner: JobId | None = None) -> Iterator[Entry]:
    """Read entries; what somebody damaged is passed over."""
    for text in texts:
        with suppress(DecodeError):
            kept = read(_small, "an entry", text)
            yield Entry(
                kind=kept.kind,
                key=kept.key,
                value=kept.value,
                version=kept.version,
                owner=owner,
                due_at=kept.due_at,
                expires_at=kept.expires_at,
            )


def _span(wanted: Wanted, before: str = "") -> tuple[bytes, bytes]:
    """Return where a range begins and ends, as ZRANGEBYLEX has it; `before` stands before kinds."""
    kind = f"{before}{wanted.kind}\0".encode()
    if wanted.due_before is not None:
        until = min(max(0, wanted.due_before), LATEST + 1)
        return b"[" + kind, b"(" + kind + _digits(until)
    prefix, after = wanted.prefix.encode(), wanted.after.encode()
    first = b"(" + kind + after if after and after >= prefix else b"[" + kind + prefix
    return first, b"(" + kind + prefix + b"\xff"  # No UTF-8 has such a byte.


def _place(entry: Entry, part: str) -> bytes:
    """Return where an entry stands in an order."""
    kind, key = entry.kind.encode() + b"\0", entry.key.encode()
    return kind + key if part == "listed" else kind + _digits(entry.due_at or 0) + b"\0" + key


def _digits(at: int) -> bytes:
    return b"%016d" % at
