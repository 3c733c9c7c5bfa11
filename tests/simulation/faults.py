"""The memory store behind a network that delays, loses, repeats and cuts off.

A request travels to the store, is carried out there at once, and its answer
travels back. Whoever sent it may be dead, frozen or cut off meanwhile: the store
does not know. Each simulated process has its own `Connection`.
"""

import abc
import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar

from fairlead.core.acts import Action, Cancel, Deed
from fairlead.core.admin import Admin, Worker
from fairlead.core.errors import StoreUnavailable
from fairlead.core.ids import JobId
from fairlead.core.job import Job, NewJob
from fairlead.core.outcome import Settlement
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.core.store import Accepted, Extended, Store, Upkeep, Within
from fairlead.stores.memory.store import MemoryStore
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.witness import Witness

T = TypeVar("T")

CALM_AFTER_OUTAGE = 8.0
"""So long after an outage calls do not fail for other reasons: the promise is about one fault."""


class Rates(NamedTuple):
    """How often a call meets which fault."""

    slow: float = 0.0
    error_before: float = 0.0
    error_after: float = 0.0
    repeated: float = 0.0
    lost_hint: float = 0.0


def at_once(verb: Coroutine[Any, Any, T]) -> T:
    """Carry out a verb of the memory store, which never waits."""
    try:
        verb.send(None)
    except StopIteration as answer:
        value: T = answer.value
        return value
    raise AssertionError("a verb of the memory store waited")


class Network:
    """What lies between the processes and the store."""

    def __init__(
        self, loop: VirtualLoop, random: Random, store: MemoryStore, witness: Witness, rates: Rates
    ) -> None:
        self.loop = loop
        self.random = random
        self.store = store
        self.witness = witness
        self.rates = rates
        self.outage_until = 0.0
        self.cut_until: dict[Process, float] = {}

    def is_cut(self, process: Process) -> bool:
        """Say whether a process cannot reach the store now."""
        now = self.loop.time()
        return now < self.outage_until or now < self.cut_until.get(process, 0.0)

    @property
    def calm(self) -> bool:
        return self.loop.time() < self.outage_until + CALM_AFTER_OUTAGE

    def chance(self, rate: float) -> bool:
        return rate > 0 and not self.calm and self.random.random() < rate

    def delay(self) -> float:
        usual = 0.0005 + self.random.random() * 0.01
        return self.random.uniform(0.1, 2.0) if self.chance(self.rates.slow) else usual

    def carry(self, sender: Process, do: Callable[[], object], answer: asyncio.Future[Any]) -> None:
        """Take a request to the store, perhaps twice, perhaps not at all."""
        if self.chance(self.rates.error_before):
            self._later(self.delay(), self._fail, answer)
            return
        self._later(self.delay(), self._arrive, sender, do, answer)
        if self.chance(self.rates.repeated):
            again = self.loop.create_future()
            self._later(self.delay() + self.random.random() * 3, self._arrive, sender, do, again)

    def _arrive(
        self, sender: Process, do: Callable[[], object], answer: asyncio.Future[Any]
    ) -> None:
        if self.is_cut(sender):
            self._later(self.random.random(), self._fail, answer)
            return
        value = do()
        if self.chance(self.rates.error_after):
            self._later(self.delay(), self._fail, answer)
        else:
            self._later(self.delay(), self._reply, sender, answer, value)

    def _reply(self, sender: Process, answer: asyncio.Future[Any], value: object) -> None:
        if self.is_cut(sender):
            self._later(self.random.random(), self._fail, answer)
        elif not answer.done():
            answer.set_result(value)

    def _fail(self, answer: asyncio.Future[Any]) -> None:
        if not answer.done():
            answer.set_exception(StoreUnavailable("memory://", "simulated"))
            answer.exception()  # Who asked may be dead.

    def _later(self, delay: float, do: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(delay, do, *args, context=self.loop.outside.context)


class Connection(Store):
    """The store as one process reaches it."""

    url = "memory://"
    durability = "memory"

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        self.store = network.store
        self.witness = network.witness
        self.admin = Desk(self)

    async def call(self, do: Callable[[], T]) -> T:
        answer: asyncio.Future[T] = self._network.loop.create_future()
        self._network.carry(self._process, do, answer)
        return await answer

    async def _ask(self, verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self.call(lambda: at_once(verb()))

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def put(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        def do() -> list[Accepted]:
            fresh = at_once(self.store.put(jobs))
            self.witness.put(jobs, [answer.is_new for answer in fresh])
            return fresh

        return await self.call(do)

    def put_blocking(self, jobs: Sequence[NewJob], *, shared: bool = False) -> list[Accepted]:
        raise NotImplementedError

    def put_within(self, connection: Any, jobs: Sequence[NewJob]) -> Within[list[Accepted]]:
        raise NotImplementedError

    async def claim(self, plan: ClaimPlan) -> Claim:
        def do() -> Claim:
            claim = at_once(self.store.claim(plan))
            self.witness.claimed(self._process, plan, claim.jobs)
            return claim

        claim = await self.call(do)
        self.witness.delivered(claim.jobs)
        return claim

    async def extend(self, leases: Sequence[tuple[JobId, int]], lease: int) -> list[Extended]:
        def do() -> list[Extended]:
            extended = at_once(self.store.extend(leases, lease))
            self.witness.extended(self._process, leases, lease, extended)
            return extended

        return await self.call(do)

    async def held(self, worker: str) -> list[Job]:
        return await self._ask(lambda: self.store.held(worker))

    async def settle(self, settlements: Sequence[Settlement]) -> dict[JobId, Settlement]:
        def do() -> dict[JobId, Settlement]:
            before = self.witness.before_settle(settlements)
            written = at_once(self.store.settle(settlements))
            self.witness.settled(self._process, settlements, written, before)
            return written

        return await self.call(do)

    async def announce(self, worker: Worker, lease: int) -> None:
        return await self._ask(lambda: self.store.announce(worker, lease))

    async def wait(self, timeout: float, since: int = 0, *, for_work: bool = False) -> int:
        network = self._network
        if network.is_cut(self._process):
            await asyncio.sleep(network.random.random())
            raise StoreUnavailable("memory://", "simulated")
        if network.chance(network.rates.lost_hint):
            await asyncio.sleep(timeout)
            return await self.store.wait(0, 0)
        return await self.store.wait(timeout, since)

    async def upkeep(self, keep: int) -> Upkeep:
        return await self._ask(lambda: self.store.upkeep(keep))


def _forward(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def ask(self: Connection, *args: Any, **named: Any) -> Any:
        return await self._ask(lambda: getattr(self.store, name)(*args, **named))

    return ask


for verb in sorted(Connection.__abstractmethods__):
    setattr(Connection, verb, _forward(verb))
abc.update_abstractmethods(Connection)


class Desk(Admin):
    """What people ask, over the same network; it has no faults of its own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def act(self, deed: Deed, by: Action) -> list[str]:
        connection = self._connection

        def do() -> list[str]:
            done = at_once(connection.store.admin.act(deed, by))
            if isinstance(deed, Cancel):
                found = [at_once(connection.store.admin.find(JobId(each))) for each in done]
                connection.witness.cancelled({job.id: job for job in found if job is not None})
            return done

        return await connection.call(do)


def _asked(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def ask(self: Desk, *args: Any, **named: Any) -> Any:
        connection = self._connection
        question = getattr(connection.store.admin, name)
        return await connection.call(lambda: at_once(question(*args, **named)))

    return ask


for verb in sorted(Desk.__abstractmethods__):
    setattr(Desk, verb, _asked(verb))
abc.update_abstractmethods(Desk)
