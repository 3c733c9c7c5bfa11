"""The ways of a job on PostgreSQL: into the line, out of it, aside and back; every verb takes them."""

import re

import psycopg
import pytest

from fairlead.core.admin import Filter, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Wanted
from fairlead.core.job import Gate, State
from fairlead.core.store import Store
from fairlead.stores.postgres.catalog import ORDER, text_of
from tests import deeds
from tests.words import by, claim, done, failed, new_job, plan

TEXTS = {name: text_of(name) for name in ORDER}


def files_with(pattern: str) -> set[str]:
    """The files of functions whose text has this."""
    return {name for name, text in TEXTS.items() if re.search(pattern, text)}


def test_there_is_one_way_in_and_one_way_out() -> None:
    assert files_with(r"INSERT INTO job\b") == {"functions/enter"}
    # A put takes back what it let in just now, if that is known already.
    assert files_with(r"DELETE FROM job\b") == {"functions/leave", "functions/known"}
    assert files_with(r"INSERT INTO (finished|dead)\b") == {"functions/leave"}
    assert TEXTS["functions/leave"].count("DELETE FROM job ") == 1
    assert TEXTS["functions/leave"].count("INSERT INTO finished") == 1
    assert TEXTS["functions/leave"].count("INSERT INTO dead") == 1


def test_there_is_one_way_aside_and_one_back() -> None:
    found = {
        (name, value)
        for name, text in TEXTS.items()
        for update in re.findall(r"UPDATE job SET.*?(?:WHERE|FROM)", text, re.DOTALL)
        for value in re.findall(r"(?:SET|,)\s+parked = (\w+)", update)
    }
    assert found == {
        ("functions/park", "reason"),
        ("functions/park", "3"),
        ("functions/leave", "parked_again"),  # What ran and waits again, beside what leaves.
    }


async def test_a_worker_brings_back_what_it_knows_and_no_later_version(
    store: Store, clock: ManualClock
) -> None:
    """Versions are numbers: 10 is not between 1 and 9."""
    versions = [2, 9, 10, 100]
    await store.put([new_job("old", version=version) for version in versions])
    others = ["old 2", "ol", "old 0000000005"]
    await store.put([new_job(task) for task in others])
    assert len((await store.claim(plan(capable={"t": 1}))).parked) == 7
    await store.announce(Worker("w", {"old": 9}), SECOND)
    parked = {("old", 10), ("old", 100), *((task, 1) for task in others)}
    assert set(await deeds.unknown(store)) == parked, "and the rest is in the order"
    assert {job.version for job in await claim(store, capable={"old": 9})} == {2, 9}
    assert {job.version for job in await claim(store, capable={"old": 99})} == {10}
    rest = {(job.task, job.version) for job in await claim(store)}
    assert rest == {("old", 100), *((task, 1) for task in others)}


async def test_a_run_that_was_parked_as_lost_and_fails_late_waits_for_its_time_only(
    store: Store, clock: ManualClock
) -> None:
    await store.put([new_job()])
    [job] = await claim(store, lease=20)
    clock.advance(30)
    [parked] = (await store.claim(plan(capable={"other": 1}))).parked
    assert parked.id == job.id
    assert set(await store.settle([failed(job, clock.now())])) == {job.id}
    assert await store.admin.audit() == []
    clock.advance(60)
    assert [again.id for again in await claim(store, capable={"t": 1})] == [job.id]


async def test_a_job_that_a_person_hastens_is_in_the_order_at_once(store: Store) -> None:
    job = new_job(delay=60 * SECOND)
    await store.put([job])
    await deeds.revive(store, [job.id], [State.WAITING], by())
    record = await store.admin.find(job.id)
    assert record is not None
    assert record.gate is None


@pytest.mark.parametrize(
    ("damage", "task"),
    [("park_key = NULL", "strange"), ("park_key = 'x'", "strange"), ("park_key = 'x'", "t")],
)
async def test_a_job_that_is_parked_for_something_else_is_found_and_mended(
    shop: Store, owner: psycopg.Connection, damage: str, task: str
) -> None:
    job = new_job(task)
    await shop.put([job])
    await shop.claim(plan(capable={"u": 1})) if task == "strange" else None
    owner.execute(f"UPDATE job SET {damage}".encode())
    [finding] = await shop.admin.audit()
    assert finding.problem == f"job {job.id} is parked for something else than it says"
    assert await shop.admin.repair(by()) == [f"wrote anew for what job {job.id} waits"]
    assert await shop.admin.audit() == []
    assert [run.id for run in await claim(shop, capable={task: 1})] == [job.id]


@pytest.mark.parametrize("damage", ["parked = -1", "parked = -1, park_key = 'x'", "parked = 9"])
async def test_a_job_that_is_parked_for_no_reason_is_put_into_the_order(
    shop: Store, owner: psycopg.Connection, damage: str
) -> None:
    """A newer program's gate finds its jobs by their keys; without one nobody does."""
    job = new_job()
    await shop.put([job])
    owner.execute(f"UPDATE job SET {damage}".encode())
    [finding] = await shop.admin.audit()
    assert finding.problem == f"job {job.id} is parked for no reason"
    assert await shop.admin.repair(by()) == [f"put job {job.id} into the order"]
    assert [run.id for run in await claim(shop)] == [job.id]


async def test_what_a_newer_program_parked_is_mended_and_stays_parked(
    shop: Store, owner: psycopg.Connection
) -> None:
    job = new_job()
    await shop.put([job])
    owner.execute("UPDATE job SET parked = 9, park_key = 'k', shared_deaths = -1, order_at = 0")
    assert len(await shop.admin.repair(by())) == 2
    assert await shop.admin.audit() == []
    record = await shop.admin.find(job.id)
    assert record is not None
    assert (record.gate, record.shared_deaths) == (Gate.NEWER_PROGRAM, 3)


async def test_a_job_that_gets_another_id_keeps_its_entries(
    shop: Store, owner: psycopg.Connection
) -> None:
    """As one that is finished as well, when the repair makes a dead letter of it."""
    await shop.put([new_job()])
    [job] = await claim(shop)
    await shop.settle([done(job)])
    owner.execute("CREATE TEMP TABLE ended AS SELECT * FROM finished")
    await deeds.revive(shop, [job.id], [State.DONE], by())
    await shop.entries.write([Change("saved", "a", "1", owner=job.id)])
    owner.execute("INSERT INTO finished SELECT * FROM ended")
    [told] = await shop.admin.repair(by())
    assert told.endswith("to the dead letters, under a new id")
    [letter] = await deeds.jobs(shop, Filter(states=(State.DEAD,)))
    [kept] = await shop.entries.read(Wanted("saved", letter.id))
    assert (kept.key, kept.value) == ("a", "1")


async def test_what_is_above_the_level_costs_a_claim_and_upkeep_a_bounded_look(
    shop: Store, owner: psycopg.Connection
) -> None:
    """However many jobs of a newer program are overdue."""
    read = (
        "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::integer "
        "FROM pg_stat_xact_user_tables WHERE relname = 'job'"
    )
    await shop.put([new_job(level=2) for _ in range(1_000)])
    for times in range(3):
        owner.execute(
            "INSERT INTO job (id, queue, task, version, level, parked, run_at, order_at, "
            "enqueued_at, payload) SELECT concat(left(id, 20), %s::text, row_number() OVER ()), "
            "queue, task, version, level, parked, run_at, order_at, enqueued_at, payload FROM job",
            [times],
        )
    owner.execute("UPDATE job SET expires_at = 1")
    owner.execute("VACUUM ANALYZE job")
    for verb in ("look_after('{}', 100, stamp(), 1)", "expire(stamp(), 100, 1, 1000)"):
        with owner.transaction():
            before = owner.execute(read).fetchone()
            owner.execute(f"SELECT {verb}".encode())
            after = owner.execute(read).fetchone()
        assert before is not None
        assert after is not None
        assert after[0] - (before[0] or 0) < 2_500
    assert owner.execute("SELECT count(*) FROM job").fetchall() == [(8_000,)]
    owner.execute("DELETE FROM job")
