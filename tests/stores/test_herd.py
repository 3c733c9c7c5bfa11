"""Many idle workers and one job: each is woken, none again and again (F61)."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from fairlead.core.store import Store
from fairlead.stores import store_for
from tests.words import claim, new_job, quiet

HERD = 20


async def _asks(store: Store, mark: int) -> int:
    """Ask for work at every hint, as idle feeders do, until it is quiet; returns how often."""
    asked = 0
    while (new := await store.wait(0.5 if asked else 30, mark, for_work=True)) != mark:
        mark, asked = new, asked + 1
        await claim(store, slots=1)
    return asked


async def test_one_job_costs_each_idle_worker_a_few_claims(new_url: Callable[[], str]) -> None:
    """A put is one hint to each; a claim that finds nothing is a hint to nobody."""
    url = new_url()
    async with AsyncExitStack() as stack:
        herd = [store_for(url) for _ in range(HERD)]
        for store in herd:
            stack.push_async_callback(store.close)
        marks = [await quiet(store) for store in herd]
        waiting = [
            asyncio.ensure_future(_asks(store, mark))
            for store, mark in zip(herd, marks, strict=True)
        ]
        await asyncio.sleep(0)
        await herd[0].put([new_job()])
        asked = await asyncio.gather(*waiting)
    assert min(asked) >= 1
    assert max(asked) < HERD / 2, asked
