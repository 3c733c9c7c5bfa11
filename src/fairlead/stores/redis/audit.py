"""Check the keys against themselves: every value sound, every job in one place (I3).

A call checks a few jobs at a time, as they are at one moment, so jobs that move meanwhile
are no false alarm and nobody waits for long. What is found is told by the audit and put right
by `repair.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from fairlead.core.admin import Finding
from fairlead.core.clock import SECOND, Clock
from fairlead.core.errors import DecodeError
from fairlead.core.job import decode_options
from fairlead.stores.redis.acts import line_of
from fairlead.stores.redis.history import PIECE
from fairlead.stores.redis.keys import HASHES, NOWHERE, PARTS, SLOT, SLOTS, Keys
from fairlead.stores.redis.layout import LATEST
from fairlead.stores.redis.queues import Queues, is_stray, name_of
from fairlead.stores.redis.records import (
    MOST_COUNTED,
    batch_without,
    ended_at,
    is_batch,
    is_id,
    lines_of,
    numbers_of,
    shown,
    worker_of,
)
from fairlead.stores.redis.served import VERSION, count_of, noted_of, steps_of
from fairlead.stores.redis.talk import Command, Conversation, Word, call, moment, present, spared

LONGEST_LEASE = 366 * 86_400 * SECOND
"""No worker asks for more; what says more was written by somebody else."""
_PARTS = (
    *("bodies", "standings", "errors"),
    *("ready", "due", "leases", "lost", "parked", "expiring"),
    *("done", "cancelled", "dead"),
)
_SETTINGS = {b"apart": LATEST, b"log_start": MOST_COUNTED}
"""The settings of a queue that we know, and how great each may be."""
_REMEDY = "fairlead doctor --repair"


class Kind(StrEnum):
    """What is damaged."""

    KEY = "key"
    NUMBER = "number"
    QUEUE = "queue"
    STRAY = "stray"
    WORKER = "worker"
    STEP = "step"
    SETTING = "setting"
    JOB = "job"
    BATCH = "batch"
    GONE = "gone"
    ACT = "act"
    ENTRY = "entry"
    OWNED = "entry of a job"


class Damage(NamedTuple):
    """Something that is not as it should be: what, where, under which name, and in words.

    `more` is what is needed to put it right: how a job is parked, where an entry is marked, a batch
    as it is and, in `after`, as it should be, the queue of a stray. `odd` says that
    a job's options cannot be read.
    """

    kind: Kind
    problem: str
    queue: str = ""
    name: bytes = b""
    more: bytes = b""
    odd: bool = False
    after: bytes = b""


def audit(
    keys: Keys, queues: Queues, clock: Clock | None, level: int
) -> Conversation[list[Finding]]:
    """Scan everything, a piece at a time."""
    found = yield from damages(keys, queues, clock, level)
    # A scan may come by the same job twice.
    return [Finding(problem, _REMEDY) for problem in dict.fromkeys(each.problem for each in found)]


def damages(
    keys: Keys, queues: Queues, clock: Clock | None, level: int
) -> Conversation[list[Damage]]:
    """Find all that is damaged; where a key is of another type, nothing else of its queue.

    What looks damaged of a job above the level may be its program's way, and is left to that.
    """
    now = yield from present(clock)
    found = yield from _check_shared(keys, now)
    found += yield from _check_strays(keys)
    for queue in (yield from queues.names()):
        wrong = yield from _check_types(keys, queue)
        if not wrong:
            wrong += yield from _check_settings(keys, queue)
            for part in _PARTS:
                wrong += yield from _check(keys, queue, part, clock, level)
            for part in ("entries", "owned"):
                wrong += yield from _check_entries(
                    keys, "check_owned", queue, part, Kind.OWNED, level
                )
            wrong += yield from _check_log(keys, queue, now)
            wrong += yield from _check_gone(keys, queue)
            wrong += yield from _check_acts(keys, queue)
        found += wrong
    for slot in SLOTS:
        wrong = yield from _check_types(keys, slot, SLOT)
        found += wrong or (yield from _check_slot(keys, slot))
    wrong = yield from _check_types(keys, NOWHERE, ("acts", "acted"))
    return [*found, *(wrong or (yield from _check_acts(keys, NOWHERE)))]


# What is of no queue


def _check_shared(keys: Keys, now: int) -> Conversation[list[Damage]]:
    """Check the keys that all queues share."""
    asked: list[Command] = [
        *(("SMEMBERS", keys.queues), ("HLEN", keys.strays), ("HGETALL", keys.workers)),
        *(("HGETALL", keys.schema), ("GET", keys.number)),
    ]
    names, strays, workers, steps, number = yield from spared(asked, ...)
    found = [
        Damage(Kind.KEY, f"key {key} is of a type that is not ours", name=key.encode())
        for (_, key), answer in zip(asked, (names, strays, workers, steps, number), strict=True)
        if answer is ...
    ]
    if names is not ...:
        found += [
            Damage(Kind.QUEUE, f"queue {shown(name)} is listed, and cannot be a queue", name=name)
            for name in names
            if name_of(name) is None
        ]
    if workers is not ...:
        found += _odd_workers(workers, now)
    if steps is not ...:
        found += _odd_steps(steps)
    if number not in (..., None) and not _is_number(number):
        found.append(Damage(Kind.NUMBER, f"the number of the last action is {shown(number)}"))
    return found


def _is_number(raw: bytes) -> bool:
    """Say whether the number of the last action can be one."""
    number = count_of(raw)
    return number is not None and number <= MOST_COUNTED


def _odd_workers(said: Sequence[bytes], now: int) -> Iterator[Damage]:
    for name, text in zip(said[::2], said[1::2], strict=True):
        problem = "what worker {} announced cannot be read"
        try:
            if worker_of(name.decode(), text).live_until <= now + LONGEST_LEASE:
                continue
            problem = "worker {} says that it lives for longer than a year"
        except (DecodeError, UnicodeDecodeError):
            pass  # That is the damage which is told below.
        yield Damage(Kind.WORKER, problem.format(shown(name)), name=name)


def _odd_steps(steps: Sequence[bytes]) -> Iterator[Damage]:
    known = dict(zip(steps[::2], steps[1::2], strict=True))
    if str(VERSION).encode() not in known:
        name = str(VERSION).encode()
        yield Damage(Kind.STEP, f"version {VERSION} of our keys is not noted", name=name)
    sound = {str(version).encode() for version in steps_of(known)}
    for name, text in known.items():
        if not name.isdigit():
            continue  # A newer program may note more than versions.
        if name not in sound or noted_of(text) is None:
            problem = f"version {shown(name)} of our keys, noted as {shown(text)}, cannot be"
            yield Damage(Kind.STEP, problem, name=name)


def _check_strays(keys: Keys) -> Conversation[list[Damage]]:
    """Check that ids which do not tell their queue lead somewhere."""

    def wrong(name: bytes, queue: bytes) -> str | None:
        if is_id(name) and name_of(queue) is not None:
            return None
        return f"job {shown(name)} is listed for queue {shown(queue)}, which cannot be"

    return (yield from _check_hash(keys.strays, Kind.STRAY, "", wrong))


def _check_hash(
    key: str, kind: Kind, queue: str, wrong: Callable[[bytes, bytes], str | None]
) -> Conversation[list[Damage]]:
    """Check the fields of a hash one by one."""
    found: list[Damage] = []
    cursor = b"0"
    while True:
        [[cursor, page]] = yield from spared([("HSCAN", key, cursor, "COUNT", 100)], (b"0", []))
        for name, value in zip(page[::2], page[1::2], strict=True):
            problem = wrong(name, value)
            if problem is not None:
                found.append(Damage(kind, problem, queue, name))
        if cursor == b"0":
            return found


def _check_slot(keys: Keys, slot: str) -> Conversation[list[Damage]]:
    """Check the entries of a slot, and their marks."""
    found: list[Damage] = []
    for part in SLOT:
        found += yield from _check_entries(keys, "check_loose", slot, part, Kind.ENTRY)
    return found


def _check_entries(
    keys: Keys, verb: str, queue: str, part: str, kind: Kind, *words: Word
) -> Conversation[list[Damage]]:
    """Check the entries, or the marks of entries, under one key."""
    found: list[Damage] = []
    cursor = b"0"
    while True:
        [[cursor, wrong]] = yield [call(keys, verb, queue, part, cursor, *words)]
        for name, problem in zip(wrong[::2], wrong[1::2], strict=True):
            told = f"entry {shown(name)} {problem.decode()}"
            found.append(Damage(kind, told, queue, name, part.encode()))
        if cursor == b"0":
            return found


# What is of one queue


def _check_types(
    keys: Keys, queue: str, parts: Sequence[str] = PARTS
) -> Conversation[list[Damage]]:
    """Check that each key of a queue is of its type."""
    asked: list[Command] = [(_size_of(part), keys.key(queue, part)) for part in parts]
    sizes = yield from spared(asked, None)
    return [
        Damage(Kind.KEY, f"key {key} is of a type that is not ours", queue, key.encode())
        for (_, key), size in zip(asked, sizes, strict=True)
        if size is None
    ]


def _size_of(part: str) -> str:
    if part in (*HASHES, "loose"):
        return "HLEN"
    return "LLEN" if part == "log" else "ZCARD"


def _check_settings(keys: Keys, queue: str) -> Conversation[list[Damage]]:
    """Check the settings of a queue that we know; any other may be a newer program's."""

    def wrong(name: bytes, value: bytes) -> str | None:
        number, most = count_of(value), _SETTINGS.get(name)
        if most is None or (number is not None and number <= most):
            return None
        return f"queue {queue} has the setting {shown(name)} {shown(value)}, which cannot be"

    return (yield from _check_hash(keys.key(queue, "settings"), Kind.SETTING, queue, wrong))


def _check(
    keys: Keys, queue: str, part: str, clock: Clock | None, level: int
) -> Conversation[list[Damage]]:
    """Check the jobs, or the marks of jobs, under one key."""
    found: list[Damage] = []
    cursor = b"0"
    while True:
        at = moment(clock.now() if clock else None)
        [answer] = yield [call(keys, "check", queue, at, part, cursor, level)]
        cursor, ids, wrongs, members, options = answer
        for raw_id, wrong, member, option in zip(ids, wrongs, members, options, strict=True):
            odd = None if wrong or not option else _odd(option)
            problem = wrong.decode() or (odd and f"has options that cannot be read: {odd}")
            if problem:
                told = f"job {shown(raw_id)} {problem}"
                found.append(Damage(Kind.JOB, told, queue, raw_id, member, odd is not None))
        if part == "bodies":
            strays = [each.decode() for each in ids if is_id(each)]
            strays = [each for each in strays if is_stray(each, queue)]
            found += yield from _check_unlisted(keys, queue, strays)
        if cursor == b"0":
            return found


@lru_cache(maxsize=10_000)
def _odd(options: bytes) -> str | None:
    """Return why options cannot be read; None if they can."""
    try:
        decode_options(options.decode(errors="replace"))
    except DecodeError as problem:
        return problem.problem
    return None


def _check_unlisted(keys: Keys, queue: str, strays: Sequence[str]) -> Conversation[list[Damage]]:
    """Check that ids which do not tell their queue are written down with it."""
    if not strays:
        return []
    nothing = [None] * len(strays)
    [found] = yield from spared([("HMGET", keys.strays, *strays)], nothing)
    lost = [job_id for job_id, there in zip(strays, found, strict=True) if name_of(there) != queue]
    if not lost:
        return []
    # Those that are deleted just now are struck off a moment later: so it must be there
    # before and after it was not written down.
    known: list[Command] = [("HEXISTS", keys.key(queue, "bodies"), each) for each in lost]
    asked: list[Command] = [*known, ("HMGET", keys.strays, *lost), *known]
    answers = yield from spared(asked, nothing)
    before, again, after = answers[: len(lost)], answers[len(lost)], answers[len(lost) + 1 :]
    return [
        Damage(
            Kind.STRAY,
            f"job {job_id} cannot be found by its id",
            queue,
            job_id.encode(),
            queue.encode(),
        )
        for job_id, was_known, there, is_known in zip(lost, before, again, after, strict=False)
        if was_known and is_known and name_of(there) != queue
    ]


# Its logs


def _check_log(keys: Keys, queue: str, now: int) -> Conversation[list[Damage]]:
    """Check that every batch can be read, and that no run has two lines."""
    found: list[Damage] = []
    seen: set[int] = set()
    number = 0
    while True:
        [[start, batches]] = yield [call(keys, "batches", queue, number, PIECE)]
        if start > number:  # Old ones were forgotten, and more may be meanwhile.
            number = start
            continue
        for at, batch in enumerate(batches, number):
            problem, twice = _wrong_batch(queue, batch, seen)
            if problem:
                after = batch_without(batch, twice, now)
                name = str(at).encode()
                found.append(Damage(Kind.BATCH, problem, queue, name, batch, after=after))
        if len(batches) < PIECE:
            return found
        number += PIECE


def _wrong_batch(queue: str, batch: bytes, seen: set[int]) -> tuple[str | None, set[int]]:
    """Say what is wrong with a batch, and which of its lines are there twice; note its runs."""
    problem = None
    lines = lines_of(queue, batch)
    if not is_batch(batch, len(lines)) or ended_at(batch) > LATEST:
        problem = f"the attempt log of queue {queue} has lines that cannot be read"
    twice = set()
    for at, line in enumerate(lines):
        run = hash((line.job_id, line.fence))
        if run in seen:
            problem = f"job {line.job_id} has two lines for one fence in the attempt log"
            twice.add(at)
        seen.add(run)
    return problem, twice


def _check_gone(keys: Keys, queue: str) -> Conversation[list[Damage]]:
    """Check what leads to the lines of deleted jobs."""

    def wrong(name: bytes, value: bytes) -> str | None:
        if is_id(name) and numbers_of(value) is not None:
            return None
        return f"job {shown(name)} is deleted, and what leads to its lines cannot be read"

    return (yield from _check_hash(keys.key(queue, "gone"), Kind.GONE, queue, wrong))


def _check_acts(keys: Keys, queue: str) -> Conversation[list[Damage]]:
    """Check that every line of the audit log can be read and has its number."""
    acts, acted = keys.key(queue, "acts"), keys.key(queue, "acted")
    found: list[Damage] = []
    for command, key in (("ZSCAN", acts), ("HSCAN", acted)):
        cursor = b"0"
        while True:
            [[cursor, page]] = yield [(command, key, cursor, "COUNT", 100)]
            actions = page[::2]
            if actions:
                lines, numbers = yield [("HMGET", acted, *actions), ("ZMSCORE", acts, *actions)]
                found += _odd_acts(queue, actions, lines, numbers)
            if cursor == b"0":
                break
    return list(dict.fromkeys(found))


def _odd_acts(
    queue: str,
    actions: Sequence[bytes],
    lines: Sequence[bytes | None],
    numbers: Sequence[bytes | None],
) -> Iterator[Damage]:
    for action, line, number in zip(actions, lines, numbers, strict=True):
        place = float(number if number is not None else "nan")
        if not 0 <= place <= MOST_COUNTED or not place.is_integer() or not is_line(line):
            problem = f"line {shown(action)} of the audit log cannot be read"
            yield Damage(Kind.ACT, problem, queue, action)


def is_line(text: bytes | None) -> bool:
    """Say whether a line of the audit log can be read."""
    try:
        line_of(text or b"")
    except DecodeError:
        return False
    return True
