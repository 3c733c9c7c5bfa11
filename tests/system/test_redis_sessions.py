"""Connections end, functions are forgotten, the server sleeps; and nobody has too many (F24, L7)."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator

import pytest

from fairlead import Fairlead, Queue, State
from fairlead.core.errors import StoreUnavailable
from fairlead.core.ids import JobId
from fairlead.runtime.embedded import EmbeddedWorker
from fairlead.runtime.workshop import Choice, Terms
from fairlead.stores.redis.store import RedisStore
from tests.conftest import rights
from tests.system.faults import BACK_SECONDS, Producer
from tests.system.redis_faults import RedisShop
from tests.system.test_fork import fork
from tests.system.tree import ALL_POOLS, until

PER_WORKER, PER_PROCESS = 3, 5
"""A supervisor has connections for leases, for looks and to begin with; a process for claims,
settlements, looks, news and to begin with. Docs promise no more. What handlers put takes one more
for each process, or up to eight for threads."""


# Connections end


def test_every_part_comes_back_after_all_connections_were_ended(redis_shop: RedisShop) -> None:
    """F24: as an administrator would, several times, under load."""
    redis_shop.start("--lease", "2", "--processes", "2")
    with Producer(redis_shop, pause=0.03) as producer:
        redis_shop.until_up(processes=2)
        for _ in range(2):
            running = redis_shop.put("wait", 0.5)
            redis_shop.until_started(running)
            assert redis_shop.kick("normal") >= PER_WORKER + PER_PROCESS
            assert redis_shop.kick("pubsub") >= 2
            redis_shop.check_back(processes=2)
            producer.until_more()
    redis_shop.until_final()
    redis_shop.check_done_once()


async def test_a_listener_that_was_ended_listens_again(redis_shop: RedisShop) -> None:
    """F24, L3: the worker would look by itself after a minute only, so it must have heard."""
    app = Fairlead(redis_shop.url, queues=[Queue("bell")])
    task = app.task(name="bell", queue="bell")(_answer)
    workshop = app.workshop(Terms(poll=60.0), Choice(queues={"bell": None}))
    async with EmbeddedWorker(workshop, None):
        assert await (await task.aenqueue()).aresult(timeout=20) == 1
        for _ in range(2):
            await asyncio.to_thread(redis_shop.until_up)
            ended = await asyncio.to_thread(redis_shop.listeners)
            assert await asyncio.to_thread(redis_shop.kick, "pubsub") == len(ended)
            # What is told while nobody listens is made up for; what is told later is heard.
            for _ in range(2):
                put = await asyncio.to_thread(_put_elsewhere, redis_shop.url)
                await asyncio.to_thread(
                    until, lambda: redis_shop.record(put).state.final, BACK_SECONDS, "the news"
                )
                await asyncio.to_thread(redis_shop.until_up)
            assert not {*await asyncio.to_thread(redis_shop.listeners)} & {*ended}
    await app.aclose()


async def _answer() -> int:
    return 1


def _put_elsewhere(url: str) -> JobId:
    """Put as another program would: only the server can tell of it."""
    app = Fairlead(url, queues=[Queue("bell")])
    job = app.task(name="bell", queue="bell")(_answer).enqueue()
    app.close()
    return job.id


# Functions are forgotten


@pytest.fixture
def owner(redis_shop: RedisShop) -> Iterator[RedisShop]:
    """A shop whose programs may load functions, and so bring what they need."""
    redis_shop.do("ACL", "SETUSER", "crew", "+function|load")
    yield redis_shop
    redis_shop.do("ACL", "SETUSER", "crew", "-function|load")


def test_functions_that_were_forgotten_are_loaded_again(owner: RedisShop) -> None:
    """F24: again and again, under load; nobody notices, not even who puts."""
    owner.start("--lease", "2")
    with Producer(owner, pause=0.02) as producer, Producer(owner, "plain") as other:
        owner.until_up()
        for _ in range(30):
            owner.do("FUNCTION", "FLUSH", "SYNC")
            time.sleep(0.02)
        producer.until_more()
        owner.do("FUNCTION", "FLUSH", "SYNC")
        owner.check_back()
    assert producer.repeated == other.repeated == 0
    owner.until_final()
    owner.check_done_once()
    assert "cannot be used" not in owner.trees[0].log


@pytest.mark.parametrize("put", ["blocking", "on a loop"])
def test_a_put_to_several_queues_is_one_step_without_its_functions_too(
    owner: RedisShop, put: str
) -> None:
    """F24, I2: a transaction whose functions are missing has done nothing, and is done again."""
    app = owner.app
    for _ in range(3):
        owner.do("FUNCTION", "FLUSH", "SYNC")
        calls = [owner.module.quick.call(), owner.module.plain.call()]
        if put == "blocking":
            assert app.enqueue_many(calls) == 2
        else:
            assert app.bridge.run(app.aenqueue_many(calls)) == 2
    assert owner.states() == {State.WAITING: 6}


# The server sleeps


def test_a_server_that_sleeps_is_waited_for(redis_shop: RedisShop) -> None:
    """F24, L9: calls fail typed and in time; no job runs twice, and everything resumes."""
    tree = redis_shop.start("--lease", "2")
    redis_shop.until_up()
    running = [redis_shop.put("wait", 3.0), redis_shop.put("nap", 3.0)]
    for job in running:
        redis_shop.until_started(job)
    app = Fairlead(redis_shop.url_with(timeout=1))
    app.open()
    asleep = threading.Thread(target=redis_shop.do, args=("DEBUG", "SLEEP", "4.5"))
    asleep.start()
    try:
        time.sleep(0.2)
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="no answer within 1 s"):
                app.bridge.run(app.store.admin.find(running[0]))
        assert asleep.is_alive()
    finally:
        asleep.join()
        app.close()
    redis_shop.check_back()
    redis_shop.until_final()
    for job in running:
        assert (redis_shop.outcomes(job), len(redis_shop.starts(job))) == (["done"], 1)
    assert "lease passed" not in tree.log
    until(lambda: len(redis_shop.clients()) <= PER_WORKER + PER_PROCESS + 4, 10, "no pile-up")


# How many there are


def test_a_worker_has_few_connections(redis_shop: RedisShop) -> None:
    """L7: counted while everything happens at once; the bound is documented above."""
    most = {1: 0, 2: 0}
    for processes in most:
        name = f"counted-{processes}"
        redis_shop.do("ACL", "SETUSER", name, "reset", "on", ">rope", *rights("s_*:"))
        redis_shop.url = redis_shop.url_with().replace("crew:", f"{name}:")
        redis_shop.start(*ALL_POOLS, "--lease", "1", "--processes", str(processes))
    redis_shop.put_many("wait", 60, 0.1)
    redis_shop.put_many("plain", 200)
    redis_shop.put_many("second_time", 20)

    def count() -> bool:
        told = redis_shop.do("CLIENT", "LIST")
        for processes, before in most.items():
            most[processes] = max(told.count(f"user=counted-{processes} "), before)
        return not redis_shop.states()[State.WAITING] and not redis_shop.states()[State.RUNNING]

    until(count, 30, "the end of all jobs")
    for processes, seen in most.items():
        assert 0 < seen <= PER_WORKER + processes * PER_PROCESS


def test_a_program_has_few_connections(redis_shop: RedisShop) -> None:
    """L7: 8 for all its threads, and one that is used on a loop."""
    barrier = threading.Barrier(20)

    def put() -> None:
        barrier.wait()
        for _ in range(10):
            redis_shop.put("quick")

    threads = [threading.Thread(target=put) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(redis_shop.clients()) <= 8
    redis_shop.app.bridge.run(redis_shop.app.store.put([redis_shop.module.quick.call().job]))
    assert len(redis_shop.clients()) <= 9
    redis_shop.waiting |= set(redis_shop.accepted)


# Forks


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_app_works_on_both_sides_of_a_fork(redis_shop: RedisShop) -> None:
    """The parent's connections survive the child, which has none of them."""
    quick = redis_shop.module.quick
    ours = [redis_shop.put("quick")]
    assert redis_shop.record(ours[0]).state is State.WAITING
    before = {client["id"] for client in redis_shop.clients()}

    def in_the_child() -> str:
        jobs = [quick.enqueue() for _ in range(10)]
        assert {job.status() for job in jobs} == {State.WAITING}
        redis_shop.app.close()
        return " ".join(job.id for job in jobs)

    answer = fork(in_the_child)
    ours += [redis_shop.put("quick") for _ in range(10)]
    theirs = answer().split()
    assert len({*ours, *theirs}) == 21
    redis_shop.accepted += map(JobId, theirs)
    assert {redis_shop.record(job).state for job in redis_shop.accepted} == {State.WAITING}
    assert before <= {client["id"] for client in redis_shop.clients()}
    redis_shop.waiting |= set(redis_shop.accepted)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_does_not_hold_its_parents_connections(redis_shop: RedisShop) -> None:
    """Else the server would not notice that the parent is no more."""
    redis_shop.waiting.add(redis_shop.put("quick"))
    redis_shop.app.bridge.run(redis_shop.app.store.wait(0.01))
    assert redis_shop.clients()
    assert redis_shop.clients("pubsub")
    over, go = os.pipe()
    answer = fork(lambda: os.read(over, 1).decode())
    redis_shop.app.close()
    until(lambda: not redis_shop.clients() + redis_shop.clients("pubsub"))
    os.write(go, b"!")
    assert answer() == "!"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_in_the_middle_of_puts_harms_nobody(redis_shop: RedisShop) -> None:
    """Nor does it wait for a thread that it does not have."""
    quick = redis_shop.module.quick
    store = redis_shop.app.store
    assert isinstance(store, RedisStore)
    with Producer(redis_shop, pause=0.0) as producer:
        producer.until_more()
        answers = [fork(lambda: str(quick.enqueue().id))() for _ in range(8)]
        with store._bell._guard, store.news._guard, store._opening:
            answers.append(fork(lambda: str(quick.enqueue().id))())
    assert not producer.repeated
    redis_shop.accepted += map(JobId, answers)
    redis_shop.waiting |= set(redis_shop.accepted)
