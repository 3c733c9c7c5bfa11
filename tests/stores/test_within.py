"""Transactions with the application's own data, on every store that has any."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead import ConfigError
from fairlead.core.clock import ManualClock
from fairlead.core.job import NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.store import Accepted, Store
from fairlead.stores import store_for
from fairlead.stores.memory.store import MemoryStore
from tests import deeds
from tests.conftest import WITH_TRANSACTIONS, new_urls
from tests.words import are_new, by, claim, done, new_job


@pytest.fixture(params=WITH_TRANSACTIONS)
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """The stores that can share a transaction."""
    return new_urls(request, tmp_path)


class Hand:
    """One way to do it, sync or async, under the same names."""

    def __init__(self, store: Store, is_async: bool) -> None:
        self.store = store
        self.is_async = is_async

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        if self.is_async:
            async with self.store.atransaction() as connection:
                yield connection
        else:
            with self.store.transaction() as connection:
                yield connection

    async def put(self, connection: Any, *jobs: NewJob) -> list[Accepted]:
        if self.is_async:
            return await self.store.put_within(connection, jobs).arun()
        return self.store.put_within(connection, jobs).run()

    async def complete(self, connection: Any, settlement: Settlement) -> Settlement | None:
        if self.is_async:
            return await self.store.complete_within(connection, settlement).arun()
        return self.store.complete_within(connection, settlement).run()


@pytest.fixture(params=["async", "sync"])
async def hand(
    request: pytest.FixtureRequest, new_url: Callable[[], str], clock: ManualClock
) -> AsyncIterator[Hand]:
    store = store_for(new_url(), clock)
    await store.open()
    yield Hand(store, request.param == "async")
    assert await store.admin.audit() == []
    await store.close()


async def test_a_run_completed_within_is_as_one_that_was_settled(
    hand: Hand, clock: ManualClock
) -> None:
    store = hand.store
    await store.put([new_job(), new_job()])
    jobs = await claim(store)
    ends = [msgspec.structs.replace(done(job, "7"), started_at=5, pool="p") for job in jobs]
    clock.advance(3)
    async with hand.transaction() as connection:
        assert await hand.complete(connection, ends[0]) == ends[0]
    await store.settle([ends[1]])

    within, settled = [await store.admin.find(job.id) for job in jobs]
    assert within is not None
    assert settled is not None
    assert (within.state, within.result) == (State.DONE, "7")
    apart = {"id": settled.id, "run_at": settled.run_at, "enqueued_at": settled.enqueued_at}
    assert msgspec.structs.replace(within, **apart) == settled
    [line], [other] = [await store.admin.attempts(job.id) for job in jobs]
    assert (line.outcome, line.fence, line.started_at, line.pool) == ("done", jobs[0].fence, 5, "p")
    assert msgspec.structs.replace(line, job_id=other.job_id) == other


async def test_nothing_is_done_before_the_commit_and_nothing_after_a_rollback(hand: Hand) -> None:
    store = hand.store
    await store.put([new_job()])
    [job] = await claim(store)
    follow = new_job()
    with pytest.raises(ZeroDivisionError):
        async with hand.transaction() as connection:
            assert are_new(await hand.put(connection, follow)) == [True]
            assert await hand.complete(connection, done(job)) is not None
            running = await store.admin.find(job.id)
            raise ZeroDivisionError
    assert running is not None
    assert running.state is State.RUNNING
    assert await store.admin.find(job.id) == running
    assert await store.admin.find(follow.id) is None
    assert await store.admin.attempts(job.id) == []


async def test_a_fence_that_moved_on_completes_nothing(hand: Hand, clock: ManualClock) -> None:
    store = hand.store
    await store.put([new_job()])
    [first] = await claim(store, worker="slow", lease=10)
    clock.advance(11)
    [second] = await claim(store, worker="quick", lease=10)
    before = await store.admin.find(first.id)
    async with hand.transaction() as connection:
        assert await hand.complete(connection, done(first, '"stale"')) is None
    assert await store.admin.find(first.id) == before
    async with hand.transaction() as connection:
        assert await hand.complete(connection, done(second, '"fresh"')) is not None
    async with hand.transaction() as connection:
        assert await hand.complete(connection, done(second, '"again"')) is None
    record = await store.admin.find(first.id)
    assert record is not None
    assert record.result == '"fresh"'


async def test_a_job_somebody_cancelled_is_not_completed(hand: Hand) -> None:
    store = hand.store
    await store.put([new_job()])
    [job] = await claim(store)
    await deeds.cancel(store, [job.id], "enough", by())
    async with hand.transaction() as connection:
        ruled = await hand.complete(connection, done(job))
    assert ruled is not None
    assert (ruled.state, ruled.reason) == (State.CANCELLED, "enough")
    record = await store.admin.find(job.id)
    assert record is not None
    assert record.state is State.RUNNING, "that is for settle to write"


async def test_a_put_without_jobs_only_looks_at_the_connection(hand: Hand) -> None:
    async with hand.transaction() as connection:
        assert await hand.put(connection) == []
    with pytest.raises(ConfigError):
        await hand.put("no connection")
    with pytest.raises(ConfigError):
        await hand.complete("no connection", done(await _claimed(hand.store)))


async def _claimed(store: Store) -> Any:
    await store.put([new_job()])
    return (await claim(store))[0]


async def test_a_plain_connection_serves_async_verbs_too(hand: Hand) -> None:
    job = await _claimed(hand.store)
    with hand.store.transaction() as connection:
        assert are_new(await hand.store.put_within(connection, [new_job()]).arun()) == [True]
        assert await hand.store.complete_within(connection, done(job)).arun() is not None
    assert await hand.store.admin.count() == {"mail": {State.WAITING: 1, State.DONE: 1}}


MEMORY_REFUSES: dict[str, Callable[[Store], Any]] = {
    "put": lambda store: store.put_within(None, []).run(),
    "aput": lambda store: store.put_within(None, []).arun(),
    "transaction": lambda store: store.transaction(),
    "atransaction": lambda store: store.atransaction(),
    "complete": lambda store: store.complete_within(None, None).run(),  # type: ignore[arg-type]
    "acomplete": lambda store: store.complete_within(None, None).arun(),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("verb", MEMORY_REFUSES)
async def test_memory_refuses_and_says_what_to_do(verb: str) -> None:
    with pytest.raises(ConfigError, match="memory:// has no transactions.*or use sqlite:///"):
        await MEMORY_REFUSES[verb](MemoryStore())
