"""Gates that count, on Redis: what a claim has taken is charged, and whoever is refused is parked.

Queues that share a limit are in different slots, so no function can see to both. What counts them
is in a slot of its own, and asked about jobs that are leased already; those it refuses are
parked in their queue as if they had not been claimed. A new kind of limit is an entry of
`core.selection.LIMITS`, and a `Limit` here. Its jobs are parked under the name of its gate, and
lists, counts and `explain` know them by that.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from fairlead.core.ids import JobId
from fairlead.core.job import Gate, Job
from fairlead.core.store import BATCH
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.records import pack
from fairlead.stores.redis.talk import Conversation, Word, call, spared


class Limit(Protocol):
    """One that counts, whatever it counts in."""

    gate: Gate

    def with_room(self) -> Conversation[Sequence[str]]:
        """Return the keys that have room, of those for which jobs are parked."""

    def in_use(self) -> Conversation[Mapping[str, int]]:
        """Return how many jobs use it, by its keys; changes nothing."""

    def refuse(self, jobs: Sequence[Job]) -> Conversation[Mapping[JobId, str]]:
        """Charge jobs, the first in place first; return those that are refused, and their keys."""


def in_use(limits: Iterable[Limit]) -> Conversation[dict[Gate, Counter[str]]]:
    """Return how much of each limit is in use."""
    used: dict[Gate, Counter[str]] = {}
    for limit in limits:
        used[limit.gate] = Counter((yield from limit.in_use()))
    return used


def bring_back(
    keys: Keys, limits: Iterable[Limit], names: Iterable[str], at: Word, level: int
) -> Conversation[set[str]]:
    """Bring back jobs for which their limits have room; return their queues."""
    stirred: set[str] = set()
    for limit in limits:
        open_keys = pack(list((yield from limit.with_room())))
        queues = list(names)
        words = (at, limit.gate, open_keys, BATCH, level)
        calls = [call(keys, "reopen", name, *words) for name in queues]
        answers = yield from spared(calls, 0)
        stirred.update(name for name, back in zip(queues, answers, strict=True) if back)
    return stirred


def charge(
    keys: Keys,
    limits: Iterable[Limit],
    jobs: Sequence[Job],
    places: Mapping[JobId, int],
    at: Word,
) -> Conversation[list[Job]]:
    """Return those of these jobs that may run; the others are parked, and start no run."""
    left = sorted(jobs, key=lambda job: (places[job.id], job.id))
    for limit in limits:
        refused = yield from limit.refuse([job for job in left if not job.lost])
        by_queue: dict[str, list[tuple[str, str, int]]] = {}
        for job in left:
            if job.id in refused:
                by_queue.setdefault(job.queue, []).append((refused[job.id], job.id, job.fence))
        calls = [
            call(keys, "refuse", name, at, limit.gate, pack(some))
            for name, some in by_queue.items()
        ]
        yield from spared(calls, 0)
        left = [job for job in left if job.id not in refused]
    return left
