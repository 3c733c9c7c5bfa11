"""Which queues there are, and which of them a job is in.

An id made for a queue ends with its mark, and so leads to it. Other ids are written down
under `strays` before they are put, with the queue they go to.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from fairlead.core.errors import DecodeError
from fairlead.core.ids import JobId, mark_of
from fairlead.core.job import NewJob
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.layout import Leased
from fairlead.stores.redis.parked import all_leased
from fairlead.stores.redis.records import is_id, leased_of
from fairlead.stores.redis.talk import Command, Conversation, call_on, pieces, spared

_MOST_REMEMBERED = 200_000
_RUNS_AT_ONCE = 500
_LONGEST_NAME = 1_000


def is_stray(job_id: str, queue: str) -> bool:
    """Say whether an id does not tell its queue."""
    return not job_id.endswith(mark_of(queue))


def name_of(raw: bytes | None) -> str | None:
    """Return the name of a queue; None for what cannot be one."""
    try:
        name = (raw or b"").decode()
    except UnicodeDecodeError:
        return None
    return name if 0 < len(name) <= _LONGEST_NAME else None


class Queues:
    """Finds the queue of a job, and remembers."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._registered: set[str] = set()
        self._where: dict[str, str] = {}

    def names(self) -> Conversation[list[str]]:
        """Return the names of all queues that were ever used."""
        [found] = yield from spared([("SMEMBERS", self._keys.queues)], None)
        return sorted(self._readable(found))

    def _readable(self, found: Iterable[bytes] | None) -> set[str]:
        """Return those of these that are names; where none can be read, those that we know."""
        if found is None:
            return self._registered | set(self._where.values())
        return {name for name in map(name_of, found) if name is not None}

    def register(self, names: Iterable[str]) -> Conversation[None]:
        """Make queues known, so that they are found by who looks through all of them."""
        new = [name for name in names if name not in self._registered]
        if new:
            # Who cannot write it down can do without: the doctor tells of it.
            yield from spared([call_on("register", self._keys.queues, *new)], None)
            self._registered.update(new)

    def leads_to(self, job_id: str, queue: str) -> bool:
        """Say whether a queue is known, and the id leads there."""
        return queue in self._registered and not is_stray(job_id, queue)

    def forget(self) -> list[str]:
        """Return what this process made known, to be made known again."""
        names = list(self._registered)
        self._registered.clear()
        return names

    def remember(self, job_ids: Iterable[str], queue: str) -> None:
        """Take note of where jobs are."""
        if len(self._where) > _MOST_REMEMBERED:
            self.drop(list(self._where)[: _MOST_REMEMBERED // 2])
        self._where.update(dict.fromkeys(job_ids, queue))

    def drop(self, job_ids: Iterable[str]) -> None:
        """Remember no more where these were."""
        for job_id in job_ids:
            self._where.pop(job_id, None)

    def where(self, job_ids: Collection[str]) -> Conversation[dict[str, list[JobId]]]:
        """Return the jobs by the queue they are in; those that are nowhere are left out."""
        found = {each: self._where[each] for each in job_ids if each in self._where}
        missing = [each for each in job_ids if each not in found]
        if missing:
            found |= yield from self._look_for(missing)
            for job_id in missing:
                if job_id in found:
                    self.remember([job_id], found[job_id])
        grouped: dict[str, list[JobId]] = {}
        for job_id in job_ids:
            if job_id in found:
                grouped.setdefault(found[job_id], []).append(JobId(job_id))
        return grouped

    def meant(self, job_ids: Collection[JobId]) -> Conversation[dict[str, list[JobId]]]:
        """Return the jobs that a person means by the queue they are in, or were in.

        Those that are nowhere may have been deleted by a call that is repeated now. Its answer is
        in the queue that their ids lead to.
        """
        self.drop(job_ids)  # Where they were need not be where they are.
        found = yield from self.where(job_ids)
        places = {job_id: queue for queue, ids in found.items() for job_id in ids}
        if len(places) == len(set(job_ids)):
            return found
        by_mark = {mark_of(name): name for name in (yield from self.names())}
        grouped: dict[str, list[JobId]] = {}
        for job_id in job_ids:
            queue = places.get(job_id) or by_mark.get(job_id[-4:])
            if queue is not None:
                grouped.setdefault(queue, []).append(job_id)
        return grouped

    def _look_for(self, job_ids: Sequence[str]) -> Conversation[dict[str, str]]:
        """Ask the queues that their marks lead to, and the list of strays."""
        names, strays = yield from spared(
            [("SMEMBERS", self._keys.queues), ("HMGET", self._keys.strays, *job_ids)], None
        )
        by_mark: dict[str, list[str]] = {}
        for name in self._readable(names):
            by_mark.setdefault(mark_of(name), []).append(name)
        maybe = [(job_id, queue) for job_id in job_ids for queue in by_mark.get(job_id[-4:], ())]
        places = map(name_of, strays or ())
        maybe += [(job_id, queue) for job_id, queue in zip(job_ids, places, strict=False) if queue]
        there = yield from self._known(maybe)
        return {job_id: queue for job_id, queue in maybe if (job_id, queue) in there}

    def _known(self, pairs: Sequence[tuple[str, str]]) -> Conversation[set[tuple[str, str]]]:
        """Return those of these pairs whose queue knows the job."""
        if not pairs:
            return set()
        answers = yield from spared([self._has(queue, job_id) for job_id, queue in pairs], 0)
        return {pair for pair, known in zip(pairs, answers, strict=True) if known}

    def _has(self, queue: str, job_id: str) -> Command:
        return ("HEXISTS", self._keys.key(queue, "bodies"), job_id)

    def running(self, queue: str) -> Conversation[dict[str, Leased]]:
        """Return the runs of a queue that have a lease, passed or not."""
        runs: dict[str, Leased] = {}
        found = [each for each in (yield from all_leased(self._keys, queue)) if is_id(each)]
        for some in pieces(found, _RUNS_AT_ONCE):
            key = self._keys.key(queue, "standings")
            [texts] = yield from spared([("HMGET", key, *some)], [None] * len(some))
            for raw_id, text in zip(some, texts, strict=True):
                with suppress(DecodeError):  # Whatever it was, it runs no more.
                    run = leased_of(raw_id.decode(), text or b"")
                    if run.lease_until:
                        runs[raw_id.decode()] = run
        return runs

    # Strays

    def reserve(self, jobs: Sequence[NewJob]) -> Conversation[dict[str, str]]:
        """Write down where strays go, before they are put. Returns where each is, or goes.

        One that is written down for another queue, but is not there, was never put or is
        forgotten: it goes where it is wanted now.
        """
        wanted: dict[str, str] = {}
        for job in jobs:
            wanted.setdefault(job.id, job.queue)
        new = yield from spared(
            [("HSETNX", self._keys.strays, *pair) for pair in wanted.items()], 0
        )
        found = yield from self._look_for(list(wanted))
        commands: list[Command] = []
        for (job_id, queue), is_new in zip(wanted.items(), new, strict=True):
            if is_new and found.get(job_id, queue) != queue:
                commands.append(("HDEL", self._keys.strays, job_id))
            elif not is_new and job_id not in found:
                commands.append(("HSET", self._keys.strays, job_id, queue))
        yield from spared(commands, None)
        return wanted | found

    def strike(self, job_ids: Sequence[str], queue: str) -> Conversation[None]:
        """Forget where jobs were that are no more."""
        self.drop(job_ids)
        strays = [job_id for job_id in job_ids if is_stray(job_id, queue)]
        if not strays:
            return
        yield from spared([("HDEL", self._keys.strays, *strays)], None)
        # One may have been put again meanwhile, and must be found.
        back = yield from self._known([(job_id, queue) for job_id in strays])
        yield from spared([("HSETNX", self._keys.strays, *pair) for pair in back], None)
