"""Replies are lost, cut in the middle, or come by way of a pooler (F13, F14, F26)."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import psycopg
import pytest

from fairlead import Fairlead, State
from fairlead.core.acts import Action
from fairlead.core.errors import StoreError, StoreUnavailable
from fairlead.core.job import Job
from fairlead.core.queue import Queue
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests import deeds
from tests.servers.bouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.system.faults import BACK_SECONDS, PostgresShop
from tests.system.tree import until
from tests.words import claim, new_job

LOOP = Queue("loop")


@pytest.fixture
def way(rough_server: PostgresServer) -> Iterator[Proxy]:
    """A way to the server on which things go wrong."""
    with Proxy(rough_server.port) as proxy:
        yield proxy


# A reply is lost after the request was carried out


@pytest.mark.parametrize("put", ["blocking", "on a loop"])
def test_a_put_that_is_repeated_is_one_job(pg_shop: PostgresShop, way: Proxy, put: str) -> None:
    """F13: nobody knows whether it happened, so it is repeated, and recognised."""
    app = Fairlead(pg_shop.url_with(way.port))
    call = app.task(name="t")(_noop).call()

    def enqueue() -> int:
        if put == "blocking":
            return app.enqueue_many([call])
        return app.bridge.run(app.aenqueue_many([call]))

    app.open()
    fault = way.lose_reply(b".put(")
    assert enqueue() == 0
    assert fault.happened.wait(10)
    assert pg_shop.record(call.id).state is State.WAITING
    assert enqueue() == 0
    assert pg_shop.states() == {State.WAITING: 1}
    app.close()


def _noop() -> None:
    pass


def test_workers_lose_replies_of_every_verb(pg_shop: PostgresShop, way: Proxy) -> None:
    """F13: a settlement is known to be written; a claim comes back after its lease."""
    pg_shop.url = pg_shop.url_with(way.port)
    tree = pg_shop.start("--lease", "2")
    long = pg_shop.put("wait", 3.0)
    pg_shop.until_started(long)
    for verb in (b".settle(", b".extend(", b".announce(", b".due("):
        fault = way.lose_reply(verb)
        pg_shop.put_many("quick", 3)
        assert fault.happened.wait(20), f"nobody asked {verb!r}"
    pg_shop.until_final()
    for job in pg_shop.accepted:
        assert (pg_shop.outcomes(job), len(pg_shop.starts(job))) == (["done"], 1)
    assert "came too late" not in tree.log
    until(lambda: _lost_on_its_way(pg_shop, way), 40, "a claim that took a job with it")


def _lost_on_its_way(shop: PostgresShop, way: Proxy) -> bool:
    """Lose the reply to a claim; if the job was in it, it comes back, and runs for the first time."""
    fault = way.lose_reply(lambda asked: b".claim(" in asked and b'"loop"' in asked)
    job = shop.put("quick")
    assert fault.happened.wait(20), "nobody claimed"
    shop.until_final(job, seconds=2 + BACK_SECONDS)
    assert len(shop.starts(job)) == 1
    return shop.outcomes(job) == ["lost", "done"]


async def test_a_lost_claim_comes_back_after_its_lease(pg_shop: PostgresShop, way: Proxy) -> None:
    """F13: under a higher fence, and marked, so that it is decided on before it runs."""
    store = store_for(pg_shop.url_with(way.port))
    jobs = [new_job(queue="loop") for _ in range(3)]
    await store.put(jobs)
    way.lose_reply(b".claim(")
    with pytest.raises(StoreUnavailable):
        await claim(store, LOOP, lease=0.5)
    first = pg_shop.sql("SELECT id, fence FROM job WHERE lease_until > 0")
    assert {job_id for job_id, _ in first} == {job.id for job in jobs}
    again = await _claim_all(store, 3)
    assert all(job.lost and job.fence > dict(first)[job.id] for job in again)
    await store.close()


async def _claim_all(store: Store, number: int) -> list[Job]:
    found: list[Job] = []
    async with asyncio.timeout(BACK_SECONDS):
        while len(found) < number:
            with suppress(StoreError):
                found += await claim(store, LOOP, lease=5)
    return found


# A reply is cut in the middle


@pytest.mark.parametrize("size", [1, 4, 5, 6, 30, 200, 700, 1_500, 5_000])
async def test_a_reply_that_was_cut_is_no_reply_to_anything(
    pg_shop: PostgresShop, way: Proxy, size: int
) -> None:
    """F14: the connection is discarded, and what comes next answers what was asked next."""
    store = store_for(pg_shop.url_with(way.port))
    jobs = [new_job(queue="loop", options='{"tags":["' + "x" * 500 + '"]}') for _ in range(20)]
    await store.put(jobs)
    cut = way.cut_within(b".claim(", size)
    with pytest.raises(StoreUnavailable):
        await claim(store, LOOP, slots=20, lease=0.3)
    assert cut.happened.wait(10)
    for job in jobs:
        found = await store.admin.find(job.id)
        assert found is not None
        assert found.id == job.id
    again = await _claim_all(store, 20)
    assert sorted(job.id for job in again) == sorted(job.id for job in jobs)
    await store.close()


# By way of a pooler


@pytest.fixture
def pooler(rough_server: PostgresServer) -> Iterator[PgBouncer]:
    rough_server.start()
    with PgBouncer(rough_server.port, roles={"crew": "rope"}) as bouncer:
        yield bouncer


@pytest.mark.parametrize("listen", ["off", "direct", "on"])
def test_everything_works_behind_a_pooler(
    pg_shop: PostgresShop, pooler: PgBouncer, listen: str
) -> None:
    """F26, P13: connections change hands after every statement, and no news come through."""
    options = {"off": {"listen": "off"}, "direct": {"listen": pg_shop.url_with()}, "on": {}}
    pg_shop.url = pg_shop.url_with(pooler.port, **options[listen])
    pg_shop.start("--lease", "2", "--processes", "2")
    app = Fairlead(pg_shop.url, queues=[Queue("loop"), Queue("thread")])
    quick = app.task(name="shop.quick", queue="loop")(_number)
    plain = app.task(name="shop.plain", queue="thread")(_number)
    assert quick.enqueue(1).result(timeout=20) == 1
    if listen == "direct":
        pg_shop.until_up(processes=2)
    for n in range(5):  # Each one is a word of its own to an idle worker.
        assert plain.enqueue(n).result(timeout=BACK_SECONDS) == n
        assert app.bridge.run(_together(quick, n)) == [n] * 5
    assert quick.using(delay=0.3).enqueue(7).result(timeout=BACK_SECONDS) == 7
    app.bridge.run(_people(app))
    pooler.restart()
    until(lambda: _enqueued(app, quick), BACK_SECONDS, "the pooler's return")
    assert app.bridge.run(app.store.admin.audit()) == []
    app.close()
    pg_shop.until_final()


async def test_who_cannot_hear_through_a_pooler_does_not_rely_on_it(
    pg_shop: PostgresShop, pooler: PgBouncer
) -> None:
    """F26: its own words come back by the pooler, those of others do not; so it polls."""
    store = store_for(pg_shop.url_with(pooler.port))
    mark = await store.wait(0)
    async with asyncio.timeout(BACK_SECONDS):
        assert await store.wait(60, mark) == mark
    await store.close()


async def test_no_session_that_a_pooler_lends_is_left_listening(
    pg_shop: PostgresShop, pooler: PgBouncer
) -> None:
    """F26: whoever gets it next would be told what nobody reads."""
    store = store_for(pg_shop.url_with(pooler.port))
    await store.wait(0)
    url = pg_shop.server.url(pg_shop.database, user="crew", password="rope")
    with ExitStack() as stack:
        for _ in range(4):  # Each in a transaction, so that each has a session of its own.
            lent = psycopg.connect(url.replace(f":{pg_shop.server.port}/", f":{pooler.port}/"))
            stack.enter_context(lent)
            assert lent.execute("SELECT pg_listening_channels()").fetchall() == []
    await store.close()


def _number(number: int) -> int:
    return number


async def _together(task: object, n: int) -> list[object]:
    jobs = [await task.aenqueue(n) for _ in range(5)]  # type: ignore[attr-defined]
    return list(await asyncio.gather(*(job.aresult(timeout=BACK_SECONDS) for job in jobs)))


async def _people(app: Fairlead) -> None:
    """Do what people do."""
    by = Action("1", "me", "pause", "queue loop")
    assert await deeds.pause(app.store, "loop", by)
    job = await app.task(name="unknown", queue="loop")(_number).aenqueue(1)
    assert await deeds.cancel(
        app.store, [job.id], "no more", by=Action("2", "me", "cancel", job.id)
    )
    assert await deeds.resume(app.store, "loop", Action("3", "me", "resume", "queue loop"))
    assert (await app.store.admin.condition()).facts
    assert [line.verb for line in await app.store.admin.audit_log()] == [
        "resume",
        "cancel",
        "pause",
    ]


def _enqueued(app: Fairlead, task: object) -> bool:
    try:
        result = task.enqueue(1).result(timeout=BACK_SECONDS)  # type: ignore[attr-defined]
    except StoreError:
        time.sleep(0.1)
        return False
    return bool(result == 1)
