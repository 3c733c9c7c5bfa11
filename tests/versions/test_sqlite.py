"""What only a file can show of a newer program that shares it (P14)."""

import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fairlead import SchemaOutdated
from fairlead.core.admin import Filter, Migration, PoolShare, Wait, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change
from fairlead.core.job import Attached, JobRecord, NewJob, State
from fairlead.core.outcome import Crashed, Settlement
from fairlead.core.queue import Share
from fairlead.stores import store_for
from fairlead.stores.sqlite import migrate
from fairlead.stores.sqlite.migrate import newest
from fairlead.stores.sqlite.statements import statements
from fairlead.stores.sqlite.store import SqliteStore
from tests import deeds
from tests.versions.future_sqlite import ADDED, MORE
from tests.versions.test_steps import VERBS
from tests.words import by, claim, done, failed, new_job, plan, settled

DAY = 86_400 * SECOND
DECLINED = "upgrade this program"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = store_for(f"sqlite:///{path}", clock)
    assert isinstance(store, SqliteStore)
    await store.open()
    yield store
    await store.close()


def write(path: Path, script: str) -> None:
    """Do to the file what a newer program would."""
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(script)


def rows(path: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute(query).fetchall()


async def found(store: SqliteStore, job: NewJob) -> JobRecord:
    record = await store.admin.find(job.id)
    assert record is not None
    return record


# Tables that grow


async def work(store: SqliteStore, clock: ManualClock) -> None:
    """Do with jobs all that can be done with them."""
    await store.announce(Worker("w1", {"t": 1}), DAY)
    jobs = [new_job() for _ in range(6)]
    await store.put([*jobs, new_job(delay=SECOND), new_job("strange", expires_in=SECOND)])
    running = await claim(store, capable={"t": 1})
    assert len(running) == 6
    assert len(await store.extend([(job.id, job.fence) for job in running], DAY)) == 6
    good, dead, again, lost, wanted, left = running
    death = Settlement(dead.id, dead.fence, State.DEAD, "failed", reason="permanent")
    ends = [done(good, "1"), death, failed(again, clock.now()), settled(lost, Crashed("SIGKILL"))]
    assert len(await store.settle(ends)) == 4
    await deeds.cancel(store, [again.id, wanted.id], "no", by())
    assert await deeds.revive(store, [dead.id], [State.DEAD], by()) == [dead.id]
    assert await deeds.delete(store, [good.id], [State.DONE], by()) == [good.id]
    await deeds.pause(store, "mail", by())
    await deeds.resume(store, "mail", by())
    clock.advance(2)
    assert {job.id for job in await claim(store, capable={"t": 1})} >= {dead.id}
    await store.settle([done(left)])
    clock.advance(30 * DAY // SECOND)
    while rest := await claim(store):
        await store.settle([done(job) for job in rest])
    assert (await store.upkeep(DAY)).pruned_jobs > 0
    clock.advance(30 * DAY // SECOND)
    await store.upkeep(DAY)
    assert await store.admin.recent(0) == []
    assert await store.admin.count() == {}
    assert await store.admin.workers() == []


async def test_columns_tables_and_indexes_that_a_newer_program_adds_harm_nothing(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    await work(store, clock)
    write(path, ";".join(ADDED))
    await work(store, clock)
    assert await store.admin.audit() == []
    assert await store.admin.repair(by()) == []
    again = store_for(store.url, clock)
    assert [step.applied_at for step in await again.admin.migrations()] == [
        step.applied_at for step in await store.admin.migrations()
    ]
    await work(again, clock)
    await again.close()


async def test_a_column_that_was_added_stays_with_a_job_that_stays(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    await store.put([new_job()])
    write(path, f"{ADDED[0]}; UPDATE fairlead_job SET colour = 'red'")
    [job] = await claim(store)
    await store.settle([failed(job, clock.now())])
    assert rows(path, "SELECT colour FROM fairlead_job") == [("red",)]


async def test_notes_that_were_lost_are_judged_by_tables_that_grew(
    store: SqliteStore, path: Path
) -> None:
    write(path, f"{';'.join(ADDED)}; DELETE FROM fairlead_migration")
    assert all(step.applied_at is not None for step in await store.admin.migrations())
    again = store_for(store.url)
    await again.put([new_job()])
    await again.close()


@pytest.mark.parametrize(
    "column", ["odd CHECK (odd > 0)", "odd REFERENCES fairlead_job", "odd AS (seq)"]
)
@pytest.mark.parametrize("table", ["job", "entry"])
async def test_a_column_that_can_refuse_what_is_written_is_told(
    store: SqliteStore, path: Path, table: str, column: str
) -> None:
    write(path, f"ALTER TABLE fairlead_{table} ADD COLUMN {column}")
    [told] = await store.admin.audit()
    assert told.problem.startswith(f"the table fairlead_{table} was changed")


# Values that grow


async def test_what_is_not_known_of_a_stored_value_is_kept(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    """Through a failure, an end as damaged, and back into the line."""
    options = '{"tags":["a"],"mood":{"is":"good"}}'
    new = new_job(options=options)
    await store.put([new])
    [job] = await claim(store)
    await store.settle([failed(job, clock.now())])
    more = "json_set(errors, '$[0].mood', 'bad')"
    write(path, f"UPDATE fairlead_job SET errors = {more}, run_at = 0, order_at = 0, parked = 0")
    [job] = await claim(store)
    await store.settle([failed(job, clock.now())])
    write(path, "UPDATE fairlead_job SET crashes = 'many', run_at = 0, order_at = 0, parked = 0")
    assert await claim(store) == []
    dead = await found(store, new)
    assert (dead.state, dead.reason, len(dead.errors)) == (State.DEAD, "unreadable", 3)
    await deeds.revive(store, [new.id], [State.DEAD], by())
    [kept] = rows(path, "SELECT json_extract(errors, '$[0].mood'), options FROM fairlead_job")
    assert kept == ("bad", options)
    assert await deeds.jobs(store, Filter(tags=("a",))) != []
    assert await store.admin.audit() == []


@pytest.mark.parametrize("more", [MORE, "", "no JSON"])
async def test_fields_of_later_programs_go_where_a_job_goes(
    store: SqliteStore, path: Path, clock: ManualClock, more: str
) -> None:
    """To whatever end, back, and aside as damaged; whatever text they are."""
    new = new_job()
    await store.put([new])
    write(path, f"UPDATE fairlead_job SET more = '{more}'")
    everywhere = """
        SELECT more FROM fairlead_job UNION ALL SELECT more FROM fairlead_finished
        UNION ALL SELECT more FROM fairlead_dead
    """
    for state in (State.DONE, State.DEAD, State.CANCELLED):
        [job] = await claim(store)
        await store.settle([Settlement(job.id, job.fence, state, "failed", reason="so")])
        assert rows(path, everywhere) == [(more,)]
        await deeds.revive(store, [new.id], [state], by())
        assert rows(path, everywhere) == [(more,)]
    write(path, "UPDATE fairlead_job SET crashes = -1")
    assert await claim(store) == []
    assert rows(path, "SELECT more FROM fairlead_dead") == [(more,)]
    assert await store.admin.audit() == []
    assert await store.admin.repair(by()) == []


async def test_an_entry_that_is_written_anew_keeps_the_fields_of_later_programs(
    store: SqliteStore, path: Path
) -> None:
    await store.entries.write([Change("alert", "a", "1")])
    write(path, "ALTER TABLE fairlead_entry ADD COLUMN colour")
    write(path, "UPDATE fairlead_entry SET colour = 'red'")
    await store.entries.write([Change("alert", "a", "2")])
    assert rows(path, "SELECT value, colour FROM fairlead_entry") == [("2", "red")]


def test_only_the_ways_of_a_job_name_the_fields_of_later_programs() -> None:
    """So they cost nothing where jobs are claimed, renewed and looked at."""
    plain = {name: re.sub("--.*", "", text) for name, text in statements().items()}
    named = {name for name, text in plain.items() if re.search(r"\bmore\b", text)}
    ways = {"lift", "finish", "bury"}
    assert {name.removesuffix("_dead").removesuffix("_finished") for name in named} == ways


async def test_a_worker_may_say_more_of_itself_than_is_known(
    store: SqliteStore, path: Path
) -> None:
    await store.announce(Worker("w1", {"t": 1}, (PoolShare("p", 3, (Share("mail", 1),)),)), DAY)
    newer = """
        UPDATE fairlead_worker SET level = 2, capable = '{"t":1,"u":{"version":3},"v":2}',
        pools = json_set(pools, '$[0].mood', 'good', '$[0].queues[0].mood', 'bad')
    """
    write(path, newer)
    [worker] = await store.admin.workers()
    assert (dict(worker.capable), worker.level) == ({"t": 1, "v": 2}, 2)
    assert [(pool.name, pool.slots) for pool in worker.pools] == [("p", 3)]
    assert await store.admin.audit() == []
    await store.put([new_job("v", version=2), new_job("unheard of")])
    claimed = await store.claim(plan(capable={"t": 1}))
    assert [kind.task for kind in claimed.parked] == ["unheard of"]


async def test_a_worker_tells_its_level(store: SqliteStore) -> None:
    await store.announce(Worker("w1", {}, level=3), DAY)
    assert [worker.level for worker in await store.admin.workers()] == [3]
    await store.announce(Worker("w1", {}, level=4), DAY)
    assert [worker.level for worker in await store.admin.workers()] == [4]


# Jobs of a newer program


async def test_what_is_attached_to_a_job_goes_with_it(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    new = new_job()
    await store.put([new])
    hangs = int(Attached.ENTRIES | Attached.KEY)
    write(path, f"UPDATE fairlead_job SET attached = {hangs}")
    for state in (State.DEAD, State.DONE):
        [job] = await claim(store)
        await store.settle([Settlement(job.id, job.fence, state, "failed", reason="so")])
        place = "dead" if state is State.DEAD else "finished"
        assert rows(path, f"SELECT attached FROM fairlead_{place}") == [(hangs,)]
        await deeds.revive(store, [new.id], [state], by())
        assert rows(path, "SELECT attached FROM fairlead_job") == [(hangs,)]
    write(path, "UPDATE fairlead_job SET crashes = -1")
    assert await claim(store) == []
    assert rows(path, "SELECT attached FROM fairlead_dead") == [(hangs,)]


@pytest.mark.parametrize(
    "way",
    ["attempt = 'two and a half'", "parked = 9, park_key = 'later'", "size = -1", "options = '['"],
)
async def test_what_looks_damaged_of_a_newer_job_is_its_programs_business(
    store: SqliteStore, path: Path, way: str
) -> None:
    newer, older = new_job(level=2), new_job()
    await store.put([newer, older])
    write(path, f"UPDATE fairlead_job SET {way} WHERE level = 2")
    before = rows(path, "SELECT * FROM fairlead_job WHERE level = 2")
    [job] = await claim(store)
    assert job.id == older.id
    await store.upkeep(DAY)
    assert await store.admin.audit() == []
    assert await store.admin.repair(by()) == []
    assert rows(path, "SELECT * FROM fairlead_job WHERE level = 2") == before


async def test_a_job_that_a_newer_gate_parks_is_told_as_parked(
    store: SqliteStore, path: Path
) -> None:
    await store.put([new_job(level=2), new_job()])
    write(path, "UPDATE fairlead_job SET parked = 9, park_key = 'stripe' WHERE level = 2")
    waiting = (await deeds.waiting(store))["mail"]
    assert (waiting.parked, waiting.due) == (1, 1)
    [parked] = await deeds.jobs(store, Filter(waits=(Wait.PARKED,), at=2**60))
    assert parked.level == 2


async def test_a_newer_run_that_looks_damaged_is_not_moved_out_by_its_settlement(
    store: SqliteStore, path: Path
) -> None:
    await store.put([new_job(level=2)])
    [job] = await claim(store, level=2)
    write(path, "UPDATE fairlead_job SET claimed_at = 'yesterday'")
    assert await store.settle([done(job)]) == {}
    assert rows(path, "SELECT id FROM fairlead_job") == [(job.id,)]
    store.level = 2
    assert await store.settle([done(job)]) == {}
    assert (await store.admin.count())["mail"] == {State.DEAD: 1}


@pytest.mark.parametrize("level", ["'x'", "0", "1001", "-5", "2.5"])
async def test_a_level_that_is_none_is_damage(store: SqliteStore, path: Path, level: str) -> None:
    waiting, running = new_job(), new_job()
    await store.put([running])
    [job] = await claim(store)
    await store.put([waiting])
    write(path, f"UPDATE fairlead_job SET level = {level}")
    assert len(await store.admin.audit()) == 2
    assert await claim(store) == []
    record = await found(store, waiting)
    assert (record.state, record.reason, record.level) == (State.DEAD, "unreadable", 1)
    await store.admin.repair(by())
    assert await store.admin.audit() == []
    assert (await found(store, running)).id == job.id


# Steps of a newer program


def add_step(path: Path, serves: int) -> None:
    """Apply the next step, as a newer program would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("ALTER TABLE fairlead_job ADD COLUMN colour TEXT")
        note = "INSERT INTO fairlead_migration (version, applied_at, serves) VALUES (?, 1, ?)"
        raw.execute(note, (newest() + 1, serves))
        raw.execute("COMMIT")


async def test_a_producer_in_a_transaction_is_told_too(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as mine:
        store.put_within(mine, [new_job()]).run()
        mine.commit()
        add_step(path, serves=2)
        with pytest.raises(SchemaOutdated, match=DECLINED):
            store.put_within(mine, [new_job()]).run()
        mine.rollback()
    assert rows(path, "SELECT count(*) FROM fairlead_job") == [(1,)]
    cold = store_for(store.url)
    with closing(sqlite3.connect(path)) as mine:
        mine.execute("CREATE TABLE orders (id)")
        mine.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(SchemaOutdated, match=DECLINED):
            cold.put_within(mine, [new_job()]).run()
    await cold.close()


async def test_a_run_does_not_commit_on_a_schema_that_serves_it_no_longer(
    store: SqliteStore, path: Path
) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    add_step(path, serves=2)
    with pytest.raises(SchemaOutdated, match=DECLINED), store.transaction() as connection:
        store.complete_within(connection, done(job)).run()
    assert rows(path, "SELECT id FROM fairlead_job") == [(job.id,)]


async def test_an_error_of_a_newer_schema_is_told_as_what_it_is(
    store: SqliteStore, path: Path
) -> None:
    """The statements of an older program may not even compile there."""
    await store.put([new_job()])
    add_step(path, serves=2)
    write(path, "ALTER TABLE fairlead_job RENAME COLUMN fence TO gate")
    for verb in ("put", "claim", "count"):
        with pytest.raises(SchemaOutdated, match=DECLINED):
            await VERBS[verb](store, new_job())


async def test_after_newer_steps_what_differs_is_of_their_making(
    store: SqliteStore, path: Path
) -> None:
    changed = """
        DROP VIEW fairlead_dead_record;
        CREATE VIEW fairlead_dead_record AS
        SELECT *, 'dead' AS state, 0 AS parked, NULL AS lease_until, 0 AS cancel_requested,
               NULL AS result, 0 AS shared_deaths, 5 AS more FROM fairlead_dead;
        CREATE TRIGGER counted AFTER INSERT ON fairlead_dead BEGIN SELECT 1; END;
    """
    write(path, changed)
    assert len(await store.admin.audit()) == 2
    add_step(path, serves=1)
    assert await store.admin.audit() == []
    assert await store.admin.repair(by()) == []
    assert (
        "more"
        in rows(path, "SELECT sql FROM sqlite_master WHERE name = 'fairlead_dead_record'")[0][0]
    )
    write(path, "DROP INDEX fairlead_finished_at")
    assert [each.problem for each in await store.admin.audit()] == [
        "the index fairlead_finished_at is missing"
    ]
    assert len(await store.admin.repair(by())) == 1


async def test_a_step_that_cannot_be_read_serves_nobody_who_does_not_know_it(
    store: SqliteStore, path: Path
) -> None:
    add_step(path, serves=1)
    write(path, f"UPDATE fairlead_migration SET serves = 'all' WHERE version = {newest() + 1}")
    with pytest.raises(SchemaOutdated, match=DECLINED):
        await store_for(store.url).open()


@pytest.mark.parametrize(
    "script", ["CREATE TABLE more (id);\n", "UPDATE fairlead_job SET fence = fence;\n"]
)
async def test_the_step_of_a_program_is_stored_with_whom_it_serves(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """And noticed by programs that run, whatever the step does."""
    assert rows(path, "SELECT version, serves FROM fairlead_migration") == [(1, 1)]
    await store.put([new_job()])
    steps = [*migrate.migrations(), Migration(2, "colour", script, serves=2)]
    with monkeypatch.context() as future:
        future.setattr(migrate, "migrations", lambda: steps)
        newer = store_for(store.url)
        await newer.open()
        await newer.close()
    assert rows(path, "SELECT version, serves FROM fairlead_migration") == [(1, 1), (2, 2)]
    with pytest.raises(SchemaOutdated, match="is version 2, this program needs 1; upgrade"):
        await store.put([new_job()])


async def test_what_is_above_the_level_costs_a_claim_and_upkeep_a_bounded_look(
    store: SqliteStore, path: Path, clock: ManualClock
) -> None:
    """However many jobs of a newer program are overdue, or would be forgotten."""
    steps = {}
    for number in (0, 1_500, 4_500):
        await store.put([new_job(level=2, expires_in=SECOND) for _ in range(number)])
        clock.advance(2)
        write(
            path,
            """
            INSERT INTO fairlead_finished (id, queue, task, version, level, state, run_at, order_at,
                enqueued_at, payload, attempt, crashes, fence, finished_at)
            SELECT id || 'x', queue, task, version, level, 'done', 1, 1, 1, payload, 0, 0, 0, 1
            FROM fairlead_job
            """,
        )
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            count = 0

            def step() -> None:
                nonlocal count
                count += 1

            raw.set_progress_handler(step, 1)
            values = {"now": clock.now(), "before": clock.now(), "level": 1}
            values |= {"batch": 1_000, "look": 1_000, "latest": 2**60}
            for name in ("pending", "expired", "prune_finished"):
                raw.execute(statements()[name], values).fetchall()
        steps[number] = count
        write(path, "DELETE FROM fairlead_finished")
    assert steps[4_500] - steps[0] < 60_000
    assert steps[4_500] < steps[1_500] * 1.2
