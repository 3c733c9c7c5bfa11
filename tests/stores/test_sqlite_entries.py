"""Entries on SQLite: what a read costs, and what becomes of them when their job ends."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.core.acts import FINAL
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Wanted
from fairlead.core.ids import JobId
from fairlead.core.job import State
from fairlead.core.outcome import Settlement
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.sqlite.entries import _read
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
