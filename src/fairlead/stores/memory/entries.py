"""Entries of `memory://`: a dict, under the lock of the line."""

from collections.abc import Callable, Sequence
from threading import RLock

from fairlead.core.clock import Clock
from fairlead.core.entries import Change, Entries, Entry, Wanted, check_changes
from fairlead.core.errors import LeaseLost
from fairlead.core.ids import JobId
from fairlead.core.job import next_fence
from fairlead.core.store import BATCH

_Name = tuple[str, JobId | None, str]


class MemoryEntries(Entries):
    """The entries beside a line of jobs, which says who lives and who runs under a fence."""

    def __init__(
        self,
        lock: RLock,
        clock: Clock,
        is_live: Callable[[JobId], bool],
        runs_under: Callable[[JobId, int], bool],
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._is_live = is_live
        self._runs_under = runs_under
        self._entries: dict[_Name, Entry] = {}

    async def read(self, wanted: Wanted) -> list[Entry]:
        """Return entries that have not expired."""
        with self._lock:
            now = self._clock.now()
            found = [entry for entry in self._entries.values() if _is_meant(entry, wanted, now)]
        by_due = wanted.due_before is not None
        found.sort(key=lambda each: (each.due_at if by_due else 0, each.key.encode()))
        return found[: wanted.limit]

    async def write(
        self, changes: Sequence[Change], fence: tuple[JobId, int] | None = None
    ) -> list[int | None]:
        """Write entries, each if the version it expects is there."""
        check_changes(changes)
        with self._lock:
            now = self._clock.now()
            if fence is not None and not self._runs_under(*fence):
                raise LeaseLost(fence[0])
            return [self._write(change, now) for change in changes]

    def _write(self, change: Change, now: int) -> int | None:
        name = (change.kind, change.owner, change.key)
        old = self._entries.get(name)
        if old is not None and _has_expired(old, now):
            old = None
        if change.owner is not None and not self._is_live(change.owner):
            return None
        if change.expect is not None and change.expect != (old.version if old else 0):
            return None
        if change.value is None:
            self._entries.pop(name, None)
            return 0
        version = next_fence(old.version if old else 0, now)
        self._entries[name] = Entry(
            change.kind,
            change.key,
            change.value,
            version,
            change.owner,
            change.due_at,
            change.expires_at,
        )
        return version

    def forget(self, job_id: JobId) -> None:
        """Forget what belongs to a job that the store forgets."""
        for name in [each for each in self._entries if each[1] == job_id]:
            del self._entries[name]

    def prune(self, now: int) -> int:
        """Remove what has expired."""
        old = [name for name, each in self._entries.items() if _has_expired(each, now)][:BATCH]
        for name in old:
            del self._entries[name]
        return len(old)


def _has_expired(entry: Entry, now: int) -> bool:
    return entry.expires_at is not None and entry.expires_at <= now


def _is_meant(entry: Entry, wanted: Wanted, now: int) -> bool:
    if (entry.kind, entry.owner) != (wanted.kind, wanted.owner) or _has_expired(entry, now):
        return False
    if wanted.due_before is not None:
        return entry.due_at is not None and entry.due_at < wanted.due_before
    if wanted.keys is not None:
        return entry.key in wanted.keys
    return entry.key.startswith(wanted.prefix) and entry.key.encode() > wanted.after.encode()
