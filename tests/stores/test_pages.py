"""Lists of jobs, page by page: in the order that a store keeps, each job once, with cursors."""

import asyncio
import subprocess
import sys

import pytest

from fairlead.core.admin import (
    ALL,
    LEAST_LOOKED,
    LOOKED_FOR_EACH,
    MOST_LISTED,
    Filter,
    Wait,
    Worker,
)
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.errors import BadCursor
from fairlead.core.ids import JobId
from fairlead.core.job import NewJob, State
from fairlead.core.outcome import Policy
from fairlead.core.page import Page, Spot, cursor_of
from fairlead.core.queue import Queue
from fairlead.core.retry import Retry
from fairlead.core.store import Store
from fairlead.stores.listing import (
    Answer,
    Asked,
    Met,
    Order,
    Orders,
    digest_of_filter,
    held,
    paged,
)
from tests import deeds
from tests.conftest import STORES
from tests.words import MAIL, by, claim, done, failed, new_job, plan

WAITING = Filter(states=(State.WAITING,))
RUNNING = Filter(states=(State.RUNNING,))
DONE = Filter(states=(State.DONE,))
DEAD = Filter(states=(State.DEAD,))
CANCELLED = Filter(states=(State.CANCELLED,))
OTHER = Queue("other")


async def pages(store: Store, which: Filter, limit: int) -> list[Page]:
    """All pages of a list."""
    found = [await store.admin.page(which, limit)]
    while found[-1].cursor is not None:
        found.append(await store.admin.page(which, limit, found[-1].cursor))
        assert len(found) < 1_000, "it does not end"
    return found


async def ids(store: Store, which: Filter, limit: int = 7) -> list[JobId]:
    """The ids of a list, page by page, of which none is longer than asked for."""
    found = await pages(store, which, limit)
    assert all(len(page.jobs) <= limit for page in found)
    return [job.id for page in found for job in page.jobs]


def ids_of(jobs: list[NewJob]) -> list[JobId]:
    return [job.id for job in jobs]


async def end(store: Store, clock: ManualClock, jobs: int, *, dead: bool = False) -> list[JobId]:
    """End so many jobs, one a second; returns them in that order."""
    ended = []
    for _ in range(jobs):
        [job] = await claim(store, MAIL, OTHER, slots=1)
        policy = Policy(Retry(attempts=1))
        await store.settle([failed(job, clock.now(), policy) if dead else done(job)])
        ended.append(job.id)
        clock.advance(1)
    return ended


# Orders


async def test_waiting_jobs_come_queue_by_queue_in_the_order_of_each(store: Store) -> None:
    mail = [new_job(priority=n % 3) for n in range(20)]
    other = [new_job(queue="other") for _ in range(20)]
    await store.put([job for pair in zip(other, mail, strict=True) for job in pair])
    in_order = sorted(mail, key=lambda job: (-job.priority, job.id))
    assert await ids(store, WAITING) == ids_of([*in_order, *other])
    assert await ids(store, Filter(queues=("other",))) == ids_of(other)
    assert await ids(store, Filter(queues=("other", "mail"))) == ids_of([*in_order, *other])


async def test_the_order_is_that_of_the_claims(store: Store) -> None:
    await store.put([new_job(priority=n % 5) for n in range(30)])
    listed = await ids(store, WAITING)
    claimed = [(await claim(store, slots=1))[0].id for _ in range(30)]
    assert listed == claimed


async def test_delayed_jobs_come_by_due_time_after_those_that_are_due(
    store: Store, clock: ManualClock
) -> None:
    later = [new_job(queue=("mail", "other")[n % 2], delay=(100 - n) * SECOND) for n in range(20)]
    now = [new_job() for _ in range(3)]
    await store.put([*later, *now])
    assert await ids(store, WAITING) == ids_of([*now, *later[::-1]])
    at = clock.now()
    assert await ids(store, Filter(waits=(Wait.DELAYED,), states=(State.WAITING,), at=at)) == (
        ids_of(later[::-1])
    )
    first = Filter(waits=(Wait.DELAYED, Wait.DUE), states=(State.WAITING,), at=at)
    assert await ids(store, first) == ids_of([*later[::-1], *now])


async def test_what_fell_due_is_found_as_due_though_nobody_has_moved_it(
    store: Store, clock: ManualClock
) -> None:
    jobs = [new_job(delay=n * SECOND) for n in range(1, 21)]
    await store.put(jobs)
    clock.advance(10)
    due = Filter(waits=(Wait.DUE,), states=(State.WAITING,), at=clock.now())
    later = Filter(waits=(Wait.DELAYED,), states=(State.WAITING,), at=clock.now())
    assert await ids(store, due, 4) == ids_of(jobs[:10])
    assert await ids(store, later, 4) == ids_of(jobs[10:])


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_jobs_of_many_queues_come_by_time_once_each(store: Store, limit: int) -> None:
    """Many at one moment, and few queues with more than others; a page reads little of each."""
    delays = [(n * n) % 7 + (20 if n % 3 else n) for n in range(90)]
    jobs = [
        new_job(queue=f"q{n // 5 if n < 20 else n}", delay=(1 + delay) * SECOND)
        for n, delay in enumerate(delays)
    ]
    await store.put(jobs)
    unwanted = [new_job(queue=f"q{n % 60}") for n in range(90)]
    await store.put(unwanted)
    await deeds.cancel(store, ids_of(unwanted), "no", by())
    later = Filter(waits=(Wait.DELAYED,), states=(State.WAITING,), at=0)
    times = {job.id: job.delay for job in jobs}
    found = await ids(store, later, limit)
    assert [times[each] for each in found] == sorted(times.values())
    assert sorted(found) == sorted(times)
    assert sorted(await ids(store, CANCELLED, limit)) == sorted(ids_of(unwanted))


@pytest.mark.parametrize("dead", [False, True])
async def test_ended_jobs_come_by_the_time_they_ended_newest_first(
    store: Store, clock: ManualClock, *, dead: bool
) -> None:
    await store.put([new_job(queue=("mail", "other")[n % 2]) for n in range(20)])
    ended = await end(store, clock, 20, dead=dead)
    which = DEAD if dead else DONE
    assert await ids(store, which) == ended[::-1]
    assert await ids(store, CANCELLED) == []
    begun = clock.now() - 7 * SECOND
    recent = Filter(states=which.states, since=begun)
    assert await ids(store, recent, 4) == ended[::-1][:7]
    mail = [job.id for job in await deeds.jobs(store, which) if job.queue == "mail"]
    assert await ids(store, Filter(states=which.states, queues=("mail",)), 3) == mail


async def test_cancelled_jobs_are_a_list_of_their_own(store: Store, clock: ManualClock) -> None:
    jobs = [new_job() for _ in range(20)]
    await store.put(jobs)
    cancelled = []
    for n, job in enumerate(jobs):
        if n % 2:
            await deeds.cancel(store, [job.id], "no", by())
            cancelled.append(job.id)
            clock.advance(1)
    ended = await end(store, clock, 10)
    assert await ids(store, CANCELLED, 3) == cancelled[::-1]
    assert await ids(store, DONE, 3) == ended[::-1]
    assert await ids(store, ALL, 3) == [*cancelled[::-1], *ended[::-1]]


async def test_running_jobs_are_found_whoever_runs_them(store: Store, clock: ManualClock) -> None:
    await store.put([new_job(queue=("mail", "other")[n % 2]) for n in range(100)])
    running = {job.id for job in await claim(store, slots=10, lease=5)}
    clock.advance(6)  # These leases have passed, and nobody has looked.
    running |= {job.id for job in await claim(store, OTHER, slots=10, worker="w2")}
    found = await ids(store, RUNNING)
    assert sorted(found) == sorted(running)
    assert await ids(store, Filter(states=(State.RUNNING,), queues=("other",))) != []
    assert len(await ids(store, WAITING)) == 80


async def test_a_lost_run_is_found_that_nobody_can_take_over(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job(task="rare")])
    [lost] = await claim(store, capable={"rare": 1}, lease=5)
    clock.advance(6)
    await store.announce(Worker("w2", {"t": 1}), 500 * SECOND)
    assert await claim(store, worker="w2", capable={"t": 1}) == []
    assert await ids(store, RUNNING) == [lost.id]
    assert await ids(store, WAITING) == []


async def test_running_jobs_far_behind_waiting_ones_are_found(store: Store) -> None:
    """Workers that know other tasks leave what stands before theirs."""
    await store.announce(Worker("w1", {"t": 1}), 500 * SECOND)
    await store.announce(Worker("w2", {"rare": 1}), 500 * SECOND)
    first, *others = [new_job() for _ in range(1 + 3 * LEAST_LOOKED)]
    rare = [new_job(task="rare") for _ in range(3)]  # Made last: ids of one moment go by that.
    await store.put([first, *others, *rare])
    assert [job.id for job in await claim(store, slots=1, capable={"t": 1})] == [first.id]
    far: list[JobId] = []
    while len(far) < 3:
        far += [job.id for job in await claim(store, worker="w2", capable={"rare": 1})]
    assert sorted(await ids(store, RUNNING)) == sorted([first.id, *far])
    assert len(await ids(store, WAITING)) == 3 * LEAST_LOOKED


async def test_parked_jobs_come_after_the_other_waiting_ones(
    store: Store, clock: ManualClock
) -> None:
    await store.announce(Worker("w1", {"t": 1}), 500 * SECOND)
    unknown = [new_job(task=f"u{n % 3}", queue=("mail", "other")[n % 2]) for n in range(20)]
    await store.put(unknown)
    assert (await store.claim(plan(MAIL, OTHER, capable={"t": 1}))).jobs == []
    await store.put([new_job(), new_job(delay=SECOND)])
    listed = await ids(store, WAITING)
    assert sorted(listed[2:]) == sorted(ids_of(unknown))
    parked = Filter(waits=(Wait.PARKED,), states=(State.WAITING,), at=clock.now())
    assert await ids(store, parked, 3) == listed[2:]


async def test_states_come_in_the_order_that_the_filter_names_them(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job() for _ in range(6)])
    ended = await end(store, clock, 2)
    dead = await end(store, clock, 2, dead=True)
    [running] = [job.id for job in await claim(store, slots=1)]
    [waiting] = await ids(store, WAITING)
    told = {State.DONE: ended[::-1], State.DEAD: dead[::-1], State.RUNNING: [running]}
    told[State.WAITING] = [waiting]
    for states in (tuple(told), tuple(told)[::-1]):
        wanted = [each for state in states for each in told[state]]
        assert await ids(store, Filter(states=states), 2) == wanted
    usual = (State.WAITING, State.RUNNING, State.DEAD, State.DONE)
    assert await ids(store, ALL, 2) == [each for state in usual for each in told[state]]


# Exactly once


@pytest.mark.parametrize("limit", [1, 20, 333, MOST_LISTED])
async def test_a_thousand_jobs_of_one_moment_are_seen_once_each(
    store: Store, clock: ManualClock, limit: int
) -> None:
    number = 1_000 if limit >= 20 else 60
    jobs = [new_job() for _ in range(number)]
    later = [new_job(delay=SECOND) for _ in range(number)]
    await store.put([*jobs, *later])
    waiting = await ids(store, WAITING, limit)
    assert len(waiting) == 2 * number
    assert sorted(waiting) == sorted(ids_of([*jobs, *later]))
    await deeds.cancel(store, ids_of(jobs), "no", by())
    cancelled = await ids(store, CANCELLED, limit)
    assert len(cancelled) == number
    assert sorted(cancelled) == sorted(ids_of(jobs))


@pytest.mark.parametrize("dead", [False, True])
async def test_those_that_ended_at_one_moment_are_seen_once_each(
    store: Store, clock: ManualClock, *, dead: bool
) -> None:
    await store.put([new_job(queue=("mail", "other")[n % 2]) for n in range(200)])
    jobs = []
    while len(jobs) < 200:
        jobs += await claim(store, MAIL, OTHER, slots=200)
    policy = Policy(Retry(attempts=1))
    await store.settle([failed(job, clock.now(), policy) if dead else done(job) for job in jobs])
    found = await ids(store, DEAD if dead else DONE, 9)
    assert len(found) == 200
    assert sorted(found) == sorted(job.id for job in jobs)


async def test_jobs_that_stay_are_seen_once_while_others_come_and_go(
    store: Store, clock: ManualClock
) -> None:
    jobs = [new_job() for _ in range(60)]
    await store.put(jobs)
    stay, seen = ids_of(jobs[30:]), []
    page = await store.admin.page(WAITING, 4)
    for _ in range(8):
        seen += [job.id for job in page.jobs]
        [gone] = await claim(store, slots=1)
        await store.settle([done(gone)])
        await store.put([new_job(priority=50), new_job()])
        clock.advance(1)
        page = await store.admin.page(WAITING, 4, page.cursor)
    while page.cursor:
        seen += [job.id for job in page.jobs]
        page = await store.admin.page(WAITING, 4, page.cursor)
    seen += [job.id for job in page.jobs]
    assert [each for each in seen if each in stay] == stay


async def test_a_cursor_leads_on_though_its_job_is_gone(store: Store, clock: ManualClock) -> None:
    jobs = [new_job() for _ in range(20)]
    later = [new_job(delay=n * SECOND) for n in range(1, 21)]
    await store.put([*jobs, *later])
    first = await store.admin.page(WAITING, 5)
    second = await store.admin.page(WAITING, 20, first.cursor)
    assert [job.id for job in second.jobs][-1] == later[4].id
    await deeds.cancel(store, ids_of([*jobs[:5], *later[:5]]), "no", by())
    rest = await store.admin.page(WAITING, 100, first.cursor)
    assert [job.id for job in rest.jobs] == ids_of([*jobs[5:], *later[5:]])
    rest = await store.admin.page(WAITING, 100, second.cursor)
    assert [job.id for job in rest.jobs] == ids_of(later[5:])
    ended = await store.admin.page(CANCELLED, 5)
    await deeds.delete(store, [ended.jobs[-1].id], [State.CANCELLED], by())
    left = await store.admin.page(CANCELLED, 100, ended.cursor)
    assert len(left.jobs) == 5
    assert not {job.id for job in left.jobs} & {job.id for job in ended.jobs}


# Bounds


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_page_for_nobody_is_empty(store: Store, limit: int) -> None:
    await store.put([new_job()])
    page = await store.admin.page(ALL, limit)
    assert (page.jobs, page.looked) == ([], 0)
    assert len((await store.admin.page(ALL, 5, page.cursor)).jobs) == 1


async def test_a_page_has_a_thousand_jobs_at_most(store: Store) -> None:
    await store.put([new_job() for _ in range(MOST_LISTED + 5)])
    page = await store.admin.page(ALL, 10 * MOST_LISTED)
    assert len(page.jobs) == MOST_LISTED
    assert len((await store.admin.page(ALL, 10, page.cursor)).jobs) == 5


@pytest.mark.parametrize(
    "which",
    [Filter(tasks=("rare",)), Filter(tags=("x",)), Filter(error="oops"), Filter(since=2**52)],
    ids=str,
)
async def test_a_filter_without_an_order_looks_at_so_many_jobs_and_goes_on(
    store: Store, which: Filter
) -> None:
    await store.put([new_job() for _ in range(700)])
    rare = new_job(task="rare", options='{"tags":["x"]}')
    await store.put([rare])
    limit = 5
    found = await pages(store, which, limit)
    assert [page.looked for page in found[:3]] == [LEAST_LOOKED] * 3
    assert found[0].jobs == []
    meant = [rare.id] if which.tasks or which.tags else []
    assert [job.id for page in found for job in page.jobs] == meant
    [large, *_] = await pages(store, which, 30)
    assert large.looked == LOOKED_FOR_EACH * 30


async def test_an_empty_store_has_one_empty_page(store: Store, clock: ManualClock) -> None:
    page = await store.admin.page()
    assert (page.jobs, page.cursor, page.looked, page.at) == ([], None, 0, clock.now())


# Ids


async def test_jobs_are_found_by_how_their_ids_begin(store: Store, clock: ManualClock) -> None:
    jobs = [new_job(id=JobId(f"aa{n:02}"), queue=("mail", "other")[n % 2]) for n in range(30)]
    await store.put(
        [*jobs, *(new_job(id=JobId(f"b[{n}*")) for n in range(9)), *(new_job() for _ in range(300))]
    )
    await end(store, clock, 3)
    await end(store, clock, 3, dead=True)
    assert sorted(await ids(store, Filter(begins="aa"), 4)) == ids_of(jobs)
    assert sorted(await ids(store, Filter(begins="aa1"), 4)) == ids_of(jobs[10:20])
    assert await ids(store, Filter(begins="aa07")) == [jobs[7].id]
    assert len(await ids(store, Filter(begins="b["))) == 9
    assert await ids(store, Filter(begins="b[3*")) == ["b[3*"]
    assert await ids(store, Filter(begins="b*")) == []
    assert await ids(store, Filter(begins="zz")) == []
    some = await ids(store, Filter(begins="aa", queues=("other",)))
    assert sorted(some) == ids_of(jobs[1::2])
    assert await store.admin.count(Filter(begins="b[")) == {"mail": {State.WAITING: 9}}


# Cursors


@pytest.mark.parametrize(
    ("cursor", "problem"),
    [
        ("", "it is none that a store made"),
        ("nonsense", "it is none that a store made"),
        ("elsewhere.AAAA", "another kind of store made it, and this one is "),
        ("{own}.", "it is none that a store made"),
        ("{own}.!!", "it is damaged, or not whole"),
        ("{own}.AAAA", "it is damaged, or not whole"),
        ("{own}." + "A" * 9_000, "it is none that a store made"),
        ("{cut}", "it is damaged, or not whole"),
        ("{changed}", "it is damaged, or not whole"),
        ("{crafted}", "it is damaged, or not whole"),
    ],
)
async def test_a_cursor_that_this_store_did_not_make_is_refused(
    store: Store, cursor: str, problem: str
) -> None:
    await store.put([new_job() for _ in range(5)])
    sound = (await store.admin.page(WAITING, 2)).cursor
    assert sound is not None
    own, _, text = sound.partition(".")
    at = len(text) // 2
    changed = f"{own}.{text[:at]}{'B' if text[at] == 'A' else 'A'}{text[at + 1 :]}"
    crafted = cursor_of(own, 0, Spot("ready", None, ({"no": "place"},)))  # type: ignore[arg-type]
    given = cursor.replace("{own}", own).replace("{cut}", sound[:-3]).replace("{changed}", changed)
    given = given.replace("{crafted}", crafted)
    with pytest.raises(BadCursor, match="leads nowhere here: ") as told:
        await store.admin.page(WAITING, 2, given)
    assert told.value.problem.startswith(problem)


async def test_a_cursor_of_another_list_is_refused(store: Store) -> None:
    await store.put([new_job() for _ in range(5)])
    cursor = (await store.admin.page(WAITING, 2)).cursor
    for which in (ALL, Filter(queues=("mail",)), Filter(states=(State.WAITING,), tags=("x",))):
        with pytest.raises(BadCursor, match="it was made for a list with other filters"):
            await store.admin.page(which, 2, cursor)
    moved = Filter(states=(State.WAITING,), since=1, at=5)
    assert len((await store.admin.page(moved, 9, cursor)).jobs) == 3


def test_a_cursor_serves_programs_that_know_more_lists() -> None:
    """A program that keeps one more order than the one that made the cursor, and one fewer."""
    fewer = Orders("any", (Order.FRONT,), (), frozenset(Order))
    more = fewer._replace(running=(Order.FRONT, Order.BEHIND, Order.LOST))
    asked: list[Order] = []

    def answer(what: Asked) -> Answer:
        asked.append(what.order)
        return Answer([Met((len(asked),), None)], ends=what.order is not Order.DEAD)

    for makes, goes_on in [(fewer, more), (more, fewer)]:
        walk = paged(makes, Filter(states=(State.RUNNING, State.DEAD)), 1, None, 0)
        asked.clear()
        cursor = held(walk, answer).cursor
        assert asked[-1] is Order.DEAD
        asked.clear()
        held(paged(goes_on, Filter(states=(State.RUNNING, State.DEAD)), 1, cursor, 0), answer)
        assert set(asked) == {Order.DEAD}
    lost = cursor_of("any", digest_of_filter(Filter(states=(State.DEAD,))), Spot(Order.LOST))
    with pytest.raises(BadCursor, match="it was made for a list with other filters"):
        held(paged(fewer, Filter(states=(State.DEAD,)), 1, lost, 0), answer)


@pytest.mark.parametrize(
    "any_url", [name for name in STORES if name != "memory"], indirect=True
)  # Memory is of one process.
async def test_a_cursor_serves_other_programs(store: Store, any_url: str) -> None:
    jobs = [new_job() for _ in range(9)]
    await store.put(jobs)
    first = await store.admin.page(WAITING, 4)
    program = (
        "import asyncio, sys\n"
        "from fairlead.core.admin import Filter\n"
        "from fairlead.core.job import State\n"
        "from fairlead.stores import store_for\n"
        "async def main(url, cursor):\n"
        "    store = store_for(url)\n"
        "    page = await store.admin.page(Filter(states=(State.WAITING,)), 9, cursor)\n"
        "    print(*(job.id for job in page.jobs), page.cursor)\n"
        "    await store.close()\n"
        "asyncio.run(main(*sys.argv[1:]))\n"
    )
    assert first.cursor is not None
    said = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program, any_url, first.cursor],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.split() == [*ids_of(jobs[4:]), "None"], said.stderr
