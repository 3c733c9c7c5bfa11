"""Entries of `memory://`: a dict, under the lock of the line."""

from collections.abc import Callable, Sequence
from threading import RLock

from fairlead.core.clock import Clock
from fairlead.core.entries import (
    Change,
    Entries,
    Entry,
    Name,
    Wanted,
    change_all,
    check_changes,
    is_there,
    meant,
)
from fairlead.core.errors import LeaseLost
from fairlead.core.ids import JobId
from fairlead.core.store import BATCH


class MemoryEntries(Entries):
    """The entries beside a line of jobs, which says who may own some and who runs under a fence."""

    def __init__(
        self,
        lock: RLock,
        clock: Clock,
        may_own: Callable[[JobId], bool],
        runs_under: Callable[[JobId, int], bool],
    ) -> None:
        self._lock = lock
        self._clock = clock
        self._may_own = may_own
        self._runs_under = runs_under
        self._entries: dict[Name, Entry] = {}

    async def read(self, wanted: Wanted) -> list[Entry]:
        """Return entries that have not expired."""
        with self._lock:
            return meant(wanted, self._entries.values(), self._clock.now())

    async def write(
        self, changes: Sequence[Change], fence: tuple[JobId, int] | None = None
    ) -> list[int | None]:
        """Write entries, each if the version it expects is there."""
        check_changes(changes)
        with self._lock:
            if fence is not None and not self._runs_under(*fence):
                raise LeaseLost(fence[0])
            owners = {change.owner for change in changes if change.owner is not None}
            live = set(filter(self._may_own, owners))
            answers, written = change_all(changes, self._entries, live, self._clock.now(), {})
            for name, entry in written.items():
                if entry is None:
                    self._entries.pop(name, None)
                else:
                    self._entries[name] = entry
        return answers

    def forget(self, job_id: JobId) -> None:
        """Forget what belongs to a job that the store forgets."""
        for name in [name for name in self._entries if name[1] == job_id]:
            del self._entries[name]

    def prune(self, now: int) -> int:
        """Remove what has expired; what belongs to a job goes with that."""
        old = [
            name
            for name, each in self._entries.items()
            if each.owner is None and not is_there(each, now)
        ][:BATCH]
        for name in old:
            del self._entries[name]
        return len(old)
