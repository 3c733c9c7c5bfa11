"""What only PostgreSQL has: plans, pages, partitions, marks, news, COPY, and its own clock."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import psycopg
import pytest

from fairlead.core.clock import SECOND, ManualClock, SystemClock
from fairlead.core.errors import ConfigError, MissingExtra
from fairlead.core.ids import JobId
from fairlead.core.job import NewJob
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.problems import silent
from tests.servers.postgres import PostgresServer
from tests.words import are_new, claim, done, failed, new_job, returned

DAY = 24 * 3600


@pytest.fixture
async def moved(fresh_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    """A store by a clock that the test moves."""
    store = store_for(fresh_url, clock)
    await store.open()
    yield store
    assert await store.admin.audit() == []
    await store.close()


def one(connection: psycopg.Connection, question: str) -> object:
    row = connection.execute(question).fetchone()
    assert row is not None
    return row[0]


async def test_a_claim_moves_no_row_and_reads_no_table(
    shop: Store, owner: psycopg.Connection
) -> None:
    """Every lease fits into its page (HOT), and every way in is an index.

    Also in a session that made its plans when the table was empty, and known to be.
    """
    await shop.put([new_job() for _ in range(300)])
    while jobs := await claim(shop, slots=100):
        await shop.settle([done(job) for job in jobs])
    owner.execute("VACUUM ANALYZE job")
    for _ in range(8):
        await shop.put([new_job()])
        [job] = await claim(shop)
        await shop.extend([(job.id, job.fence)], 20 * SECOND)
        await shop.settle([done(job)])
    await shop.put([new_job() for _ in range(10_000)])
    for _ in range(20):
        jobs = await claim(shop, slots=100)
        assert len(jobs) == 100
        await shop.extend([(job.id, job.fence) for job in jobs], 20 * SECOND)
        await shop.settle([done(job) for job in jobs])
    owner.execute("SELECT pg_stat_clear_snapshot()")
    query = """
        SELECT n_tup_upd, n_tup_hot_upd, seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables
        WHERE relname = 'job' AND schemaname = current_schema()
    """
    for _ in range(100):
        row = owner.execute(query).fetchone()
        assert row is not None
        if row[0] >= 4_316:
            break
        await asyncio.sleep(0.1)  # The server's figures come a little late.
    updated, hot, scanned, fetched = row
    assert updated == 4_316
    assert hot > 3_600  # A page that is claimed and renewed as a whole may just be too small.
    assert scanned == 0
    assert fetched < 50_000


async def test_a_put_that_is_committed_late_is_found(
    shop: Store, fresh_url: str, owner: psycopg.Connection
) -> None:
    """It stands before the place where claims are; the news of it says since when."""
    await shop.put([new_job() for _ in range(300)])
    await shop.wait(0)
    late = new_job()
    with psycopg.connect(fresh_url.partition("?")[0], user="crew", password="rope") as theirs:
        other = store_for(fresh_url)
        other.put_within(theirs, [late]).run()
        await asyncio.sleep(3)  # Longer than a mark stays behind.
        await shop.put([new_job() for _ in range(300)])
        taken = [job.id for _ in range(4) for job in await claim(shop, slots=100)]
        assert late.id not in taken
        theirs.commit()
        await other.close()
    async with asyncio.timeout(20):
        while late.id not in taken:
            taken += [job.id for job in await claim(shop, slots=10)]
            await asyncio.sleep(0.05)


async def test_a_head_start_and_a_given_back_job_come_next(shop: Store, fresh_url: str) -> None:
    """Also when another process puts it, and claims go along the order meanwhile."""
    await shop.put([new_job() for _ in range(2_000)])
    first = await claim(shop, slots=50)
    other = store_for(fresh_url)
    hasty = new_job(priority=600)
    await other.put([hasty])
    await other.settle([returned(first[0])])
    await other.close()
    found: list[str] = []
    async with asyncio.timeout(20):
        while not {hasty.id, first[0].id} <= set(found):
            found += [job.id for job in await claim(shop, slots=5)]
            await asyncio.sleep(0.02)
    assert len(found) < 1_900


async def test_the_mark_follows_the_order(
    moved: Store, clock: ManualClock, owner: psycopg.Connection
) -> None:
    for _ in range(3):
        await moved.put([new_job() for _ in range(10)])
        clock.advance(10)
    await moved.settle([done(job) for job in await claim(moved, slots=10)])
    clock.advance(100)
    [stuck, *others] = await claim(moved, slots=20, lease=1000)
    await moved.settle([done(job) for job in others])
    clock.advance(100)
    assert await claim(moved) == []
    assert one(owner, "SELECT mark FROM queue") == stuck.run_at


async def test_a_clock_of_a_worker_changes_nothing(
    shop: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases and due times go by the server's clock."""
    job = new_job(delay=SECOND)
    await shop.put([job, new_job()])
    for hours in (1, -1):
        now = SystemClock().now() + hours * 3600 * SECOND
        monkeypatch.setattr(SystemClock, "now", lambda self, now=now: now)
        assert job.id not in [each.id for each in await claim(shop, lease=600)]
        assert await claim(shop) == []
    monkeypatch.undo()
    async with asyncio.timeout(20):
        while not (found := await claim(shop)):
            await asyncio.sleep(0.1)
    assert [each.id for each in found] == [job.id]


async def test_days_are_dropped_when_they_are_over(
    moved: Store, clock: ManualClock, owner: psycopg.Connection
) -> None:
    tables = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'finished'::regclass"
    await moved.put([new_job()])
    [job] = await claim(moved)
    await moved.settle([done(job)])
    await moved.upkeep(DAY * SECOND)
    before = one(owner, tables)
    clock.advance(3 * DAY)
    assert (await moved.upkeep(DAY * SECOND)).pruned_jobs == 1
    assert await moved.admin.find(job.id) is None
    assert one(owner, "SELECT count(*) FROM finished") == 0
    assert one(owner, tables) == before


async def test_a_day_that_somebody_reads_is_dropped_another_time(
    moved: Store, clock: ManualClock, owner: psycopg.Connection
) -> None:
    await moved.put([new_job(), new_job()])
    [job, other] = await claim(moved, lease=100 * DAY)
    await moved.settle([done(job)])
    clock.advance(3 * DAY)
    owner.execute("BEGIN")
    owner.execute("SELECT count(*) FROM finished")
    assert (await moved.upkeep(DAY * SECOND)).pruned_jobs == 1
    await moved.settle([done(other)])
    assert await moved.admin.find(job.id) is None
    assert one(owner, "SELECT count(*) FROM finished") >= 1  # type: ignore[operator]
    owner.execute("COMMIT")
    await moved.upkeep(DAY * SECOND)
    assert one(owner, "SELECT count(*) FROM finished") == 1


@pytest.mark.parametrize("blocking", [True, False])
async def test_many_jobs_are_as_others_and_known_ones_are_told(shop: Store, blocking: bool) -> None:
    async def put(jobs: list[NewJob]) -> list[bool]:
        return are_new(shop.put_blocking(jobs) if blocking else await shop.put(jobs))

    odd = new_job(task="\\N\t\r\n'", queue='"\\.', options='{"tags":["\\u0000\\\\"]}')
    jobs = [odd, *(new_job() for _ in range(299))]
    assert await put(jobs) == [True] * 300
    record = await shop.admin.find(odd.id)
    assert record is not None
    assert (record.task, record.queue, record.options) == (odd.task, odd.queue, odd.options)
    assert (record.priority, record.run_at) == (0, record.enqueued_at)
    taken = await claim(shop, slots=2)
    assert [job.id for job in taken] == [job.id for job in jobs[1:3]]
    await shop.settle([done(taken[0]), failed(taken[1], 0)])

    again = [*jobs[:5], *(new_job() for _ in range(300))]
    assert await put(again) == [False] * 5 + [True] * 300
    ended = [jobs[1], *(new_job() for _ in range(300))]
    assert await put(ended) == [False] + [True] * 300


async def test_a_put_wakes_another_process_and_a_result_too(shop: Store, fresh_url: str) -> None:
    other = store_for(fresh_url)
    marks = [await shop.wait(0, for_work=True), await shop.wait(0)]
    waiting = [
        asyncio.ensure_future(shop.wait(30, marks[0], for_work=True)),
        asyncio.ensure_future(shop.wait(30, marks[1])),
    ]
    await other.put([new_job()])
    async with asyncio.timeout(10):
        news = await asyncio.gather(*waiting)
    assert news[0] != marks[0]
    [job] = await claim(shop)
    await asyncio.sleep(0.3)
    work, ended = await shop.wait(0, for_work=True), await shop.wait(0)
    hint = asyncio.ensure_future(shop.wait(30, ended))
    await other.settle([done(job)])
    async with asyncio.timeout(10):
        assert await hint != ended
    assert await shop.wait(0, for_work=True) == work
    await other.close()


async def test_the_schema_can_be_made_by_other_means(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    store = store_for(postgres_url)
    steps = await store.admin.migrations()
    assert all(step.applied_at is None for step in steps)
    script = "\n".join(step.sql for step in steps)
    url = postgres_url.partition("?")[0]
    subprocess.run(["psql", "-qX", "-v", "ON_ERROR_STOP=1", url], input=script.encode(), check=True)
    assert all(step.applied_at for step in await store.admin.migrations())
    assert are_new(await store.put([new_job()])) == [True]
    assert await store.admin.audit() == []
    await store.close()


async def test_what_it_cannot_hold_is_refused_and_nobody_else_is(shop: Store) -> None:
    """One caller's bad job fails that caller alone, and is not taken for an outage."""
    bad, good = NewJob(new_job().id, "t", "mail", "\0"), new_job()
    answers = await asyncio.gather(shop.put([bad]), shop.put([good]), return_exceptions=True)
    assert isinstance(answers[0], ConfigError)
    assert "NUL" in str(answers[0])
    assert [answer.is_new for answer in answers[1]] == [True]
    with pytest.raises(ConfigError, match="NUL"):
        await shop.admin.find(JobId("a\0b"))


def test_without_the_driver_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [each for each in sys.modules if each.startswith("fairlead.stores.p")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"fairlead\[postgres\]"):
        store_for("postgresql://localhost/jobs")


async def test_a_claim_parks_nothing_that_somebody_took_after_it_was_met(
    moved: Store, clock: ManualClock, owner: psycopg.Connection
) -> None:
    """A worker that knows the task may come while another one's claim is under way."""
    jobs = [new_job() for _ in range(3)]
    await moved.put(jobs)
    running, again = await claim(moved, slots=2, lease=20)
    await moved.settle([failed(again, clock.now())])
    ids = [job.id for job in jobs]
    [[parked]] = owner.execute("SELECT park_unknown(%s, %s)", [ids, clock.now()]).fetchall()
    assert parked == [[jobs[2].id, "t", 1, "mail", None, 1]]
    assert [each.id for each in await moved.extend([(running.id, running.fence)], SECOND)] == [
        running.id
    ]
    clock.advance(3600)
    assert {job.id for job in await claim(moved)} == set(ids)


def test_a_silent_server_is_told_in_round_seconds() -> None:
    problem = silent(Address.of("postgresql:///shop"), 2.98164, asked=True)
    assert "no answer within 2.98 s; look in pg_stat_activity" in str(problem)
