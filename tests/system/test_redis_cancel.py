"""Whoever asks may be cancelled at any moment; the answer is nobody else's (F19, T15)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from fairlead.core.clock import SECOND
from fairlead.core.ids import JobId
from fairlead.core.job import Job
from fairlead.core.queue import Queue
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests.servers.proxy import Proxy
from tests.words import are_new, claim, done, new_job

STEPS = 24
"""After so many turns of the loop the question is on its way, and its answer not yet back."""
ONE, OTHER = Queue("one"), Queue("other")


@pytest.fixture
async def far_store(redis_crew_url: str, redis_proxy: Proxy) -> AsyncIterator[Store]:
    """A store so far away that every answer takes a while."""
    store = store_for(redis_proxy.through(redis_crew_url))
    await store.open()
    yield store
    redis_proxy.delay(0)
    assert await store.admin.audit() == []
    await store.close()


async def cancelled(work: Coroutine[Any, Any, Any], step: int) -> None:
    """Begin something, and cancel it after so many turns of the loop."""
    task = asyncio.ensure_future(work)
    for _ in range(step):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def running(store: Store, queue: Queue, number: int) -> list[Job]:
    await store.put([new_job(queue=queue.name) for _ in range(number)])
    return await claim(store, queue, slots=number)


async def test_a_question_that_was_cancelled_is_not_answered_to_the_next(
    far_store: Store, redis_proxy: Proxy
) -> None:
    """Each asks for another job than who was cancelled before it, and gets its own."""
    jobs = [new_job(queue="one") for _ in range(4)]
    await far_store.put(jobs)
    for job in jobs:
        await far_store.admin.find(job.id)
    redis_proxy.delay(0.001)
    for step in range(STEPS):
        await cancelled(far_store.admin.find(jobs[0].id), step)
        found = await asyncio.gather(*(far_store.admin.find(job.id) for job in jobs[1:]))
        assert [each and each.id for each in found] == [job.id for job in jobs[1:]]


async def test_a_put_that_was_cancelled_does_not_answer_the_next(
    far_store: Store, redis_proxy: Proxy
) -> None:
    """It is known or not, but who puts something new is told so."""
    known = new_job(queue="one")
    await far_store.put([known])
    redis_proxy.delay(0.001)
    for step in range(STEPS):
        await cancelled(far_store.put([known, known]), step)
        assert are_new(await far_store.put([new_job(queue="one")])) == [True]
        maybe = new_job(queue="one")
        await cancelled(far_store.put([maybe]), step)
        assert are_new(await far_store.put([known])) == [False]
        assert are_new(await far_store.put([maybe, maybe])) in ([True, False], [False, False])


async def test_a_claim_that_was_cancelled_does_not_answer_the_next(
    far_store: Store, redis_proxy: Proxy
) -> None:
    """What it took comes back as lost; the next gets jobs of its own queue, each once."""
    await far_store.put([new_job(queue="one") for _ in range(STEPS)])
    await far_store.put([new_job(queue="other") for _ in range(STEPS)])
    redis_proxy.delay(0.001)
    given: list[JobId] = []
    for step in range(STEPS):
        await cancelled(claim(far_store, ONE, slots=1, lease=0.1), step)
        [job] = await claim(far_store, OTHER, slots=1)
        assert job.queue == "other"
        given.append(job.id)
    assert len(set(given)) == STEPS
    redis_proxy.delay(0)
    back: list[Job] = []
    async with asyncio.timeout(10):
        while len(back) < STEPS:
            back += await claim(far_store, ONE, slots=STEPS)
    assert len({job.id for job in back}) == STEPS


Asking = Callable[[Store, list[Job]], Coroutine[Any, Any, Any]]


async def _extend(store: Store, jobs: list[Job]) -> list[JobId]:
    pairs = [(job.id, job.fence) for job in jobs]
    return [each.id for each in await store.extend(pairs, 20 * SECOND)]


async def _settle(store: Store, jobs: list[Job]) -> list[JobId]:
    return list(await store.settle([done(job) for job in jobs]))


@pytest.mark.parametrize("ask", [_extend, _settle], ids=["extend", "settle"])
async def test_a_report_that_was_cancelled_does_not_answer_the_next(
    far_store: Store, redis_proxy: Proxy, ask: Asking
) -> None:
    """The first is refused, because its job is another's; the next must not hear that, nor the reverse."""
    [late] = await running(far_store, ONE, 1)
    await far_store.settle([done(late)])
    mine = await running(far_store, OTHER, 2 * STEPS)
    redis_proxy.delay(0.001)
    for step in range(STEPS):
        first, second = mine[2 * step : 2 * step + 2]
        await cancelled(ask(far_store, [late]), step)
        assert await ask(far_store, [first]) == [first.id]
        await cancelled(ask(far_store, [second]), step)
        assert await ask(far_store, [late]) == []
    await far_store.settle([done(job) for job in mine])


async def test_nobody_waits_for_a_turn_that_was_cancelled(
    far_store: Store, redis_proxy: Proxy
) -> None:
    """Many ask at once, and every other one is cancelled: all who stay get their own."""
    jobs = [new_job(queue="one") for _ in range(40)]
    await far_store.put(jobs)
    redis_proxy.delay(0.001)
    for step in range(0, STEPS, 3):
        tasks = [asyncio.ensure_future(far_store.admin.find(job.id)) for job in jobs]
        for _ in range(step):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        async with asyncio.timeout(10):
            found = await asyncio.gather(*tasks[1::2])
        assert [each and each.id for each in found] == [job.id for job in jobs[1::2]]


async def test_a_loop_that_ends_in_the_middle_takes_its_connections_with_it(
    redis_crew_url: str, redis_proxy: Proxy
) -> None:
    """Every task is cancelled, those that ask included; the next loop begins anew."""
    store = store_for(redis_proxy.through(redis_crew_url))
    jobs = [new_job(queue="one") for _ in range(3)]
    await asyncio.to_thread(store.put_blocking, jobs)
    redis_proxy.delay(0.002)

    async def interrupted() -> None:
        asking = [asyncio.ensure_future(store.admin.find(job.id)) for job in jobs]
        for _ in range(STEPS):
            await asyncio.sleep(0)
        assert not all(task.done() for task in asking)

    async def whole() -> list[JobId | None]:
        return [found and found.id for found in [await store.admin.find(job.id) for job in jobs]]

    for _ in range(3):
        await asyncio.to_thread(asyncio.run, interrupted())
        assert await asyncio.to_thread(asyncio.run, whole()) == [job.id for job in jobs]
    await store.close()
