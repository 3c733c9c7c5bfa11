"""Pages on Redis: what many queues and many keys of parked jobs cost, in bytes, records and round trips."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import NamedTuple

import pytest

from fairlead.core.admin import ALL, Filter, Part, Wait, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.job import State
from fairlead.core.outcome import Policy
from fairlead.core.page import Page
from fairlead.core.queue import Queue
from fairlead.core.retry import Retry
from fairlead.core.store import Store
from fairlead.core.turns import Lineup
from fairlead.stores import store_for
from fairlead.stores.listing import Asked, Order
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.next_ids import NextIds
from tests import deeds
from tests.compare.wire import counted_redis
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.words import by, claim, done, failed, new_job, plan

SHOWN = 20
QUEUES = 1_000
NAMES = [f"queue-{n}" for n in range(QUEUES)]
A_NAME = 24
"""How many bytes the name of one of these queues takes at most, on the wire."""
A_KEY = 60
"""And one of its keys, or a short command that is about one."""
RUNNING = Filter(states=(State.RUNNING,))


class Cost(NamedTuple):
    """What a page took on the wire, and how much of jobs the server read for it."""

    received: int
    sent: int
    trips: int
    records: int


class Measured:
    """A store behind a proxy that counts."""

    def __init__(self, store: Store, counts: "Counter[str]", server: RedisServer) -> None:
        self.store = store
        self._counts = counts
        self._server = server

    async def page(self, which: Filter, cursor: str | None = None) -> tuple[Page, Cost]:
        """Return a page, and what it cost."""
        self.begin()
        page = await self.store.admin.page(which, SHOWN, cursor)
        return page, self.cost()

    def begin(self) -> None:
        self._server.execute("CONFIG", "RESETSTAT")
        self._counts.clear()

    def cost(self) -> Cost:
        """Return what it cost since `begin`; each record takes three reads of a hash."""
        told = re.search(r"cmdstat_hget:calls=(\d+)", str(self._server.execute("INFO", "all")))
        received, sent = self._counts["bytes received"], self._counts["bytes sent"]
        return Cost(received, sent, self._counts["round trips"], int(told[1]) // 3 if told else 0)


@pytest.fixture
async def near(redis_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    """The store that tests fill."""
    store = store_for(redis_url, clock)
    yield store
    await store.close()


@pytest.fixture
def counts() -> "Counter[str]":
    return Counter()


@pytest.fixture
def counting(redis_server: RedisServer, counts: "Counter[str]") -> Iterator[Proxy]:
    with Proxy(redis_server.port, partial(counted_redis, counts)) as proxy:
        yield proxy


@pytest.fixture
async def measured(
    redis_url: str,
    clock: ManualClock,
    redis_server: RedisServer,
    counting: Proxy,
    counts: "Counter[str]",
) -> AsyncIterator[Measured]:
    """The same store by another way, on which is counted."""
    store = store_for(counting.through(redis_url), clock)
    await store.admin.page()
    yield Measured(store, counts, redis_server)
    await store.close()


# Many queues


async def put_and_end(store: Store, clock: ManualClock) -> dict[State, list[JobId]]:
    """Put jobs into each queue, and end them in three ways; returns them, the newest first."""
    ended: dict[State, list[JobId]] = {}
    policy = Policy(Retry(attempts=1))
    lineup = Lineup(map(Queue, NAMES))
    for state in (State.DONE, State.DEAD):
        await store.put([new_job(queue=name) for name in NAMES])
        those: list[JobId] = []
        while len(those) < QUEUES:
            jobs = await claim(store, *lineup, slots=200)
            is_done = state is State.DONE
            now = clock.now()
            await store.settle([done(job) if is_done else failed(job, now, policy) for job in jobs])
            those += sorted(job.id for job in jobs)
            clock.advance(1)
        ended[state] = those[::-1]
    unwanted = [new_job(queue=name) for _ in range(2) for name in NAMES]
    await store.put(unwanted)
    await deeds.cancel(store, [job.id for job in unwanted], "no", by())
    ended[State.CANCELLED] = sorted((job.id for job in unwanted), reverse=True)
    return ended


async def test_a_page_by_time_reads_little_of_each_queue(
    near: Store, measured: Measured, clock: ManualClock
) -> None:
    """Of a thousand queues: their names, and of few of them more than nothing."""
    ended = await put_and_end(near, clock)
    delayed = [
        new_job(queue=name, delay=(100 + (n * 7919) % 501) * SECOND)
        for n in range(3)
        for name in NAMES
    ]
    await near.put(delayed)
    later = Filter(states=(State.WAITING,), waits=(Wait.DELAYED,), at=clock.now())
    lists = [(Filter(states=(state,)), ids) for state, ids in ended.items()]
    order = sorted(delayed, key=lambda job: (job.delay, job.id))
    for which, ids in [*lists, (later, [job.id for job in order])]:
        cursor = None
        for first in (0, SHOWN, 2 * SHOWN):
            page, cost = await measured.page(which, cursor)
            assert [job.id for job in page.jobs] == ids[first : first + SHOWN]
            assert cost.received <= 900 * SHOWN + A_NAME * QUEUES, which
            assert cost.sent <= 900 * SHOWN + A_KEY * QUEUES, which
            assert cost.trips <= 8, which
            assert cost.records <= 2 * SHOWN, which
            cursor = page.cursor


async def test_a_page_by_queue_asks_many_empty_queues_at_once(
    near: Store, measured: Measured
) -> None:
    await near.put([new_job(queue=name, delay=SECOND) for name in NAMES])
    jobs = [new_job(queue=max(NAMES)) for _ in range(2 * SHOWN)]
    await near.put(jobs)
    page, cost = await measured.page(Filter(states=(State.WAITING,)))
    assert [job.id for job in page.jobs] == [job.id for job in jobs[:SHOWN]]
    assert cost.received <= 400 * SHOWN + A_NAME * QUEUES
    assert cost.sent <= 400 * SHOWN + (A_KEY + 10) * QUEUES
    assert cost.trips <= 8
    assert cost.records <= 2 * SHOWN


@pytest.mark.parametrize("answer", [[b"next", b"10"], []])
def test_what_goes_while_queues_are_compared_hides_no_other_job(answer: list[bytes]) -> None:
    """The first ones of the queues told which are read; more of these need not come next."""
    asked = Asked(Order.DONE, None, ALL, None, 1, 1)
    talk = NextIds(Keys("p")).after(asked, ["a", "b", "c"])
    next(talk)
    talk.send([[2, b"gone", b"30"]])
    with pytest.raises(StopIteration) as end:
        talk.send([answer])  # And what is at 20 in another queue was not looked at.
    assert end.value.value == ([], False)


async def test_what_is_asked_of_each_of_many_queues_takes_few_round_trips(
    near: Store, measured: Measured, clock: ManualClock
) -> None:
    """Whose jobs run, what waits for what, and which id begins like that: thirty queues at a time."""
    names = NAMES[:320]
    await near.put([new_job(queue=name, priority=5) for name in names])
    lineup = Lineup(map(Queue, names))
    again = await claim(near, *lineup, slots=len(names))
    await near.settle([failed(job, clock.now()) for job in again])
    await near.put([new_job(queue=name) for name in names])
    mine = await claim(near, *lineup, slots=len(names), worker="mine")
    await near.put([new_job(queue=name, priority=9) for name in names])
    last = new_job(queue=max(names), delay=60 * SECOND)
    await near.put([last])
    clock.advance(1)

    measured.begin()
    held = await measured.store.held("mine")
    assert sorted(job.id for job in held) == sorted(job.id for job in mine)
    assert measured.cost().trips <= 35

    measured.begin()
    stats = await measured.store.admin.stats([Part.RUNNING, Part.WAITING])
    assert measured.cost().trips <= 90
    assert {each.queue for each in stats.running} == set(names)
    assert {each.retrying for each in stats.waiting.values()} == {1}
    assert {each.oldest for each in stats.waiting.values()} == {clock.now() - SECOND}

    measured.begin()
    page = await measured.store.admin.page(Filter(begins=last.id[:20]), 100)
    assert [job.id for job in page.jobs] == [last.id]
    assert measured.cost().trips <= 45


async def test_a_page_of_ids_that_begin_alike_reads_one_queue_if_that_has_enough(
    near: Store, measured: Measured
) -> None:
    """Each queue answers all of its ids that do."""
    for name in NAMES[:16]:
        await near.put([new_job(queue=name) for _ in range(300)])
    page, cost = await measured.page(Filter(begins="0"))
    assert len(page.jobs) == SHOWN
    assert cost.received <= 40 * 300 + 400 * SHOWN + A_NAME * 16
    page, cost = await measured.page(Filter(begins="0", states=(State.DEAD,)))
    assert page.jobs == []
    assert cost.records <= 3 * 300


async def test_an_id_is_found_behind_queues_that_are_large(near: Store) -> None:
    """A large one is looked through step by step, and those behind it are not forgotten."""
    some = [new_job(queue="b") for _ in range(2_500)]
    jobs = [new_job(queue="a"), *some, new_job(queue="c"), new_job(queue="d")]
    await near.put(jobs)
    found: list[JobId] = []
    cursor, pages = None, 0
    while cursor or not pages:
        page = await near.admin.page(Filter(begins="0"), 100, cursor)
        found += [job.id for job in page.jobs]
        cursor, pages = page.cursor, pages + 1
    assert sorted(found) == sorted(job.id for job in jobs)


# Many keys of parked jobs


LOST = 45


async def park(store: Store, clock: ManualClock, *queues: str, tasks: int) -> list[JobId]:
    """Park jobs in these queues: one of each of so many tasks, and as many of another one.

    Of some tasks there is one more in each queue, whose run was lost; returns these.
    """
    known = {f"task-{n:05}": 1 for n in range(0, tasks, max(1, tasks // LOST))}
    for queue in queues:
        await store.put([new_job(task, queue) for task in known])
        assert len(await claim(store, Queue(queue), slots=len(known), lease=5)) == len(known)
        await store.put([new_job(f"task-{n:05}", queue) for n in range(tasks)])
        await store.put([new_job("task-0", queue) for _ in range(tasks)])
    lost = [job.id for job in await deeds.jobs(store, RUNNING)]
    clock.advance(6)
    await store.announce(Worker("w2", {"t": 1}), 500 * SECOND)
    left = (2 * tasks + len(known)) * len(queues)
    for _ in range(left):
        told = await store.claim(plan(*map(Queue, queues), worker="w2", capable={"t": 1}))
        left -= sum(each.jobs for each in told.parked)
        if not left:
            break
    assert not left
    return lost


async def running(measured: Measured) -> tuple[list[JobId], list[Cost]]:
    """Return all running jobs as they are listed, and what each page cost."""
    cursor, costs, found = None, [], []
    while cursor or not costs:
        page, cost = await measured.page(RUNNING, cursor)
        costs.append(cost)
        found += [job.id for job in page.jobs]
        cursor = page.cursor
    return found, costs


async def test_running_jobs_are_found_among_thousands_of_keys_that_others_wait_for(
    near: Store, measured: Measured, clock: ManualClock
) -> None:
    """One behind more keys than a call looks at, too."""
    lost = await park(near, clock, "mail", tasks=2_500)
    found, costs = await running(measured)
    assert sorted(found) == sorted(lost)
    assert max(cost.trips for cost in costs) <= 8
    assert max(cost.received for cost in costs) <= 400 * SHOWN
    assert max(cost.records for cost in costs) <= 2 * SHOWN
    measured.begin()
    stats = await measured.store.admin.stats()
    assert (stats.waiting["mail"].parked, len(stats.unknown)) == (5_000, 2_501)
    assert len(stats.running) == 0
    assert measured.cost().trips <= 40
    assert sum((await near.admin.count(RUNNING))["mail"].values()) == len(lost)


async def test_running_jobs_are_found_among_many_queues_with_parked_ones(
    near: Store, measured: Measured, clock: ManualClock
) -> None:
    queues = [f"queue-{n:03}" for n in range(120)]
    lost = await park(near, clock, *queues, tasks=1)
    found, costs = await running(measured)
    assert found == lost
    assert max(cost.trips for cost in costs) <= 12
    assert max(cost.received for cost in costs) <= 1_000 * SHOWN
    measured.begin()
    unknown = (await measured.store.admin.stats([Part.UNKNOWN])).unknown
    assert unknown == {("task-00000", 1): 240, ("task-0", 1): 120}
    assert measured.cost().trips <= 6


async def test_damaged_members_among_the_parked_are_passed(
    near: Store, clock: ManualClock, redis_url: str, redis_server: RedisServer
) -> None:
    """Also those that stand behind all of their key, before all others, or under no key."""
    lost = await park(near, clock, "mail", tasks=3)
    key = Keys(Address.of(redis_url).prefix).key("mail", "parked")
    behind = b"no_capable_worker\0task-00001\x000000000001\0\xff\xff"
    for member in (b"", b"\0", b"a", behind, b"z\0zz"):
        redis_server.execute("ZADD", key, 0, member)
    assert sorted(job.id for job in await deeds.jobs(near, RUNNING)) == sorted(lost)
    assert sum((await deeds.unknown(near)).values()) == 6 + len(lost)
    assert (await deeds.waiting(near))["mail"].parked == 6
