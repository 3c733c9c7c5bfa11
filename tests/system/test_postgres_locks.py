"""Others lock our rows and tables, or set terms for our role; what was undone is done again (F27)."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import psycopg
import pytest

from fairlead import State
from fairlead.core.errors import StoreError
from fairlead.stores import store_for
from tests import deeds
from tests.servers.postgres import PostgresServer
from tests.system.faults import PostgresShop, Producer, transaction
from tests.words import are_new, by, claim, done, new_job


@pytest.fixture
def strict_shop(
    tmp_path: Path, rough_server: PostgresServer, request: pytest.FixtureRequest
) -> Iterator[PostgresShop]:
    """A shop whose role has a setting of its own."""
    rough_server.start()
    try:
        with PostgresShop(tmp_path, rough_server, role="strict") as shop:
            rough_server.execute(f"ALTER ROLE strict SET {request.param}")
            yield shop
    finally:
        rough_server.execute("ALTER ROLE strict RESET ALL")


class Meddler:
    """Locks rows of jobs in whatever order, a few at a time, as a careless user's script would."""

    def __init__(self, shop: PostgresShop) -> None:
        self._shop = shop
        self._enough = threading.Event()
        self._threads = [threading.Thread(target=self._meddle, args=(n,)) for n in range(2)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(20)

    def _meddle(self, seed: int) -> None:
        choose = random.Random(seed)
        with psycopg.connect(self._shop.server.url(), autocommit=True) as connection:
            connection.execute(f"SET search_path = {self._shop.schema}")
            while not self._enough.wait(0.05):
                rows = connection.execute("SELECT id FROM job ORDER BY id LIMIT 20").fetchall()
                choose.shuffle(rows)
                with suppress(psycopg.errors.DeadlockDetected), connection.transaction():
                    for (job_id,) in rows[:5]:
                        connection.execute("SELECT FROM job WHERE id = %s FOR UPDATE", [job_id])
                        time.sleep(0.01)


def test_rows_that_others_lock_keep_nobody_waiting_for_ever(pg_shop: PostgresShop) -> None:
    """Claims, heartbeats and settlements step over locked rows, and come back for them."""
    pg_shop.start("--processes", "2")
    pg_shop.put_many("wait", 100, 0.05)
    pg_shop.put_many("plain", 100)
    long = pg_shop.put("wait", 4.0)
    pg_shop.until_up(processes=2)
    with Meddler(pg_shop):
        pg_shop.put_many("second_time", 20)
        pg_shop.until_started(long)
        pg_shop.until_final(seconds=30)
    for job in pg_shop.accepted:
        assert pg_shop.record(job).state is State.DONE
    assert len(pg_shop.starts(long)) == 1


async def test_two_who_claim_in_turns_never_get_the_same_job(pg_shop: PostgresShop) -> None:
    """I5: neither remembers where the other was, so each sees the jobs that the other has."""
    stores = [store_for(pg_shop.url) for _ in range(2)]
    await stores[0].put([new_job(queue="loop") for _ in range(6)])
    taken = []
    for n in range(6):
        [job] = await claim(stores[n % 2], *pg_shop.app.queues.values(), slots=1)
        taken.append(job.id)
    assert len(set(taken)) == 6
    for store in stores:
        await store.close()


async def test_two_batches_in_opposite_order_wait_for_each_other_in_turn(
    pg_shop: PostgresShop,
) -> None:
    """Else each would wait for an id that the other has just put."""
    stores = [store_for(pg_shop.url) for _ in range(2)]
    before = pg_shop.server.log.count("deadlock detected")
    # Between two rows of a batch the others get their turn, so that each holds what the other wants.
    pg_shop.sql(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(0.02); RETURN new; END $$; "
        "CREATE TRIGGER dawdle BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )
    jobs = [new_job(queue="loop") for _ in range(10)]
    answers = await asyncio.gather(stores[0].put(jobs), stores[1].put(jobs[::-1]))
    fresh = [are_new(each) for each in answers]
    pg_shop.sql("DROP TRIGGER dawdle ON job")
    assert [sum(pair) for pair in zip(fresh[0], fresh[1][::-1], strict=True)] == [1] * 10
    assert pg_shop.server.log.count("deadlock detected") == before
    for store in stores:
        await store.close()


async def test_a_deadlock_is_tried_again(pg_shop: PostgresShop) -> None:
    """A real one: somebody locks our rows in the opposite order, and we are the victim."""
    store = store_for(pg_shop.url)
    jobs = [new_job(queue="loop") for _ in range(2)]
    await store.put(jobs)
    lock = f"SELECT FROM {pg_shop.schema}.job WHERE id = %s FOR UPDATE"
    before = pg_shop.server.log.count("deadlock detected")
    async with await psycopg.AsyncConnection.connect(pg_shop.server.url()) as theirs:
        await theirs.execute(lock, [jobs[1].id])
        cancelling = asyncio.ensure_future(
            deeds.cancel(store, [job.id for job in jobs], "enough", by())
        )
        await asyncio.sleep(0.3)
        await theirs.execute(lock, [jobs[0].id])
        await theirs.rollback()
    assert set(await cancelling) == {job.id for job in jobs}
    assert pg_shop.server.log.count("deadlock detected") > before, "there was none"
    await store.close()


async def test_a_cancel_waits_for_a_locked_job_and_a_settlement_comes_back_for_it(
    pg_shop: PostgresShop,
) -> None:
    store = store_for(pg_shop.url)
    await store.put([new_job(queue="loop") for _ in range(2)])
    first, second = await claim(store, *pg_shop.app.queues.values())
    lock = f"SELECT FROM {pg_shop.schema}.job WHERE id = '{first.id}' FOR UPDATE"
    with transaction(pg_shop.server.url(), lock) as holder:
        settling = asyncio.ensure_future(store.settle([done(first), done(second)]))
        cancelling = asyncio.ensure_future(deeds.cancel(store, [first.id], "no more", by()))
        renewed = await store.extend([(first.id, first.fence)], 20_000_000)
        assert [each.id for each in renewed] == [first.id], "a locked job counted as lost"
        found = await store.admin.find(second.id)
        assert found is not None
        holder.rollback()
    written = await settling
    await cancelling
    assert set(written) == {first.id, second.id}
    await store.close()


def test_a_job_whose_row_is_locked_when_it_ends_is_done_all_the_same(
    pg_shop: PostgresShop,
) -> None:
    """Its outcome waits for whoever has the row, and is not dropped as if the lease were lost."""
    tree = pg_shop.start()
    job, other = pg_shop.put("wait", 0.5), pg_shop.put("wait", 0.5)
    pg_shop.until_started(job)
    lock = f"SELECT FROM {pg_shop.schema}.job WHERE id = '{job}' FOR UPDATE"
    with transaction(pg_shop.server.url(), lock):
        pg_shop.until_final(other)
        time.sleep(5.0)
        assert pg_shop.record(job).state is State.RUNNING
    pg_shop.until_final(job)
    assert (pg_shop.outcomes(job), len(pg_shop.starts(job))) == (["done"], 1)
    assert "came too late" not in tree.log


async def test_a_lease_that_was_said_to_be_renewed_lasts(pg_shop: PostgresShop) -> None:
    """I5: else a job whose row was locked is taken over while its worker lives and runs it."""
    ours, theirs = store_for(pg_shop.url), store_for(pg_shop.url)
    queues = pg_shop.app.queues.values()
    await ours.put([new_job(queue="loop")])
    [job] = await claim(ours, *queues, lease=0.3)
    lock = f"SELECT FROM {pg_shop.schema}.job WHERE id = '{job.id}' FOR UPDATE"
    with transaction(pg_shop.server.url(), lock):
        renewed = await ours.extend([(job.id, job.fence)], 20_000_000)
        await asyncio.sleep(0.5)
    taken = await claim(theirs, *queues, worker="w2")
    for store in (ours, theirs):
        await store.close()
    assert not (renewed and taken)


def test_a_table_that_is_locked_for_a_while_is_an_outage(pg_shop: PostgresShop) -> None:
    """As ALTER TABLE does; longer than a lease, and yet nobody steals a job."""
    pg_shop.url = pg_shop.url_with(timeout=1)
    for _ in range(2):
        pg_shop.start("--lease", "2")
    pg_shop.until_up(processes=2)
    long = [pg_shop.put("wait", 5.0) for _ in range(4)]
    for job in long:
        pg_shop.until_started(job)
    with Producer(pg_shop) as producer:
        with transaction(
            pg_shop.server.url(),
            f"ALTER TABLE {pg_shop.schema}.job ADD COLUMN colour text",
        ):
            time.sleep(3.0)
        pg_shop.check_back(processes=2)
        producer.until_more()
    pg_shop.until_final()
    for job in pg_shop.accepted:
        assert (pg_shop.record(job).state, len(pg_shop.starts(job))) == (State.DONE, 1)
    assert [pg_shop.outcomes(job) for job in long] == [["done"]] * 4


@pytest.mark.parametrize("strict_shop", ["lock_timeout = '50ms'"], indirect=True)
def test_a_role_that_waits_for_no_lock_loses_nothing(strict_shop: PostgresShop) -> None:
    """F27: what could not get its lock in time is tried again, and told if that does not help."""
    strict_shop.start("--lease", "2")
    strict_shop.until_up()
    running = strict_shop.put("wait", 2.0)
    strict_shop.until_started(running)
    table = f"LOCK TABLE {strict_shop.schema}.job"
    with Producer(strict_shop) as producer:
        producer.until_more()
        with transaction(strict_shop.server.url(), table):
            time.sleep(0.1)  # Shorter than five tries: nobody hears of it.
        with transaction(strict_shop.server.url(), table):
            with pytest.raises(StoreError, match="lock timeout"):
                strict_shop.put("quick")
            time.sleep(1.0)
        strict_shop.check_back()
        producer.until_more()
    strict_shop.until_final()
    for job in strict_shop.accepted:
        assert (strict_shop.record(job).state, len(strict_shop.starts(job))) == (State.DONE, 1)


@pytest.mark.parametrize(
    "strict_shop",
    [
        "default_transaction_isolation = 'serializable'",
        pytest.param("statement_timeout = '200ms'", marks=pytest.mark.chaos),
    ],
    indirect=True,
)
def test_a_role_with_strict_terms_loses_nothing(strict_shop: PostgresShop) -> None:
    """F27: several workers claim from the same queues, and all of it comes to its end."""
    for _ in range(2):
        strict_shop.start("--lease", "2", "--processes", "2")
    strict_shop.until_up(processes=4)
    with Producer(strict_shop), Producer(strict_shop, "plain") as producer:
        strict_shop.put_many("wait", 100, 0.05)
        strict_shop.put_many("second_time", 50)
        producer.until_more(200)
    strict_shop.until_final(seconds=40)
    for job in strict_shop.accepted:
        assert strict_shop.record(job).state is State.DONE
