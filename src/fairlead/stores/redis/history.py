"""The attempt log of each queue, read from its end; and the lines of one job."""

from collections.abc import Iterator, Sequence

from fairlead.core.clock import FAR_FUTURE
from fairlead.core.ids import JobId
from fairlead.core.job import Attempt
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.queues import Queues
from fairlead.stores.redis.records import lines_of
from fairlead.stores.redis.talk import Conversation, call, spared

PIECE = 100
"""How many batches are read at once."""


class History:
    """Reads the attempt log."""

    def __init__(self, keys: Keys, queues: Queues) -> None:
        self._keys = keys
        self._queues = queues

    def attempts(self, job_id: JobId) -> Conversation[list[Attempt]]:
        """Return the job's lines of the attempt log, oldest first."""
        names = yield from self._queues.names()
        where = yield from self._queues.where([job_id])
        # It may have been deleted, and put again, here or elsewhere.
        gone = yield from spared(
            [("HEXISTS", self._keys.key(name, "gone"), job_id) for name in names], 0
        )
        trail = [name for name, is_there in zip(names, gone, strict=True) if is_there]
        trail = [*(name for name in trail if name not in where), *where]
        if not trail:
            return (yield from self._search(job_id, names))
        answers = yield from spared(
            [call(self._keys, "attempts", name, job_id) for name in trail], []
        )
        return [
            line
            for name, batches in zip(trail, answers, strict=True)
            for batch in batches
            for line in lines_of(name, batch)
            if line.job_id == job_id
        ]

    def _search(self, job_id: JobId, names: Sequence[str]) -> Conversation[list[Attempt]]:
        """Read everything for the lines of a job that is forgotten."""
        found: dict[int, Attempt] = {}
        for name in names:
            last = 0
            while True:
                [batches] = yield from spared([self._piece(name, last)], [])
                for batch in reversed(batches):
                    if job_id.encode() in batch:
                        lines = lines_of(name, batch)
                        found |= {line.fence: line for line in lines if line.job_id == job_id}
                if len(batches) < PIECE:
                    break
                last += PIECE
        return list(found.values())[::-1]

    def recent(self, since: int, limit: int, queue: str | None) -> Conversation[list[Attempt]]:
        """Return the last lines of the attempt log, newest first."""
        left = (yield from self._queues.names()) if queue is None else [queue]
        # What is added meanwhile moves the pieces, so a line may be read twice.
        found: dict[tuple[str, int], Attempt] = {}
        bar, last = _clock(since), 0
        while left and limit > 0:
            answers = yield from spared([self._piece(name, last) for name in left], [])
            for name, batches in zip(left, answers, strict=True):
                lines = _newest(name, batches, bar, limit)
                found |= {(line.job_id, line.fence): line for line in lines}
            newest = sorted(found.values(), key=lambda line: line.finished_at, reverse=True)[:limit]
            found = {(line.job_id, line.fence): line for line in newest}
            if len(newest) == limit:
                bar = _clock(newest[-1].finished_at)
            # Batches are in order, unless the clock went back: read on to a piece of older ones.
            left = [
                name
                for name, batches in zip(left, answers, strict=True)
                if len(batches) == PIECE and max(map(_ended, batches)) >= bar
            ]
            last += PIECE
        return list(found.values())

    def _piece(self, queue: str, last: int) -> tuple[str | int, ...]:
        """Ask for batches before the last ones, so many as `PIECE`."""
        return ("LRANGE", self._keys.key(queue, "log"), -last - PIECE, -last - 1)


def _clock(at: int) -> bytes:
    """Return a time as batches begin with it, which sorts as it does."""
    return b"%016d" % at


def _ended(batch: bytes) -> bytes:
    return batch[:16]


def _newest(queue: str, batches: Sequence[bytes], bar: bytes, limit: int) -> Iterator[Attempt]:
    """Return the lines that ended at the bar or later; some that are too old to count are left."""
    number, oldest = 0, _clock(FAR_FUTURE)
    for batch in reversed(batches):
        if _ended(batch) >= bar:
            lines = lines_of(queue, batch)
            yield from lines
            number += len(lines)
            oldest = min(oldest, _ended(batch))
            if number >= limit:
                bar = max(bar, oldest)
