"""A limit that exists only here: of each task, so many jobs may run, whichever queue they are in.

It is an entry of `LIMITS` and one place in each store, and every store does with it what memory does.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.bench.servers.postgres import PostgresServer
from fairlead.core.admin import ALL
from fairlead.core.clock import ManualClock
from fairlead.core.ids import JobId
from fairlead.core.job import Gate, Job
from fairlead.core.queue import Queue
from fairlead.core.selection import LIMITS, Limit
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.redis.claims import Claims
from fairlead.stores.redis.store import RedisStore
from fairlead.stores.redis.talk import Conversation
from fairlead.stores.sqlite.limits import LIMITED, Limited
from tests.words import done, new_job, plan, returned

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

    def __init__(self, claims: Claims) -> None:
        self._keys = claims._keys
        self._tasks: set[str] = set()

    def _key(self, task: str) -> str:
        return f"{self._keys.prefix}:running:{{{task}}}"

    def with_room(self) -> Conversation[Sequence[str]]:
        room = []
        for task in sorted(self._tasks):
            ids, queues = yield [("HKEYS", self._key(task)), ("HVALS", self._key(task))]
            for job_id, queue in zip(ids, queues, strict=True):
                places = [self._keys.key(queue.decode(), part) for part in ("leases", "lost")]
                if not any((yield [("ZSCORE", place, job_id) for place in places])):
                    yield [("HDEL", self._key(task), job_id)]
            [count] = yield [("HLEN", self._key(task))]
            if count < MOST:
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
        store._line.claims.limits.append(ByTask(store._line.claims))
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


@pytest.fixture
def url(new_url: Callable[[], str], postgres_server: PostgresServer) -> Callable[[], str]:
    """URLs of stores that know the limit."""

    def with_limit() -> str:
        url = new_url()
        if url.startswith("postgres"):
            schema = Address.of(url).quoted_schema
            postgres_server.execute(f"SET search_path = {schema}; {ON_POSTGRES}")
        return url.replace("//crew:rope@", "//") if url.startswith("redis") else url

    return with_limit


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
