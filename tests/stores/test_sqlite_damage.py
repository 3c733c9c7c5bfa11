"""Whatever somebody writes into the file, only what he wrote into is harmed (I22, F34, F75).

Every damage that `tests/fuzz/sqlite.py` knows is done, several at a time. Beside them healthy jobs
are claimed, renewed and settled, everything that people may ask is asked, the audit tells of it,
and the repair mends it all.
"""

import asyncio
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from fairlead.core.admin import NOT_MENDED, Filter, PoolShare, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change, Wanted
from fairlead.core.errors import StoreRefused
from fairlead.core.failure import described
from fairlead.core.ids import JobId
from fairlead.core.job import ALONE, LEVEL, Gate, Job, NewJob, State
from fairlead.core.outcome import Failed, Settlement
from fairlead.core.queue import Share
from fairlead.core.selection import select
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.sqlite import audit as sqlite_audit
from fairlead.stores.sqlite import heads, migrate, sound
from fairlead.stores.sqlite.repair import repair
from fairlead.stores.sqlite.statements import migrations
from fairlead.stores.sqlite.ways import Moment
from tests import deeds
from tests.fuzz.sqlite import NEVER_SOUND, TABLES, SqliteVictim
from tests.fuzz.victim import DEEP, GREATEST, Damage
from tests.words import are_new, by, claim, done, new_id, new_job, plan, settled

CAPABLE = {"t": 1}
DAY = 86_400 * SECOND


class Scene(NamedTuple):
    """A store with healthy jobs in every state, and one of each to be damaged."""

    store: Store
    clock: ManualClock
    victims: dict[str, JobId]
    healthy: list[JobId]
    running: list[Job]


async def put_scene(url: str) -> Scene:
    clock = ManualClock()
    store = store_for(url, clock)
    await store.open()
    share = PoolShare("default", 4, (Share("mail"),))
    await store.announce(Worker("w1", CAPABLE, (share,)), 60 * SECOND)
    ended = [new_job() for _ in range(4)]
    await store.put(ended)
    jobs = await claim(store, capable=CAPABLE)
    await store.settle([done(job, '"well"') for job in jobs[:2]])
    await store.settle([buried(job) for job in jobs[2:]])
    runs = [new_job() for _ in range(2)]
    await store.put(runs)
    running = await claim(store, capable=CAPABLE)
    strange = [new_job("strange") for _ in range(2)]
    await store.put(strange)
    assert await claim(store, capable=CAPABLE) == []
    later = [new_job(delay=5 * SECOND) for _ in range(2)]
    mortal = [new_job(expires_in=DAY, options='{"tags":["a"]}') for _ in range(3)]
    await store.put([*later, *mortal])
    await deeds.pause(store, "other", by())
    await store.entries.write(
        [
            Change("kind", "a", "1", due_at=5, expires_at=clock.now() + DAY),
            *(Change("kind", "b", "2", owner=each.id) for each in (*runs, later[0])),
        ]
    )
    victims = {
        "finished": ended[0].id,
        "dead": ended[2].id,
        "running": runs[0].id,
        "unknown": strange[0].id,
        "later": later[0].id,
        "waiting": mortal[1].id,
    }
    healthy = [later[1].id, mortal[0].id, mortal[2].id]
    return Scene(store, clock, victims, healthy, running)


def buried(job: Job) -> Settlement:
    return settled(job, Failed(described("Oops", "it broke"), transient=False))


async def look_at_everything(scene: Scene) -> None:
    store = scene.store
    for which in (Filter(), Filter(tags=("a",)), Filter(since=1), Filter(error="oops")):
        await deeds.jobs(store, which)
        await store.admin.count(which)
        await store.admin.groups(which)
    for job_id in (*scene.victims.values(), *scene.healthy):
        await store.admin.find(job_id)
        await store.admin.attempts(job_id)
        await store.admin.ahead(job_id)
        await store.admin.audit_log(job_id=job_id)
    await store.admin.recent(0)
    await store.admin.recent(0, queue="mail")
    await deeds.waiting(store)
    await deeds.running(store)
    await deeds.unknown(store)
    await deeds.paused(store)
    await store.admin.workers()
    await store.admin.audit_log()
    await store.held("w1")
    await store.admin.condition()
    await store.admin.migrations()
    await store.wait(0)
    select(await store.admin.snapshot(plan(capable=CAPABLE), 100))


async def work_on(scene: Scene) -> None:
    """Do all that workers do; every healthy job must run and be settled."""
    store, clock = scene.store, scene.clock
    alive = scene.running[1]
    leases = [(job.id, job.fence) for job in scene.running]
    assert alive.id in {each.id for each in await store.extend(leases, 60 * SECOND)}
    clock.advance(10)
    await store.announce(Worker("w2", CAPABLE), 60 * SECOND)
    await store.upkeep(DAY)
    [answers] = await asyncio.gather(store.put([extra := new_job()]))
    assert are_new(answers) == [True]
    assert are_new(await store.put([extra, extra2 := new_job()])) == [False, True]
    ran: set[JobId] = set()
    while jobs := await claim(store, slots=3, capable=CAPABLE):
        settled = await store.settle([done(job) for job in jobs])
        ran |= set(settled)
    assert {*scene.healthy, extra.id, extra2.id} <= ran
    written = await store.settle([done(job) for job in scene.running])
    assert alive.id in written
    clock.advance(120)
    await store.announce(Worker("w3", CAPABLE), 60 * SECOND)
    while jobs := await claim(store, capable=CAPABLE):
        await store.settle([done(job) for job in jobs])
    await store.upkeep(DAY)


async def act_on(scene: Scene) -> None:
    """Do all that people do; what is healthy beside the damage is done."""
    store = scene.store
    waiting = [new_job(delay=3600 * SECOND) for _ in range(2)]
    await store.put(waiting)
    ids = [*scene.victims.values(), *(job.id for job in waiting)]
    assert waiting[0].id in await deeds.revive(store, ids, [State.WAITING], by())
    assert {waiting[1].id} <= set(
        await deeds.cancel(store, [*scene.victims.values(), waiting[1].id], "no", by())
    )
    assert waiting[1].id in await deeds.delete(store, ids, [State.CANCELLED], by())


STATES = ("waiting", "running", "unknown", "later")
ALL = SqliteVictim("sqlite:///x").damages
OF_JOBS = [each for each in ALL if each.field.startswith("job.")]
OTHERS = [
    [each for each in ALL if each.field.startswith(f"{table}.")]
    for table in TABLES
    if table != "job"
]
SLICES = 6


def rounds() -> list[list[tuple[Damage, str]]]:
    """Share out all damages: in one round a few jobs, and one row of each other table."""
    number = max(len(OF_JOBS) // len(STATES) + 1, *map(len, OTHERS))
    shared: list[list[tuple[Damage, str]]] = [[] for _ in range(number)]
    for at, damage in enumerate(OF_JOBS):
        shared[at % number].append((damage, STATES[(at // number + at) % len(STATES)]))
    for damages in OTHERS:
        for at, damage in enumerate(damages):
            table = damage.field.partition(".")[0]
            shared[at].append((damage, table if table == "finished" else "dead"))
    return shared


@pytest.mark.parametrize("part", range(SLICES))
async def test_damage_harms_only_itself(tmp_path: Path, part: int) -> None:
    scene = await put_scene(f"sqlite:///{tmp_path}/scene.db?durability=fast")
    await scene.store.close()
    for number, damages in enumerate(rounds()[part::SLICES]):
        copy = tmp_path / f"{number}.db"
        shutil.copy(tmp_path / "scene.db", copy)
        url = f"sqlite:///{copy}?durability=fast"
        store = store_for(url, clock := ManualClock(scene.clock.now()))
        try:
            await try_damages(url, scene._replace(store=store, clock=clock), damages)
        except Exception as problem:
            raise AssertionError(f"after {damages}") from problem
        finally:
            await store.close()


async def try_damages(url: str, scene: Scene, damages: list[tuple[Damage, str]]) -> None:
    store = scene.store
    await store.open()
    victim = SqliteVictim(url)
    done = [
        each for each, state in damages if victim.inflict(each, scene.victims[state], Random(1))
    ]
    await look_at_everything(scene)
    found = await store.admin.audit()
    assert len(found) >= sum(each.kind in NEVER_SOUND for each in done), found
    await work_on(scene)
    await look_at_everything(scene)
    await act_on(scene)
    found = await store.admin.audit()
    assert {each.remedy for each in found} <= {"fairlead doctor --repair"}, found
    told = await store.admin.repair(by())
    assert len(told) >= bool(found)
    assert await store.admin.audit() == []


# What was seen once, each by itself


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = await put_scene(f"sqlite:///{tmp_path}/jobs.db?durability=fast")
    yield scene
    assert await scene.store.admin.audit() == []
    await scene.store.close()


def write(tmp_path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw, raw:
        assert raw.execute(statement, values).rowcount == 1


@pytest.mark.parametrize(
    "damage",
    [
        f"fence = {GREATEST}",
        f"attempt = {GREATEST}",
        f"crashes = {GREATEST}",
        "run_at = 'soon'",
        "run_at = -1",
        "fence = 0.5",
        "lease_until = 0.5",
        "expires_at = -1",
        "size = 'large'",
        "id = 'jöb'",
        "id = x'6a6f62'",
        "id = ''",
        f"id = '{'x' * 37}'",
    ],
)
async def test_a_damaged_job_is_a_dead_letter_after_the_claim_that_meets_it(
    scene: Scene, tmp_path: Path, damage: str
) -> None:
    """The greatest fence stopped every queue, and the doctor said nothing."""
    statement = f"UPDATE fairlead_job SET {damage} WHERE id = ?"
    write(tmp_path, statement, scene.victims["waiting"])
    assert {told.remedy for told in await scene.store.admin.audit()} == {"fairlead doctor --repair"}
    await work_on(scene)
    dead = await deeds.jobs(scene.store, Filter(states=(State.DEAD,), error="Unreadable"))
    [victim] = [each for each in dead if each.reason == "unreadable"]
    assert victim.id == scene.victims["waiting"] or damage.startswith("id")
    assert f"its {damage.split(maxsplit=1)[0]} is" in (victim.errors[-1].message or "")
    assert (victim.task, victim.payload, victim.options) == ("t", "{}", '{"tags":["a"]}')


@pytest.mark.parametrize("place", ["finished", "dead"])
async def test_a_job_that_is_there_twice_is_settled_with_its_batch(
    scene: Scene, tmp_path: Path, place: str
) -> None:
    """Its settlement failed for ever, and took the batch along."""
    job, other = scene.running
    victim = SqliteVictim(f"sqlite:///{tmp_path}/jobs.db")
    assert victim.inflict(Damage("job.twice", f"live and {place}"), job.id, Random(1))
    [told] = await scene.store.admin.audit()
    assert job.id in told.problem
    end = done if place == "finished" else buried
    assert set(await scene.store.settle([end(job), end(other)])) == {other.id}
    assert await scene.store.admin.audit() == []
    [copy] = await deeds.jobs(scene.store, Filter(states=(State.DEAD,), error="Unreadable"))
    assert copy.reason == "unreadable"
    assert f"job {job.id} is" in (copy.errors[-1].message or "")
    assert copy.payload == job.payload
    kept = await scene.store.admin.find(job.id)
    assert kept is not None
    assert kept.reason == "odd"  # The one that somebody put there is as it was.


async def test_a_job_that_is_there_twice_expires_beside_others(
    scene: Scene, tmp_path: Path
) -> None:
    victim = SqliteVictim(f"sqlite:///{tmp_path}/jobs.db")
    job_id = scene.victims["waiting"]
    assert victim.inflict(Damage("job.twice", "live and finished"), job_id, Random(1))
    scene.clock.advance(2 * 86_400)
    await scene.store.upkeep(10 * DAY)
    for healthy in scene.healthy[1:]:
        record = await scene.store.admin.find(healthy)
        assert record is not None
        assert record.reason == "expired"


@pytest.mark.parametrize("capable", ['{"t":', '{"t":"new"}', "[1]", "{" * 3_000, b"\xff\xfe"])
async def test_a_worker_that_cannot_be_read_counts_for_nothing(
    scene: Scene, tmp_path: Path, capable: object
) -> None:
    """It broke upkeep, claims and announcements for everybody."""
    statement = "INSERT INTO fairlead_worker (id, capable, live_until) VALUES ('odd', ?, 1 << 60)"
    write(tmp_path, statement, capable)
    strange = new_job("unheard of")
    await scene.store.put([strange])
    claimed = await scene.store.claim(plan(capable=CAPABLE))
    assert strange.id in {each.id for each in claimed.parked}
    await scene.store.settle([done(job) for job in claimed.jobs])
    await scene.store.upkeep(DAY)
    assert dict((await scene.store.admin.workers())[0].capable) in ({}, {"t": 1})
    told, *more = await scene.store.admin.audit()
    assert told.problem.startswith("worker odd cannot be read: its capable is")
    assert [each.problem for each in more] == [
        "worker odd says that it lives for longer than a year"
    ]
    assert await scene.store.admin.repair(by()) == [f"removed, because {told.problem}"]


@pytest.mark.parametrize("options", ["CAST(x'22ff22' AS TEXT)", "x'ff'", "17"])
async def test_options_of_a_large_job_that_nobody_knows_harm_no_claim(
    scene: Scene, tmp_path: Path, options: str
) -> None:
    """They are read for the log alone, and only after the job has passed as sound."""
    strange = NewJob(new_id(), "unheard of", "mail", f'"{"x" * 10_000}"')
    await scene.store.put([strange])
    write(tmp_path, f"UPDATE fairlead_job SET options = {options} WHERE id = ?", strange.id)
    claimed = await scene.store.claim(plan(capable=CAPABLE))
    assert strange.id in {each.id for each in claimed.parked}
    [told] = await scene.store.admin.repair(by())
    assert strange.id in told


async def test_a_dead_letter_of_a_finished_job_gets_an_id_of_its_own(
    scene: Scene, tmp_path: Path
) -> None:
    finished, dead = scene.victims["finished"], scene.victims["dead"]
    write(tmp_path, "UPDATE fairlead_dead SET id = ? WHERE id = ?", finished, dead)
    [told] = await scene.store.admin.repair(by())
    assert f"its id was {finished}, and that job is finished" in told
    kept = await scene.store.admin.find(finished)
    assert kept is not None
    assert kept.state is State.DONE
    assert sum((await scene.store.admin.count())["mail"].values()) == 13


async def test_a_lease_for_ages_ends(scene: Scene, tmp_path: Path) -> None:
    """Its worker may be dead, and nobody would ever take it over."""
    job = scene.running[0]
    write(tmp_path, "UPDATE fairlead_job SET lease_until = 1 << 53 WHERE id = ?", job.id)
    write(tmp_path, "UPDATE fairlead_worker SET live_until = 1 << 53 WHERE id = 'w1'")
    assert len(await scene.store.admin.audit()) == 2
    assert len(await scene.store.admin.repair(by())) == 2
    assert job.id in {each.id for each in await claim(scene.store, capable=CAPABLE) if each.lost}


async def test_a_run_without_a_claim_time_goes_on(scene: Scene, tmp_path: Path) -> None:
    """It could neither be settled nor be taken over."""
    victim, other = scene.running
    write(tmp_path, "UPDATE fairlead_job SET claimed_at = NULL WHERE id = ?", victim.id)
    leases = [(job.id, job.fence) for job in scene.running]
    assert len(await scene.store.extend(leases, SECOND)) == 2
    scene.clock.advance(2)
    lost = {job.id: job for job in await claim(scene.store, capable=CAPABLE) if job.lost}
    assert set(await scene.store.settle([done(lost[victim.id]), done(lost[other.id])])) == set(lost)


async def test_errors_that_are_nested_deep_are_passed_over(scene: Scene, tmp_path: Path) -> None:
    dead = scene.victims["dead"]
    write(tmp_path, "UPDATE fairlead_dead SET errors = ? WHERE id = ?", DEEP, dead)
    await look_at_everything(scene)
    assert (
        sum(group.count for group in await scene.store.admin.groups(Filter(states=(State.DEAD,))))
        == 2
    )
    await scene.store.admin.repair(by())


@pytest.mark.parametrize("count", ["'x'", "-1", "0.5", str(GREATEST), "x'00'"])
async def test_a_number_of_shared_deaths_that_is_none_means_alone(
    scene: Scene, tmp_path: Path, count: str
) -> None:
    """It harms nobody, and the repair writes what is read."""
    waiting = scene.victims["waiting"]
    write(tmp_path, f"UPDATE fairlead_job SET shared_deaths = {count} WHERE id = ?", waiting)
    claimed = {job.id: job for job in await claim(scene.store, capable=CAPABLE)}
    assert claimed[waiting].shared_deaths == ALONE
    assert {job.shared_deaths for job in claimed.values() if job.id != waiting} == {0}
    told = await scene.store.admin.repair(by("repair"))
    assert any(f"job {waiting} is put right" in each for each in told), told
    assert await scene.store.admin.audit() == []


async def test_what_a_newer_program_parked_is_put_right_and_stays_parked(
    scene: Scene, tmp_path: Path
) -> None:
    waiting = scene.victims["waiting"]
    write(
        tmp_path,
        "UPDATE fairlead_job SET parked = 9, park_key = 'k', size = 0 WHERE id = ?",
        waiting,
    )
    [told] = await scene.store.admin.repair(by("repair"))
    assert told.startswith(f"job {waiting} is put right")
    record = await scene.store.admin.find(waiting)
    assert record is not None
    assert record.gate is Gate.NEWER_PROGRAM


async def test_marks_are_put_right_and_the_job_runs(scene: Scene, tmp_path: Path) -> None:
    """A number that follows from others is written anew, and nothing else changes."""
    waiting, running, later = (scene.victims[name] for name in ("waiting", "running", "later"))
    before = {job_id: await scene.store.admin.find(job_id) for job_id in (waiting, running, later)}
    statement = "UPDATE fairlead_job SET {} WHERE id = ?"
    write(tmp_path, statement.format("parked = 7, size = 0, order_at = 'x'"), waiting)
    write(tmp_path, statement.format("worker = NULL, shared_deaths = 'x'"), running)
    write(tmp_path, statement.format(f"lease_until = {GREATEST}, cancel = 'x'"), later)
    told = await scene.store.admin.repair(by("repair"))
    assert [each.partition(":")[0] for each in told] == [
        f"job {job_id} is put right" for job_id in (running, later, waiting)
    ]
    assert await scene.store.admin.audit() == []
    for job_id in (waiting, later):
        assert await scene.store.admin.find(job_id) == before[job_id]
    [line] = [each for each in await scene.store.admin.audit_log() if each.verb == "repair"]
    assert line.count >= 3
    await work_on(scene)
    record = await scene.store.admin.find(waiting)
    assert record is not None
    assert record.state is State.DONE


async def test_sound_entries_are_found_behind_damaged_ones(scene: Scene, tmp_path: Path) -> None:
    """Else whoever asks for the next that falls due finds none, for ever."""
    store = scene.store
    await store.entries.write([Change("due", f"{n}", "1", due_at=n) for n in range(5)])
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        raw.execute("UPDATE fairlead_entry SET version = 'x' WHERE kind = 'due' AND due_at < 2")
        raw.commit()
    for wanted in (Wanted("due", due_before=9, limit=2), Wanted("due", limit=2)):
        assert [each.key for each in await store.entries.read(wanted)] == ["2", "3"]
    assert await store.admin.repair(by("repair"))


@pytest.mark.parametrize("wrong", ["x'6162'", "CAST(x'ff' AS TEXT)"])
async def test_fields_of_later_programs_that_are_no_text_are_dropped_and_nothing_else(
    scene: Scene, tmp_path: Path, wrong: str
) -> None:
    store, waiting = scene.store, scene.victims["waiting"]
    before = await deeds.jobs(store, Filter())
    places = ("job", "finished", "dead")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        for place in places:
            raw.execute(f"UPDATE fairlead_{place} SET more = {wrong}")
        raw.commit()
        assert waiting in {job.id for job in await claim(store, capable=CAPABLE)}
        count = sum(raw.execute(f"SELECT count(*) FROM fairlead_{p}").fetchone()[0] for p in places)
        assert len(await store.admin.repair(by("repair"))) == count
        for place in places:
            assert raw.execute(f"SELECT DISTINCT more FROM fairlead_{place}").fetchall() == [
                (None,)
            ]
    assert await store.admin.audit() == []
    assert {job.id for job in await deeds.jobs(store, Filter())} == {job.id for job in before}


async def test_a_repair_changes_nothing_that_is_sound(scene: Scene) -> None:
    before = await deeds.jobs(scene.store, Filter())
    log = await scene.store.admin.audit_log()
    assert await scene.store.admin.repair(by()) == []
    assert await deeds.jobs(scene.store, Filter()) == before
    assert await scene.store.admin.audit_log() == log


async def test_many_damaged_jobs_are_repaired_in_steps(scene: Scene, tmp_path: Path) -> None:
    await scene.store.put([new_job() for _ in range(2_500)])
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw, raw:
        raw.execute("UPDATE fairlead_job SET version = 'x' WHERE lease_until = 0")
    assert await claim(scene.store) == []
    told = await scene.store.admin.repair(by())
    assert len(told) > 1_000


async def test_what_cannot_be_mended_is_told_and_hides_nothing_behind_it(
    scene: Scene, tmp_path: Path
) -> None:
    """After a thousand such rows the repair stopped, and said that nothing was damaged."""
    stuck = [new_job(queue="stuck") for _ in range(1_100)]
    await scene.store.put(stuck)
    await scene.store.put([last := new_job(queue="mail")])
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw, raw:
        raw.execute(
            "UPDATE fairlead_job SET version = 'x' WHERE queue = 'stuck' OR id = ?", [last.id]
        )
        raw.execute(
            "CREATE TRIGGER keep BEFORE DELETE ON fairlead_job WHEN OLD.queue = 'stuck' "
            "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
    told = await scene.store.admin.repair(by("repair"))
    refused = [each for each in told if each.startswith(NOT_MENDED)]
    assert len(refused) == len(stuck)
    assert refused[0].startswith(
        f"could not mend this: job {stuck[0].id} cannot be read: its version"
    )
    assert refused[0].endswith("; SQLite: not this one")
    [done] = [each for each in told if each not in refused]
    assert done.startswith(f"job {last.id} is a dead letter now")
    [line] = [each for each in await scene.store.admin.audit_log() if each.verb == "repair"]
    assert line.count == 1
    # Nothing of them was moved by half.
    trigger, *found = await scene.store.admin.audit()
    assert "the trigger keep on fairlead_job is not ours" in trigger.problem
    assert sorted(each.problem.split()[1] for each in found) == sorted(job.id for job in stuck)
    assert all("cannot be read: its version" in each.problem for each in found)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw, raw:
        raw.execute("DROP TRIGGER keep")
    assert len(await scene.store.admin.repair(by())) == len(stuck)


async def test_a_name_that_is_not_utf8_is_counted_and_shown(scene: Scene, tmp_path: Path) -> None:
    statement = "UPDATE fairlead_job SET queue = CAST(? AS TEXT) WHERE id = ?"
    write(tmp_path, statement, b"ma\xffil", scene.victims["waiting"])
    assert "ma\ufffdil" in await scene.store.admin.count()
    await scene.store.admin.repair(by())
    record = await scene.store.admin.find(scene.victims["waiting"])
    assert record is not None
    assert (record.queue, record.reason) == ("ma\ufffdil", "unreadable")


async def test_notes_of_migrations_are_judged_by_the_tables(scene: Scene, tmp_path: Path) -> None:
    """A file whose notes were lost was built anew over its own tables, and could not be opened."""
    await scene.store.close()
    write(tmp_path, "UPDATE fairlead_migration SET version = -1 WHERE version = 1")
    assert all(step.applied_at is not None for step in await scene.store.admin.migrations())
    await work_on(scene)
    assert len(await scene.store.admin.repair(by())) == 2


async def test_what_the_engine_refuses_is_no_outage(scene: Scene, tmp_path: Path) -> None:
    statement = (
        "CREATE TRIGGER no BEFORE INSERT ON fairlead_paused BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw, raw:
        raw.execute(statement)
    with pytest.raises(StoreRefused, match="no; `fairlead doctor` tells which job is damaged"):
        await deeds.pause(scene.store, "mail", by())
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw, raw:
        raw.execute("DROP TRIGGER no")


async def test_a_commit_that_the_engine_refuses_is_told(scene: Scene, tmp_path: Path) -> None:
    job = scene.running[0]
    victim = SqliteVictim(f"sqlite:///{tmp_path}/jobs.db")
    assert victim.inflict(Damage("job.twice", "live and finished"), job.id, Random(1))
    refused = pytest.raises(StoreRefused, match="UNIQUE constraint failed")
    with refused, scene.store.transaction() as connection:
        scene.store.complete_within(connection, done(job)).run()
    assert len(await scene.store.admin.repair(by())) == 1


async def test_what_was_written_anew_meanwhile_is_left_alone(scene: Scene, tmp_path: Path) -> None:
    """A worker announces itself between the look and the repair."""
    stale = [
        sqlite_audit.Damage(sound.WORKERS, "w1", "it was damaged"),
        sqlite_audit.Damage(sound.PAUSED, "other", "it was damaged"),
        sqlite_audit.Damage(sound.ATTEMPTS, 1, "it was there twice"),
        sqlite_audit.Damage(sound.STEPS, 1, "it was not noted"),
        sqlite_audit.Damage(sound.LIVE, 10_000, "it is gone"),
    ]
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        before = list(raw.iterdump())
        assert [repair(raw, damage, Moment(scene.clock.now(), LEVEL)) for damage in stale] == [
            None
        ] * len(stale)
        assert list(raw.iterdump()) == before


@pytest.mark.parametrize("table", TABLES)
def test_the_fuzz_knows_every_column(tmp_path: Path, table: str) -> None:
    with closing(sqlite3.connect(":memory:")) as raw:
        raw.execute(migrate.NOTES)
        for step in migrations():
            raw.executescript(step.sql)
        rows = raw.execute(f"PRAGMA table_info(fairlead_{table})").fetchall()
    columns = {row[1] for row in rows}
    assert set(TABLES[table]) == columns
    [ours] = [each for each in sound.TABLES if each.name == f"fairlead_{table}"]
    assert set(ours.columns) == columns


async def test_options_that_cannot_be_read_stay_with_their_dead_letter(
    scene: Scene, tmp_path: Path
) -> None:
    """The reason names them; to mend them would take from people what they have to look at."""
    waiting = scene.victims["waiting"]
    write(
        tmp_path, f"UPDATE fairlead_job SET options = '{DEEP}', attempt = 'x' WHERE id = ?", waiting
    )
    await claim(scene.store, capable=CAPABLE)
    write(tmp_path, "UPDATE fairlead_dead SET options = '{' WHERE id = ?", scene.victims["dead"])
    [told] = await scene.store.admin.audit()
    assert scene.victims["dead"] in told.problem
    assert len(await scene.store.admin.repair(by())) == 1
    assert await scene.store.admin.audit() == []
    dead = await scene.store.admin.find(waiting)
    assert dead is not None
    assert (dead.state, dead.reason, dead.options) == (State.DEAD, "unreadable", DEEP)
    write(tmp_path, "UPDATE fairlead_dead SET options = x'ff' WHERE id = ?", waiting)
    assert len(await scene.store.admin.audit()) == 1
    await scene.store.admin.repair(by())


@pytest.mark.parametrize(
    "damage",
    ["size = -1", "id = 'é' || seq", "id = CAST(x'ff' || seq AS TEXT)", "order_at = 'soon'"],
)
async def test_sound_jobs_do_not_wait_until_all_damaged_ones_before_them_are_moved_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Behind a hundred thousand of them they waited for half a minute."""
    monkeypatch.setattr(heads, "LOOKED", 20)
    monkeypatch.setattr(heads, "MOVED", 2)
    store = store_for(f"sqlite:///{tmp_path}/jobs.db", clock := ManualClock())
    await store.put([new_job() for _ in range(100)])
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection, connection:
        connection.execute(f"UPDATE fairlead_job SET {damage}")
    clock.advance(SECOND)
    behind = new_job(run_at=clock.now())
    if "soon" not in damage:  # Texts stand behind all numbers.
        await store.put([behind])
    claimed: list[JobId] = []
    claims = 0
    while not claimed and claims < 7:
        claims += 1
        before = await store.admin.count()
        claimed = [job.id for job in await claim(store, capable=CAPABLE)]
        dead = (await store.admin.count())["mail"].get(State.DEAD, 0)
        # A place that is not UTF-8 cannot be passed: all that stand there are moved out.
        assert dead - before["mail"].get(State.DEAD, 0) <= (20 if "CAST" in damage else 2)
    assert claimed == ([behind.id] if "soon" not in damage else [])
    assert claimed or dead == 14  # Two at each claim, also at the one that came to the end.
    for _ in range(60):
        await claim(store, capable=CAPABLE)
    assert (await store.admin.count())["mail"][State.DEAD] == 100
    assert await store.admin.audit() == []
    await store.close()
