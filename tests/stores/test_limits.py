"""A limit that exists only here: of each task, so many jobs may run, whichever queue they are in.

It is an entry of `LIMITS` and one place in each store, and every store does with it what memory does: claims
count it, and people are told of it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from unittest.mock import patch

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.bench.servers.postgres import PostgresServer
from fairlead.cli.explain import _lines
from fairlead.core.admin import ALL, Filter, PoolShare, Wait, Waiting, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.job import Gate, Job, State
from fairlead.core.queue import Queue
from fairlead.core.selection import LIMITS, Limit, select
from fairlead.core.store import Store
from fairlead.insight.explain import Explanation, explain
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.store import RedisStore
from fairlead.stores.redis.talk import Conversation
from fairlead.stores.sqlite.limits import LIMITED, Limited
from tests import deeds
from tests.words import MAIL, by, claim, done, new_job, plan, returned

LIMIT = cast(Gate, "limit")
MOST = 2
FREE = "free"
"""The task of jobs that use nothing."""
QUEUES = (Queue("mail", weight=2), Queue("reports"), Queue("alarm", critical=True, tasks=["t"]))


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """The limit, and what it takes in memory and on SQLite."""
    by_task = Limit(lambda head: head.task if head.task != FREE else None, MOST)
    running = """
        SELECT task, count(*) FROM fairlead_job WHERE lease_until > 0 AND task <> 'free' GROUP BY task
    """
    with patch.dict(LIMITS, {LIMIT: by_task}), patch.dict(LIMITED, {LIMIT: Limited(4, running)}):
        yield


class ByTask:
    """The limit on Redis: for each task a hash of those who run, in a slot of its own."""

    gate = LIMIT
    _TAKE = """
        local refused = {}
        for n = 2, #ARGV, 2 do
            if redis.call('HLEN', KEYS[1]) < tonumber(ARGV[1]) then
                redis.call('HSET', KEYS[1], ARGV[n], ARGV[n + 1])
            else
                refused[#refused + 1] = ARGV[n]
            end
        end
        return refused
    """

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._tasks: set[str] = set()

    def _key(self, task: str) -> str:
        return f"{self._keys.prefix}:running:{{{task}}}"

    def _runs(self, task: str) -> Conversation[dict[bytes, bool]]:
        """Say of each job that was charged whether it still runs, or was lost."""
        runs = {}
        ids, queues = yield [("HKEYS", self._key(task)), ("HVALS", self._key(task))]
        for job_id, queue in zip(ids, queues, strict=True):
            places = [self._keys.key(queue.decode(), part) for part in ("leases", "lost")]
            scores = yield [("ZSCORE", place, job_id) for place in places]
            runs[job_id] = any(score is not None for score in scores)
        return runs

    def in_use(self) -> Conversation[Mapping[str, int]]:
        used = {}
        for task in sorted(self._tasks):
            used[task] = sum((yield from self._runs(task)).values())
        return used

    def with_room(self) -> Conversation[Sequence[str]]:
        room = []
        for task in sorted(self._tasks):
            runs = yield from self._runs(task)
            for job_id in (each for each, is_running in runs.items() if not is_running):
                yield [("HDEL", self._key(task), job_id)]
            if sum(runs.values()) < MOST:
                room.append(task)
        return room

    def refuse(self, jobs: Sequence[Job]) -> Conversation[Mapping[JobId, str]]:
        refused: dict[JobId, str] = {}
        for task in {job.task for job in jobs} - {FREE}:
            self._tasks.add(task)
            words = [word for job in jobs if job.task == task for word in (job.id, job.queue)]
            [ids] = yield [("EVAL", self._TAKE, 1, self._key(task), MOST, *words)]
            refused |= {JobId(each.decode()): task for each in ids}
        return refused


class Play:
    """One store, and what is done to it; `told` is what it answered."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock
        self._put = 0
        self._credits: Mapping[str, float] = {}
        self.running: dict[JobId, Job] = {}
        self.told: list[object] = []

    async def put(self, jobs: list[tuple[str, str, int]]) -> None:
        new = []
        for queue, task, priority in jobs:
            self._put += 1
            new.append(new_job(task, queue, id=JobId(f"job-{self._put:04}"), priority=priority))
        await self._store.put(new)

    async def claim(self, slots: int) -> None:
        """Claim as a worker does: again at once, if a claim ended before it had seen all."""
        self._clock.advance(1)
        wanted = plan(*QUEUES, slots=slots, credits=self._credits)
        for _ in range(20):
            answer = await self._store.claim(wanted)
            self._credits = dict(answer.credits)
            wanted = wanted.after(answer)
            self.told += [(job.queue, job.id, job.lost, job.attempt) for job in answer.jobs]
            self.running |= {job.id: job for job in answer.jobs}
            if not answer.cut or wanted.room().shared <= 0:
                break
        self.told.append(self._credits)
        counts = Counter(job.task for job in self.running.values() if job.task != FREE)
        assert all(count <= MOST for count in counts.values()), counts

    async def settle(self, how: str, some: list[int]) -> None:
        jobs = [self.running.pop(job_id) for job_id in self._nth(some)]
        await self._store.settle([done(job) if how == "done" else returned(job) for job in jobs])

    def _nth(self, some: list[int]) -> list[JobId]:
        ids = sorted(self.running)
        return sorted({ids[n % len(ids)] for n in some}) if ids else []

    async def wait(self, seconds: int) -> None:
        self._clock.advance(seconds)

    async def finish(self) -> None:
        """Let all jobs come to their end."""
        for _ in range(self._put + 1):
            await self.claim(10)
            await self.settle("done", list(range(len(self.running))))
        assert not self.running
        self.told.append(await self._store.admin.count(ALL))


names, tasks = st.sampled_from([queue.name for queue in QUEUES]), st.sampled_from(["t", "u", FREE])
few = st.lists(st.integers(0, 9), min_size=1, max_size=3)
steps = st.one_of(
    st.tuples(
        st.just("put"),
        st.lists(st.tuples(names, tasks, st.sampled_from([0, 0, 3])), min_size=1, max_size=8),
    ),
    st.tuples(st.just("claim"), st.integers(1, 6)),
    st.tuples(st.just("settle"), st.sampled_from(["done", "done", "returned"]), few),
    st.tuples(st.just("wait"), st.sampled_from([1, 30])),
)


async def opened(url: str, clock: ManualClock) -> Store:
    store = store_for(url, clock)
    await store.open()
    if isinstance(store, RedisStore):
        store.limits.append(ByTask(store.keys))
    return store


async def played(url: str, script: Sequence[tuple[Any, ...]]) -> list[object]:
    clock = ManualClock()
    store = await opened(url, clock)
    try:
        play = Play(store, clock)
        for verb, *arguments in [*script, ("finish",)]:
            await getattr(play, verb)(*arguments)
        return play.told
    finally:
        await store.close()


ON_POSTGRES = f"""
CREATE OR REPLACE FUNCTION limit_named(reason smallint) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE reason WHEN 4 THEN 'limit' END $$;
CREATE OR REPLACE FUNCTION limits_in_use() RETURNS TABLE (name text, key text, number bigint)
LANGUAGE sql STABLE AS $$
    SELECT 'limit', task, count(*) FROM job WHERE lease_until > 0 AND task <> '{FREE}' GROUP BY task
$$;
CREATE OR REPLACE FUNCTION admitted(jobs tid[], at bigint) RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    places tid[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(task, 0))
    FROM (SELECT DISTINCT task FROM job WHERE ctid = ANY (jobs) ORDER BY task) AS kind;
    SELECT array_agg(place) FILTER (WHERE nth <= {MOST} OR task = '{FREE}' OR lost) INTO places FROM (
        SELECT ctid AS place, task, lease_until > 0 AS lost,
               row_number() OVER (PARTITION BY task, lease_until > 0 ORDER BY order_at, id)
               + (SELECT count(*) FROM job AS r WHERE r.task = job.task AND r.lease_until > 0) AS nth
        FROM job WHERE ctid = ANY (jobs)
    ) AS ranked;
    places := coalesce(places, '{{}}');
    PERFORM park(array_agg(ctid), 4, array_agg(task))
    FROM job WHERE ctid = ANY (jobs) AND ctid <> ALL (places);
    RETURN places;
END $$;
CREATE OR REPLACE FUNCTION bring_back_limited(at bigint, most integer) RETURNS text[]
LANGUAGE sql AS $$
    SELECT bring_back(ARRAY(
        SELECT ctid FROM job WHERE parked = 4 AND park_key IS NOT NULL AND {MOST} > (
            SELECT count(*) FROM job AS r WHERE r.task = job.park_key AND r.lease_until > 0
        ) LIMIT most FOR UPDATE SKIP LOCKED
    ))
$$;
"""
"""The limit on PostgreSQL. Two claims at once wait for each other, and count one after the other."""


def with_limit(url: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a store that knows the limit."""
    if url.startswith("postgres"):
        schema = Address.of(url).quoted_schema
        server: PostgresServer = request.getfixturevalue("postgres_server")
        server.execute(f"SET search_path = {schema}; {ON_POSTGRES}")
    return url.replace("//crew:rope@", "//") if url.startswith("redis") else url


@pytest.fixture
def url(new_url: Callable[[], str], request: pytest.FixtureRequest) -> Callable[[], str]:
    """URLs of stores that know the limit."""
    return lambda: with_limit(new_url(), request)


@pytest.fixture
async def store(
    any_url: str, clock: ManualClock, request: pytest.FixtureRequest
) -> AsyncIterator[Store]:
    """Every store in turn. Whatever a test did, nothing in it is taken for damage."""
    store = await opened(with_limit(any_url, request), clock)
    yield store
    assert await store.admin.audit() == []
    assert await store.admin.repair(by("repair")) == []
    await store.close()


@pytest.mark.timeout(300)
def test_every_store_counts_as_memory_does(url: Callable[[], str]) -> None:
    @settings(max_examples=25)
    @given(st.lists(steps, min_size=1, max_size=12))
    def compare(script: list[tuple[Any, ...]]) -> None:
        expected = asyncio.run(played("memory://", script))
        assert asyncio.run(played(url(), script)) == expected

    compare()


async def test_claims_at_once_share_one_limit(url: Callable[[], str]) -> None:
    """Whatever they take together, no more of it runs than there is room for; and all of it ends."""
    place, clock = url(), ManualClock()
    stores = [await opened(place, clock) for _ in range(4)]
    await stores[0].put([new_job("t", queue) for queue in ("mail", "reports") for _ in range(10)])
    ended = 0
    for _ in range(60):
        clock.advance(1)
        plans = [plan(*QUEUES, slots=3, worker=f"w{n}") for n in range(4)]
        claims = await asyncio.gather(
            *(store.claim(wanted) for store, wanted in zip(stores, plans, strict=True))
        )
        jobs = [job for each in claims for job in each.jobs]
        assert len(jobs) <= MOST
        await stores[0].settle([done(job) for job in jobs])
        ended += len(jobs)
    assert ended == 20
    for store in stores:
        await store.close()


# What people are told of it


async def park(store: Store, **options: Any) -> tuple[list[Job], JobId]:
    """Let as many jobs run as may, so that one more is parked; returns those, and this one's id."""
    new = [new_job(**options) for _ in range(MOST + 1)]
    await store.put(new)
    running = await claim(store)
    assert [job.id for job in running] == [job.id for job in new[:MOST]]
    return running, new[MOST].id


async def test_a_job_that_a_limit_parks_is_told_as_parked(store: Store, clock: ManualClock) -> None:
    """Before, some stores had it in no list, and counted it as due."""
    _, parked = await park(store)
    free = new_job(FREE)
    await store.put([free])
    before = await store.admin.find(parked)
    assert before is not None
    assert (before.gate, before.attempt) == (LIMIT, 0)
    assert await deeds.waiting(store) == {"mail": Waiting(due=1, parked=1, oldest=clock.now())}
    for wait in Wait:
        which = Filter(states=(State.WAITING,), waits=(wait,), at=clock.now())
        told = {Wait.PARKED: [parked], Wait.DUE: [free.id]}.get(wait, [])
        assert [job.id for job in await deeds.jobs(store, which)] == told
        assert await store.admin.count(which) == ({"mail": {State.WAITING: 1}} if told else {})
    assert await deeds.unknown(store) == {}
    assert await store.admin.ahead(free.id) == 0
    assert await store.admin.audit() == []
    assert await store.admin.repair(by("repair")) == []
    assert await store.admin.find(parked) == before


async def test_parked_jobs_are_listed_page_by_page(store: Store, clock: ManualClock) -> None:
    jobs = [
        new_job(task, queue) for task in "tu" for queue in ("mail", "reports") for _ in range(3)
    ]
    await store.put(jobs)
    running = {job.id for job in await claim(store, *QUEUES, slots=20)}
    assert len(running) == 2 * MOST
    which = Filter(states=(State.WAITING,), waits=(Wait.PARKED,), at=clock.now())
    listed: list[JobId] = []
    cursor = None
    for _ in range(len(jobs)):
        page = await store.admin.page(which, 3, cursor)
        listed += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break
    assert len(listed) == len(jobs) - len(running)
    assert {*listed, *running} == {job.id for job in jobs}


def said(told: Explanation) -> str:
    """Return what people read of it."""
    return click.unstyle("\n".join(_lines(told)))


async def test_explain_names_the_limit(store: Store) -> None:
    """Before, it said that the job is damaged."""
    worker = Worker("w1", {"t": 1, FREE: 1}, (PoolShare("default", 9, (MAIL.share,)),))
    await store.announce(worker, 500 * SECOND)
    running, parked = await park(store)
    next_, free = new_job(), new_job(FREE)
    await store.put([next_, free])
    for held in (parked, next_.id):  # The next one no claim has met yet.
        told = await explain(store, held)
        assert (told.gate, told.damaged, told.starts_at) == (LIMIT, False, None)
        lines = said(told)
        assert "waiting, its limit has no room: limit" in lines
        assert "opens with the end of a job that the same limit counts" in lines
    told = await explain(store, free.id)
    assert told.gate is None
    assert "a limit has room, or does not count it: limit" in said(told)
    await store.settle([done(running[0])])
    told = await explain(store, parked)
    assert (told.gate, told.damaged) == (None, False), "the next claim brings it back"
    assert (await explain(store, next_.id)).gate is Gate.NO_SLOT, "that takes the last of it"
    assert [job.id for job in await claim(store)] == [parked, free.id]


async def test_a_snapshot_has_what_the_next_claim_finds(store: Store) -> None:
    running, parked = await park(store)
    other = new_job("u")
    await store.put([other])

    async def seen() -> tuple[list[JobId], list[JobId], dict[str, int]]:
        snapshot = await store.admin.snapshot(plan(), 10)
        chosen = [head.id for _, head in select(snapshot).chosen]
        return [head.id for head in snapshot.lines["mail"].heads], chosen, +snapshot.used[LIMIT]

    assert await seen() == ([other.id], [other.id], {"t": MOST})
    await store.settle([done(running[0])])
    assert await seen() == ([parked, other.id], [parked, other.id], {"t": MOST - 1})
    assert [job.id for job in await claim(store)] == [parked, other.id]
    assert await seen() == ([], [], {"t": MOST, "u": 1})


async def test_a_parked_job_can_be_cancelled(store: Store) -> None:
    running, parked = await park(store)
    await deeds.cancel(store, [parked], "no", by())
    await store.settle([done(job) for job in running])
    assert await claim(store) == []
    assert await store.admin.count() == {"mail": {State.CANCELLED: 1, State.DONE: MOST}}


async def test_a_parked_job_expires(store: Store, clock: ManualClock) -> None:
    _, parked = await park(store, expires_in=5 * SECOND)
    clock.advance(10)
    assert (await store.upkeep(3600 * SECOND)).expired == 1
    record = await store.admin.find(parked)
    assert record is not None
    assert record.state is State.CANCELLED


async def test_a_parked_job_that_a_person_hastens_stays_parked(
    store: Store, clock: ManualClock
) -> None:
    """It is due later only because the clock went back."""
    running, parked = await park(store)
    clock.advance(-60)
    assert await deeds.revive(store, [parked], [State.WAITING], by()) == [parked]
    record = await store.admin.find(parked)
    assert record is not None
    assert (record.gate, record.run_at) == (LIMIT, clock.now())
    assert await claim(store) == []
    assert await deeds.waiting(store) == {"mail": Waiting(parked=1)}
    assert await store.admin.audit() == []
    await store.settle([done(job) for job in running])
    assert [job.id for job in await claim(store)] == [parked]
