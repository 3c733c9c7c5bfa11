"""Entries on Redis: each of a job's by itself, bounded steps, and damage that harms only itself (I22)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from fairlead.core.acts import FINAL
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Wanted
from fairlead.core.ids import JobId
from fairlead.core.queue import Queue
from fairlead.stores import store_for
from fairlead.stores.redis.entries import slot_of
from fairlead.stores.redis.records import pack
from fairlead.stores.redis.store import RedisStore
from fairlead.stores.redis.talk import Conversation
from tests import deeds
from tests.servers.redis import RedisServer
from tests.stores.test_redis_damage import Calls
from tests.words import by, claim, done, new_id, new_job

MANY = 2_500
"""More than one call removes."""


@pytest.fixture
async def store(redis_url: str, clock: ManualClock) -> AsyncIterator[RedisStore]:
    store = store_for(redis_url, clock)
    assert isinstance(store, RedisStore)
    yield store
    assert await store.admin.audit() == []
    await store.close()


@pytest.fixture
def server(redis_server: RedisServer) -> Any:
    return redis.Redis(port=redis_server.port)


async def owner(store: RedisStore) -> JobId:
    job = new_job(id=new_id("mail"))
    await store.put([job])
    return job.id


async def keys_of(store: RedisStore, job_id: JobId) -> list[str]:
    return [each.key for each in await store.entries.read(Wanted("step", job_id))]


async def with_many(store: RedisStore) -> JobId:
    """A done job with many entries."""
    job_id = await owner(store)
    for first in range(0, MANY, 500):
        names = [f"{number:05}" for number in range(first, first + 500)]
        await store.entries.write([Change("step", name, "1", owner=job_id) for name in names])
    [job] = await claim(store)
    await store.settle([done(job)])
    return job_id


async def ended(store: RedisStore) -> JobId:
    job_id = await owner(store)
    await store.settle([done(job) for job in await claim(store)])
    return job_id


async def test_a_write_costs_what_it_writes(store: RedisStore, server: Any) -> None:
    """What the job has already is not written again: 200 of 1 KB are 200 KB, not 20 MB."""
    job_id = await owner(store)
    before = server.info("persistence")["aof_current_size"]
    for number in range(200):
        await store.entries.write([Change("step", f"{number:04}", f'"{"x" * 1000}"', owner=job_id)])
    assert server.info("persistence")["aof_current_size"] - before < 200 * 2_000
    assert len(await keys_of(store, job_id)) == 200


async def test_a_large_write_holds_up_no_look_and_no_heartbeat(store: RedisStore) -> None:
    """They have a connection of their own; and one call writes a megabyte at most."""
    job_id = await owner(store)
    session = await store._session()
    async with session.looks._turn, session.leases._turn, asyncio.timeout(10):
        await store.entries.write([Change("step", "a", "1", owner=job_id)])
        assert await keys_of(store, job_id) == ["a"]


async def test_of_several_under_one_key_of_a_job_each_sees_the_one_before(
    store: RedisStore, server: Any
) -> None:
    job_id = await owner(store)
    first, second, new, removed, refused, last = await store.entries.write(
        [
            Change("step", "a", "1", 0, job_id),
            Change("step", "a", "2", None, job_id),
            Change("step", "a", "3", 0, job_id),
            Change("step", "a", None, None, job_id),
            Change("step", "a", "3", 7, job_id),
            Change("step", "a", "4", 0, job_id),
        ]
    )
    assert (first or 0) < (second or 0)
    assert (new, removed, refused) == (None, 0, None)
    [entry] = await store.entries.read(Wanted("step", job_id))
    assert (entry.value, entry.version) == ("4", last)
    assert server.zcard(store.keys.key("mail", "owned")) == 1


async def test_those_of_a_job_are_read_in_pages(store: RedisStore) -> None:
    first, second = await owner(store), await owner(store)
    names = [f"{number:03}" for number in range(30)]
    for job_id in (first, second):
        await store.entries.write([Change("step", name, "1", owner=job_id) for name in names])
        await store.entries.write([Change("other", "x", "1", owner=job_id)])
    found: list[str] = []
    while page := await store.entries.read(
        Wanted("step", second, after=found[-1] if found else "", limit=7)
    ):
        found += [each.key for each in page]
    assert found == names
    some = await store.entries.read(Wanted("step", second, prefix="02"))
    assert [each.key for each in some] == names[20:]


async def test_what_expired_hides_nothing_behind_it(store: RedisStore, clock: ManualClock) -> None:
    job_id = await owner(store)
    soon = clock.now() + SECOND
    await store.entries.write(
        [Change("step", f"{n:02}", "1", owner=job_id, expires_at=soon) for n in range(10)]
        + [Change("step", "z", "1", owner=job_id, due_at=5)]
    )
    clock.advance(2)
    for wanted in (Wanted("step", job_id, limit=3), Wanted("step", job_id, due_before=9, limit=3)):
        assert [each.key for each in await store.entries.read(wanted)] == ["z"]


async def test_many_are_forgotten_in_bounded_steps(
    store: RedisStore, clock: ManualClock, server: Any
) -> None:
    """The job goes with the last of them; what nobody owns is never left behind."""
    job_id = await with_many(store)
    clock.advance(100)
    left = []
    while await store.admin.find(job_id) is not None:
        left.append(server.zcard(store.keys.key("mail", "owned")))
        await store.upkeep(SECOND)
    assert left == [MANY, MANY - 1_000, MANY - 2_000]
    assert server.exists(store.keys.key("mail", "entries"), store.keys.key("mail", "owned")) == 0


async def test_all_are_deleted_with_their_job(store: RedisStore, server: Any) -> None:
    job_id = await with_many(store)
    other = await owner(store)
    await store.entries.write([Change("step", "a", "1", owner=other)])
    assert await deeds.delete(store, [job_id], FINAL, by()) == [job_id]
    assert server.zcard(store.keys.key("mail", "owned")) == 1
    assert await keys_of(store, other) == ["a"]


# Damage


@pytest.mark.parametrize("score", ["-1", "7", "inf", "-inf"])
async def test_a_damaged_mark_hides_no_entry_of_another_job(
    store: RedisStore, server: Any, score: str
) -> None:
    """Ranges are looked for by text, which takes all marks to have the same score."""
    jobs = sorted([await owner(store) for _ in range(5)])
    for job_id in jobs:
        await store.entries.write([Change("step", "a", "1", owner=job_id)])
    damaged = f"{jobs[2]}\0step\0a"
    server.zadd(store.keys.key("mail", "owned"), {damaged: score})
    for job_id in jobs:
        assert await keys_of(store, job_id) == ["a"]


@pytest.mark.parametrize("score", ["-1", "7", "inf", "-inf"])
async def test_a_damaged_mark_hides_no_entry_of_nobody(
    store: RedisStore, server: Any, score: str
) -> None:
    slot = slot_of("kind", "k")
    names = [name for name in map(str, range(200)) if slot_of("kind", name) == slot]
    await store.entries.write([Change("kind", name, "1", due_at=1) for name in names])
    for part, mark in (("listed", "kind\0"), ("awaited", "kind\0" + "1".zfill(16) + "\0")):
        server.zadd(store.keys.key(slot, part), {mark + sorted(names)[2]: score})
    for wanted in (Wanted("kind"), Wanted("kind", due_before=2)):
        assert [each.key for each in await store.entries.read(wanted)] == sorted(names)


async def test_a_damaged_mark_of_another_job_leaves_nothing_behind(
    store: RedisStore, clock: ManualClock, server: Any
) -> None:
    """Else who puts the same id again would find what a forgotten job left."""
    first, last = sorted([await owner(store), await owner(store)])
    for each in (first, last):
        await store.entries.write([Change("step", name, "1", owner=each) for name in "abc"])
    jobs = {job.id: job for job in await claim(store)}
    await store.settle([done(jobs[first])])
    server.zadd(store.keys.key("mail", "owned"), {f"{last}\0step\0b": -1})
    clock.advance(100)
    await store.upkeep(SECOND)
    assert await store.admin.find(first) is None
    assert server.hlen(store.keys.key("mail", "entries")) == 3
    assert await keys_of(store, last) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("{job}\0step\0a", b"\xc1", "cannot be read"),
        ("{job}\0step\0b", None, "cannot be read"),  # It says of itself that it is another.
        ("nobody\0step\0a", None, "belongs to no job"),
        ("{job}\0step", None, "belongs to no job"),
        ("", None, "belongs to no job"),
    ],
)
async def test_an_entry_that_cannot_be_is_told_and_removed(
    store: RedisStore, server: Any, name: str, text: bytes | None, told: str
) -> None:
    job_id, other = await owner(store), await owner(store)
    for each in (job_id, other):
        await store.entries.write([Change("step", "a", "1", owner=each)])
    hash_key, set_key = store.keys.key("mail", "entries"), store.keys.key("mail", "owned")
    sound = server.hget(hash_key, f"{job_id}\0step\0a")
    server.hset(hash_key, name.format(job=job_id), text or sound)
    server.zadd(set_key, {name.format(job=job_id): 0})
    assert await keys_of(store, other) == ["a"]
    [finding] = await store.admin.audit()
    assert told in finding.problem
    [mended] = await store.admin.repair(by("repair"))
    assert mended.endswith("removed it")
    assert await keys_of(store, other) == ["a"]


@pytest.mark.parametrize("is_listed", [False, True])
async def test_an_entry_and_its_mark_are_there_together(
    store: RedisStore, server: Any, is_listed: bool
) -> None:
    job_id = await owner(store)
    await store.entries.write([Change("step", "a", "1", owner=job_id)])
    name = f"{job_id}\0step\0a"
    if is_listed:
        server.hdel(store.keys.key("mail", "entries"), name)
    else:
        server.zrem(store.keys.key("mail", "owned"), name)
    [finding] = await store.admin.audit()
    assert ("is not there, but is listed" if is_listed else "is not listed") in finding.problem
    [mended] = await store.admin.repair(by("repair"))
    assert mended.endswith("removed it" if is_listed else "put it right")
    assert await keys_of(store, job_id) == ([] if is_listed else ["a"])


async def test_a_job_tells_again_of_the_entries_it_has(store: RedisStore, server: Any) -> None:
    """Else they would stay when it is forgotten."""
    job_id = await owner(store)
    await store.entries.write([Change("step", "a", "1", owner=job_id)])
    server.hdel(store.keys.key("mail", "standings"), job_id)
    [finding] = await store.admin.audit()
    assert "has entries, and does not tell" in finding.problem
    await store.admin.repair(by("repair"))
    assert await keys_of(store, job_id) == ["a"]


async def test_a_job_that_is_half_forgotten_does_not_run_again(
    store: RedisStore, clock: ManualClock, server: Any
) -> None:
    """Its handler would find a part of its steps, and do the others again."""
    job_id = await with_many(store)
    clock.advance(100)
    first = await store.upkeep(SECOND)
    assert server.zcard(store.keys.key("mail", "owned")) == MANY - first.pruned_entries
    assert (first.pruned_entries, first.more) == (1_000, True)
    assert await deeds.revive(store, [job_id], FINAL, by("revive")) == []
    while await store.admin.find(job_id) is not None:
        await store.upkeep(SECOND)
    assert server.zcard(store.keys.key("mail", "owned")) == 0


async def test_upkeep_goes_on_at_once_where_it_stopped_before_the_end(
    store: RedisStore, clock: ManualClock
) -> None:
    """For the sake of entries, whose jobs are few; else memory would grow faster than they go."""
    jobs = [new_job() for _ in range(130)]
    await store.put(jobs)
    for job in jobs:
        await store.entries.write([Change("step", f"{n}", "1", owner=job.id) for n in range(9)])
    await deeds.cancel(store, [job.id for job in jobs], "so", by())
    clock.advance(100)
    told = await store.upkeep(SECOND)
    assert 0 < told.pruned_jobs < len(jobs)
    assert told.more


async def test_a_job_with_many_entries_is_deleted_in_bounded_calls(
    store: RedisStore, server: Any
) -> None:
    """Else nobody would be heard meanwhile; and what has begun to go does not run again."""
    jobs = [await ended(store), await with_many(store), await ended(store)]
    owned = store.keys.key("mail", "owned")
    people = (await store._session()).people

    def first_call() -> Conversation[list[Any]]:
        deeds = store.admin._deeds
        told = yield from deeds._acts.told(by("delete"), jobs[1:2])
        return (yield [deeds._call("delete", "mail", pack(jobs[1:2]), 1, pack([*FINAL]), told)])

    assert await people.hold(first_call()) == [[[], 0]]
    assert server.zcard(owned) == MANY - 1_000
    assert [line.verb for line in await store.admin.audit_log()][:1] == ["delete"]
    assert await deeds.revive(store, jobs, FINAL, by("revive")) == [jobs[0], jobs[2]]
    await deeds.cancel(store, jobs, "so", by())
    action, large_first = by("delete"), [jobs[1], jobs[0], jobs[2]]
    with Calls(server) as calls:
        assert await deeds.delete(store, large_first, FINAL, action) == large_first
    assert calls.count("delete") == 2
    assert server.zcard(owned) == 0
    assert await deeds.delete(store, large_first, FINAL, action) == large_first
    lines = await store.admin.audit_log()
    assert [line.count for line in lines if line.verb == "delete"] == [3, 0]


async def test_a_job_that_went_to_another_queue_is_found_there(
    store: RedisStore, redis_url: str, clock: ManualClock
) -> None:
    """A process that remembers where it was asks once more."""
    stray = JobId("stray")
    other = store_for(redis_url, clock)
    await store.put([new_job(id=stray)])
    await store.entries.write([Change("step", "a", "1", owner=stray)])
    await deeds.cancel(other, [stray], "so", by())
    await deeds.delete(other, [stray], FINAL, by("delete"))
    await other.put([new_job(queue="reports", id=stray)])
    [job] = await claim(other, Queue("reports"))
    assert (job.id, job.queue) == (stray, "reports")
    await other.entries.write([Change("step", "b", "2", owner=stray)])
    assert await keys_of(store, stray) == ["b"]
    store._queues.remember([stray], "mail")
    [version] = await store.entries.write(
        [Change("step", "c", "3", owner=stray)], fence=(stray, job.fence)
    )
    assert version
    assert await keys_of(other, stray) == ["b", "c"]
    await other.close()
