"""Entries on SQLite: what a read costs, and what becomes of them when their job ends."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fairlead.core.acts import FINAL, Delete
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Wanted
from fairlead.core.ids import JobId
from fairlead.core.job import State
from fairlead.core.outcome import Settlement
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.sqlite.acts import SqliteActs
from fairlead.stores.sqlite.entries import Request, SqliteEntries, _read
from fairlead.stores.sqlite.store import SqliteStore
from tests import deeds
from tests.words import by, claim, done, new_job

MANY = 3_000


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted("figure", prefix="2999"), ["2999"]),
        (Wanted("figure", prefix="29", after="2998"), ["2999"]),
        (Wanted("figure", after="2998"), ["2999"]),
        (Wanted("figure", prefix="z"), []),
    ],
    ids=["the beginning", "the beginning, after one", "after one", "none"],
)
async def test_a_range_takes_as_many_steps_as_it_has_entries(
    tmp_path: Path, wanted: Wanted, found: list[str]
) -> None:
    store = store_for(f"sqlite:///{tmp_path}/jobs.db?durability=fast")
    for first in range(0, MANY, 1_000):
        keys = [f"{number:04}" for number in range(first, first + 1_000)]
        await store.entries.write([Change("figure", key, "1") for key in keys])
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1

    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as connection:
        connection.set_progress_handler(step, 1)
        assert [each.key for each in _read(connection, wanted, 0)] == found
    assert steps < 300
    await store.close()


async def owned(store: Store, state: State | None, number: int = 1) -> JobId:
    """Put a job with entries, and bring it to its end if one is named."""
    await store.put([new_job()])
    [job] = await claim(store)
    changes = [Change("saved", f"{n:04}", "1", owner=job.id) for n in range(number)]
    assert None not in await store.entries.write(changes)
    if state is not None:
        await store.settle([Settlement(job.id, job.fence, state, "done", reason="because")])
    return job.id


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_for(f"sqlite:///{tmp_path}/jobs.db?durability=fast", clock)
    yield store
    await store.close()


@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.CANCELLED])
async def test_entries_stay_where_they_are_when_a_job_ends_and_comes_back(
    store: Store, tmp_path: Path, state: State
) -> None:
    """They may be many megabytes: what ends a job, or lets it run again, takes none of them up."""
    job = await owned(store, None)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        raw.execute("UPDATE fairlead_entry SET seq = 77")
        raw.commit()
        [[fence]] = raw.execute("SELECT fence FROM fairlead_job").fetchall()
        await store.settle([Settlement(job, fence, state, "done", reason="because")])
        assert raw.execute("SELECT seq FROM fairlead_entry").fetchall() == [(77,)]
        await deeds.revive(store, [job], [state], by())
        assert raw.execute("SELECT seq FROM fairlead_entry").fetchall() == [(77,)]


async def test_who_has_many_entries_keeps_no_other_from_being_forgotten(
    store: Store, clock: ManualClock
) -> None:
    whole, half = await owned(store, State.DONE), await owned(store, State.DONE, 1_000)
    plain = new_job()
    await store.put([plain])
    await store.settle([done(job) for job in await claim(store)])
    clock.advance(100)
    assert (await store.upkeep(SECOND)).pruned_entries == 1_000
    assert [await store.admin.find(each) for each in (whole, plain.id)] == [None, None]
    assert await store.admin.find(half) is not None
    assert (await store.upkeep(SECOND)).pruned_jobs == 1
    assert await store.admin.find(half) is None
    assert await store.admin.audit() == []


async def test_who_has_lost_nothing_yet_may_still_run_again(
    store: Store, clock: ManualClock
) -> None:
    """Somebody keeps what ended for longer than another, who began to forget it."""
    first, last = await owned(store, State.DONE, 1_000), await owned(store, State.DONE)
    clock.advance(100)
    await store.upkeep(SECOND)
    assert await deeds.revive(store, [first, last], FINAL, by()) == [last]
    assert [each.key for each in await store.entries.read(Wanted("saved", last))] == ["0000"]


@pytest.mark.parametrize("place", ["finished", "dead"])
async def test_an_ended_job_that_does_not_say_what_it_has_is_found_and_put_right(
    store: Store, tmp_path: Path, place: str
) -> None:
    """Else its entries would stay when it is forgotten."""
    state = State.DEAD if place == "dead" else State.DONE
    job = await owned(store, state)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        raw.execute(f"UPDATE fairlead_{place} SET attached = 0")
        raw.commit()
    [finding] = await store.admin.audit()
    assert finding.problem.endswith(f"{job} does not say that it has entries")
    await store.admin.repair(by("repair"))
    assert await store.admin.audit() == []
    await deeds.delete(store, [job], [state], by("delete"))
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        assert raw.execute("SELECT * FROM fairlead_entry").fetchall() == []


async def test_an_entry_whose_job_is_gone_is_found_and_removed(
    store: Store, tmp_path: Path
) -> None:
    for state in (None, State.DONE, State.DEAD):
        await owned(store, state)
    for number, place in enumerate(("job", "finished", "dead"), start=1):
        with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
            raw.execute(f"DELETE FROM fairlead_{place}")
            raw.commit()
        assert len(await store.admin.audit()) == 1, number
        assert len(await store.admin.repair(by("repair"))) == 1
        assert await store.admin.audit() == []


async def test_a_job_that_has_lost_all_its_entries_does_not_run_again(
    store: Store, clock: ManualClock
) -> None:
    """Its row may stand for long: those that ended before it are forgotten first."""
    await store.put([new_job() for _ in range(1_500)])
    while jobs := await claim(store, slots=500):
        await store.settle([done(job) for job in jobs])
    clock.advance(1)
    job = await owned(store, State.DONE, number=3)
    clock.advance(100)
    told = await store.upkeep(SECOND)
    assert (told.pruned_jobs, told.pruned_entries) == (1_000, 3)
    assert await store.admin.find(job) is not None
    assert await store.entries.read(Wanted("saved", job)) == []
    assert await deeds.revive(store, [job], FINAL, by()) == []


async def test_an_ended_job_whose_id_cannot_be_read_keeps_nobody_from_upkeep(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    damaged, sound = await owned(store, State.DONE), await owned(store, State.DONE)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        change = "UPDATE fairlead_finished SET id = CAST(x'ff' AS TEXT) WHERE id = ?"
        raw.execute(change, [damaged])
        raw.commit()
    clock.advance(100)
    await store.upkeep(SECOND)
    assert await store.admin.find(sound) is None


async def test_one_transaction_gives_no_version_twice(store: Store, tmp_path: Path) -> None:
    """Several callers share it, and its instant."""
    await store.open()
    assert isinstance(store.entries, SqliteEntries)
    requests = [
        Request([Change("lock", "a", "A", expect=0)], None),
        Request([Change("lock", "a")], None),
        Request([Change("lock", "a", "B", expect=0)], None),
    ]
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as raw:
        [first], gone, [last] = store.entries._write(raw, requests)
    assert gone == [0]
    assert first is not None
    assert last is not None
    assert last > first


@pytest.mark.parametrize("state", [State.DONE, State.DEAD])
async def test_a_job_with_many_entries_is_deleted_in_bounded_transactions(
    store: Store, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every other process would wait for the lock meanwhile."""
    jobs = [await owned(store, state, 900) for _ in range(3)]
    removed: list[int] = []
    real = SqliteActs.lose_entries

    def counted(acts: SqliteActs, connection: Any, items: Any) -> list[int]:
        removed.extend(real(acts, connection, items))
        return removed[-1:]

    monkeypatch.setattr(SqliteActs, "lose_entries", counted)
    assert await deeds.delete(store, jobs, FINAL, by()) == jobs
    assert removed == [1_000, 1_000, 700, 0]
    assert [await store.entries.read(Wanted("saved", job)) for job in jobs] == [[], [], []]


async def test_a_deletion_goes_with_what_was_written_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing belongs to nobody, though the entries were to go before."""
    job = await owned(store, State.DONE, 2)
    monkeypatch.setattr(SqliteActs, "lose_entries", lambda *_: [0])
    assert await deeds.delete(store, [job], FINAL, by()) == [job]
    assert await store.admin.audit() == []


async def test_a_deletion_that_was_cut_short_leaves_nothing_that_runs_again(store: Store) -> None:
    job = await owned(store, State.DEAD, 900)
    other = await owned(store, State.DEAD, 900)
    assert isinstance(store, SqliteStore)
    deed, action = Delete([job, other], [State.DEAD]), by("delete")
    await store.admin._write(store.admin._acts.lose_entries, [(deed, action)])
    assert [line.verb for line in await store.admin.audit_log()] == ["delete"]
    assert await deeds.revive(store, [job, other], FINAL, by()) == []
    assert await store.admin.audit() == []


async def test_a_live_job_keeps_its_entries_though_one_of_its_id_has_ended(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    job = await owned(store, State.DONE)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        columns = "id, queue, task, version, attached, run_at, order_at, enqueued_at, payload"
        raw.execute(
            f"INSERT INTO fairlead_job ({columns}, parked) SELECT {columns}, 0 FROM fairlead_finished"
        )
        raw.commit()
    clock.advance(100)
    await store.upkeep(SECOND)
    assert [each.key for each in await store.entries.read(Wanted("saved", job))] == ["0000"]


async def test_a_job_whose_mark_is_damaged_leaves_no_entries_to_the_next_of_its_id(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    await store.entries.write([Change("saved", "a", "1", owner=job.id)])
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        raw.execute("UPDATE fairlead_job SET attached = 'abc'")
        raw.commit()
    await store.settle([done(job)])
    clock.advance(100)
    while (await store.upkeep(SECOND)).more:
        pass
    await store.put([new_job(id=job.id)])
    assert await store.entries.read(Wanted("saved", job.id)) == []
