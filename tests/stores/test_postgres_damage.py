"""Whatever is damaged in PostgreSQL, all other jobs go on; `audit` names it, `repair` mends it (I22)."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg import errors

from fairlead.core.acts import Action
from fairlead.core.admin import ALL, Filter, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.errors import (
    ConfigError,
    DecodeError,
    EnqueueError,
    StoreDenied,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
)
from fairlead.core.ids import JobId
from fairlead.core.job import (
    ALONE,
    LONGEST_ID,
    Job,
    JobOptions,
    NewJob,
    Reason,
    State,
    decode_options,
    encode_options,
)
from fairlead.core.outcome import Settlement
from fairlead.core.queue import Queue
from fairlead.core.retry import exponential, fixed, linear
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres import audit as auditing
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lacking import expected
from fairlead.stores.postgres.problems import typed
from tests import deeds
from tests.fuzz.postgres import PostgresVictim
from tests.fuzz.victim import DEEP, GREATEST, LEAST, Damage
from tests.words import POLICY, claim, done, failed, new_job, plan, quiet

MAIL, OTHER = Queue("mail"), Queue("other")
HOUR = 3600
CAPABLE = {"t": 1, "u": 1}
IN_THE_LINE = ("waiting", "parked", "unknown", "running", "lost", "retried")
STATES = {"finished": ("done",), "dead": ("dead",), "attempt": ("done", "dead", "retried")}
AT_ONCE = 48


def by(verb: str = "repair") -> Action:
    return Action(str(new_job().id), "ann", verb, "all")


class Yard:
    """A store by a test's clock, and somebody who damages it."""

    def __init__(
        self, store: Store, clock: ManualClock, victim: PostgresVictim, owner: psycopg.Connection
    ) -> None:
        self.store, self.clock, self.victim, self.owner = store, clock, victim, owner

    async def put(self, number: int = 1) -> list[NewJob]:
        jobs = [new_job("t", queue="mail") for _ in range(number)]
        await self.store.put(jobs)
        return jobs

    async def bring(self, states: Sequence[str]) -> list[JobId]:
        """Put jobs and bring each into a state."""
        jobs = [new_job("strange" if state == "unknown" else "t", queue="mail") for state in states]
        later = {job.id for job, state in zip(jobs, states, strict=True) if state == "parked"}
        state_of = dict(zip((job.id for job in jobs), states, strict=True))
        claimed = [job for job in jobs if state_of[job.id] not in ("waiting", "parked", "unknown")]
        await self.store.put(claimed)
        got = await claim(self.store, MAIL, slots=1_000, worker="old", lease=10)
        now = self.clock.now()
        await self.store.settle(
            [
                done(job, "1")
                if state_of[job.id] == "done"
                else failed(job, now, POLICY if state_of[job.id] == "dead" else None)
                for job in got
                if state_of.get(job.id) in ("done", "dead", "retried")
            ]
        )
        self.clock.advance(11)
        running = [job for job in got if state_of.get(job.id) == "running"]
        await self.store.extend([(job.id, job.fence) for job in running], HOUR * SECOND)
        rest = [job for job in jobs if job not in claimed and job.id not in later]
        parked = [
            NewJob(job.id, job.task, job.queue, "{}", delay=HOUR * SECOND)
            for job in jobs
            if job.id in later
        ]
        await self.store.put([*rest, *parked])
        return [job.id for job in jobs]

    async def works(self) -> None:
        """Check that jobs beside the damage run, of the same queue and of another."""
        healthy = [new_job("t", queue=name) for name in ("mail", "other", "mail")]
        await self.store.put(healthy)
        missing = {job.id for job in healthy}
        await self.store.announce(Worker("live", CAPABLE, (), 1, 0, 0), 20 * SECOND)
        for _ in range(10):
            jobs = await claim(self.store, MAIL, OTHER, slots=100, capable=CAPABLE)
            held = {job.id for job in await self.store.held("w1")}
            assert {job.id for job in jobs if not job.lost} <= held
            pairs = [(job.id, job.fence) for job in jobs]
            assert len(await self.store.extend(pairs, 20 * SECOND)) == len(jobs)
            written = await self.store.settle([done(job) for job in jobs])
            assert written.keys() == {job.id for job in jobs}
            missing -= written.keys()
            if not missing:
                return
            self.clock.advance(0.2)
            await self.store.upkeep(HOUR * SECOND)
        raise AssertionError(f"{missing} did not run")

    async def looks(self, ids: Sequence[JobId]) -> None:
        """Ask everything that can be asked."""
        store = self.store
        for job_id in ids[:5]:
            await store.admin.find(job_id)
            await store.admin.attempts(job_id)
            await store.admin.ahead(job_id)
        await deeds.jobs(store, ALL, 1_000)
        await deeds.jobs(store, Filter(error="oops", tags=("x",)))
        await store.admin.count()
        await store.admin.groups(ALL)
        await store.admin.recent(0)
        await deeds.waiting(store)
        await deeds.running(store)
        await store.admin.snapshot(plan(MAIL, OTHER, capable=CAPABLE), 10)
        await deeds.unknown(store)
        await deeds.paused(store)
        await store.admin.workers()
        await store.admin.audit_log()
        await store.upkeep(HOUR * SECOND)

    async def acts(self, ids: Sequence[JobId]) -> None:
        """Do what a person does."""
        await deeds.edit(self.store, ids[0], "{}", "{}", 1, by("edit"))
        await deeds.revive(self.store, ids, [State.DEAD, State.DONE, State.WAITING], by("revive"))
        await deeds.cancel(self.store, ids, "enough", by=by("cancel"))
        await deeds.delete(self.store, ids, [State.DEAD, State.CANCELLED], by("delete"))

    async def mends(self) -> list[str]:
        """Check that a repair leaves nothing that the audit finds; returns what was done."""
        found = await self.store.admin.audit()
        assert {finding.remedy for finding in found} <= {"run `fairlead doctor --repair`"}
        told = await self.store.admin.repair(by())
        assert bool(told) == bool(found)
        assert not [each for each in told if each.startswith("could not")]
        assert await self.store.admin.audit() == []
        assert await self.store.admin.repair(by()) == []
        return told


@pytest.fixture
async def yard(
    postgres_url: str, fresh_url: str, clock: ManualClock, owner: psycopg.Connection
) -> AsyncIterator[Yard]:
    """A store of a user who has the rights of all roles, and none on any table's rows."""
    store = store_for(fresh_url, clock)
    await store.open()
    victim = PostgresVictim(postgres_url)
    yield Yard(store, clock, victim, owner)
    victim.close()
    await store.close()


SEED = 1311


def _rounds(victim: PostgresVictim) -> list[list[tuple[Damage, str]]]:
    """Return every damage with a state that it fits, in random rounds; a shared row is hit once."""
    random = Random(SEED)
    damages = list(victim.damages)
    random.shuffle(damages)
    rounds: list[list[tuple[Damage, str]]] = [[] for _ in range(1 + len(damages) // AT_ONCE)]
    for number, damage in enumerate(damages):
        states = STATES.get(damage.field.partition(".")[0], IN_THE_LINE)
        rounds[number % len(rounds)].append((damage, random.choice(states)))
    return rounds


async def test_every_damage_harms_only_itself_and_can_be_mended(yard: Yard) -> None:
    """All of them, many at once; `make chaos` tries each alone, as `tests/fuzz` says."""
    random = Random(SEED)
    inflicted: set[Damage] = set()
    for number, wanted in enumerate(_rounds(yard.victim)):
        ids = await yard.bring([state for _, state in wanted])
        # Those that lie in wait for a person's look must be there when one looks.
        for (damage, _), job_id in zip(wanted, ids, strict=True):
            if yard.victim.inflict(damage, job_id, random):
                inflicted.add(damage)
        await yard.looks(ids)
        await yard.works()
        await yard.looks(ids)
        yard.clock.advance(2 * HOUR)
        await yard.works()
        if number % 3 == 0:
            await yard.acts(ids)
        await yard.mends()
        await yard.works()
    assert len(inflicted) > 500


async def _dead_letter(yard: Yard, job_id: JobId) -> None:
    record = await yard.store.admin.find(job_id)
    assert record is not None
    assert (record.state, record.reason) == (State.DEAD, Reason.UNREADABLE)
    assert "the stored row is damaged" in (record.errors[-1].message or "")
    assert "fairlead dead replay" in (record.errors[-1].message or "")


async def test_a_claim_makes_a_dead_letter_of_a_damaged_job(yard: Yard) -> None:
    for damage in (
        *("fence = 9223372036854775807", "attempt = 2147483647", "crashes = -1", "version = -1"),
        *("lease_until = 1", "lease_until = -1", f"run_at = {LEAST}", f"enqueued_at = {GREATEST}"),
        *(
            "task = repeat('x', 1000000)",
            "task = ''",
            f"expires_at = {GREATEST}",
            "expires_at = -1",
        ),
    ):
        [bad, *good] = await yard.put(4)
        yard.owner.execute(f"UPDATE job SET {damage} WHERE id = %s", [bad.id])
        assert bad.id in (await yard.store.admin.audit())[0].problem
        await yard.store.upkeep(HOUR * SECOND)
        assert _ids(await claim(yard.store)) == [job.id for job in good], damage
        await _dead_letter(yard, bad.id)
        assert await yard.store.admin.audit() == []


@pytest.mark.parametrize("count", [-1, 2_147_483_647])
async def test_a_number_of_shared_deaths_that_cannot_be_means_alone(yard: Yard, count: int) -> None:
    [bad, good] = await yard.put(2)
    yard.owner.execute("UPDATE job SET shared_deaths = %s WHERE id = %s", [count, bad.id])
    [finding] = await yard.store.admin.audit()
    assert finding.problem == f"job {bad.id} cannot have shared so many deaths of processes"
    claimed = {job.id: job.shared_deaths for job in await claim(yard.store)}
    assert claimed == {bad.id: ALONE, good.id: 0}
    await yard.mends()


async def test_an_id_that_cannot_be_is_given_another(yard: Yard) -> None:
    for job_id in ("", "x" * (LONGEST_ID + 1), DEEP, "é\u202e"):
        [bad, good] = await yard.put(2)
        yard.owner.execute("UPDATE job SET id = %s WHERE id = %s", [job_id, bad.id])
        assert _ids(await claim(yard.store)) == [good.id]
    letters = await deeds.jobs(yard.store, Filter(states=(State.DEAD,)))
    assert len(letters) == 4
    for letter in letters:
        assert len(letter.id) <= LONGEST_ID
        await _dead_letter(yard, letter.id)


async def test_a_damaged_job_that_runs_ends_as_others_do(yard: Yard) -> None:
    """Done, dead and again: all of a batch are written."""
    for damage in (
        *("claimed_at = NULL", f"claimed_at = {GREATEST}", f"order_at = {LEAST}, run_at = 0"),
        *("crashes = 2147483647", "attempt = -2147483648", "worker = NULL", "version = -7"),
        *("errors = ARRAY[ARRAY['a', 'b']]", "errors = ARRAY[NULL]", "task = repeat('x', 1000000)"),
    ):
        await yard.put(6)
        jobs = await claim(yard.store, slots=6)
        ids = [[job.id for job in jobs[::2]]]
        yard.owner.execute(f"UPDATE job SET {damage} WHERE id = ANY (%s)", ids)
        now = yard.clock.now()
        ends = [
            *(done(jobs[0]), done(jobs[1]), failed(jobs[2], now, POLICY)),
            *(failed(jobs[3], now, POLICY), failed(jobs[4], now), failed(jobs[5], now)),
        ]
        assert len(await yard.store.settle(ends)) == 6, damage
        records = sorted(await deeds.jobs(yard.store), key=lambda record: record.id)[-6:]
        states = [record.state for record in records]
        assert states == [State.DONE] * 2 + [State.DEAD] * 2 + [State.WAITING] * 2
    await yard.mends()


async def test_a_job_with_the_id_of_a_dead_letter_can_end(yard: Yard) -> None:
    await yard.put(2)
    jobs = await claim(yard.store)
    told = yard.victim.inflict(Damage("job", "a dead letter too"), jobs[0].id, Random(1))
    assert told is not None
    [finding] = await yard.store.admin.audit()
    assert finding.problem == f"job {jobs[0].id} is live and a dead letter at once"
    settlements = [failed(job, yard.clock.now(), POLICY) for job in jobs]
    assert len(await yard.store.settle(settlements)) == 2
    assert await yard.store.admin.audit() == []


async def test_no_dead_letter_is_written_over(yard: Yard) -> None:
    """Neither by a damaged job of its id, nor by one that ends: these are letters of their own."""
    [damaged, ends] = await yard.put(2)
    [run] = [job for job in await claim(yard.store) if job.id == ends.id]
    for job_id in (damaged.id, ends.id):
        yard.victim.inflict(Damage("job", "a dead letter too"), job_id, Random(1))
    yard.owner.execute(
        "UPDATE job SET lease_until = 0, worker = NULL, fence = -1 WHERE id <> %s", [run.id]
    )
    before = yard.owner.execute("SELECT * FROM dead ORDER BY id").fetchall()
    assert await claim(yard.store) == []
    assert len(await yard.store.settle([failed(run, yard.clock.now(), POLICY)])) == 1
    ids = [damaged.id, ends.id]
    after = yard.owner.execute("SELECT * FROM dead WHERE id = ANY (%s) ORDER BY id", [ids])
    assert after.fetchall() == before
    others = yard.owner.execute("SELECT reason FROM dead WHERE NOT id = ANY (%s) ORDER BY 1", [ids])
    assert [reason for (reason,) in others] == ["exhausted", "unreadable"]
    assert await yard.store.admin.audit() == []


@pytest.mark.parametrize("damage", ["fence = -1", "version = 1"])
async def test_two_rows_of_one_id_stop_nobody(yard: Yard, damage: str) -> None:
    """Damaged or not, they become letters of their own when they are met, or run and fail."""
    [twice, other] = await yard.put(2)
    yard.owner.execute("ALTER TABLE job DROP CONSTRAINT job_pkey")
    yard.owner.execute("INSERT INTO job SELECT * FROM job WHERE id = %s", [twice.id])
    yard.owner.execute(f"UPDATE job SET {damage} WHERE id = %s", [twice.id])
    try:
        jobs = await claim(yard.store)
        assert other.id in _ids(jobs)
        await yard.store.settle([failed(job, yard.clock.now(), POLICY) for job in jobs])
        letters = await deeds.jobs(yard.store, Filter(states=(State.DEAD,)))
        assert len(letters) == 3
        assert yard.owner.execute("SELECT FROM job").fetchall() == []
    finally:
        yard.owner.execute("ALTER TABLE job ADD CONSTRAINT job_pkey PRIMARY KEY (id)")


async def test_a_parked_job_that_no_order_can_hold_keeps_no_other_parked(yard: Yard) -> None:
    """Its queue is in no index as long as it is parked, and too long for one after that."""
    jobs = [new_job(queue="mail", delay=SECOND) for _ in range(2)]
    strange = [new_job("strange", queue="mail") for _ in range(2)]
    await yard.store.put([*jobs, *strange])
    await yard.store.claim(plan(capable=CAPABLE))
    ids = [jobs[0].id, strange[0].id]
    yard.owner.execute("UPDATE job SET queue = repeat('x', 1000000) WHERE id = ANY (%s)", [ids])
    yard.clock.advance(2)
    known = {"t": 1, "strange": 1}
    assert _ids(await claim(yard.store, capable=known)) == [strange[1].id, jobs[1].id]
    await yard.store.upkeep(HOUR * SECOND)
    await yard.mends()
    await _dead_letter(yard, jobs[0].id)
    await _dead_letter(yard, strange[0].id)


async def test_what_a_worker_announced_stops_no_other(yard: Yard) -> None:
    """Neither claims that meet a task nobody knows, nor the housekeeping."""
    await yard.store.announce(Worker("odd", CAPABLE, (), 1, 0, 0), HOUR * SECOND)
    yard.owner.execute("""UPDATE worker SET capable = '{"t": "x", "strange": [1]}'""")
    job = new_job("strange")
    await yard.store.put([job])
    assert [each.id for each in (await yard.store.claim(plan(capable=CAPABLE))).parked] == [job.id]
    await yard.store.upkeep(HOUR * SECOND)
    yard.owner.execute("UPDATE worker SET capable = '[1]', pools = %s", [DEEP])
    await yard.store.upkeep(HOUR * SECOND)
    [worker] = await yard.store.admin.workers()
    assert (worker.capable, worker.pools) == ({}, ())
    assert await yard.mends() == ["removed worker odd; it announces itself again if it lives"]


async def test_the_numbers_of_the_attempt_log_never_end(yard: Yard) -> None:
    [job] = await yard.put()
    yard.victim.inflict(Damage("attempt_seq", "at its end"), job.id, Random(1))
    assert len(await yard.store.settle([done(each) for each in await claim(yard.store)])) == 1


async def test_a_list_of_days_that_somebody_changed_keeps_no_job_from_its_end(yard: Yard) -> None:
    await yard.put()
    await yard.store.upkeep(HOUR * SECOND)
    yard.owner.execute(
        f"UPDATE day SET first = CASE WHEN first % 2 = 0 THEN {GREATEST} - first END"
    )
    assert len(await yard.store.settle([done(job) for job in await claim(yard.store)])) == 1
    await yard.store.upkeep(HOUR * SECOND)
    await yard.mends()


async def test_a_repair_that_cannot_mend_all_says_what_it_mended(yard: Yard) -> None:
    """What somebody keeps locked is left for another time, and named by the next look."""
    [locked, free] = await yard.put(2)
    yard.owner.execute("UPDATE job SET fence = -1")
    with yard.owner.transaction():
        yard.owner.execute("SELECT FROM job WHERE id = %s FOR UPDATE", [locked.id])
        done, left = await yard.store.admin.repair(by())
        assert free.id in done
        assert left.startswith(f"could not mend this: job {locked.id} has a name or a number")
        assert left.endswith(
            "somebody has it locked; when that transaction has ended, repair again"
        )
        [finding] = await yard.store.admin.audit()
        assert locked.id in finding.problem
    assert len(await yard.store.admin.repair(by())) == 1
    assert await yard.store.admin.audit() == []


async def test_rows_that_somebody_keeps_locked_cost_a_repair_no_time(yard: Yard) -> None:
    """Before, each was waited for again and again: eight of them took most of a minute."""
    jobs = await yard.put(31)
    yard.owner.execute("UPDATE job SET fence = -1")
    with yard.owner.transaction():
        yard.owner.execute("SELECT FROM job WHERE id <> %s FOR UPDATE", [jobs[-1].id])
        began = time.monotonic()
        told = await yard.store.admin.repair(by())
        assert time.monotonic() - began < 8
    assert [each.startswith("could not mend this") for each in told] == [False] + [True] * 30


async def test_what_cannot_be_mended_keeps_nothing_behind_it_from_being_mended(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server says of it, and however many there are."""
    monkeypatch.setattr(auditing, "BATCH", 10)
    jobs = await yard.put(60)
    yard.owner.execute("UPDATE job SET parked = 9")
    yard.owner.execute(
        "CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM 1 / 0; RETURN NEW; END $$"
    )
    yard.owner.execute(
        "CREATE TRIGGER stop BEFORE UPDATE ON job FOR EACH ROW "
        f"WHEN (OLD.id < '{jobs[45].id}') EXECUTE FUNCTION stop()"
    )
    told = await yard.store.admin.repair(by())
    yard.owner.execute("DROP TRIGGER stop ON job; DROP FUNCTION stop")
    assert told[:15] == [f"put job {job.id} into the order" for job in jobs[45:]]
    assert told[15:] == [
        f"could not mend this: job {job.id} is parked for no reason; division by zero"
        for job in jobs[:45]
    ]
    assert len(await yard.mends()) == 45


async def test_very_many_damages_are_counted_and_mended_step_by_step(yard: Yard) -> None:
    """Before, each step looked through all of them again."""
    yard.owner.execute(
        "INSERT INTO dead (id, queue, task, version, run_at, order_at, enqueued_at, payload, attempt, "
        "crashes, fence, finished_at) SELECT 'j' || n, 'mail', 't', 1, 0, 0, 0, '{}', 1, 0, 1, 1 "
        "FROM generate_series(1, 12000) AS n"
    )
    found = await yard.store.admin.audit()
    assert len(found) == 1_001
    assert found[-1].problem == "11,000 more: dead letter … has no reason"
    steps = []
    real = auditing.mended_of

    def counted(answer: str) -> Any:
        steps.append(1)
        return real(answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auditing, "mended_of", counted)
        assert len(await yard.mends()) == 12_000
    assert len(steps) == 12_000 // auditing.BATCH + 3


@pytest.mark.parametrize(
    "options",
    [
        '{"x":' + "[" * 2_000 + "]" * 2_000 + "}",
        "{",
        "[]",
        '{"timeout": "soon"}',
        '{"timeout": 1e400}',
        '{"attempts": 1.5}',
        '{"tags": [1]}',
        '{"tags": null}',
        '{"headers": {"a": 1}}',
        '{"correlation_id": 1}',
        '{"backoff": {"curve": "steep"}}',
        '{"backoff": {"curve": "fixed", "seconds": -1}}',
    ],
)
async def test_options_that_cannot_be_read_are_found_and_mended(yard: Yard, options: str) -> None:
    """As the other stores do: a live job becomes a dead letter, one that ended loses them."""
    with pytest.raises(DecodeError):
        decode_options(options)
    live, finished, dead, good = await yard.bring(["parked", "done", "dead", "parked"])
    ids = [live, finished, dead]
    for table in ("job", "finished", "dead"):
        yard.owner.execute(f"UPDATE {table} SET options = %s WHERE id = ANY (%s)", [options, ids])
    told = [finding.problem for finding in await yard.store.admin.audit()]
    assert told == [
        f"job {live} has options that cannot be read",
        f"dead letter {dead} has options that cannot be read",
        f"finished job {finished} has options that cannot be read",
    ]
    assert len(await yard.mends()) == 3
    await _dead_letter(yard, live)
    for job_id, kept in ((live, options), (dead, None), (finished, None), (good, None)):
        record = await yard.store.admin.find(job_id)
        assert record is not None
        assert record.options == kept


async def test_options_that_can_be_read_are_no_damage(yard: Yard) -> None:
    for options in (
        JobOptions(timeout=1.5, attempts=3, backoff=exponential(base=2, jitter=0.1)),
        JobOptions(backoff=linear(step=0.5), tags=("a", "\x00", "é"), correlation_id="x"),
        JobOptions(backoff=fixed(7), headers={"a": "b", "c": "[[["}),
    ):
        job = NewJob(new_job().id, "t", "mail", "{}", options=encode_options(options))
        await yard.store.put([job])
    assert await yard.store.admin.audit() == []


async def test_a_history_with_a_broken_number_is_mended(yard: Yard) -> None:
    [job_id] = await yard.bring(["retried"])
    yard.owner.execute(
        """UPDATE job SET errors[1] = replace(errors[1], '"attempt" : 1', '"attempt" : 1.5')"""
    )
    yard.owner.execute(
        """UPDATE job SET errors[1] = replace(errors[1], '"attempt":1', '"attempt":1.5')"""
    )
    [finding] = await yard.store.admin.audit()
    assert finding.problem == f"job {job_id} has a history that cannot be read"
    await yard.mends()


async def test_a_job_that_is_finished_no_more_is_not_moved(yard: Yard) -> None:
    """What was found is looked at again before it is mended."""
    [job] = await yard.put()
    yard.owner.execute("SELECT mend('live and finished', %s, stamp())", [job.id])
    assert _ids(await claim(yard.store)) == [job.id]


@pytest.mark.parametrize("name", ["finished", "attempt"])
async def test_a_table_of_a_day_that_somebody_renamed_stops_nothing(yard: Yard, name: str) -> None:
    """Before, the day's jobs could not end, and no repair of anything else came to its end."""
    [job] = await yard.put()
    await yard.store.upkeep(HOUR * SECOND)
    [(day,)] = yard.owner.execute("SELECT day_of(%s)", [yard.clock.now()]).fetchall()
    yard.owner.execute(f"ALTER TABLE {name}_{day} RENAME TO {name}_old")
    yard.owner.execute("DELETE FROM day")
    await yard.works()
    await yard.store.upkeep(HOUR * SECOND)
    yard.owner.execute("UPDATE job SET parked = 9")
    assert f"gave table {name}_old the name of its day" in await yard.mends()
    await yard.works()
    assert (await yard.store.admin.find(job.id)) is not None


@pytest.mark.parametrize("state", [State.WAITING, State.CANCELLED])
async def test_an_id_that_no_cursor_has_room_for_is_one_job_of_a_list(
    yard: Yard, state: State
) -> None:
    """Before, the page ended with a cursor that the store refused."""
    jobs = await yard.put(5)
    if state is State.CANCELLED:
        await deeds.cancel(yard.store, [job.id for job in jobs], "no", by())
    table = "finished" if state is State.CANCELLED else "job"
    yard.owner.execute(f"UPDATE {table} SET id = id || %s WHERE id = %s", [2 * DEEP, jobs[2].id])
    told, cursor = [], ""
    while cursor is not None:
        page = await yard.store.admin.page(Filter(states=(state,)), 1, cursor or None)
        told += [job.id for job in page.jobs]
        cursor = page.cursor
        assert len(told) <= len(jobs)
    others = [job.id for job in jobs if job is not jobs[2]]
    assert sorted(each for each in told if len(each) <= LONGEST_ID) == sorted(others)


async def test_an_operator_mends_and_it_is_in_the_audit_log(yard: Yard) -> None:
    """The store's user has rights on no table: repair is a verb."""
    [bad] = await yard.put()
    yard.owner.execute("UPDATE job SET parked = 9, fence = -1")
    told = [f"made a dead letter of job {bad.id}, or wrote anew who runs it"]
    assert await yard.mends() == told
    await _dead_letter(yard, bad.id)
    [line] = await yard.store.admin.audit_log()
    assert (line.who, line.verb, line.count) == ("ann", "repair", 1)
    assert await yard.store.admin.repair(by()) == []


async def test_a_list_of_steps_that_somebody_changed_is_mended(fresh_url: str, yard: Yard) -> None:
    """Who opens the store anew neither makes again what is there nor takes it for newer."""
    yard.owner.execute(
        "UPDATE migration SET number = CASE number % 2 WHEN 0 THEN -number ELSE 2147483647 - number END"
    )
    other = store_for(fresh_url, yard.clock)
    await yard.put()
    assert len(await claim(other)) == 1
    assert all(step.applied_at is not None for step in await other.admin.migrations())
    await other.close()
    assert len(await yard.mends()) == 2
    rows = yard.owner.execute("SELECT number FROM migration ORDER BY number").fetchall()
    assert [number for (number,) in rows] == [1]


@pytest.mark.parametrize(
    "damage",
    ["DELETE FROM verbs", "UPDATE verbs SET revision = -7", "UPDATE verbs SET applied_at = -1"],
)
async def test_what_is_noted_of_the_functions_is_mended(
    fresh_url: str, yard: Yard, damage: str
) -> None:
    yard.owner.execute(damage.encode())
    assert await yard.mends() == ["wrote that they are of the first revision"]
    other = store_for(fresh_url, yard.clock)
    await yard.put()
    assert len(await claim(other)) == 1
    await other.close()


# Levels


@pytest.mark.parametrize("level", [-3, 0, 1_001, 32_767])
async def test_a_level_that_cannot_be_counts_as_the_first(yard: Yard, level: int) -> None:
    """Else nobody would ever claim the job, and nobody would find out."""
    waiting, running, ended = new_job(), new_job(), new_job()
    await yard.store.put([running, ended])
    [_, last] = await claim(yard.store)
    await yard.store.settle([done(last)])
    await yard.store.put([waiting])
    yard.owner.execute("UPDATE job SET level = %s", [level])
    yard.owner.execute("UPDATE finished SET level = %s", [level])
    for job in (waiting, running, ended):
        record = await yard.store.admin.find(job.id)
        assert record is not None
        assert record.level == 1
    assert [job.id for job in await claim(yard.store)] == [waiting.id]
    assert set(await yard.mends()) == {
        f"wrote the first level into job {waiting.id}",
        f"wrote the first level into job {running.id}",
        f"wrote the nearest numbers that can be into finished job {ended.id}",
    }
    assert await deeds.revive(yard.store, [ended.id], [State.DONE], by()) == [ended.id]


@pytest.mark.parametrize("level", [0, 1_001])
async def test_a_job_is_put_with_no_level_that_cannot_be(yard: Yard, level: int) -> None:
    for jobs in ([new_job(level=level)], [new_job(level=level), new_job()]):
        with pytest.raises(EnqueueError, match="the level of a job is from 1 to 1,000"):
            await yard.store.put(jobs)


async def test_what_is_attached_to_a_job_goes_with_it(yard: Yard) -> None:
    """Out of the line and back, whichever way."""
    jobs = [new_job() for _ in range(4)]
    await yard.store.put(jobs)
    yard.owner.execute("UPDATE job SET attached = 5")
    await deeds.cancel(yard.store, [jobs[3].id], "no", by())
    first, second, third = await claim(yard.store)
    dead = Settlement(second.id, second.fence, State.DEAD, "failed", reason="because")
    await yard.store.settle([done(first), dead])
    yard.owner.execute("UPDATE job SET version = -1 WHERE id = %s", [third.id])
    await yard.mends()
    ended = "SELECT attached FROM finished UNION ALL SELECT attached FROM dead"
    assert yard.owner.execute(ended.encode()).fetchall() == [(5,)] * 4
    assert len(await deeds.revive(yard.store, [job.id for job in jobs], list(State), by())) == 4
    assert yard.owner.execute("SELECT attached FROM job").fetchall() == [(5,)] * 4


# What somebody dropped


async def test_what_should_be_there_is_what_the_scripts_make(yard: Yard) -> None:
    """All tables, indexes, views, types and functions of a schema that is as new."""
    rows = yard.owner.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace "
        "AND relname NOT IN ('migration', 'audit_seq_seq') "
        "UNION ALL "
        "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"
    ).fetchall()
    assert {name for (name,) in rows} == set(expected())


@pytest.mark.parametrize(
    ("dropped", "name"),
    [
        ("ALTER TABLE job DROP CONSTRAINT job_pkey", "index job_pkey"),
        ("ALTER TABLE migration DROP CONSTRAINT migration_pkey", "index migration_pkey"),
        ("ALTER TABLE audit DROP CONSTRAINT audit_id_key", "index audit_id_key"),
        ("DROP INDEX job_order", "index job_order"),
        ("DROP INDEX finished_id", "index finished_id"),
        ("DROP INDEX retention_one", "index retention_one"),
        ("DROP FUNCTION put(text)", "function put"),
        ("DROP FUNCTION flaws_of(text, text, bigint, integer)", "function flaws_of"),
        ("DROP FUNCTION strays(text)", "function strays"),
        ("DROP TABLE paused", "table paused"),
        ("DROP VIEW mended", "view mended"),
    ],
)
async def test_what_somebody_dropped_is_named_with_what_to_do(
    postgres_url: str, owner: psycopg.Connection, dropped: str, name: str
) -> None:
    """Before, nothing was found, or a migration was advised that had nothing to do."""
    schema = Address.of(postgres_url).schema
    store = store_for(postgres_url)
    assert await store.admin.audit() == []
    owner.execute(dropped.encode())
    [finding] = await store.admin.audit()
    await store.admin.condition()
    assert finding.problem == f"{name} of schema {schema} is missing"
    if name.startswith("index"):
        owner.execute(finding.remedy.partition("run ")[2].encode())
        assert await store.admin.audit() == []
    elif name.startswith("table"):
        assert "as `fairlead migrate sql` prints it" in finding.remedy
    else:
        assert finding.remedy == "let the owner run `fairlead migrate up`, which makes it again"
        other = store_for(postgres_url)
        await other.open()
        assert await other.admin.audit() == []
        await other.close()
    await store.close()


# The bytes of a claim (F82)


async def _sized(yard: Yard, sizes: Sequence[int], queue: str = "mail") -> list[JobId]:
    jobs = [NewJob(new_job().id, "t", queue, f'"{"x" * (size - 2)}"') for size in sizes]
    await yard.store.put(jobs)
    return [job.id for job in jobs]


def _ids(jobs: Sequence[Job]) -> list[JobId]:
    return [job.id for job in jobs]


async def test_a_claim_ends_with_the_job_that_fills_its_bytes(yard: Yard) -> None:
    ids = await _sized(yard, [100_000] * 12)
    first = await yard.store.claim(plan(slots=100, most_bytes=450_000))
    assert (_ids(first.jobs), first.cut) == (ids[:5], True)
    # Nothing beyond was touched: another has it at once.
    second = await yard.store.claim(plan(slots=100, worker="w2", most_bytes=500_000))
    assert (_ids(second.jobs), second.cut) == (ids[5:10], True)
    rest = await yard.store.claim(plan(slots=100, most_bytes=500_000))
    assert (_ids(rest.jobs), rest.cut) == (ids[10:], False)
    [(runs,)] = yard.owner.execute("SELECT sum(attempt) FROM job").fetchall()
    assert runs == 12


async def test_a_job_bigger_than_a_claim_comes_alone(yard: Yard) -> None:
    ids = await _sized(yard, [250_000, 10, 10])
    first = await yard.store.claim(plan(slots=100, most_bytes=1_000))
    assert (_ids(first.jobs), first.cut) == (ids[:1], True)
    rest = await yard.store.claim(plan(slots=100, most_bytes=1_000))
    assert (_ids(rest.jobs), rest.cut) == (ids[1:], False)


async def test_each_queue_has_its_share_of_the_bytes(yard: Yard) -> None:
    big = await _sized(yard, [100_000] * 8)
    small = await _sized(yard, [100] * 8, "other")
    got = await yard.store.claim(plan(MAIL, OTHER, slots=100, most_bytes=400_000))
    assert sorted(_ids(got.jobs)) == sorted([*big[:2], *small])
    assert got.cut


# News that anybody may tell


async def test_no_word_ends_the_listener(fresh_url: str, yard: Yard) -> None:
    store = store_for(fresh_url)
    await store.put([new_job()])
    assert len(await claim(store, slots=1)) == 1  # So that it knows a place to compare with.
    await store.wait(0, for_work=True)
    schema = Address.of(fresh_url).schema
    ear = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
    [pid] = yard.owner.execute(ear).fetchall()
    digits = ("²", "9" * 5_000, "9" * 19, "-1", "", "٣")
    for word in (*(f"work {each}" for each in digits), "\u202e", ""):
        mark = await quiet(store)
        yard.owner.execute("SELECT pg_notify(%s, %s)", [schema, word])
        async with asyncio.timeout(10):
            assert await store.wait(9, mark) != mark
        assert yard.owner.execute(ear).fetchall() == [pid]
        await store.put([new_job()])
        assert len(await claim(store)) == 1
    await store.close()


# What is an outage, and what is not


class RefusedAction(psycopg.DatabaseError):
    """What our own functions raise about something that is done."""

    sqlstate = "JQ001"


class RefusedJob(psycopg.DatabaseError):
    """What they raise about a job that is put."""

    sqlstate = "JQ002"


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (errors.UniqueViolation, StoreRefused),
        (errors.NotNullViolation, StoreRefused),
        (errors.CheckViolation, StoreRefused),
        (errors.NumericValueOutOfRange, StoreRefused),
        (errors.InvalidTextRepresentation, StoreRefused),
        (errors.StatementTooComplex, StoreRefused),
        (errors.ProgramLimitExceeded, StoreRefused),
        (errors.RaiseException, StoreRefused),
        (errors.InvalidParameterValue, StoreRefused),
        (RefusedAction, ConfigError),
        (RefusedJob, EnqueueError),
        (errors.CardinalityViolation, StoreRefused),
        (errors.DataCorrupted, StoreRefused),
        (errors.UntranslatableCharacter, ConfigError),
        (psycopg.DataError, ConfigError),
        (errors.DiskFull, StoreFull),
        (errors.DeadlockDetected, StoreUnavailable),
        (errors.SerializationFailure, StoreUnavailable),
        (errors.LockNotAvailable, StoreUnavailable),
        (errors.QueryCanceled, StoreUnavailable),
        (errors.AdminShutdown, StoreUnavailable),
        (errors.CannotConnectNow, StoreUnavailable),
        (errors.TooManyConnections, StoreUnavailable),
        (errors.OutOfMemory, StoreUnavailable),
        (errors.ReadOnlySqlTransaction, StoreUnavailable),
        (errors.InsufficientPrivilege, StoreDenied),
        (errors.UndefinedFunction, StoreUnavailable),
        (psycopg.OperationalError, StoreUnavailable),
        (psycopg.InterfaceError, StoreUnavailable),
    ],
)
def test_only_an_outage_is_an_outage(
    problem: type[psycopg.Error], expected: type[Exception]
) -> None:
    assert type(typed(problem("told"), Address.of("postgresql://localhost/x"))) is expected
