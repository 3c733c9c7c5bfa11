"""What a page of jobs costs: no more than a small multiple of what it shows.

Counted are SQLite's steps, the rows that PostgreSQL and the records that Redis read, and the bytes
that both send.
"""

import re
import sqlite3
from collections import Counter
from functools import partial
from pathlib import Path

import psycopg

from fairlead.core.admin import LEAST_LOOKED, Filter, Wait, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.job import State
from fairlead.core.outcome import Policy
from fairlead.core.page import Page
from fairlead.core.retry import Retry
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres import listing as postgres_listing
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.statements import statements as postgres_statements
from fairlead.stores.sqlite import listing as sqlite_listing
from tests import deeds
from tests.compare.wire import counted_postgres, counted_redis
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.words import by, claim, done, failed, new_job, plan

SHOWN = 20
MANY = 3_000
LISTS = {
    "waiting": Filter(states=(State.WAITING,)),
    "of one queue": Filter(queues=("other",), states=(State.WAITING,)),
    "delayed": Filter(waits=(Wait.DELAYED,), states=(State.WAITING,), at=1),
    "parked": Filter(waits=(Wait.PARKED,), states=(State.WAITING,), at=1),
    "running": Filter(states=(State.RUNNING,)),
    "done": Filter(states=(State.DONE,)),
    "cancelled": Filter(states=(State.CANCELLED,)),
    "dead": Filter(states=(State.DEAD,)),
    "one id": Filter(begins="wanted"),
}
RARE = Filter(tasks=("rare",))
"""No store keeps an order of tasks: a page looks at some jobs, finds none, and goes on."""
EVERY_OTHER = Filter(queues=("mixed",), tasks=("t",), states=(State.WAITING,))


async def fill(store: Store, clock: ManualClock) -> None:
    """Many jobs in each list, many of them of one moment."""
    await store.announce(Worker("w1", {"t": 1}), 5_000 * SECOND)
    await store.put([new_job(task="strange") for _ in range(MANY)])
    parked = 0
    while parked < MANY:
        parked += sum(each.jobs for each in (await store.claim(plan(capable={"t": 1}))).parked)
    jobs = [new_job() for _ in range(MANY)]
    await store.put(jobs)
    await deeds.cancel(store, [job.id for job in jobs[: MANY // 2]], "no", by())
    clock.advance(1)
    await deeds.cancel(store, [job.id for job in jobs[MANY // 2 :]], "no", by())
    await store.put([new_job() for _ in range(1_200)])
    for n in range(24):
        ended = await claim(store, slots=50, capable={"t": 1})
        policy = Policy(Retry(attempts=1))
        now = clock.now()
        await store.settle([failed(job, now, policy) if n % 2 else done(job) for job in ended])
        clock.advance(1)
    await store.put([new_job(id=JobId("wanted-one"))])
    await store.put([new_job(delay=9_999 * SECOND) for _ in range(MANY)])
    for queue in ("mail", "other"):
        await store.put([new_job(queue=queue) for _ in range(MANY)])
    await store.put([new_job(queue="mixed", task="tu"[n % 2]) for n in range(MANY)])
    assert len(await claim(store, slots=60, capable={"t": 1})) == 60


def seen(page: Page, which: str) -> None:
    assert len(page.jobs) == (1 if which == "one id" else SHOWN), which


# SQLite


async def test_sqlite_takes_a_bounded_number_of_steps_for_a_page(tmp_path: Path) -> None:
    clock = ManualClock()
    store = store_for(f"sqlite:///{tmp_path}/jobs.db?durability=fast", clock)
    await fill(store, clock)
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    connection.set_progress_handler(step, 1)

    def cost(which: Filter, cursor: str | None = None) -> tuple[Page, int]:
        nonlocal steps
        steps = 0
        return sqlite_listing.page(connection, which, SHOWN, cursor, clock.now()), steps

    for name, which in LISTS.items():
        page, first = cost(which)
        seen(page, name)
        assert first < 10_000, name
        if page.cursor:
            second, further = cost(which, page.cursor)
            seen(second, name)
            assert further < 10_000, name
    page, looked = cost(RARE)
    assert (page.jobs, page.looked) == ([], LEAST_LOOKED)
    assert looked < 20_000
    connection.close()
    await store.close()


# PostgreSQL

_FETCHED = """
SELECT coalesce(sum(coalesce(idx_tup_fetch, 0) + coalesce(seq_tup_read, 0)), 0)
FROM pg_stat_xact_user_tables WHERE schemaname = %s
"""


async def test_postgresql_fetches_a_bounded_number_of_rows_and_sends_few_bytes_for_a_page(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    clock = ManualClock()
    counts: Counter[str] = Counter()
    store = store_for(postgres_url, clock)
    await fill(store, clock)
    address = Address.of(postgres_url)
    sql = postgres_statements(address.quoted_schema)
    with Proxy(postgres_server.port, partial(counted_postgres, counts)) as proxy:
        connection = await psycopg.AsyncConnection.connect(
            proxy.through(postgres_url).partition("?")[0], autocommit=True
        )

        async def fetched() -> int:
            [(rows,)] = await (await connection.execute(_FETCHED, [address.schema])).fetchall()
            return int(rows)

        async def cost(which: Filter, cursor: str | None = None) -> tuple[Page, int, int]:
            async with connection.transaction():
                before = await fetched()
                counts.clear()
                page = await postgres_listing.page(
                    connection, sql, which, SHOWN, cursor, clock.now()
                )
                sent = counts["bytes received"]
                return page, await fetched() - before, sent

        for name, which in LISTS.items():
            # Those that ended in one batch ended at one moment, which their index does not tell apart.
            most = 100 + 10 * SHOWN if name == "done" else 10 * SHOWN
            page, first, sent = await cost(which)
            seen(page, name)
            assert first <= most, name
            assert sent <= 1_000 * SHOWN, name
            if page.cursor:
                second, further, sent = await cost(which, page.cursor)
                seen(second, name)
                assert further <= most, name
                assert sent <= 1_000 * SHOWN, name
        page, looked, sent = await cost(RARE)
        assert (page.jobs, page.looked) == ([], LEAST_LOOKED)
        assert looked <= 2 * LEAST_LOOKED
        assert sent <= 200 * LEAST_LOOKED
        await connection.close()
    await store.close()


# Redis


def records_read(server: RedisServer) -> int:
    """How many jobs were read since the last time: three values of hashes are read for each."""
    told = re.search(r"cmdstat_hget:calls=(\d+)", str(server.execute("INFO", "commandstats")))
    server.execute("CONFIG", "RESETSTAT")
    return int(told[1]) // 3 if told else 0


async def test_redis_reads_a_bounded_number_of_records_and_sends_few_bytes_for_a_page(
    redis_server: RedisServer, redis_url: str
) -> None:
    clock = ManualClock()
    counts: Counter[str] = Counter()
    near = store_for(redis_url, clock)
    await fill(near, clock)
    with Proxy(redis_server.port, partial(counted_redis, counts)) as proxy:
        store = store_for(proxy.through(redis_url), clock)
        await store.admin.page()

        async def cost(
            which: Filter, cursor: str | None = None, limit: int = SHOWN
        ) -> tuple[Page, int, int]:
            records_read(redis_server)
            counts.clear()
            page = await store.admin.page(which, limit, cursor)
            return page, records_read(redis_server), counts["bytes received"]

        for name, which in LISTS.items():
            page, records, sent = await cost(which)
            seen(page, name)
            assert records <= 2 * SHOWN, name
            assert sent < 400 * SHOWN, name
            if page.cursor:
                second, records, sent = await cost(which, page.cursor)
                seen(second, name)
                assert records <= 2 * SHOWN, name
                assert sent < 400 * SHOWN, name
        page, records, sent = await cost(RARE)
        assert (page.jobs, page.looked) == ([], LEAST_LOOKED)
        assert records <= LEAST_LOOKED
        assert sent < 400 * LEAST_LOOKED
        page, records, sent = await cost(EVERY_OTHER, limit=300)
        assert (len(page.jobs), page.looked) == (300, 600)
        assert records <= 1.2 * page.looked
        assert sent < 250 * page.looked, "records that no page tells of"
        await store.close()
    await near.close()
