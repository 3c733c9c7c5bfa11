"""Small values beside the jobs, by two verbs of the server."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fairlead.core.clock import Clock
from fairlead.core.entries import (
    Change,
    Entries,
    Entry,
    Wanted,
    check_changes,
    meant,
    past_all,
)
from fairlead.core.errors import LeaseLost
from fairlead.core.ids import JobId
from fairlead.core.job import LATEST
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lane import lock_wait
from fairlead.stores.postgres.line import to_json
from fairlead.stores.postgres.replies import Versions, entry_of, versions_of
from fairlead.stores.postgres.session import Session
from fairlead.stores.postgres.statements import statements


class PostgresEntries(Entries):
    """Entries in a table of the schema."""

    def __init__(
        self,
        address: Address,
        clock: Clock | None,
        session: Callable[[], Awaitable[Session]],
        level: Callable[[], int],
    ) -> None:
        self._address = address
        self._sql = statements(address.quoted_schema)
        self._clock = clock
        self._session = session
        self._level = level

    def _at(self) -> int | None:
        return self._clock.now() if self._clock else None

    async def read(self, wanted: Wanted) -> list[Entry]:
        """Return entries that have not expired."""
        doc: dict[str, Any] = {"at": self._at(), "level": self._level(), "kind": wanted.kind}
        doc |= {"owner": wanted.owner or "", "limit": wanted.limit}
        doc |= {"prefix": wanted.prefix, "after": wanted.after}
        if wanted.keys is not None:
            doc["keys"] = wanted.keys
        elif wanted.due_before is not None:
            doc["due_before"] = wanted.due_before
        elif wanted.prefix and (past := past_all(wanted.prefix)) is not None:
            doc["past"] = past
        lane = (await self._session()).looks
        rows = await lane.ask(self._sql["read_entries"], to_json(doc))
        # The server has left out what has expired; of a job that has ended it tells all the rest.
        return meant(wanted, [entry_of(text) for (text,) in rows], -LATEST)

    async def write(
        self, changes: Sequence[Change], fence: tuple[JobId, int] | None = None
    ) -> list[int | None]:
        """Write entries, each if the version it expects is there."""
        check_changes(changes)
        if not changes and fence is None:
            return []
        doc: dict[str, Any] = {"at": self._at(), "level": self._level()}
        doc["changes"] = [
            (
                each.kind,
                each.owner or "",
                each.key,
                each.value,
                each.expect,
                each.due_at,
                each.expires_at,
            )
            for each in changes
        ]
        if fence is not None:
            doc["fence"] = fence
        doc["wait"] = lock_wait(self._address.timeout)
        patient = (await self._session()).patient
        text = to_json(doc)
        [(answer,)] = await patient.run(lambda lane: lane.ask(self._sql["write_entries"], text))
        told: Versions = versions_of(answer)
        if told.versions is None:
            assert fence is not None
            raise LeaseLost(fence[0])
        return told.versions
