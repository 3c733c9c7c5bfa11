"""How jobs come in: with those of other callers, or alone; and again, if there was no answer.

A put whose ids were made just now waits for nobody, and goes together with others. One that may
be a repeat may have to wait for the transaction that put its ids first. It has a connection to
itself, and a lock time-out ends its wait before its caller's patience does.
"""

from collections.abc import Sequence

from fairlead.core.errors import Unanswered
from fairlead.core.job import NewJob
from fairlead.stores.gather import Gather
from fairlead.stores.news import WORK, News
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lane import BlockingLanes, Lane, PatientLanes
from fairlead.stores.postgres.line import PostgresLine
from fairlead.stores.postgres.wake import Crier
from fairlead.stores.repeat import arepeated, repeated


class Puts:
    """What all puts of a process share."""

    def __init__(self, address: Address, line: PostgresLine, news: News, crier: Crier) -> None:
        self._address = address
        self._line = line
        self._news = news
        self._crier = crier
        self._shared = BlockingLanes(address)
        self._alone = BlockingLanes(address)

    def on_loop(self, patient: PatientLanes) -> "LoopPuts":
        """Return the puts of the running event loop; what may have to wait goes by these lanes."""
        return LoopPuts(self._address, self, patient)

    async def on(
        self, lane: Lane, jobs: Sequence[NewJob], patience: float | None = None
    ) -> list[bool]:
        """Put on this lane."""
        fresh = await self._line.put(lane, jobs, self._crier.word(jobs), patience)
        self._news.bump(WORK)
        return fresh

    def blocking(self, jobs: Sequence[NewJob], *, shared: bool) -> list[bool]:
        """Put from synchronous code, in the calling thread; again, if there is no answer."""
        patience = self._address.timeout
        try:
            if shared:
                return self._blocking(self._shared, jobs)
            return self._blocking(self._alone, jobs, patience)
        except Unanswered as lost:
            self.close()  # What else is idle may be as deaf.
            known = repeated(lost, lambda left: self._blocking(self._alone, jobs, left), patience)
            return [True] * len(jobs) if shared else known

    def _blocking(
        self, lanes: BlockingLanes, jobs: Sequence[NewJob], patience: float | None = None
    ) -> list[bool]:
        fresh = self._line.put_blocking(lanes, jobs, self._crier.word(jobs), patience)
        self._news.bump(WORK)
        return fresh

    def close(self) -> None:
        """Let go of the connections of synchronous callers."""
        self._shared.close()
        self._alone.close()


class LoopPuts:
    """The puts of one event loop."""

    def __init__(self, address: Address, puts: Puts, patient: PatientLanes) -> None:
        self._puts = puts
        self._patience = address.timeout
        self._lane = Lane(address)
        self._patient = patient
        self._gather: Gather[NewJob, bool] = Gather(self._together)

    async def put(self, jobs: Sequence[NewJob], *, shared: bool) -> list[bool]:
        """Put with others, or alone; again, if there is no answer."""
        try:
            if shared:
                return list(await self._gather.submit(jobs))
            return await self._alone(jobs, self._patience)
        except Unanswered as lost:
            known = await arepeated(lost, lambda left: self._alone(jobs, left), self._patience)
            return [True] * len(jobs) if shared else known

    async def _together(self, jobs: Sequence[NewJob]) -> Sequence[bool]:
        return await self._puts.on(self._lane, jobs)

    async def _alone(self, jobs: Sequence[NewJob], patience: float) -> list[bool]:
        return await self._patient.run(lambda lane: self._puts.on(lane, jobs, patience))

    async def finished(self) -> None:
        """Wait for what was handed over."""
        await self._gather.finished()
        await self._lane.finished()

    def close(self) -> None:
        """Let go of the connection, from whatever thread."""
        self._lane.close()
