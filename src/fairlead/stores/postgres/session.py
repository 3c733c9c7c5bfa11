"""What is open on one event loop: a connection for each kind of work, and a listener."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from fairlead.core.errors import StoreError
from fairlead.core.ids import JobId
from fairlead.stores.news import News
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lane import Lane, LentLanes, PatientLanes
from fairlead.stores.postgres.line import PostgresLine
from fairlead.stores.postgres.puts import Puts
from fairlead.stores.postgres.wake import Listener

PEOPLE_SECONDS = 600.0
"""How long an answer to a person's question may take; an audit reads everything."""
ACT_SECONDS = 60.0
"""How long an answer to what a person does may take: it waits for who has the jobs locked."""
_TELL = "SELECT pg_catalog.pg_notify(%s::pg_catalog.text, %s::pg_catalog.text)"


class Session:
    """What is open on one event loop: a connection for each kind of work, and a listener."""

    def __init__(self, address: Address, line: PostgresLine, news: News, puts: Puts) -> None:
        self._address = address
        self._line = line
        self._news = news
        self.patient = PatientLanes(address)
        self.puts = puts.on_loop(self.patient)
        self.claims = Lane(address)
        self.leases = Lane(address)
        self.late = Lane(address)
        self.ends = Lane(address)
        self.looks = Lane(address)
        self.people = Lane(address, PEOPLE_SECONDS)
        self.acts = Lane(address, max(ACT_SECONDS, address.timeout))
        self.lent = LentLanes(address)
        self.listener: Listener | None = None
        self._extending: asyncio.Task[None] | None = None

    def listen(self) -> Listener:
        """Return the listener of this loop."""
        if self.listener is None:
            hear = self._line.heads.hear
            self.listener = Listener(self._address, self._news, hear, self._tell)
        return self.listener

    async def _tell(self, word: str) -> None:
        await self.looks.ask(_TELL, self._address.schema, word)

    def extend_late(self, pairs: Sequence[tuple[JobId, int]], lease: int) -> None:
        """Renew the leases of locked jobs when they are free, while everything else goes on."""
        if self._extending is None or self._extending.done():
            self._extending = asyncio.ensure_future(self._extend_late(pairs, lease))

    async def _extend_late(self, pairs: Sequence[tuple[JobId, int]], lease: int) -> None:
        for pair in pairs:
            with suppress(StoreError):  # The next heartbeat tries again.
                await self._line.extend_late(self.late, pair, lease)

    def _lanes(self) -> tuple[Lane, ...]:
        workers = (self.claims, self.leases, self.late, self.ends)
        return *workers, self.looks, self.people, self.acts

    async def finished(self) -> None:
        """Wait for what was handed over."""
        await self.puts.finished()
        await self.patient.finished()
        for lane in self._lanes():
            await lane.finished()

    def close(self) -> None:
        """Let go of everything, from whatever thread."""
        if self.listener is not None:
            self.listener.close()
        if self._extending is not None:
            with suppress(RuntimeError):  # Its loop is closed, and the task with it.
                self._extending.get_loop().call_soon_threadsafe(self._extending.cancel)
        self.puts.close()
        self.patient.close()
        for lane in self._lanes():
            lane.close()
        self.lent.close()
