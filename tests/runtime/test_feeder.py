"""The feeder behind jobs of others: it claims on at once, and does not go in a circle."""

import asyncio
from random import Random

from fairlead import Fairlead
from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND
from fairlead.core.job import Job
from fairlead.core.selection import LOOK, Claim, ClaimPlan
from fairlead.runtime.board import Board
from fairlead.runtime.contact import Contact
from fairlead.runtime.feeder import Feeder
from fairlead.runtime.pool import Slots
from fairlead.stores.memory.store import MemoryStore
from tests.words import new_job

MANY = 2 * LOOK + LOOK // 2
"""How many others stand in front: three looks."""


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock a test can push forward."""

    pushed = 0.0

    def time(self) -> float:
        return super().time() + self.pushed


class Watched(MemoryStore):
    """Takes a second for a claim, has a hint for everybody who waits, and remembers both."""

    def __init__(self, loop: JumpingLoop) -> None:
        super().__init__()
        self.loop = loop
        self.seen: list[str] = []
        self.dry: list[bool] = []
        self.feeder: Feeder | None = None

    async def claim(self, plan: ClaimPlan) -> Claim:
        self.loop.pushed += 1
        answer = await super().claim(plan)
        self.seen.append("found" if answer.jobs else "claim")
        return answer

    async def wait(self, timeout: float, since: int = 0, *, for_work: bool = False) -> int:
        if timeout:
            assert self.feeder is not None
            self.dry.append(self.feeder.dry)
            self.seen.append("wait")
        return since + 1


def feeder_on(store: Watched, stop_after: int) -> Feeder:
    """Return a feeder that stops after so many steps, or when it was fed."""
    app = Fairlead("memory://")
    app.store = store

    async def ours() -> None: ...

    app.task(name="t", queue="default")(ours)
    workshop = app.workshop()

    def heard(claim: Claim, _late: bool) -> None:
        if claim.jobs or len(store.seen) >= stop_after:
            feeder.stop()

    def taken(_slots: Slots, _jobs: list[Job], _asked_at: float, _late: bool) -> None: ...

    feeder = store.feeder = Feeder(
        workshop,
        "w",
        Slots(workshop.pools[0], lambda _: None),
        Contact("w", app.events, 20, 5, Random(1)),
        hear=heard,
        take=taken,
        spares=lambda _: False,
        places=lambda: 100,
        store_time=lambda: 0,
        board=Board.private(100),
    )
    return feeder


def run(jobs_of_ours: int, stop_after: int = 100) -> Watched:
    loop = JumpingLoop()
    store = Watched(loop)

    async def scene() -> None:
        await store.announce(Worker("other", {"theirs": 1}), 3600 * SECOND)
        await store.put([new_job("theirs", "default") for _ in range(MANY)])
        await store.put([new_job("t", "default") for _ in range(jobs_of_ours)])
        await feeder_on(store, stop_after).run()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(scene())
    return store


def test_jobs_behind_those_of_others_are_claimed_without_a_wait_in_between() -> None:
    assert run(jobs_of_ours=1).seen == ["claim", "claim", "found"]


def test_a_look_that_found_nothing_is_not_begun_anew_for_every_hint() -> None:
    """It took three seconds, so for thirty each hint is worth one claim; then comes a whole look."""
    seen = run(jobs_of_ours=0).seen
    first, rest = seen[:4], seen[4:]
    assert first == ["claim", "claim", "claim", "wait"]
    resting = rest[: rest.index("claim", rest.index("wait") + 2)]
    assert resting.count("claim") == resting.count("wait")
    whole_looks = "".join(each[0] for each in seen).split("ccc")
    assert len(whole_looks) - 1 <= 1 + len(seen) // 60


def test_a_worker_is_dry_only_when_it_has_seen_the_end() -> None:
    """Else one that drains would leave its jobs behind those of others."""
    store = run(jobs_of_ours=0, stop_after=20)
    assert store.dry[0]
    assert store.dry[1:3] == [False, False]
