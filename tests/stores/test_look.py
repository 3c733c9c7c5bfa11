"""Jobs behind jobs of others: how many claims it takes to find them, and what is not overlooked.

Another live worker knows the jobs in front, so they are neither ours nor parked. All is counted in
claims, made back to back.
"""

from collections.abc import AsyncIterator, Callable

import pytest

from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.ids import JobId
from fairlead.core.queue import Queue
from fairlead.core.selection import LOOK, Claim
from fairlead.core.store import Store
from fairlead.stores import store_for
from tests import deeds
from tests.words import by, claim, done, new_job, plan, returned

OURS = {"t": 1}
MANY = 2 * LOOK + LOOK // 2
"""How many others stand in front: three looks."""


@pytest.fixture
async def pair(
    new_url: Callable[[], str], clock: ManualClock
) -> AsyncIterator[tuple[Store, Store]]:
    """Two processes on one store; memory has but one."""
    url = new_url()
    store = store_for(url, clock)
    other = store if url.startswith("memory") else store_for(url, clock)
    yield store, other
    await other.close()
    await store.close()


async def put_theirs(store: Store, jobs: int, *queues: str) -> None:
    await store.announce(Worker("other", {"theirs": 1}), 3600 * SECOND)
    for queue in queues or ("mail",):
        await store.put([new_job(task="theirs", queue=queue) for _ in range(jobs)])


async def put_ours(store: Store, jobs: int) -> list[JobId]:
    new = [new_job() for _ in range(jobs)]
    await store.put(new)
    return [job.id for job in new]


async def look(store: Store, slots: int = 10, *queues: Queue) -> Claim:
    return await store.claim(plan(*queues, slots=slots, lease=3600, capable=OURS))


async def look_past_a_delayed_job(store: Store) -> JobId:
    """Look until some of ours are found; returns the job that will stand before them in 10 s."""
    soon = new_job(delay=10 * SECOND, priority=3600)
    await store.put([soon])
    await put_theirs(store, MANY)
    ours = await put_ours(store, 30)
    for _ in range(3):
        last = await look(store)
    assert ids(last) == ours[:10]
    return soon.id


def ids(answer: Claim) -> list[JobId]:
    return [job.id for job in answer.jobs]


async def test_a_job_behind_n_others_is_found_by_claim_n_by_look(store: Store) -> None:
    """And every claim before it says that there is more, so that nobody waits in between (F79)."""
    await put_theirs(store, MANY)
    [ours] = await put_ours(store, 1)
    answers = [await look(store) for _ in range(3)]
    assert [(ids(answer), answer.cut) for answer in answers[:2]] == [([], True)] * 2
    assert ids(answers[2]) == [ours]


async def test_a_look_that_found_nothing_comes_to_its_end(store: Store) -> None:
    """Whoever claims again as long as there is more stops then, and does not go in a circle."""
    await put_theirs(store, 2 * LOOK)
    cuts = [(await look(store)).cut for _ in range(3)]
    assert cuts == [True, True, False]
    assert [(await look(store)).cut for _ in range(3)] == [True, True, False]


async def test_a_claim_goes_on_where_the_last_one_filled_its_slots(store: Store) -> None:
    await put_theirs(store, MANY)
    ours = await put_ours(store, 30)
    for _ in range(2):
        assert ids(await look(store)) == []
    found = [ids(await look(store)) for _ in range(3)]
    assert found == [ours[:10], ours[10:20], ours[20:]]


async def test_a_job_that_is_put_in_front_is_seen_by_the_next_claim(store: Store) -> None:
    await put_theirs(store, MANY)
    ours = await put_ours(store, 30)
    for _ in range(3):
        await look(store)
    first = new_job(priority=3600)
    await store.put([first])
    assert ids(await look(store))[:1] == [first.id]
    found = [job_id for _ in range(4) for job_id in ids(await look(store))]
    assert found == ours[10:]


async def test_a_job_that_is_given_back_in_front_is_seen_by_the_next_claim(store: Store) -> None:
    [early] = await put_ours(store, 1)
    await put_theirs(store, MANY)
    ours = await put_ours(store, 30)
    [job] = (await look(store, slots=1)).jobs
    assert job.id == early
    for _ in range(3):
        last = await look(store)
    assert ids(last) == ours[:10]
    await store.settle([returned(job)])
    assert ids(await look(store))[:1] == [early]


async def test_a_job_that_falls_due_in_front_is_seen_by_the_next_claim(
    store: Store, clock: ManualClock
) -> None:
    soon = await look_past_a_delayed_job(store)
    clock.advance(11)
    assert ids(await look(store))[:1] == [soon]


async def test_so_it_is_if_a_claim_without_a_free_slot_moved_it_there(
    store: Store, clock: ManualClock
) -> None:
    soon = await look_past_a_delayed_job(store)
    clock.advance(11)
    assert ids(await look(store, slots=0)) == []
    assert ids(await look(store))[:1] == [soon]


async def test_a_job_that_falls_due_in_front_of_a_paused_queue_is_seen_when_it_goes_on(
    pair: tuple[Store, Store], clock: ManualClock
) -> None:
    """Somebody else pauses it, and a claim in between moves the job to its place."""
    store, other = pair
    soon = await look_past_a_delayed_job(store)
    await deeds.pause(other, "mail", by())
    clock.advance(11)
    assert ids(await look(store)) == []
    await deeds.resume(other, "mail", by())
    assert ids(await look(store))[:1] == [soon]


async def test_jobs_that_others_bring_in_front_are_seen_in_time(
    pair: tuple[Store, Store],
) -> None:
    """At the latest after as many jobs were claimed as had been stepped over."""
    store, other = pair
    await put_theirs(store, LOOK + 200)
    await put_ours(store, LOOK + 600)
    [] = (await look(store, slots=100)).jobs
    first = new_job(priority=3600)
    assert len((await look(store, slots=100)).jobs) == 100
    await other.put([first])
    claimed: list[JobId] = []
    while first.id not in claimed:
        assert len(claimed) <= LOOK + 200
        claimed += ids(await look(store, slots=100))


async def test_a_lost_job_in_front_is_seen_in_time(store: Store, clock: ManualClock) -> None:
    """Nobody tells that a lease has passed, so it is found from the front."""
    [early] = await put_ours(store, 1)
    await put_theirs(store, LOOK + 200)
    await put_ours(store, LOOK + 600)
    assert [job.id for job in await claim(store, worker="w2", slots=1, lease=5)] == [early]
    assert ids(await look(store, slots=100)) == []
    assert len(ids(await look(store, slots=100))) == 100
    clock.advance(6)
    claimed: list[JobId] = []
    while early not in claimed:
        assert len(claimed) <= LOOK + 200
        claimed += ids(await look(store, slots=100))


async def test_who_came_to_the_end_of_a_look_that_took_some_begins_anew(store: Store) -> None:
    """By then jobs may stand in front, of which nobody told; once more, and it has seen all."""
    await put_theirs(store, MANY)
    await put_ours(store, 5)
    answers = [await look(store) for _ in range(3)]
    assert len(answers[2].jobs) == 5
    cuts = [(await look(store)).cut for _ in range(3)]
    assert cuts == [True, True, False]


async def test_after_the_end_a_look_begins_at_the_front(store: Store) -> None:
    await put_theirs(store, MANY)
    jobs: list[JobId] = []
    for _ in range(3):
        jobs += ids(await look(store))
    assert jobs == []
    ours = await put_ours(store, 1)
    first = new_job(priority=3600)
    await store.put([first])
    found = [ids(await look(store)) for _ in range(3)]
    assert found == [[first.id], [], ours]


async def test_ours_are_found_behind_jobs_that_nobody_knows(store: Store) -> None:
    """Those are parked on the way, a bounded batch by each claim."""
    await store.put([new_job(task="nobodys") for _ in range(MANY)])
    ours = await put_ours(store, 25)
    answers = [await look(store) for _ in range(5)]
    assert [ids(answer) for answer in answers] == [[], [], ours[:10], ours[10:20], ours[20:]]
    parked = [sum(kind.jobs for kind in answer.parked) for answer in answers]
    assert parked == [LOOK, LOOK, MANY - 2 * LOOK, 0, 0]
    assert [answer.cut for answer in answers[:2]] == [True, True]


async def test_other_queues_are_served_while_one_is_looked_along(store: Store) -> None:
    queues = (Queue("mail"), Queue("news"))
    await put_theirs(store, MANY)
    [ours] = await put_ours(store, 1)
    news = [new_job(queue="news") for _ in range(3)]
    await store.put(news)
    answers = [await look(store, 1, *queues) for _ in range(4)]
    jobs = [job_id for answer in answers for job_id in ids(answer)]
    assert sorted(jobs) == sorted([ours, *(job.id for job in news)])


async def test_workers_look_each_from_where_they_stopped(store: Store) -> None:
    await put_theirs(store, MANY)
    [ours] = await put_ours(store, 1)
    for _ in range(2):
        for worker in ("w1", "w2"):
            assert await claim(store, worker=worker, capable=OURS) == []
    assert [job.id for job in await claim(store, worker="w2", capable=OURS)] == [ours]
    assert await claim(store, worker="w1", capable=OURS) == []


async def test_what_was_looked_past_can_end_meanwhile(store: Store) -> None:
    """The place to go on from may be that of a job which is no more."""
    await put_theirs(store, MANY)
    [ours] = await put_ours(store, 1)
    assert ids(await look(store)) == []
    theirs = await claim(store, slots=LOOK, worker="other", capable={"theirs": 1}, lease=3600)
    await store.settle([done(job) for job in theirs])
    assert [ids(await look(store)) for _ in range(2)] == [[], [ours]]
