"""The server has no room: no memory for another job, or no disk to keep it on (F25, F30)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Fairlead, Queue, State
from fairlead.bench.servers.server import private_folder
from fairlead.core.clock import SECOND
from fairlead.core.errors import StoreFull, StoreUnavailable
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests import deeds
from tests.servers.redis import RedisServer
from tests.system.disk import Disk
from tests.system.redis_faults import CREW, LOOP, RedisShop
from tests.system.tree import until
from tests.words import are_new, by, claim, done, failed, new_job, returned

# Memory


@pytest.fixture
def full(redis_shop: RedisShop) -> Iterator[None]:
    """The server's memory is full, until `make_room`."""
    redis_shop.put_many("wait", 10, 0.1)
    fill(redis_shop)
    yield
    make_room(redis_shop)


def fill(shop: RedisShop) -> None:
    shop.do("CONFIG", "SET", "maxmemory", "1mb")


def make_room(shop: RedisShop) -> None:
    shop.do("CONFIG", "SET", "maxmemory", "0")


def used(shop: RedisShop) -> int:
    return int(shop.do("INFO", "memory").split("used_memory:")[1].split()[0])


@pytest.mark.usefixtures("full")
def test_enqueue_says_that_the_store_is_full(redis_shop: RedisShop) -> None:
    """F25: typed, on every way to put; and nothing of it is left behind."""
    app = Fairlead(redis_shop.url, queues=[LOOP, Queue("thread")])
    task = app.task(name="t", queue="loop")(_noop)
    elsewhere = task.using(queue="thread")
    before = redis_shop.states()
    calls = [task.call(), elsewhere.call()]
    with pytest.raises(StoreFull, match="at its maxmemory"):
        task.enqueue()
    with pytest.raises(StoreFull, match="CONFIG SET maxmemory"):
        app.enqueue_many(calls)
    with pytest.raises(StoreFull):
        app.bridge.run(task.aenqueue())
    with pytest.raises(StoreFull):
        app.bridge.run(app.aenqueue_many(calls))
    assert redis_shop.states() == before
    make_room(redis_shop)
    assert app.enqueue_many(calls) == 2
    assert app.bridge.run(app.aenqueue_many(calls)) == 0
    assert redis_shop.states()[State.WAITING] == before[State.WAITING] + 2
    app.close()
    redis_shop.waiting |= set(redis_shop.accepted)


def _noop() -> None:
    pass


@pytest.mark.usefixtures("full")
async def test_jobs_it_has_go_on(redis_shop: RedisShop) -> None:
    """F25: claims, heartbeats, settlements of every kind, and what people do."""
    store = store_for(redis_shop.url)
    jobs = await claim(store, LOOP)
    assert len(jobs) == 10
    pairs = [(job.id, job.fence) for job in jobs]
    assert len(await store.extend(pairs, 20 * SECOND)) == 10
    settlements = [
        *(done(job, '"' + "x" * 1000 + '"') for job in jobs[:4]),
        *(failed(job, job.claimed_at) for job in jobs[4:7]),
        *(returned(job) for job in jobs[7:]),
    ]
    assert len(await store.settle(settlements)) == 10
    assert len(await deeds.cancel(store, [job.id for job in jobs[7:]], "no more", by())) == 3
    await store.upkeep(3600 * SECOND)
    assert (await store.admin.count())["loop"] == {
        State.DONE: 4,
        State.WAITING: 3,
        State.CANCELLED: 3,
    }
    await store.close()
    redis_shop.accepted = []


async def test_upkeep_makes_room(redis_shop: RedisShop) -> None:
    """F25: what is forgotten makes room, and then jobs are accepted again."""
    store = store_for(redis_shop.url)
    for _ in range(30):
        options = '"' + "x" * 100_000 + '"'
        await store.put([new_job(queue="loop", options=options) for _ in range(10)])
    while jobs := await claim(store, LOOP, slots=20):
        await store.settle([done(job) for job in jobs])
    redis_shop.do("CONFIG", "SET", "maxmemory", "20mb")
    try:
        with pytest.raises(StoreFull):
            await store.put([new_job(queue="loop")])
        assert (await store.upkeep(0)).pruned_jobs == 300
        assert are_new(await store.put([new_job(queue="loop")])) == [True]
    finally:
        make_room(redis_shop)
    await store.close()


def test_a_worker_works_off_what_a_full_server_has(redis_shop: RedisShop) -> None:
    """F25: nothing fails but what its handlers would put."""
    tree = redis_shop.start("--lease", "1")
    redis_shop.until_up()
    redis_shop.put_many("wait", 30, 1.5)
    redis_shop.put_many("plain", 50)
    redis_shop.put_many("second_time", 10)
    fill(redis_shop)
    try:
        with pytest.raises(StoreFull):
            redis_shop.put("quick")
        redis_shop.until_final()
    finally:
        make_room(redis_shop)
    for job in redis_shop.accepted:
        assert redis_shop.record(job).state is State.DONE
        assert redis_shop.outcomes(job)[-1] == "done"
    assert "cannot be used" not in tree.log
    redis_shop.check_back()


async def test_nobody_else_sees_half_of_a_put(redis_shop: RedisShop) -> None:
    """I2: on one server, jobs of many queues are put together or not at all, whatever is full."""
    store = store_for(redis_shop.url)
    queues = [Queue(f"q{n}") for n in range(5)]
    await store.put([new_job(queue=queue.name) for queue in queues])
    before_all = used(redis_shop)
    for room in (0, 1_000, 20_000, 60_000, 200_000, 2_000_000):
        redis_shop.do("CONFIG", "SET", "maxmemory", before_all + room)
        before = await store.admin.count()
        some = [
            new_job(queue=queue.name, options='{"tags":["' + "x" * 10_000 + '"]}')
            for queue in queues
            for _ in range(3)
        ]
        is_put = await _put(store, some)
        make_room(redis_shop)
        assert [await store.admin.find(job.id) is not None for job in some] == [is_put] * len(some)
        assert (await store.admin.count() == before) != is_put
    await store.close()


async def _put(store: Store, jobs: list[object]) -> bool:
    try:
        return all(await store.put(jobs))  # type: ignore[arg-type]
    except StoreFull:
        return False


# Disk


@pytest.fixture
def disk() -> Iterator[Disk]:
    folder = private_folder()
    try:
        with Disk(folder, 16) as disk:
            yield disk
    finally:
        folder.rmdir()


@pytest.fixture
def small_shop(tmp_path: Path, disk: Disk) -> Iterator[RedisShop]:
    """A shop whose server keeps its append-only file on that disk."""
    settings = {"dir": str(disk.path), "auto-aof-rewrite-percentage": "0"}
    with RedisServer(acl=[CREW], settings=settings) as server, RedisShop(tmp_path, server) as shop:
        yield shop


def test_a_full_disk_is_told_and_room_is_all_it_takes(small_shop: RedisShop, disk: Disk) -> None:
    """F30, I1, L2: what cannot be kept is refused; what was accepted is done when there is room."""
    tree = small_shop.start("--lease", "2")
    small_shop.until_up()
    running = [small_shop.put("wait", 2.0) for _ in range(5)]
    for job in running:
        small_shop.until_started(job)
    disk.fill()
    with pytest.raises(StoreUnavailable, match="cannot write to its disk"):
        for _ in range(1000):
            small_shop.put_many("quick", 100)
    with pytest.raises(StoreUnavailable, match="cannot write to its disk"):
        call = small_shop.module.quick.call
        small_shop.app.bridge.run(small_shop.app.store.put([call().job for _ in range(100)]))
    for job in running:
        until(lambda: small_shop.lines(job, "end"), 20, "the end of a handler")
    tree.until_log("cannot write to its disk")
    disk.make_room()
    until(lambda: _puts(small_shop), 10, "room")
    small_shop.check_back()
    small_shop.until_final(seconds=40)
    for job in small_shop.accepted:
        record = small_shop.record(job)
        assert (record.state, len(small_shop.starts(job))) == (State.DONE, 1)


def test_a_server_that_syncs_always_ends_on_a_full_disk_and_has_kept_everything(
    small_shop: RedisShop, disk: Disk
) -> None:
    """F30, I1: Redis leaves rather than break its word; whoever starts it again finds all jobs."""
    small_shop.do("CONFIG", "SET", "appendfsync", "always")
    small_shop.put_many("quick", 10)
    disk.fill()
    with pytest.raises(StoreUnavailable):
        for _ in range(1000):
            small_shop.put_many("quick", 100)
    until(lambda: not small_shop.nodes, 10, "its end")
    disk.make_room()
    small_shop.server.start()
    small_shop.start("--lease", "2")
    small_shop.check_back()
    small_shop.until_final()


def _puts(shop: RedisShop) -> bool:
    try:
        shop.put("quick")
    except StoreUnavailable:
        return False
    return True
