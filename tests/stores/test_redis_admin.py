"""What is peculiar to the people's side of Redis: pieces, traces of deleted jobs, and the audit."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from fairlead.core.acts import Action
from fairlead.core.admin import Filter
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.job import State
from fairlead.core.outcome import Policy
from fairlead.core.queue import Queue
from fairlead.core.retry import Retry
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.redis import acts, history, next_ids, pages, parked, places
from fairlead.stores.redis import deeds as deeds_of_redis
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.keys import Keys
from tests import deeds
from tests.servers.redis import RedisServer
from tests.words import MAIL, by, claim, done, failed, new_job, returned

BY = Action("action-1", "ada", "delete", "some jobs")
FINAL = (State.DONE, State.DEAD, State.CANCELLED)
DEAD = Policy(Retry(attempts=1))


@pytest.fixture
async def shop(redis_crew_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    """A store by a clock that the test moves; the test may damage it."""
    store = store_for(redis_crew_url, clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def keys(redis_url: str) -> Keys:
    return Keys(Address.of(redis_url).prefix)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everything take many steps."""
    for module, name, size in (
        (pages, "_MOST", 7),
        (pages, "_RECORDS_AT_ONCE", 3),
        (next_ids, "_FIRST_QUEUES", 1),
        (next_ids, "_QUEUES_AT_ONCE", 2),
        (next_ids, "_LEAPT_AT_ONCE", 2),
        (parked, "_QUEUES_AT_ONCE", 2),
        (parked, "_MEMBERS_AT_ONCE", 2),
        (history, "PIECE", 3),
        (acts, "_PIECE", 3),
        (places, "_STANDING_AT_ONCE", 4),
        (deeds_of_redis, "_MOST_AT_ONCE", 6),
    ):
        monkeypatch.setattr(module, name, size)


# Pieces


@pytest.mark.usefixtures("small_pieces")
async def test_what_is_read_in_pieces_is_whole(shop: Store, clock: ManualClock) -> None:
    jobs = [
        new_job("ab"[n % 2], "mail", priority=n % 3, options='{"tags":["x"]}' if n % 5 else None)
        for n in range(60)
    ]
    await shop.put(jobs)
    clock.advance(10)
    newest = max(job.id for job in jobs)
    order = sorted(jobs, key=lambda job: (-job.priority, job.id))
    first = await shop.admin.page(Filter(), 50)
    rest = await shop.admin.page(Filter(), 50, first.cursor)
    assert [job.id for job in (*first.jobs, *rest.jobs)] == [job.id for job in order]
    assert (len(first.jobs), rest.cursor) == (50, None)
    tagged = Filter(tasks=("a",), tags=("x",))
    wanted = [job.id for job in order if job.task == "a" and job.options]
    assert [job.id for job in await deeds.jobs(shop, tagged, 100)] == wanted
    assert await shop.admin.count(tagged) == {"mail": {State.WAITING: len(wanted)}}
    [group] = await shop.admin.groups(Filter())
    assert (group.count, group.job) == (60, newest)
    assert (await deeds.waiting(shop))["mail"].oldest == clock.now() - 10 * SECOND
    assert [await shop.admin.ahead(job.id) for job in order] == list(range(60))


@pytest.mark.usefixtures("small_pieces")
async def test_the_log_is_read_back_as_far_as_it_is_asked_for(
    shop: Store, clock: ManualClock
) -> None:
    begun = clock.now()
    for n in range(20):
        await shop.put([new_job(queue="mail" if n % 2 else "other")])
        [job] = await claim(shop, MAIL, Queue("other"))
        await shop.settle([done(job)])
        clock.advance(1)
    times = [begun + n * SECOND for n in reversed(range(20))]
    assert [line.finished_at for line in await shop.admin.recent(0)] == times
    assert [line.finished_at for line in await shop.admin.recent(0, 4)] == times[:4]
    assert [line.finished_at for line in await shop.admin.recent(times[6])] == times[:7]
    assert [line.finished_at for line in await shop.admin.recent(0, 3, "other")] == times[1:7:2]


@pytest.mark.usefixtures("small_pieces")
async def test_an_action_on_many_queues_is_one_line_in_its_place(shop: Store) -> None:
    jobs = [new_job(queue=f"q{n % 4}") for n in range(40)]
    await shop.put(jobs)
    for n in range(10):
        by = Action(f"a{n // 2}", "ada", "cancel", f"{n // 2}")
        some = [job.id for job in jobs[n * 4 : n * 4 + 4]]
        await deeds.cancel(shop, some, "because", by=by)
        await deeds.note(shop, Action(f"n{n}", "bob", "note", f"{n}"), 1)
    lines = [(line.verb, line.target, line.count) for line in await shop.admin.audit_log()]
    expected = []
    for n in range(10):
        if n % 2 == 0:
            expected.append(("cancel", f"{n // 2}", 8))
        expected.append(("note", f"{n}", 1))
    assert lines == expected[::-1]
    assert len(await shop.admin.audit_log(4)) == 4


# Deleted jobs


async def ended(store: Store, job_id: JobId, clock: ManualClock, queue: str = "mail") -> int:
    """Put a job and run it; returns when it ended."""
    await store.put([new_job(queue=queue, id=job_id)])
    [job] = await claim(store, Queue(queue))
    await store.settle([done(job)])
    clock.advance(1)
    return clock.now() - SECOND


async def test_the_lines_of_a_deleted_job_are_found_in_all_its_lives(
    shop: Store, clock: ManualClock, redis_server: RedisServer, keys: Keys
) -> None:
    job_id = JobId("tick-1")
    times = []
    for queue in ("mail", "mail", "other"):
        times.append(await ended(shop, job_id, clock, queue))
        assert await deeds.delete(shop, [job_id], FINAL, by()) == [job_id]
        assert [line.finished_at for line in await shop.admin.attempts(job_id)] == times
    times.append(await ended(shop, job_id, clock, "third"))
    assert [line.finished_at for line in await shop.admin.attempts(job_id)] == times
    clock.advance(100)
    await shop.upkeep(10 * SECOND)
    assert await shop.admin.attempts(job_id) == []
    assert redis_server.execute("HLEN", keys.key("mail", "gone")) == 0


async def test_the_lines_of_a_forgotten_job_are_found(
    shop: Store, clock: ManualClock, redis_server: RedisServer, keys: Keys
) -> None:
    job_id = JobId("tick-1")
    at = await ended(shop, job_id, clock)
    await deeds.delete(shop, [job_id], FINAL, BY)
    redis_server.execute("DEL", keys.key("mail", "gone"))
    assert [line.finished_at for line in await shop.admin.attempts(job_id)] == [at]


async def test_a_job_that_came_to_another_queue_is_found_there(
    shop: Store, clock: ManualClock, redis_crew_url: str
) -> None:
    job_id = JobId("tick-1")
    await ended(shop, job_id, clock)
    assert await shop.admin.find(job_id)
    other = store_for(redis_crew_url, clock)
    await deeds.delete(other, [job_id], FINAL, BY)
    await other.put([new_job(queue="other", id=job_id)])
    found = await shop.admin.find(job_id)
    assert found is not None
    assert found.queue == "other"
    assert set(await deeds.cancel(shop, [job_id], "not needed", by())) == {job_id}
    await other.close()


# The audit

WRONGS: dict[str, tuple[tuple[object, ...], ...]] = {
    "is in no place": (("ZREM", "ready", "waiting"),),
    "is in two places at once": (("ZADD", "due", 5, "waiting"),),
    "is not known, but has a mark in errors": (("HSET", "errors", "nobody", "x"),),
    "is not known, but has a mark in ready": (("ZADD", "ready", 5, "nobody"),),
    "is not known, but has a mark in parked": (
        ("ZADD", "parked", 0, "no_capable_worker\0t\0" + "0000000001\0wnobody"),
    ),
    "has ended, nobody knows how": (("HDEL", "standings", "dead"),),
    "ended at two times": (("ZADD", "dead", 5, "dead"),),
    "is in a state that is not that of its place": (
        ("ZREM", "dead", "dead"),
        ("ZADD", "done", 5, "dead"),
    ),
    "is not where its run says": (("ZREM", "leases", "running"), ("ZADD", "ready", 5, "running")),
    "has two places in its order": (("ZADD", "leases", 5, "running"),),
    "stands in the order before it is due": (("ZADD", "ready", 1e16, "waiting"),),
    "expires, and nobody watches": (("ZREM", "expiring", "waiting"),),
    "does not expire, and is watched": (("ZADD", "expiring", 5, "dead"),),
    "cannot be read": (("HSET", "bodies", "waiting", "?"),),
    "does not agree about being parked": (
        ("ZREM", "parked", "no_capable_worker\0u\0" + "0000000001\0wparked"),
        ("ZADD", "ready", 5, "parked"),
    ),
}


@pytest.mark.parametrize("wrong", WRONGS)
async def test_the_audit_finds(
    wrong: str, shop: Store, clock: ManualClock, redis_server: RedisServer, keys: Keys
) -> None:
    await shop.put([new_job(id=JobId("dead"))])
    [job] = await claim(shop)
    await shop.settle([failed(job, clock.now(), DEAD)])
    await shop.put([new_job(id=JobId("running"))])
    await claim(shop)
    await shop.put([new_job(id=JobId("parked"), task="u", expires_in=90 * SECOND)])
    await claim(shop, capable={"t": 1})
    await shop.put([new_job(id=JobId("waiting"), expires_in=60 * SECOND)])
    assert await shop.admin.audit() == []
    for command, part, *values in WRONGS[wrong]:
        redis_server.execute(command, keys.key("mail", str(part)), *values)
    problems = [finding.problem for finding in await shop.admin.audit()]
    assert len(problems) == 1, problems
    assert problems[0].endswith(wrong)


async def test_the_audit_finds_a_job_whose_id_leads_nowhere(
    shop: Store, redis_server: RedisServer, keys: Keys
) -> None:
    await shop.put([new_job(id=JobId("tick"))])
    redis_server.execute("HDEL", keys.strays, "tick")
    [finding] = await shop.admin.audit()
    assert finding.problem == "job tick cannot be found by its id"


async def test_the_audit_finds_two_lines_for_one_fence(
    shop: Store, clock: ManualClock, redis_server: RedisServer, keys: Keys
) -> None:
    await ended(shop, JobId("tick"), clock)
    key = keys.key("mail", "log")
    batch = redis_server.execute("LINDEX", key, 0).encode(errors="surrogateescape")
    redis_server.execute("RPUSH", key, batch)
    [finding] = await shop.admin.audit()
    assert finding.problem == "job tick has two lines for one fence in the attempt log"


async def test_the_audit_has_no_false_alarm_while_jobs_move(redis_crew_url: str) -> None:
    store = store_for(redis_crew_url)
    stop = False

    async def bustle(number: int) -> None:
        n = 0
        while not stop:
            n += 1
            ids = [JobId(f"stray-{number}-{n}-{k}") for k in range(5)]
            await store.put([new_job(id=each, expires_in=60 * SECOND) for each in ids])
            await store.put([new_job(expires_in=60 * SECOND, delay=5_000) for _ in range(10)])
            jobs = await claim(store, slots=12, worker=f"w{number}")
            await store.settle([(returned if n % 3 else done)(job) for job in jobs])
            await deeds.cancel(store, ids[:1], "because", by())
            await deeds.delete(store, ids[:3], FINAL, BY)
            await store.put([new_job(id=each) for each in ids[:2]])

    tasks = [asyncio.create_task(bustle(number)) for number in range(3)]
    for _ in range(15):
        assert await store.admin.audit() == []
    stop = True
    await asyncio.gather(*tasks)
    await store.close()
