"""What people do by a filter: which jobs are met, while others come, start and fall due."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fairlead.cli import act
from fairlead.core.admin import ALL, Filter
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.job import JobRecord, State
from fairlead.core.page import Page
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests import deeds
from tests.words import claim, new_job

LIVE = Filter(states=(State.RUNNING, State.WAITING))


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(act, "MOST_LISTED", 2)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def shop(clock: ManualClock) -> Store:
    return store_for("memory://", clock)


async def begin(store: Store) -> int:
    return (await store.admin.page(ALL, 0)).at


async def test_what_is_enqueued_meanwhile_is_not_meant(shop: Store, clock: ManualClock) -> None:
    jobs = [new_job() for _ in range(5)]
    await shop.put(jobs)
    begun = await begin(shop)
    met: list[JobId] = []
    async for batch in act._batches(shop, act.CANCEL, LIVE, begun):
        met += [job.id for job in batch]
        clock.advance(1)
        if len(met) < 5:
            await shop.put([new_job()])
    assert met == [job.id for job in jobs]


async def test_what_moves_on_while_it_is_cancelled_is_met_all_the_same(
    shop: Store, clock: ManualClock
) -> None:
    due = [new_job() for _ in range(4)]
    later = [new_job(delay=5 * SECOND, priority=3600) for _ in range(4)]
    await shop.put([*due, *later])
    begun = await begin(shop)
    met: set[JobId] = set()
    moves = [lambda: shop.upkeep(10**15), lambda: claim(shop, slots=2)]
    async for batch in act._batches(shop, act.CANCEL, LIVE, begun):
        met |= {job.id for job in batch}
        clock.advance(10)
        for move in moves[:1]:
            await move()
        moves = moves[1:]
    assert met == {job.id for job in (*due, *later)}


async def test_a_list_of_running_jobs_ends_though_their_leases_are_renewed(
    shop: Store, clock: ManualClock
) -> None:
    """On Redis a renewed lease moves its job to the end of the list."""
    await shop.put([new_job() for _ in range(4)])
    await claim(shop, slots=4)
    running = await deeds.jobs(shop, Filter(states=(State.RUNNING,)))
    turns = 0

    async def page(which: Filter, limit: int, cursor: str | None) -> Page:
        nonlocal turns
        turns += 1
        some = [running[turns % 4], running[(turns + 1) % 4]]
        return Page(some, "again", limit, clock.now())

    store = cast("Any", SimpleNamespace(admin=SimpleNamespace(page=page)))
    met: list[JobRecord] = []
    async for batch in act._batches(store, act.CANCEL, LIVE, clock.now()):
        met += batch
        assert turns < 20, "it does not end"
    assert sorted(job.id for job in met) == sorted(job.id for job in running)
