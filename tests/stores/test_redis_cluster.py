"""A cluster of which a part is out of reach: `make cluster`."""

import asyncio

import pytest

from fairlead import StoreUnavailable
from fairlead.core.clock import SECOND
from fairlead.core.ids import IdMaker
from fairlead.core.queue import Queue
from fairlead.stores import store_for
from fairlead.stores.redis.keys import Keys
from tests.servers.redis import RedisCluster
from tests.words import are_new, claim, done, new_job

new_id = IdMaker()


@pytest.mark.chaos
async def test_a_dead_node_stops_only_its_own_queues() -> None:
    with RedisCluster(full_coverage=False) as cluster:
        names = [f"q{number}" for number in range(9)]
        owners = {
            name: cluster.owner(cluster.slot_of(Keys("fairlead").key(name, "ready")))
            for name in names
        }
        queues = [Queue(name) for name in names]
        store = store_for(cluster.url(timeout="2"))
        await store.put([new_job(id=new_id(name), queue=name) for name in names * 3])
        first = await claim(store, *queues, slots=9, lease=20)
        assert len(first) == 9
        # Not the one that knows which queues there are.
        keeper = cluster.owner(cluster.slot_of(Keys("fairlead").queues))
        victim = next(owner for owner in owners.values() if owner is not keeper)
        dead = {name for name, owner in owners.items() if owner is victim}
        victim.kill()
        async with asyncio.timeout(30):
            while True:  # Until the others know that it is gone.
                try:
                    jobs = await claim(store, *queues, slots=18, lease=20)
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.2)
        assert {job.queue for job in jobs} == set(names) - dead
        renewed = await store.extend([(job.id, job.fence) for job in first], 20 * SECOND)
        assert len(renewed) == 9, "those out of reach still have their lease"
        for job in jobs:
            assert await store.settle([done(job)])
        alive = next(name for name in names if name not in dead)
        assert are_new(await store.put([new_job(id=new_id(alive), queue=alive)])) == [True]
        with pytest.raises(StoreUnavailable):
            await store.put([new_job(id=new_id(min(dead)), queue=min(dead))])
        cluster.start()
        async with asyncio.timeout(30):
            while (await store.admin.count()).get(min(dead)) is None:
                await asyncio.sleep(0.2)
        again = await claim(store, *queues, slots=30)
        assert {job.queue for job in again} >= dead
        await store.settle([done(job) for job in (*first, *again)])
        assert await store.admin.audit() == []
        await store.close()
