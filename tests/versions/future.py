"""A program of the version to come, as far as a store sees it.

It does what today's program does, and writes fields that nobody knows yet into every value: each
store has its own way, in `future_sqlite.py`, `future_postgres.py` and `future_redis.py`. What it wrote
must be there as long as the value is, whoever writes the value back.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from fairlead.core.acts import FINAL, Action
from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND
from fairlead.core.entries import Change, Entry, Wanted
from fairlead.core.ids import JobId
from fairlead.core.job import Job, JobRecord, NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.store import Extended, Store, Upkeep
from tests import deeds
from tests.words import claim, plan

DAY = 86_400
BEYOND = 2_000_000_000
"""More runs than today's program takes for possible."""


class Future(ABC):
    """The other program's hand in a store."""

    @abstractmethod
    def arrive(self) -> None:
        """Change the store as the newer program does when it first opens it; it serves everybody."""

    @abstractmethod
    def step(self, serves: int) -> None:
        """Apply a further step of the schema, which serves programs from this level on."""

    @abstractmethod
    def take_back(self) -> None:
        """Take the note of that step back, so that nobody is refused any more."""

    @abstractmethod
    def grow(self) -> None:
        """Write unknown fields into every stored value that has none."""

    @abstractmethod
    def park(self, job_id: JobId, *, lost: bool = False) -> None:
        """Park a job that was claimed before, for a gate that today's program does not know."""

    @abstractmethod
    def lost(self) -> list[str]:
        """Say which values are still there, and have lost their unknown fields."""

    @abstractmethod
    def overstep(self, job_id: JobId) -> None:
        """Write into a job what is beyond today's bounds, as the newer program may have it."""

    @abstractmethod
    def content(self, job_id: JobId) -> object:
        """Return what is stored of a job."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the store."""


class Program:
    """One of two programs at a store: it does what the contract says, under a name of its own."""

    def __init__(self, name: str, store: Store, future: Future) -> None:
        self.name = name
        self.store = store
        self.future = future

    def wrote(self) -> None:
        """Check what an older program leaves behind."""
        assert self.future.lost() == []

    async def put(self, *jobs: NewJob) -> None:
        answers = await self.store.put(jobs)
        assert all(answer.is_new for answer in answers)
        self.wrote()

    async def claim(self, **options: object) -> list[Job]:
        jobs = await claim(self.store, worker=self.name, **options)
        self.wrote()
        return jobs

    async def park(self, **capable: int) -> int:
        """Claim as one who knows these tasks alone; returns how many jobs were parked."""
        claimed = await self.store.claim(plan(worker=self.name, capable=capable))
        assert claimed.jobs == []
        self.wrote()
        return len(claimed.parked)

    async def extend(self, *jobs: Job, seconds: float = 20) -> list[Extended]:
        pairs = [(job.id, job.fence) for job in jobs]
        kept = await self.store.extend(pairs, round(seconds * SECOND))
        self.wrote()
        return list(kept)

    async def settle(self, *settlements: Settlement) -> set[JobId]:
        written = await self.store.settle(settlements)
        self.wrote()
        return set(written)

    async def announce(self, **capable: int) -> None:
        await self.store.announce(Worker(self.name, capable, processes=3), 20 * SECOND)
        self.wrote()

    async def cancel(self, ids: Collection[JobId], by: Action) -> set[JobId]:
        touched = await deeds.cancel(self.store, ids, "no", by)
        self.wrote()
        return set(touched)

    async def revive(
        self, job_id: JobId, by: Action, states: Collection[State] = FINAL
    ) -> list[str]:
        revived = await deeds.revive(self.store, [job_id], states, by)
        self.wrote()
        return revived

    async def edit(self, job_id: JobId, payload: str, by: Action) -> bool:
        edited = await deeds.edit(self.store, job_id, "{}", payload, 2, by)
        self.wrote()
        return edited

    async def delete(self, job_id: JobId, by: Action) -> list[str]:
        deleted = await deeds.delete(self.store, [job_id], FINAL, by)
        self.wrote()
        return deleted

    async def upkeep(self, keep: int = DAY) -> Upkeep:
        did = await self.store.upkeep(keep * SECOND)
        self.wrote()
        return did

    async def write(
        self, *changes: Change, fence: tuple[JobId, int] | None = None
    ) -> Sequence[int | None]:
        answers = await self.store.entries.write(changes, fence)
        self.wrote()
        return answers

    async def read(self, kind: str, owner: JobId | None = None) -> list[Entry]:
        return await self.store.entries.read(Wanted(kind, owner))

    async def find(self, job_id: JobId) -> JobRecord:
        record = await self.store.admin.find(job_id)
        assert record is not None, f"job {job_id} is lost"
        return record

    async def outcomes(self, job_id: JobId) -> list[str]:
        return [line.outcome for line in await self.store.admin.attempts(job_id)]


class Newer(Program):
    """The one of the version to come: after whatever it writes, all has a field more."""

    def wrote(self) -> None:
        self.future.grow()
