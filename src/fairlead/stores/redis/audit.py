"""Check the keys against themselves: every job in one place, every mark in agreement (I3).

A script checks a few jobs at a time, as they are at one moment, so jobs that move meanwhile
are no false alarm and nobody waits for long.
"""

from collections.abc import Iterator, Sequence

from fairlead.core.admin import Finding
from fairlead.core.clock import Clock
from fairlead.stores.redis.history import PIECE
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.queues import Queues, is_stray
from fairlead.stores.redis.records import lines_of
from fairlead.stores.redis.talk import Command, Conversation, moment, script

_PARTS = (
    *("bodies", "runs", "errors", "ends"),
    *("ready", "due", "leases", "lost", "unknown", "expiring"),
    *("done", "cancelled", "dead"),
)
_REMEDY = "keep a copy of the queue's keys, and report it"


def audit(keys: Keys, queues: Queues, clock: Clock | None) -> Conversation[list[Finding]]:
    """Scan everything, a piece at a time."""
    problems: list[str] = []
    for queue in (yield from queues.names()):
        for part in _PARTS:
            problems += yield from _check(keys, queue, part, clock)
        problems += yield from _check_log(keys, queue)
    # A scan may come by the same job twice.
    return [Finding(problem, _REMEDY) for problem in dict.fromkeys(problems)]


def _check(keys: Keys, queue: str, part: str, clock: Clock | None) -> Conversation[list[str]]:
    """Check the jobs, or the marks of jobs, under one key."""
    problems: list[str] = []
    cursor = b"0"
    while True:
        at = moment(clock.now() if clock else None)
        [[cursor, ids, wrongs]] = yield [script(keys, "check", queue, at, part, cursor)]
        problems += [
            f"job {raw_id.decode(errors='replace')} {wrong.decode()}"
            for raw_id, wrong in zip(ids, wrongs, strict=True)
            if wrong
        ]
        if part == "bodies":
            strays = [each for each in map(_text, ids) if is_stray(each, queue)]
            problems += yield from _check_strays(keys, queue, strays)
        if cursor == b"0":
            return problems


def _check_strays(keys: Keys, queue: str, strays: Sequence[str]) -> Conversation[list[str]]:
    """Check that ids which do not tell their queue are written down with it."""
    if not strays:
        return []
    [found] = yield [("HMGET", keys.strays, *strays)]
    lost = [
        job_id
        for job_id, there in zip(strays, found, strict=True)
        if there is None or there.decode() != queue
    ]
    if not lost:
        return []
    # Those that are deleted just now are struck off a moment later: so it must be there
    # before and after it was not written down.
    known: list[Command] = [("HEXISTS", keys.key(queue, "bodies"), each) for each in lost]
    answers = yield [*known, ("HMGET", keys.strays, *lost), *known]
    before, again, after = answers[: len(lost)], answers[len(lost)], answers[len(lost) + 1 :]
    return [
        f"job {job_id} cannot be found by its id"
        for job_id, was_known, there, is_known in zip(lost, before, again, after, strict=True)
        if was_known and is_known and (there is None or there.decode() != queue)
    ]


def _check_log(keys: Keys, queue: str) -> Conversation[list[str]]:
    """Check that no run has two lines."""
    problems: list[str] = []
    seen: set[int] = set()
    [start] = yield [("HGET", keys.key(queue, "settings"), "log_start")]
    number = int(start or 0)
    while True:
        start, batches = yield from _batches(keys, queue, number)
        if start > number:  # Old ones were forgotten meanwhile.
            number = start
            continue
        for run, problem in _runs(queue, batches):
            if run in seen:
                problems.append(problem)
            seen.add(run)
        if len(batches) < PIECE:
            return problems
        number += PIECE


def _batches(keys: Keys, queue: str, number: int) -> Conversation[tuple[int, list[bytes]]]:
    """Return the batches from a number on, and the number of the first that is left."""
    [answer] = yield [script(keys, "batches", queue, number, PIECE)]
    start, batches = answer
    return start, batches


def _runs(queue: str, batches: Sequence[bytes]) -> Iterator[tuple[int, str]]:
    """Return a number for each run in these, and what to say if it is not the only one."""
    for batch in batches:
        for line in lines_of(queue, batch):
            problem = f"job {line.job_id} has two lines for one fence in the attempt log"
            yield hash((line.job_id, line.fence)), problem


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")
