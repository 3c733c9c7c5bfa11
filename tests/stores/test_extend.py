from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.store import Extended, Store
from tests import deeds
from tests.words import by, claim, done, new_job


async def test_a_renewed_lease_lasts_from_now(store: Store, clock: ManualClock) -> None:
    await store.put([new_job()])
    [job] = await claim(store, lease=20)
    clock.advance(15)
    assert await store.extend([(job.id, job.fence)], 20 * SECOND) == [Extended(job.id, False)]
    clock.advance(15)
    assert await claim(store, worker="w2") == []


async def test_one_batch_mixes_many_claims_and_the_lost_are_missing(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job(), new_job(), new_job()])
    [a] = await claim(store, slots=1, lease=20)
    [b] = await claim(store, slots=1, lease=20)
    [c] = await claim(store, slots=1, lease=20)
    await store.settle([done(c)])
    pairs = [(a.id, a.fence), (b.id, b.fence - 1), (c.id, c.fence), (new_job().id, 7)]
    assert await store.extend(pairs, 20 * SECOND) == [Extended(a.id, False)]


async def test_a_passed_lease_can_be_renewed_until_somebody_takes_the_job(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    [first] = await claim(store, lease=20)
    clock.advance(60)
    assert await store.extend([(first.id, first.fence)], 20 * SECOND) != []
    clock.advance(60)
    [second] = await claim(store, worker="w2", lease=20)
    assert await store.extend([(first.id, first.fence)], 20 * SECOND) == []
    assert await store.extend([(second.id, second.fence)], 20 * SECOND) != []


async def test_extend_tells_who_is_to_be_cancelled(store: Store) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    await deeds.cancel(store, [job.id], "enough", by())
    assert await store.extend([(job.id, job.fence)], SECOND) == [Extended(job.id, True)]


async def test_a_stale_pair_does_not_hide_a_current_one(store: Store) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    pairs = [(job.id, job.fence), (job.id, job.fence - 1)]
    assert await store.extend(pairs, SECOND) == [Extended(job.id, False)]


async def test_a_lease_extended_by_nothing_is_claimed_as_lost_at_once(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    [first] = await claim(store, lease=20)
    assert await store.extend([(first.id, first.fence)], 0) == [Extended(first.id, False)]
    [second] = await claim(store, worker="w2", lease=20)
    assert (second.id, second.lost, second.worker) == (first.id, True, "w1")
    assert second.fence > first.fence
