"""Entries on PostgreSQL: who waits for whom, and what the database refuses by itself."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Wanted
from fairlead.core.errors import ConfigError, StoreUnavailable
from fairlead.core.ids import JobId
from fairlead.core.job import State
from fairlead.core.outcome import Settlement
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from tests import deeds
from tests.servers.postgres import PostgresServer
from tests.stores.test_postgres import moved  # noqa: F401 (a fixture)
from tests.stores.test_postgres_roles import Yard, yard  # noqa: F401 (a fixture)
from tests.words import are_new, by, claim, new_job


@contextmanager
def held(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody's transaction that has locked every job."""
    address = Address.of(url)
    with psycopg.connect(**address.parameters) as holder:
        holder.execute(f"SELECT FROM {address.quoted_schema}.job FOR UPDATE".encode())
        yield holder


async def until_waiting(server: PostgresServer, number: int) -> None:
    """Wait until so many writes wait for somebody's lock."""
    question = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND query LIKE '%%write_entries%%'"
    )
    async with asyncio.timeout(20):
        while server.execute(question) != [(number,)]:
            await asyncio.sleep(0.02)


async def test_a_write_reads_what_it_writes_however_many_others_there_are(
    fresh_url: str, owner: psycopg.Connection
) -> None:
    """Neither the table of jobs nor that of entries is read as a whole, whatever was known of them."""
    store = store_for(fresh_url)
    schema = Address.of(fresh_url).quoted_schema
    owner.execute("SET search_path = " + schema)
    read = (
        "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::integer "
        "FROM pg_stat_xact_user_tables WHERE relname IN ('job', 'entry')"
    )
    for number in (0, 3_000):
        mine = new_job()
        doc = {"level": 1, "changes": [("step", mine.id, "a", "1", None, None, None)]}
        await store.put([mine, *(new_job() for _ in range(number))])
        owner.execute(
            "INSERT INTO entry (kind, owner, key, value, version) "
            "SELECT 'figure', '', n::text, '1', 1 FROM generate_series(1, %s) AS n",
            [number],
        )
        with owner.transaction():
            before = owner.execute(read).fetchone()
            owner.execute("SELECT write_entries(%s)", [json.dumps(doc)])
            after = owner.execute(read).fetchone()
        assert before is not None
        assert after is not None
        assert after[0] - (before[0] or 0) < 50
    await store.close()


async def test_two_who_write_to_the_same_jobs_in_opposite_order_wait_in_turn(
    fresh_url: str,
    postgres_url: str,
    postgres_server: PostgresServer,
    owner: psycopg.Connection,
) -> None:
    """Else each would have a share of a job that the other wants to change."""
    stores = [store_for(fresh_url) for _ in range(2)]
    jobs = [new_job() for _ in range(4)]
    await stores[0].put(jobs)
    changes = [Change("saved", "a", "1", owner=job.id) for job in jobs]
    before = postgres_server.log.count("deadlock detected")
    # After the first of them the other one has its turn, if nothing keeps it from that.
    owner.execute(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(0.1); RETURN new; END $$; "
        "CREATE TRIGGER dawdle BEFORE INSERT ON entry FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )
    with held(postgres_url):
        writing = [
            asyncio.ensure_future(store.entries.write(each))
            for store, each in zip(stores, (changes, changes[::-1]), strict=True)
        ]
        await until_waiting(postgres_server, 2)
    first, second = await asyncio.gather(*writing)
    for one, other in zip(first, second[::-1], strict=True):
        assert one is not None
        assert other is not None
        assert one != other, "one came after the other"
    assert postgres_server.log.count("deadlock detected") == before
    for store in stores:
        await store.close()


async def test_a_write_that_waits_keeps_nobody_waiting(
    shop: Store, postgres_url: str, postgres_server: PostgresServer
) -> None:
    """As while a handler's own transaction is open: heartbeats, other entries and acts go on."""
    await shop.put([new_job(), new_job(queue="other")])
    [job] = await claim(shop)
    with held(postgres_url):
        writing = asyncio.ensure_future(
            shop.entries.write([Change("saved", "a", "1", owner=job.id)])
        )
        await until_waiting(postgres_server, 1)
        async with asyncio.timeout(5):
            [kept] = await shop.extend([(job.id, job.fence)], 20 * SECOND)
            assert kept.id == job.id
            assert await shop.held("w1")
            assert None not in await shop.entries.write([Change("once", "b", "1")])
            assert await shop.entries.read(Wanted("saved", job.id)) == []
        assert not writing.done()
    assert None not in await writing


async def test_a_write_that_waits_too_long_says_for_what(fresh_url: str, postgres_url: str) -> None:
    store = store_for(f"{fresh_url}&timeout=1")
    job = new_job()
    await store.put([job])
    change = Change("saved", "a", "1", owner=job.id)
    told = (
        "lock timeout; a transaction that is still open has put the same job or locked it, .*; "
        r"keep blocks of job.commit\(\) short, or look for it in pg_stat_activity"
    )
    with held(postgres_url), pytest.raises(StoreUnavailable, match=told):
        await store.entries.write([change])
    assert None not in await store.entries.write([change])
    await store.close()


@pytest.mark.parametrize(
    "change",
    [
        ["", "", "a", "1", None, None, None],
        ["k" * 65, "", "a", "1", None, None, None],
        ["a b", "", "a", "1", None, None, None],
        ["...", "", "a", "1", None, None, None],
        [7, "", "a", "1", None, None, None],
        [None, "", "a", "1", None, None, None],
        ["k", None, "a", "1", None, None, None],
        ["k", "ä", "a", "1", None, None, None],
        ["k", "x" * 37, "a", "1", None, None, None],
        ["k", "", "", "1", None, None, None],
        ["k", "", "ä" * 257, "1", None, None, None],
        ["k", "", {"a": 1}, "1", None, None, None],
        ["k", "", "a", "ä" * 32_769, None, None, None],
        ["k", "", "a", ["1"], None, None, None],
        ["k", "", "a", 10**6, None, None, None],
        ["k", "", "a", "1", None, -1, None],
        ["k", "", "a", "1", None, None, 2**60 + 1],
        ["k"],
    ],
)
def test_the_database_refuses_what_no_program_of_ours_writes(
    yard: Yard,  # noqa: F811
    change: list[object],
) -> None:
    """The limits are those of core/entries.py; who has the right to write may not use our programs."""
    good = ["k", "", "good", "1", None, None, None]
    with yard.connection("worker") as connection:
        call = f"SELECT {yard.schema}.write_entries(%s)".encode()
        with pytest.raises(psycopg.Error) as raised:
            connection.execute(call, [json.dumps({"changes": [good, change]})])
        assert raised.value.sqlstate == "JQ001"
        text = json.dumps({"changes": [good] * 1_001})
        with pytest.raises(psycopg.Error, match="at most 1,000 entries"):
            connection.execute(call, [text])
        read = f"SELECT {yard.schema}.read_entries(%s)".encode()
        wanted = {"kind": "k", "owner": "", "prefix": "", "after": "", "limit": 10}
        assert connection.execute(read, [json.dumps(wanted)]).fetchall() == []


async def test_what_the_database_refuses_is_told_as_the_callers_fault(
    shop: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead.core.entries.LONGEST_KEY", 1_000)
    with pytest.raises(ConfigError, match="its key has 1 to 512 bytes"):
        await shop.entries.write([Change("step", "x" * 600, "1")])


# Damage


async def owned(store: Store, state: State | None, job_id: JobId | None = None) -> JobId:
    """Put a job with two entries, and bring it to its end if one is named."""
    await store.put([new_job() if job_id is None else new_job(id=job_id)])
    [job] = await claim(store)
    changes = [Change("saved", key, f'"{key}"', owner=job.id) for key in ("a", "b")]
    assert None not in await store.entries.write(changes)
    if state is not None:
        await store.settle([Settlement(job.id, job.fence, state, "done", reason="because")])
    return job.id


async def values(store: Store, owner: JobId | None) -> dict[str, str]:
    return {each.key: each.value for each in await store.entries.read(Wanted("saved", owner))}


@pytest.mark.parametrize(
    "damage",
    [
        "kind = 'no kind'",
        "key = ''",
        "key = repeat('k', 600)",
        "value = repeat('v', 70000)",
        "version = -1",
        "due_at = -1",
        "expires_at = 2000000000000000000",
    ],
)
async def test_an_entry_that_cannot_be_read_is_found_and_removed(
    shop: Store, owner: psycopg.Connection, damage: str
) -> None:
    await shop.entries.write([Change("saved", key, "1") for key in ("bad", "good")])
    owner.execute(f"UPDATE entry SET {damage} WHERE key = 'bad'".encode())
    [finding] = await shop.admin.audit()
    assert finding.problem.startswith("entry ")
    assert finding.problem.endswith(" cannot be read")
    [told] = await shop.admin.repair(by())
    assert told.startswith("removed entry ")
    assert await shop.admin.audit() == []
    assert await values(shop, None) == {"good": "1"}


async def test_an_entry_whose_job_is_gone_is_found_and_removed(
    shop: Store, owner: psycopg.Connection
) -> None:
    job, kept = await owned(shop, None), await owned(shop, None)
    owner.execute("DELETE FROM job WHERE id = %s", [job])
    assert [each.problem for each in await shop.admin.audit()] == [
        f"entry saved {job} {key} belongs to a job that there is not" for key in "ab"
    ]
    assert await shop.admin.repair(by()) == [
        f"removed entry saved {job} {key}, which nobody owns" for key in "ab"
    ]
    assert await values(shop, job) == {}
    assert len(await values(shop, kept)) == 2


@pytest.mark.parametrize(
    ("attached", "problem"),
    [
        (0, "job {} does not say that it has entries"),
        (8, "job {} does not say that it has entries"),
        (-2, "job {} cannot have what it says that it has"),
    ],
)
async def test_a_job_that_does_not_say_what_it_has_is_found_and_put_right(
    shop: Store, owner: psycopg.Connection, attached: int, problem: str
) -> None:
    """Else its entries would stay behind when it ends."""
    job = await owned(shop, None)
    owner.execute("UPDATE job SET attached = %s", [attached])
    assert problem.format(job) in [each.problem for each in await shop.admin.audit()]
    await shop.admin.repair(by())
    assert await shop.admin.audit() == []
    assert owner.execute("SELECT attached FROM job").fetchall() == [(max(attached, 0) | 1,)]
    await deeds.revive(shop, [job], [State.WAITING], by())
    assert len(await values(shop, job)) == 2


@pytest.mark.parametrize("attached", [0, -32768])
@pytest.mark.parametrize("state", [State.DONE, State.DEAD])
async def test_an_ended_job_that_does_not_say_what_it_has_is_found_and_put_right(
    shop: Store, owner: psycopg.Connection, state: State, attached: int
) -> None:
    """Else its entries would stay when it is forgotten."""
    job = await owned(shop, state)
    table = "dead" if state is State.DEAD else "finished"
    owner.execute(f"UPDATE {table} SET attached = {attached}".encode())
    whom = "dead letter" if state is State.DEAD else "finished job"
    problems = [each.problem for each in await shop.admin.audit()]
    assert f"{whom} {job} does not say that it has entries" in problems
    await shop.admin.repair(by())
    assert await shop.admin.audit() == []
    assert await values(shop, job) == {"a": '"a"', "b": '"b"'}
    await deeds.delete(shop, [job], [state], by())
    assert owner.execute("SELECT * FROM entry").fetchall() == []


@pytest.mark.parametrize("state", [State.DONE, State.DEAD])
async def test_entries_stay_where_they_are_when_a_job_ends_and_comes_back(
    shop: Store, owner: psycopg.Connection, state: State
) -> None:
    """They may be many megabytes: what ends a job, or lets it run again, takes none of them up."""
    places = "SELECT key, ctid, xmin FROM entry ORDER BY key"
    job = await owned(shop, None)
    before = owner.execute(places).fetchall()
    fence = owner.execute("SELECT fence FROM job").fetchall()[0][0]
    await shop.settle([Settlement(job, fence, state, "done", reason="because")])
    assert owner.execute(places).fetchall() == before
    await deeds.revive(shop, [job], [state], by())
    assert owner.execute(places).fetchall() == before


async def test_a_day_is_kept_for_as_long_as_its_jobs_have_entries(
    moved: Store,  # noqa: F811
    clock: ManualClock,
    owner: psycopg.Connection,
) -> None:
    """Their ids are known until then: else a new job would find what a forgotten one left."""
    jobs = [await owned(moved, State.DONE, JobId(f"job {number}")) for number in range(3)]
    owner.execute(
        "INSERT INTO entry (kind, owner, key, value, version) "
        "SELECT 'saved', %s, n::text, '1', 1 FROM generate_series(1, 1500) AS n",
        [jobs[1]],
    )
    days = "SELECT count(*) FROM finished"
    clock.advance(3 * 86_400)
    assert (await moved.upkeep(86_400 * SECOND)).pruned_entries == 1_000
    assert [await values(moved, job) for job in jobs] == [{}, {}, {}]
    assert owner.execute(days).fetchall() == [(3,)]
    assert are_new(await moved.put([new_job(id=job) for job in jobs])) == [True, False, False]
    assert (await moved.upkeep(86_400 * SECOND)).pruned_entries == 506
    assert owner.execute(days).fetchall() == [(0,)]
    assert are_new(await moved.put([new_job(id=jobs[1])])) == [True]
    assert await values(moved, jobs[1]) == {}


async def test_a_letter_under_another_id_has_its_entries(
    shop: Store, owner: psycopg.Connection
) -> None:
    """There is a dead letter of its id already: neither is written over."""
    first = await owned(shop, State.DEAD)
    owner.execute("CREATE TEMP TABLE elder AS SELECT * FROM dead")
    await deeds.revive(shop, [first], [State.DEAD], by())
    owner.execute("INSERT INTO dead SELECT * FROM elder")
    [job] = await claim(shop)
    await shop.settle([Settlement(job.id, job.fence, State.DEAD, "failed", reason="because")])
    [[letter]] = owner.execute("SELECT id FROM dead WHERE id <> %s", [first]).fetchall()
    assert await values(shop, letter) == {"a": '"a"', "b": '"b"'}
    assert await values(shop, first) == {}


# Who ends, deletes, forgets or revives at the same moment


@contextmanager
def another(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's transaction, which begins with the first statement."""
    address = Address.of(url)
    with psycopg.connect(**address.parameters) as connection:
        connection.execute(f"SET search_path = {address.quoted_schema}".encode())
        connection.commit()
        yield connection


async def revived_while_waiting(shop: Store, server: PostgresServer, *jobs: JobId) -> Any:
    """Begin to revive jobs; returns the task, which waits for a lock by then."""
    task = asyncio.ensure_future(deeds.revive(shop, jobs, [State.DONE, State.DEAD], by()))
    question = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND query LIKE '%%act(%%'"
    )
    async with asyncio.timeout(20):
        while server.execute(question) == [(0,)]:
            await asyncio.sleep(0.005)
    return task


async def test_what_somebody_deletes_at_the_same_moment_does_not_come_back(
    shop: Store, postgres_url: str, postgres_server: PostgresServer
) -> None:
    job = await owned(shop, State.DEAD)
    doc = {"level": 1, "verb": "delete", "ids": [job], "states": ["dead"]}
    doc |= {"by": ["a1", "ada", "delete", "one"]}
    with another(postgres_url) as other:
        other.execute("SELECT act(%s)", [json.dumps(doc)])
        reviving = await revived_while_waiting(shop, postgres_server, job)
        other.commit()
    assert await reviving == []
    assert await shop.admin.find(job) is None


async def test_what_is_forgotten_at_the_same_moment_does_not_come_back_without_its_entries(
    shop: Store, postgres_url: str, postgres_server: PostgresServer, owner: psycopg.Connection
) -> None:
    """Who revives it waits, for somebody puts the id of another one."""
    job, other_job = await owned(shop, State.DONE), await owned(shop, State.DONE)
    with another(postgres_url) as slow, another(postgres_url) as other:
        slow.execute(
            "INSERT INTO job (id, queue, task, version, parked, run_at, order_at, enqueued_at, payload) "
            "VALUES (%s, 'q', 't', 1, 0, 1, 1, 1, '{}')",
            [other_job],
        )
        reviving = await revived_while_waiting(shop, postgres_server, job, other_job)
        other.execute("SELECT upkeep(%s)", ['{"level": 1, "batch": 1000, "keep": 0}'])
        other.commit()
        slow.rollback()
    await reviving
    for id_, attached in owner.execute("SELECT id, attached FROM job").fetchall():
        rows = owner.execute("SELECT count(*) FROM entry WHERE owner = %s", [id_]).fetchall()
        assert attached & 1 == 0 or rows != [(0,)]
    assert await shop.admin.audit() == []


async def test_entries_are_written_only_for_jobs_that_were_in_the_line_from_the_beginning(
    shop: Store, postgres_url: str, postgres_server: PostgresServer, owner: psycopg.Connection
) -> None:
    """One that comes back meanwhile may be gone again before they are written, and nobody removes them."""
    first, second = await owned(shop, None), await owned(shop, State.DEAD)
    with held(postgres_url):
        changes = [Change("saved", "c", "1", owner=job) for job in (first, second)]
        writing = asyncio.ensure_future(shop.entries.write(changes))
        await until_waiting(postgres_server, 1)
        assert await deeds.revive(shop, [second], [State.DEAD], by()) == [second]
    version, refused = await writing
    assert (version is None, refused) == (False, None)


async def test_a_deletion_goes_with_entries_that_nobody_removed_before(
    shop: Store, owner: psycopg.Connection
) -> None:
    """As that of a program which does not know that it should."""
    job = await owned(shop, State.DEAD)
    doc = {"level": 1, "verb": "delete", "ids": [job], "states": ["dead"]}
    doc |= {"by": ["a1", "ada", "delete", "one"]}
    owner.execute("SELECT act(%s)", [json.dumps(doc)])
    assert owner.execute("SELECT * FROM entry").fetchall() == []


async def test_one_call_gives_no_version_twice(moved: Store) -> None:  # noqa: F811
    """Though the clock stands still."""
    write = moved.entries.write
    versions = [await write([Change("k", "a", value)]) for value in "12"]
    gone, last = await write([Change("k", "a"), Change("k", "a", "3")])
    assert gone == 0
    assert last is not None
    assert [last] > versions[1] > versions[0]


async def test_a_producer_is_told_that_a_half_forgotten_job_is_not_new(
    yard: Yard,  # noqa: F811
    postgres_url: str,
    owner: psycopg.Connection,
) -> None:
    crew, producer = store_for(postgres_url), store_for(yard.url("producer"))
    mine = new_job()
    assert are_new(await producer.put([mine])) == [True]
    [job] = await claim(crew)
    await crew.entries.write([Change("saved", "a", "1", owner=job.id)])
    owner.execute(
        "INSERT INTO entry (kind, owner, key, value, version) "
        "SELECT 'saved', %s, n::text, '1', 1 FROM generate_series(1, 1500) AS n",
        [job.id],
    )
    await crew.settle([Settlement(job.id, job.fence, State.DONE, "done")])
    assert (await crew.upkeep(0)).pruned_entries == 1_000
    assert are_new(await producer.put([mine])) == [False]
    while (await crew.upkeep(0)).more:
        pass
    await producer.close()
    await crew.close()


async def test_upkeep_goes_on_at_once_with_jobs_that_have_no_entries_left(
    shop: Store, owner: psycopg.Connection
) -> None:
    """Else a day of a million of them would be kept for hours."""
    await shop.put([new_job() for _ in range(1_200)])
    while jobs := await claim(shop, slots=400):
        await shop.settle([Settlement(job.id, job.fence, State.DONE, "done") for job in jobs])
    owner.execute("UPDATE finished SET attached = 1")
    assert (await shop.upkeep(0)).pruned_entries == 1_000
    assert owner.execute("SELECT count(*) FROM finished WHERE attached = 1").fetchall() == [(200,)]


@pytest.mark.parametrize("state", [State.DONE, State.DEAD])
async def test_a_job_with_many_entries_is_deleted_in_bounded_calls(
    shop: Store, owner: psycopg.Connection, state: State
) -> None:
    """One call would take longer than an answer may; and what has begun to go does not run again."""
    jobs = [await owned(shop, state) for _ in range(3)]
    owner.execute(
        "INSERT INTO entry (kind, owner, key, value, version) "
        "SELECT 'saved', id, n::text, '1', 1 FROM unnest(%s::text[]) AS id, generate_series(1, 900) AS n",
        [jobs],
    )
    doc = {"level": 1, "verb": "lose", "ids": jobs, "states": [state]}
    doc |= {"by": ["a1", "ada", "delete", "three"]}
    [(told,)] = owner.execute("SELECT act(%s)", [json.dumps(doc)]).fetchall()
    assert len(json.loads(told)[0]) == 2
    assert [(line.who, line.verb) for line in await shop.admin.audit_log()] == [("ada", "delete")]
    owner.execute(
        "SELECT act(%s)", [json.dumps(doc | {"ids": jobs[:1], "by": ["a2", "b", "c", ""]})]
    )
    assert [line.who for line in await shop.admin.audit_log(job_id=jobs[0])] == ["b"]
    assert owner.execute("SELECT count(*) FROM entry").fetchall() == [(2_706 - 1_000,)]
    assert len(await deeds.revive(shop, jobs, [state], by())) == 1
    await deeds.cancel(shop, jobs, "so", by())
    assert len(await deeds.delete(shop, jobs, [state, State.CANCELLED], by())) == 3
    assert owner.execute("SELECT count(*) FROM entry").fetchall() == [(0,)]
