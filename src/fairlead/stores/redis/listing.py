"""Jobs as people look for them: one by its id, or all that a filter means.

There is no index of ids, which would cost memory for every job. So the ids of the places
where such jobs are get read, the newest of them picked, and only those are looked at. A job
that moves on meanwhile is met again at its next place, which is why places are read in the
order in which jobs go through them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest

import msgspec

from fairlead.core.admin import MOST_LISTED, ErrorGroup, Filter, matches
from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId
from fairlead.core.job import JobRecord, State
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import Kept, is_id, kept_of, pack, parked_of, run_of
from fairlead.stores.redis.talk import Conversation, call, pieces, spared

_IDS_AT_ONCE = 10_000
_RECORDS_AT_ONCE = 200
_RUNS_AT_ONCE = 1_000
_SMALL_WINDOW, _LARGE_WINDOW = 10_000, 1_000_000

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

Found = tuple[bytes, str]
"""An id, and its queue."""


class Listing:
    """Looks for jobs."""

    def __init__(self, keys: Keys, queues: Queues) -> None:
        self._keys = keys
        self._queues = queues

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

    def jobs(
        self, which: Filter, limit: int, before: JobId | None
    ) -> Conversation[list[JobRecord]]:
        """Return jobs that the filter means, newest first."""
        found: list[JobRecord] = []
        limit = min(limit, MOST_LISTED)

        def take(record: JobRecord) -> bool:
            found.append(record)
            return len(found) < limit

        if limit > 0:
            yield from self._walk(which, take, before, limit if _is_plain(which) else _SMALL_WINDOW)
        return found

    def count(self, which: Filter) -> Conversation[dict[str, dict[State, int]]]:
        """Count jobs by queue and state."""
        if _is_plain(which):
            return (yield from self._sizes(which))
        counts: Counter[tuple[str, State]] = Counter()

        def take(record: JobRecord) -> bool:
            counts[record.queue, record.state] += 1
            return True

        yield from self._walk(which, take, None, _LARGE_WINDOW)
        return _by_queue(counts)

    def groups(self, which: Filter) -> Conversation[list[ErrorGroup]]:
        """Return failures by fingerprint."""
        groups: dict[str | None, _Group] = {}

        def take(record: JobRecord) -> bool:
            mark = record.errors[-1].fingerprint if record.errors else None
            groups.setdefault(mark, _Group(record)).add(record)
            return True

        yield from self._walk(which, take, None, _LARGE_WINDOW)
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
        for (queue, part), size in zip(places, sizes, strict=True):
            state = _PLACES[part]
            if state is not None:
                counts[queue, state] += size
            elif size:
                for _, waiting, lost in (yield from self.parked(queue)):
                    counts[queue, State.WAITING] += waiting
                    counts[queue, State.RUNNING] += lost
        return _by_queue(
            {key: n for key, n in counts.items() if not which.states or key[1] in which.states}
        )

    def parked(self, queue: str) -> Conversation[list[tuple[bytes, int, int]]]:
        """Count parked jobs by gate and key: those that wait, and those whose run was lost."""
        key = self._keys.key(queue, "parked")
        found: list[tuple[bytes, int, int]] = []
        [first] = yield from spared([("ZRANGE", key, 0, 0)], [])
        while first:
            kind, _, _ = parked_of(first[0])
            waiting, lost, first = yield [
                ("ZLEXCOUNT", key, b"[" + kind + b"\0w", b"(" + kind + b"\0x"),
                ("ZLEXCOUNT", key, b"[" + kind + b"\0r", b"(" + kind + b"\0s"),
                # What somebody damaged may stand behind all of its kind, and must not come again.
                ("ZRANGEBYLEX", key, b"(" + max(kind + b"\0\xff", first[0]), "+", "LIMIT", 0, 1),
            ]
            found.append((kind, waiting, lost))
        return found

    def retrying(self, queue: str, now: int) -> Conversation[int]:
        """Count the jobs that wait for their next attempt, by the runs of those not due yet."""
        due, standings = (self._keys.key(queue, part) for part in ("due", "standings"))
        number, start, found = 0, 0, [b""]
        while found:
            page = ("LIMIT", start, _IDS_AT_ONCE)
            [found] = yield from spared([("ZRANGEBYSCORE", due, f"({now}", "+inf", *page)], [])
            start += len(found)
            for some in pieces(found, _RUNS_AT_ONCE):
                [texts] = yield from spared([("HMGET", standings, *some)], [])
                number += sum(map(_was_tried, texts))
        return number

    # Walking

    def _walk(
        self, which: Filter, take: Callable[[JobRecord], bool], before: JobId | None, size: int
    ) -> Conversation[None]:
        """Give the jobs that a filter means to `take`, newest first, until it has enough."""
        places = yield from self._places(which)
        end = None if before is None else before.encode()
        while places:
            window = yield from self._window(places, which, end, size)
            for some in pieces(window, _RECORDS_AT_ONCE):
                for record in (yield from self._records(some)):
                    if matches(which, record) and not take(record):
                        return
            if len(window) < size:
                return
            end = window[-1][0]
            size = min(max(size, _SMALL_WINDOW) * 10, _LARGE_WINDOW)

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

    def _window(
        self, places: Sequence[tuple[str, str]], which: Filter, end: bytes | None, size: int
    ) -> Conversation[list[Found]]:
        """Return the newest ids before `end`, as many as `size`, newest first."""
        sizes = yield from spared(
            [self._size(queue, part, which.since) for queue, part in places], 0
        )
        found: set[Found] = set()
        floor = b""
        for group in _groups(places, sizes):
            left, start = group, 0
            while left:
                span = (start, start + _IDS_AT_ONCE - 1)
                answers = yield from spared(
                    [("ZREVRANGE", self._keys.key(queue, part), *span) for queue, part, _ in left],
                    [],
                )
                start += _IDS_AT_ONCE
                for (queue, part, _), members in zip(left, answers, strict=True):
                    ids = [parked_of(each)[1] for each in members] if part == "parked" else members
                    found.update(
                        (each, queue)
                        for each in ids
                        if each > floor and (not end or each < end) and is_id(each)
                    )
                left = [
                    place
                    for place, members in zip(left, answers, strict=True)
                    if len(members) == _IDS_AT_ONCE and start < place[2] + _IDS_AT_ONCE
                ]
                if len(found) > 2 * size + _IDS_AT_ONCE:
                    found = set(nlargest(size, found))
                    floor = min(found)[0]
        return nlargest(size, found)

    def _size(self, queue: str, part: str, since: int | None) -> tuple[str | int, ...]:
        """Ask how many ids of a place matter: of those that ended, the last ones may do."""
        key = self._keys.key(queue, part)
        state = _PLACES[part]
        if since is None or state is None or not state.final:
            return ("ZCARD", key)
        return ("ZCOUNT", key, since, "+inf")

    def _records(self, found: Sequence[Found]) -> Conversation[Iterator[JobRecord]]:
        """Return the jobs with these ids, in this order, but those that are gone."""
        by_queue: dict[str, list[str]] = {}
        for raw_id, queue in found:
            by_queue.setdefault(queue, []).append(raw_id.decode())
        known = yield from kept_in(self._keys, by_queue)
        return _readable(
            (raw_id.decode(), queue, known.get((raw_id.decode(), queue))) for raw_id, queue in found
        )


def _was_tried(run: bytes | None) -> bool:
    with suppress(DecodeError):
        return run is not None and run_of("", run).attempt > 0
    return False


def kept_in(
    keys: Keys, wanted: Mapping[str, Sequence[str]]
) -> Conversation[dict[tuple[str, str], Kept]]:
    """Return what queues keep of jobs, by id and queue; it asks for large ones a few at a time."""
    known: dict[tuple[str, str], Kept] = {}
    left = dict(wanted)
    while left:
        asked = [call(keys, "records", queue, pack(ids)) for queue, ids in left.items()]
        answers = yield from spared(asked, None)
        rest: dict[str, Sequence[str]] = {}
        for (queue, ids), several in zip(left.items(), answers, strict=True):
            for job_id, answer in zip(ids, several or (), strict=False):
                kept = kept_of(answer)
                if kept is not None:
                    known[job_id, queue] = kept
            if several and len(several) < len(ids):
                rest[queue] = ids[len(several) :]
        left = rest
    return known


def _readable(found: Iterable[tuple[str, str, Kept | None]]) -> Iterator[JobRecord]:
    """Return the jobs that are known; of those that cannot be read the audit tells."""
    for job_id, queue, kept in found:
        if kept is not None:
            with suppress(DecodeError):
                yield kept.record(job_id, queue)


class _Group:
    """Jobs with one fingerprint, told by the newest, which is the first to be added."""

    def __init__(self, newest: JobRecord) -> None:
        self._newest = newest
        self._tasks: set[str] = set()
        self._count = 0
        self._first_at = self._last_at = newest.finished_at or newest.enqueued_at

    def add(self, job: JobRecord) -> None:
        """Count one more."""
        at = job.finished_at or job.enqueued_at
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


def _groups(
    places: Sequence[tuple[str, str]], sizes: Sequence[int]
) -> Iterator[list[tuple[str, str, int]]]:
    """Return places in groups that can be read together, those that are empty left out."""
    group: list[tuple[str, str, int]] = []
    total = 0
    for (queue, part), size in zip(places, sizes, strict=True):
        if not size:
            continue
        group.append((queue, part, size))
        total += min(size, _IDS_AT_ONCE)
        if total >= _IDS_AT_ONCE:
            yield group
            group, total = [], 0
    if group:
        yield group
