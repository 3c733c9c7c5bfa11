"""Jobs as people look for them: one by its id; and how many there are of each kind."""

from collections import Counter
from contextlib import suppress

import msgspec

from fairlead.core.admin import ErrorGroup, Filter
from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId
from fairlead.core.job import JobRecord, State
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.pages import Pages
from fairlead.stores.redis.parked import parked
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import Kept, kept_of, pack, run_of
from fairlead.stores.redis.talk import Conversation, call, spared

_RUNS_AT_ONCE = 1_000

_PLACES = {
    "due": State.WAITING,
    "ready": State.WAITING,
    "parked": None,
    "leases": State.RUNNING,
    "lost": State.RUNNING,
    "done": State.DONE,
    "cancelled": State.CANCELLED,
    "dead": State.DEAD,
}
"""The state of the jobs in each place; parked ones wait, or are runs that were lost."""


class Listing:
    """Looks for jobs."""

    def __init__(self, keys: Keys, queues: Queues, pages: Pages) -> None:
        self._keys = keys
        self._queues = queues
        self._pages = pages

    # By id

    def kept(self, job_id: JobId) -> Conversation[tuple[str, Kept] | None]:
        """Return the queue of a job, and what is kept of it there."""
        for _ in range(2):
            for queue in (yield from self._queues.where([job_id])):
                asked = call(self._keys, "records", queue, pack([job_id]))
                [[answer]] = yield from spared([asked], [[None]])
                kept = kept_of(answer)
                if kept is not None:
                    return queue, kept
            # It may have gone from where it was, and have come to another queue since.
            self._queues.drop([job_id])
        return None

    def find(self, job_id: JobId) -> Conversation[JobRecord | None]:
        """Return a job in whatever state."""
        found = yield from self.kept(job_id)
        if found is None:
            return None
        queue, kept = found
        return kept.record(job_id, queue)

    # By filter

    def count(self, which: Filter) -> Conversation[dict[str, dict[State, int]]]:
        """Count jobs by queue and state."""
        if _is_plain(which):
            return (yield from self._sizes(which))
        counts: Counter[tuple[str, State]] = Counter()

        def take(record: JobRecord) -> None:
            counts[record.queue, record.state] += 1

        yield from self._pages.walk(which, take)
        return _by_queue(counts)

    def groups(self, which: Filter) -> Conversation[list[ErrorGroup]]:
        """Return failures by fingerprint."""
        groups: dict[str | None, _Group] = {}

        def take(record: JobRecord) -> None:
            mark = record.errors[-1].fingerprint if record.errors else None
            groups.setdefault(mark, _Group(record)).add(record)

        yield from self._pages.walk(which, take)
        told = (group.told() for group in groups.values())
        return sorted(told, key=lambda group: (group.count, group.job), reverse=True)

    # Counting places

    def _sizes(self, which: Filter) -> Conversation[dict[str, dict[State, int]]]:
        """Count jobs by the sizes of their places."""
        places = yield from self._places(which)
        if not places:
            return {}
        sizes = yield from spared(
            [("ZCARD", self._keys.key(queue, part)) for queue, part in places], 0
        )
        counts: Counter[tuple[str, State]] = Counter()
        aside: list[str] = []
        for (queue, part), size in zip(places, sizes, strict=True):
            state = _PLACES[part]
            if state is not None:
                counts[queue, state] += size
            elif size:
                aside.append(queue)
        for queue, kinds in (yield from parked(self._keys, aside)).items():
            counts[queue, State.WAITING] += sum(waiting for _, waiting, _ in kinds)
            counts[queue, State.RUNNING] += sum(lost for _, _, lost in kinds)
        return _by_queue(
            {key: n for key, n in counts.items() if not which.states or key[1] in which.states}
        )

    def retrying(self, queue: str, now: int) -> Conversation[int]:
        """Count the jobs that wait for their next attempt, by the runs of those not due yet."""
        due, standings = (self._keys.key(queue, part) for part in ("due", "standings"))
        [start] = yield from spared([("ZCOUNT", due, "-inf", now)], 0)
        number, found = 0, [b""]
        while found:
            last = start + _RUNS_AT_ONCE - 1
            [found] = yield from spared([("ZRANGE", due, start, last)], [])
            start += len(found)
            if found:
                [texts] = yield from spared([("HMGET", standings, *found)], [])
                number += sum(map(_was_tried, texts))
        return number

    def _places(self, which: Filter) -> Conversation[list[tuple[str, str]]]:
        """Return where there may be jobs that a filter means: queues, and their parts."""
        names = which.queues or (yield from self._queues.names())
        states = set(which.states or State)
        parts = [
            part
            for part, state in _PLACES.items()
            if state in states or (state is None and states & {State.WAITING, State.RUNNING})
        ]
        return [(queue, part) for queue in dict.fromkeys(names) for part in parts]


def _was_tried(run: bytes | None) -> bool:
    with suppress(DecodeError):
        return run is not None and run_of("", run).attempt > 0
    return False


class _Group:
    """Jobs with one fingerprint, told by the newest."""

    def __init__(self, newest: JobRecord) -> None:
        self._newest = newest
        self._tasks: set[str] = set()
        self._count = 0
        self._first_at = self._last_at = newest.finished_at or newest.enqueued_at

    def add(self, job: JobRecord) -> None:
        """Count one more."""
        at = job.finished_at or job.enqueued_at
        self._newest = max(self._newest, job, key=lambda each: each.id)
        self._count += 1
        self._tasks.add(job.task)
        self._first_at, self._last_at = min(self._first_at, at), max(self._last_at, at)

    def told(self) -> ErrorGroup:
        """Return it as people see it."""
        last = self._newest.errors[-1] if self._newest.errors else None
        return ErrorGroup(
            fingerprint=last.fingerprint if last else None,
            error=last.error if last else None,
            message=last.message if last else None,
            tasks=tuple(sorted(self._tasks)),
            count=self._count,
            first_at=self._first_at,
            last_at=self._last_at,
            job=self._newest.id,
        )


def _is_plain(which: Filter) -> bool:
    """Say whether a filter asks for nothing but queues and states, which places tell."""
    return msgspec.structs.replace(which, queues=(), states=()) == Filter()


def _by_queue(counts: dict[tuple[str, State], int]) -> dict[str, dict[State, int]]:
    told: dict[str, dict[State, int]] = {}
    for (queue, state), number in counts.items():
        if number:
            told.setdefault(queue, {})[state] = number
    return told
