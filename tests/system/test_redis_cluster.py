"""A cluster: slots move while jobs run, nodes die, and the other queues go on (F22, L2)."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from fairlead import Fairlead, Queue, State
from fairlead.core.errors import StoreError, StoreUnavailable
from fairlead.core.ids import JobId
from fairlead.core.job import NewJob
from fairlead.stores import store_for
from tests.servers.redis import RedisCluster
from tests.system.faults import BACK_SECONDS, Producer
from tests.system.redis_faults import CREW, RedisShop
from tests.system.tree import ALL_POOLS, until
from tests.words import claim, done, new_id, new_job, plan

Value = TypeVar("Value")
pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def rough_cluster() -> Iterator[RedisCluster]:
    """A cluster of these tests alone, whose nodes they kill."""
    settings = {"appendfsync": "always"}
    with RedisCluster(full_coverage=False, timeout=500, acl=[CREW], settings=settings) as cluster:
        yield cluster


@pytest.fixture
def cluster_shop(tmp_path: Path, rough_cluster: RedisCluster) -> Iterator[RedisShop]:
    try:
        with RedisShop(tmp_path, rough_cluster) as shop:
            yield shop
    finally:
        rough_cluster.start()
        rough_cluster.execute("FLUSHALL")


def spread(shop: RedisShop, number: int = 3) -> list[Queue]:
    """Return names of queues that are each on a node of its own."""
    assert isinstance(shop.server, RedisCluster)
    found: dict[int, Queue] = {}
    for n in range(100):
        found.setdefault(shop.node_of(f"q{n}").port, Queue(f"q{n}"))
        if len(found) == number:
            return list(found.values())
    raise AssertionError("all queues are on the same node")


async def test_a_claim_over_nodes_is_as_fair_as_over_one(cluster_shop: RedisShop) -> None:
    """Shares by weight, order within a queue, no queue asked for more than there is room."""
    store = store_for(cluster_shop.url)
    one, two, three = (queue.name for queue in spread(cluster_shop))
    queues = (Queue(one, weight=1), Queue(two, weight=2), Queue(three, weight=5))
    jobs = {queue.name: [new_job(queue=queue.name) for _ in range(40)] for queue in queues}
    assert all(await store.put([job for some in jobs.values() for job in some]))
    credits: dict[str, float] = {}
    given: dict[str, list[str]] = {queue.name: [] for queue in queues}
    for _ in range(5):
        answer = await store.claim(replace(plan(*queues, slots=8), credits=credits))
        credits = dict(answer.credits)
        for job in answer.jobs:
            given[job.queue].append(job.id)
        assert len(await store.settle([done(job) for job in answer.jobs])) == 8
    assert {name: len(ids) for name, ids in given.items()} == {one: 5, two: 10, three: 25}
    for name, ids in given.items():
        assert ids == [job.id for job in jobs[name]][: len(ids)]
    rest = await claim(store, *queues, slots=1000)
    assert len(rest) == 80
    assert await store.admin.audit() == []
    await store.close()


async def test_the_others_go_on_while_a_node_is_down(cluster_shop: RedisShop) -> None:
    """Claims, settlements and puts of queues on other nodes; its own wait for it, and lose nothing."""
    store = store_for(cluster_shop.url_with(timeout=2))
    queues = spread(cluster_shop)
    assert all(await store.put([_job_of(queue) for queue in queues for _ in range(6)]))
    before = await claim(store, *queues, slots=6)
    assert {job.queue for job in before} == {queue.name for queue in queues}
    victim = cluster_shop.node_of(queues[2].name)
    await asyncio.to_thread(victim.kill)
    try:
        there = [job for job in before if job.queue != queues[2].name]
        async with asyncio.timeout(BACK_SECONDS):
            await _until(lambda: store.settle([done(job) for job in there]))
            got = await _until(lambda: claim(store, *queues, slots=6))
            assert {job.queue for job in got} == {queue.name for queue in queues[:2]}
            await _until(lambda: store.settle([done(job) for job in got]))
            await _until(lambda: store.put([_job_of(queues[0])]))
        with pytest.raises(StoreUnavailable):
            await store.put([_job_of(queues[2])])
        with pytest.raises(StoreUnavailable):
            await asyncio.to_thread(store.put_blocking, [_job_of(queues[2])])
    finally:
        await asyncio.to_thread(cluster_shop.server.start)
    async with asyncio.timeout(BACK_SECONDS):
        rest = [job for job in before if job.queue == queues[2].name]
        assert len(await _until(lambda: store.settle([done(job) for job in rest]))) == len(rest)
        left = await _until(lambda: claim(store, *queues, slots=100))
        assert sum(job.queue == queues[2].name for job in left) == 6 - len(rest)
        await store.settle([done(job) for job in left])
    assert await store.admin.audit() == []
    await store.close()


def _job_of(queue: Queue) -> NewJob:
    """Make a job whose id tells its queue, as those of apps do: nobody else must be asked."""
    return new_job(queue=queue.name, id=new_id(queue.name))


async def _until(ask: Callable[[], Awaitable[Value]]) -> Value:
    """Ask again until there is an answer, as those do who ask."""
    while True:
        try:
            if answer := await ask():
                return answer
        except StoreError:
            pass
        await asyncio.sleep(0.05)


def test_a_slot_moves_while_its_jobs_run(cluster_shop: RedisShop) -> None:
    """Under load, to and fro; nobody notices but who waits a moment."""
    cluster = cluster_shop.server
    assert isinstance(cluster, RedisCluster)
    tree = cluster_shop.start(*ALL_POOLS, "--lease", "2")
    with Producer(cluster_shop, pause=0.03) as producer:
        cluster_shop.until_up()
        slot = cluster.slot_of(cluster_shop.key("loop", "bodies"))
        home = cluster.owner(slot)
        for target in [*(node for node in cluster.nodes if node is not home), home]:
            running = cluster_shop.put("wait", 0.5)
            cluster_shop.until_started(running)
            cluster.open_slot(slot, target)
            while cluster.move_keys(slot, target, limit=3):
                time.sleep(0.02)
            cluster.hand_over(slot, target)
            cluster_shop.check_back()
            producer.until_more()
    cluster_shop.until_final()
    cluster_shop.check_done_once()
    assert "Traceback" not in tree.log


def crash_nodes(shop: RedisShop, seed: int, number: int) -> None:
    choose = random.Random(seed)
    cluster = shop.server
    assert isinstance(cluster, RedisCluster)
    shop.start(*ALL_POOLS, "--lease", "2", "--processes", "2")
    with Producer(shop) as producer, Producer(shop, "plain"):
        shop.until_up(processes=2)
        for n in range(number):
            running = [shop.put("wait", 0.5), shop.put("nap", 0.5)]
            for job in running:
                shop.until_started(job)
            victim = cluster.nodes[n % 3]
            victim.kill()
            time.sleep(choose.uniform(0.0, 1.5))
            cluster.start()
            shop.check_back(processes=2)
            producer.until_more()
    shop.until_final()
    for job in shop.accepted:
        assert shop.record(job).state is State.DONE


def test_a_node_is_killed_and_comes_back(cluster_shop: RedisShop) -> None:
    """F22, I1: the node of each queue in turn, under load; everything acknowledged ends."""
    crash_nodes(cluster_shop, seed=1, number=3)


def test_a_worker_serves_the_queues_that_are_left(cluster_shop: RedisShop) -> None:
    """The pool of one queue waits for its node; that of another does not notice."""
    cluster_shop.start(*ALL_POOLS, "--lease", "2")
    cluster_shop.until_up()
    nodes = {name: cluster_shop.node_of(name) for name in ("loop", "thread", "process")}
    names = [name for name in nodes if nodes[name] is not nodes["process"]]
    if not names:
        pytest.skip("all queues are on one node")
    jobs = cluster_shop.put_many("nap", 2, 0.1, queue="process")
    cluster_shop.until_final(*jobs)
    nodes["process"].kill()
    try:
        task = {"loop": "quick", "thread": "plain"}[names[0]]
        for _ in range(3):
            job = until(lambda: _put(cluster_shop, task), BACK_SECONDS, "a put elsewhere")
            until(lambda: cluster_shop.starts(job), BACK_SECONDS, "its start")
    finally:
        cluster_shop.server.start()
    cluster_shop.check_back()
    cluster_shop.until_final(cluster_shop.put("nap", 0.1, queue="process"))
    cluster_shop.until_final()


def _put(shop: RedisShop, task: str) -> JobId | None:
    try:
        return shop.put(task)
    except StoreError:
        return None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_many_nodes_are_killed_in_a_cluster(cluster_shop: RedisShop, seed: int) -> None:
    """The big sister of the test above."""
    crash_nodes(cluster_shop, seed, number=15)


@pytest.mark.timeout(900)
def test_slots_move_and_nodes_die_in_a_cluster(cluster_shop: RedisShop) -> None:
    """Both at once: slots of all queues wander while nodes are killed in turn."""
    cluster = cluster_shop.server
    assert isinstance(cluster, RedisCluster)
    choose = random.Random(7)
    cluster_shop.start(*ALL_POOLS, "--lease", "2", "--processes", "2")
    with Producer(cluster_shop) as producer, Producer(cluster_shop, "plain"):
        cluster_shop.until_up(processes=2)
        for n in range(15):
            slot = cluster.slot_of(cluster_shop.key(("loop", "thread")[n % 2], "bodies"))
            cluster.move_slot(slot, choose.choice(cluster.nodes))
            victim = choose.choice(cluster.nodes)
            victim.kill()
            time.sleep(choose.uniform(0.0, 1.0))
            cluster.start()
            cluster_shop.check_back(processes=2)
            producer.until_more()
    cluster_shop.until_final()
    for job in cluster_shop.accepted:
        assert cluster_shop.record(job).state is State.DONE


def test_enqueue_many_over_nodes_is_repeated_safely(cluster_shop: RedisShop) -> None:
    """All or none for each queue; who repeats it gets every job once."""
    queues = spread(cluster_shop)
    app = Fairlead(cluster_shop.url_with(timeout=1), queues=queues)
    task = app.task(name="t", queue=queues[0].name)(_noop)
    calls = [task.using(queue=queue.name).call() for queue in queues for _ in range(5)]
    victim = cluster_shop.node_of(queues[1].name)
    app.open()
    victim.kill()
    try:
        with pytest.raises(StoreError):
            app.enqueue_many(calls)
    finally:
        cluster_shop.server.start()
    until(lambda: _enqueued(app, calls), BACK_SECONDS, "the node's return")
    assert app.enqueue_many(calls) == 0
    counts = app.bridge.run(app.store.admin.count())
    assert counts == {queue.name: {State.WAITING: 5} for queue in queues}
    app.close()


def _enqueued(app: Fairlead, calls: list[Any]) -> bool:
    try:
        app.enqueue_many(calls)
    except StoreError:
        return False
    return True


def _noop() -> None:
    pass
