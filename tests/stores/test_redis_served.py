"""A newer program changed the keys: whom that still serves goes on, the others stop soon (P14)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from fairlead import SchemaOutdated
from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND
from fairlead.core.entries import Change, Wanted
from fairlead.core.errors import StoreDenied
from fairlead.core.job import State
from fairlead.stores import store_for
from fairlead.stores.redis import condition, served
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.served import STEPS, Noted, Step, noted_of, steps_of
from fairlead.stores.redis.store import RedisStore
from tests import deeds
from tests.conftest import rights
from tests.newer import newer_than_this_program
from tests.servers.redis import RedisServer
from tests.words import are_new, by, claim, done, new_job

HERE = Worker("w", {"t": 1}, 0, ())
WRITES: dict[str, Callable[[RedisStore], Awaitable[Any]]] = {
    "put": lambda store: store.put([new_job()]),
    "claim": claim,
    "announce": lambda store: store.announce(HERE, 20 * SECOND),
    "act": lambda store: deeds.pause(store, "mail", by()),
    "entries": lambda store: store.entries.write([Change("k", "a", "1")]),
}


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = store_for(redis_url)
    assert isinstance(store, RedisStore)
    await store.put([new_job(), new_job()])
    yield store
    await store.close()


async def test_a_worker_notices_with_its_next_heartbeat_and_ends_only_what_it_has(
    store: RedisStore, redis_url: str
) -> None:
    [job, *_] = await claim(store)
    with newer_than_this_program(redis_url):
        with pytest.raises(SchemaOutdated, match="upgrade this program"):
            await store.announce(HERE, 20 * SECOND)
        assert await store.admin.workers() == []
        for write in WRITES.values():
            with pytest.raises(SchemaOutdated):
                await write(store)
        with pytest.raises(SchemaOutdated):
            store.put_blocking([new_job()])
        assert [each.id for each in await store.extend([(job.id, job.fence)], 20 * SECOND)]
        assert set(await store.settle([done(job)])) == {job.id}
        assert await store.entries.read(Wanted("k")) == []
    for write in WRITES.values():
        await write(store)


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_producer_notices_with_a_put_and_makes_no_other(
    store: RedisStore, redis_url: str, blocking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was accepted is told as that: nobody enqueues it again."""

    async def put() -> list[bool]:
        jobs = [new_job()]
        return are_new(store.put_blocking(jobs) if blocking else await store.put(jobs))

    monkeypatch.setattr(served, "CHECK_SECONDS", 0.0)
    await put()
    with newer_than_this_program(redis_url):
        assert await put() == [True]
        for _ in range(2):
            with pytest.raises(SchemaOutdated, match="upgrade this program"):
                await put()
    assert await store.admin.count() == {"mail": {State.WAITING: 4}}
    assert await put() == [True]


async def test_between_two_looks_a_producer_asks_nothing(store: RedisStore, redis_url: str) -> None:
    """A put is one round trip, and once in a while two."""
    with newer_than_this_program(redis_url):
        for _ in range(3):
            await store.put([new_job()])


async def test_who_writes_entries_notices_before_the_write(
    store: RedisStore, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "CHECK_SECONDS", 0.0)
    await store.entries.write([Change("k", "a", "1")])
    with newer_than_this_program(redis_url), pytest.raises(SchemaOutdated):
        await store.entries.write([Change("k", "b", "1")])
    assert [each.key for each in await store.entries.read(Wanted("k"))] == ["a"]


async def test_a_step_that_serves_this_program_stops_nobody(
    store: RedisStore, redis_url: str, redis_server: RedisServer
) -> None:
    redis_server.execute("HSET", f"{Address.of(redis_url).prefix}:schema", "2", "7 1 more")
    for write in WRITES.values():
        await write(store)
    again = store_for(redis_url)
    await again.open()
    await again.close()


# The newer program


async def test_a_newer_program_notes_whom_it_serves(
    store: RedisStore, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = store_for(redis_url)
    newer.level = 2
    with monkeypatch.context() as future:
        steps = (*STEPS, Step(2, serves=2))
        future.setattr(served, "STEPS", steps)
        for module in (served, condition):
            future.setattr(module, "VERSION", 2)
        await newer.open()
        await newer.put([new_job()])
    await newer.close()
    assert await claim(store), "whoever has not noticed yet calls functions of its own"
    with pytest.raises(SchemaOutdated, match="schema is version 2, this program needs 1"):
        await store.announce(HERE, 20 * SECOND)
    with pytest.raises(SchemaOutdated, match="schema is version 2"):
        await store_for(redis_url).open()


@pytest.mark.parametrize("role", ["web", "worker"])
async def test_who_may_not_note_a_step_that_keeps_others_away_does_not_begin(
    redis_crew_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """Else it would work beside programs that do not know what it does."""
    allowed = rights("t_*:", role)
    redis_server.execute("ACL", "SETUSER", "crew", "reset", "on", ">rope", *allowed)
    await store_for(redis_crew_url).open()  # A step that keeps nobody away is only a note.
    monkeypatch.setattr(served, "STEPS", (*STEPS, Step(2, serves=2)))
    for module in (served, condition):
        monkeypatch.setattr(module, "VERSION", 2)
    newer = store_for(redis_crew_url)
    newer.level = 2
    with pytest.raises(StoreDenied):
        await newer.open()


# What is noted


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        (b"7 2", Noted(7, 2)),
        (b"7 2 new", Noted(7, 2)),
        *((text, None) for text in (b"", b"7", b"7 ", b"7 x", b"x 2", b"7 0", b"7 1001", b"7 -1")),
    ],
)
def test_a_note_has_two_numbers_at_least(text: bytes, noted: Noted | None) -> None:
    assert noted_of(text) == noted


def test_what_cannot_be_read_serves_nobody() -> None:
    assert steps_of({b"1": b"7 1", b"2": b"?", b"4": b"7 1"}) == {1: (7, 1), 2: (0, 1000)}


async def test_a_damaged_key_stops_nobody(
    store: RedisStore, redis_url: str, redis_server: RedisServer
) -> None:
    key = f"{Address.of(redis_url).prefix}:schema"
    redis_server.execute("DEL", key)
    redis_server.execute("SET", key, "x")
    for write in WRITES.values():
        await write(store)
