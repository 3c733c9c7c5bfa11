"""A loop that a handler blocked still hears what came meanwhile."""

import asyncio
import threading
import time

import pytest

from fairlead.stores import store_for
from fairlead.stores.patience import Patience
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lane import AsyncConnection, Lane
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer


async def test_what_came_while_the_loop_was_blocked_is_heard() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    came = threading.Event()

    def server() -> None:
        answer.get_loop().call_soon_threadsafe(answer.set_result, "here")
        came.set()

    async def blocking_handler() -> None:
        threading.Thread(target=server).start()
        came.wait()
        time.sleep(0.3)

    handler = asyncio.ensure_future(blocking_handler())
    async with Patience(0.1):
        assert await answer == "here"
        for _ in range(5):
            await asyncio.sleep(0)  # There is more to say and to hear, as when a connection opens.
    await handler


async def test_what_does_not_come_is_given_up_and_the_body_is_cancelled() -> None:
    cancelled = False
    with pytest.raises(TimeoutError):
        async with Patience(0.02):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise
    assert cancelled


async def test_who_had_an_answer_in_time_is_not_disturbed_later() -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
    async with Patience(0.01):
        pass
    await asyncio.sleep(0.05)
    assert problems == []


async def test_errors_of_the_body_and_a_cancellation_from_outside_pass_through() -> None:
    with pytest.raises(ValueError, match="own"):
        async with Patience(1):
            raise ValueError("own")

    async def patient() -> None:
        async with Patience(60):
            await asyncio.Event().wait()

    task = asyncio.ensure_future(patient())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# Lanes count so. The server is frozen, for its answers are to come while the loop is blocked.


async def test_a_handler_that_blocks_the_loop_does_not_make_redis_silent(
    redis_url: str, redis_server: RedisServer
) -> None:
    store = store_for(f"{redis_url}{'&' if '?' in redis_url else '?'}timeout=1")
    try:
        assert await store.held("w") == []
        redis_server.freeze()
        asked = asyncio.ensure_future(store.held("w"))
        await asyncio.sleep(0.2)
        redis_server.thaw()
        time.sleep(1.5)
        assert await asked == []
    finally:
        redis_server.thaw()
        await store.close()


async def test_a_handler_that_blocks_the_loop_does_not_make_postgres_silent(
    postgres_server: PostgresServer,
) -> None:
    async def ask_twice(connection: AsyncConnection) -> int:
        await connection.execute("SELECT 1")
        return (await connection.execute("SELECT 2")).rowcount

    lane = Lane(Address.of(postgres_server.url()), patience=1)
    try:
        assert await lane.run(ask_twice) == 1
        postgres_server.freeze()
        asked = asyncio.ensure_future(lane.run(ask_twice))
        await asyncio.sleep(0.2)
        postgres_server.thaw()
        time.sleep(1.5)
        assert await asked == 1
    finally:
        postgres_server.thaw()
        lane.close()
