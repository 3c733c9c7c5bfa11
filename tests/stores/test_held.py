"""What a worker holds, for whoever ends its jobs in its place; shared deaths; spared leases."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from fairlead.core.admin import Migration, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.failure import described
from fairlead.core.job import ALONE, MOST_RUNS, Job, State
from fairlead.core.outcome import Crashed, Done, Failed, Lost, Outcome, Returned, Snoozed
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.sqlite import migrate
from fairlead.stores.sqlite.statements import migrations
from tests import deeds
from tests.words import by, claim, done, failed, new_job, returned, settled

IN_COMPANY = Crashed("SIGSEGV", company=True)


async def held(store: Store, worker: str) -> dict[str, Job]:
    return {job.id: job for job in await store.held(worker)}


# Held


async def test_a_worker_holds_what_it_claimed_and_nothing_else(store: Store) -> None:
    await store.put([new_job() for _ in range(5)])
    ours = await claim(store, slots=2, worker="w1")
    theirs = await claim(store, slots=2, worker="w2")
    assert await held(store, "w1") == {job.id: job for job in ours}
    assert await held(store, "w2") == {job.id: job for job in theirs}
    assert await held(store, "w3") == {}


async def test_what_was_settled_is_not_held(store: Store) -> None:
    await store.put([new_job() for _ in range(3)])
    first, second, third = await claim(store)
    await store.settle([done(first), returned(second)])
    assert set(await held(store, "w1")) == {third.id}


async def test_a_held_job_comes_with_its_counts_and_its_fence(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    for outcome in (Crashed("SIGSEGV"), Failed(described("E", "m"))):
        [job] = await claim(store)
        await store.settle([settled(job, outcome, clock.now())])
        clock.advance(60)
    [job] = await claim(store)
    [kept] = await store.held("w1")
    assert kept == job
    assert (kept.attempt, kept.crashes, kept.lost) == (2, 1, False)


async def test_a_job_is_held_that_was_claimed_behind_many_that_only_others_know(
    store: Store,
) -> None:
    """A claim goes on along them, so `held` must as well (F79)."""
    await store.announce(Worker("w2", {"theirs": 1}), 60 * SECOND)
    for _ in range(25):
        await store.put([new_job("theirs") for _ in range(1_000)])
    await store.put([new_job("ours")])
    jobs: list[Job] = []
    for _ in range(60):
        jobs += await claim(store, worker="w1", capable={"ours": 1})
        if jobs:
            break
    assert await held(store, "w1") == {job.id: job for job in jobs}
    assert len(jobs) == 1


async def test_a_passed_lease_is_still_held_while_nobody_took_the_job(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    [job] = await claim(store, lease=10)
    clock.advance(11)
    assert await held(store, "w1") == {job.id: job}


async def test_who_took_a_job_over_as_lost_does_not_hold_it(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    await claim(store, worker="w1", lease=10)
    clock.advance(11)
    [second] = await claim(store, worker="w2", lease=10)
    assert second.lost
    assert await held(store, "w2") == {}
    assert [job.fence for job in await store.held("w1")] == [second.fence]


# Shared deaths


async def test_a_shared_death_is_known_when_the_job_is_claimed_again(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job(), new_job()])
    one, other = await claim(store)
    assert one.shared_deaths == 0
    await store.settle([settled(one, IN_COMPANY, clock.now()), returned(other)])

    again = {job.id: job for job in await claim(store)}
    assert (again[one.id].shared_deaths, again[other.id].shared_deaths) == (1, 0)
    assert (again[one.id].crashes, again[one.id].attempt) == (0, 1)
    assert (await held(store, "w1"))[one.id].shared_deaths == 1
    record = await store.admin.find(one.id)
    assert record is not None
    assert record.shared_deaths == 1
    assert record.errors[-1].error == "Crashed"


async def test_shared_deaths_are_counted(store: Store, clock: ManualClock) -> None:
    """Small and large ones, for what is large of a job is read apart."""
    large = replace(new_job(), payload=f'["{"x" * 10_000}"]')
    await store.put([new_job(), large])
    for count in range(5):
        jobs = await claim(store)
        assert [job.shared_deaths for job in jobs] == [count, count]
        await store.settle([settled(job, IN_COMPANY, clock.now()) for job in jobs])


async def test_the_count_of_shared_deaths_ends_where_that_of_runs_does(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    most = replace(settled(job, IN_COMPANY, clock.now()), shared_deaths=MOST_RUNS)
    await store.settle([most])
    [job] = await claim(store)
    await store.settle([settled(job, IN_COMPANY, clock.now())])
    [job] = await claim(store)
    assert job.shared_deaths == MOST_RUNS
    assert await store.admin.audit() == []


async def test_jobs_that_end_alike_keep_their_own_counts_of_shared_deaths(
    store: Store, clock: ManualClock
) -> None:
    jobs = [new_job() for _ in range(3)]
    await store.put(jobs)
    for count in range(3):
        claimed = {job.id: job for job in await claim(store)}
        crashed = [settled(claimed[new.id], IN_COMPANY, clock.now()) for new in jobs[count:]]
        await store.settle([*crashed, *(returned(claimed[new.id]) for new in jobs[:count])])
    again = {job.id: job.shared_deaths for job in await claim(store)}
    assert [again[new.id] for new in jobs] == [1, 2, 3]


@pytest.mark.parametrize(
    ("outcome", "shared"),
    [
        (Failed(described("E", "m")), 0),
        (Snoozed(1), 0),
        (Crashed("SIGSEGV"), 2),
        (Returned(), 2),
        (Returned(cut_off=True), 2),
        (Lost(), 2),
    ],
)
async def test_shared_deaths_are_cleared_by_a_run_that_ends_by_itself(
    store: Store, clock: ManualClock, outcome: Outcome, shared: int
) -> None:
    await store.put([new_job()])
    for ended in (IN_COMPANY, IN_COMPANY, outcome):
        [job] = await claim(store)
        await store.settle([settled(job, ended, clock.now())])
        clock.advance(60)
    [job] = await claim(store)
    assert job.shared_deaths == shared


async def test_a_suspect_that_succeeds_is_simply_done(store: Store, clock: ManualClock) -> None:
    await store.put([new_job()])
    for ended in (IN_COMPANY, Done('"ok"')):
        [job] = await claim(store)
        await store.settle([settled(job, ended, clock.now())])
    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.result, record.attempt) == ("done", '"ok"', 1)
    assert record.shared_deaths == 0


async def test_who_shared_deaths_and_is_replayed_begins_anew(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    for ended in (IN_COMPANY, Failed(described("E", "m"), transient=False)):
        [job] = await claim(store)
        await store.settle([settled(job, ended, clock.now())])
    assert await deeds.revive(store, [job.id], [State.DEAD], by()) == [job.id]
    [job] = await claim(store)
    assert (job.shared_deaths, job.suspect) == (0, False)


async def test_who_crashed_alone_and_is_hastened_still_begins_alone(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    for ended in (Crashed("SIGSEGV"), IN_COMPANY, Failed(described("E", "m"), after=60)):
        [job] = await claim(store)
        await store.settle([settled(job, ended, clock.now())])
    assert await deeds.revive(store, [job.id], [State.WAITING], by()) == [job.id]
    [job] = await claim(store)
    assert (job.crashes, job.shared_deaths, job.runs_alone) == (0, ALONE, True)


# Spared leases


async def test_a_spared_lease_is_left_to_its_worker(store: Store, clock: ManualClock) -> None:
    await store.put([new_job()])
    [job] = await claim(store, lease=10)
    clock.advance(11)
    assert await claim(store, worker="w2", spare_lost=True) == []
    assert await store.extend([(job.id, job.fence)], 10 * SECOND) != []
    clock.advance(11)
    [taken] = await claim(store, worker="w2")
    assert (taken.id, taken.lost) == (job.id, True)


async def test_sparing_holds_up_nobody_else(store: Store, clock: ManualClock) -> None:
    await store.put([new_job(), new_job()])
    [lost] = await claim(store, slots=1, lease=10)
    clock.advance(11)
    [fresh] = await claim(store, worker="w2", spare_lost=True)
    assert (fresh.id != lost.id, fresh.lost) == (True, False)


# A file of the version before


async def test_a_file_of_an_earlier_schema_is_brought_up_to_date(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    old = store_for(url, clock)
    await old.put([new_job()])
    [running] = await claim(old, worker="w1")
    await old.close()
    script = "ALTER TABLE fairlead_job ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey';\n"
    next_ = Migration(migrate.newest() + 1, "colour", script)
    scripts = [*migrations(), next_]
    monkeypatch.setattr(migrate, "migrations", lambda: scripts)

    new = store_for(url, clock)
    await new.open()
    assert [step.applied_at for step in await new.admin.migrations()] == [clock.now()] * len(
        scripts
    )
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        assert raw.execute("SELECT colour FROM fairlead_job").fetchall() == [("grey",)]
    [job] = await new.held("w1")
    assert (job.id, job.fence, job.attempt) == (running.id, running.fence, 1)
    assert set(await new.settle([settled(job, IN_COMPANY, clock.now())])) == {job.id}
    [job] = await claim(new)
    assert job.shared_deaths == 1
    await new.settle([failed(job, clock.now())])
    assert await new.admin.audit() == []
    await new.close()
