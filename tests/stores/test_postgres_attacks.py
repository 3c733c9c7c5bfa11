"""What hostile roles try on PostgreSQL, with statements of their own and no program of ours."""

import asyncio
import json
import time
from typing import Any

import psycopg
import pytest
from psycopg import errors

from fairlead.core.admin import Migration
from fairlead.core.errors import EnqueueError, StoreRefused, StoreUnavailable
from fairlead.core.job import LATEST, NewJob, State
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres import migrate as migrating
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.line import put_text
from fairlead.stores.postgres.migrate import migrate
from fairlead.stores.postgres.statements import migrations
from tests.stores.test_postgres_roles import Yard, yard  # noqa: F401 (a fixture)
from tests.words import POLICY, are_new, by, claim, done, failed, new_job, plan

VERBS = {
    "producer": ("put", "find", "attempts"),
    "worker": ("put", "find", "claim", "extend", "settle", "held", "announce", "upkeep"),
    "operator": ("find", "attempts", "act", "noted", "upkeep", "repair"),
}
DOCUMENTS = {
    "put": {"at": None, "count": 0, "kinds": []},
    "claim": {"at": None, "queues": [], "look": True, "batch": 10, "bytes": 10, "lease": 10},
    "extend": {"at": None, "lease": 10, "runs": []},
    "settle": {"at": None, "count": 1, "kinds": []},
    "announce": {"at": None, "worker": ["w", {}, "[]", 1], "lease": 10, "batch": 10},
    "upkeep": {"at": None, "keep": 0, "batch": 10},
    "act": {"at": None, "verb": "pause", "queue": "q", "ids": [], "states": [], "by": list("abcd")},
    "noted": {"at": None, "by": list("abcd"), "count": 1, "ids": []},
    "repair": {"at": None, "by": list("abcd"), "batch": 10},
}


@pytest.fixture
async def owner(yard: Yard) -> Any:  # noqa: F811
    store = store_for(yard.server.url(schema=yard.schema))
    yield store
    await store.close()


def say(connection: Any, yard: Yard, verb: str, text: str) -> Any:  # noqa: F811
    return connection.execute(f"SELECT {yard.schema}.{verb}(%s)", [text]).fetchall()


# All roles


@pytest.mark.parametrize("kind", VERBS)
def test_what_is_far_too_long_or_deep_is_refused_without_work(yard: Yard, kind: str) -> None:  # noqa: F811
    """T12: 60 MB and a million levels, to every verb that the role has."""
    long = "x" * 60_000_000
    deep = "[" * 1_000_000 + "]" * 1_000_000
    with yard.connection(kind) as connection:
        for verb in VERBS[kind]:
            told: list[str] = []
            for text in (long, json.dumps({"at": None, "more": long}), deep):
                began = time.monotonic()
                try:
                    say(connection, yard, verb, text)
                except psycopg.DatabaseError as problem:
                    told.append(str(problem))
                assert time.monotonic() - began < 10, verb  # It is a bound for a busy machine.
            assert "at most 33,554,432 bytes" in told[0]
            assert "at most 33,554,432 bytes" in told[1]
            assert "stack depth" in told[2]


@pytest.mark.parametrize("kind", VERBS)
def test_nobody_but_a_tester_says_what_time_it_is(yard: Yard, kind: str) -> None:  # noqa: F811
    """Else jobs could end long ago, and be forgotten; and the audit log would lie."""
    with yard.connection(kind) as connection:
        for verb in VERBS[kind]:
            for at in (0, LATEST):
                if verb in DOCUMENTS:
                    text = json.dumps(DOCUMENTS[verb] | {"at": at})
                    with pytest.raises(psycopg.DatabaseError, match="allowed to be a tester"):
                        say(connection, yard, verb, text)
        role = connection.info.user
        yard.server.execute(f"SELECT {yard.schema}.allow('{role}', 'tester')")
        say(
            connection,
            yard,
            "upkeep" if kind != "producer" else "put",
            json.dumps(DOCUMENTS["upkeep" if kind != "producer" else "put"] | {"at": 1}),
        )


@pytest.mark.parametrize("kind", [*VERBS, None])
def test_no_role_becomes_another(yard: Yard, kind: str | None) -> None:  # noqa: F811
    with yard.connection(kind) as connection:
        for statement in (
            "SET ROLE postgres",
            "SET SESSION AUTHORIZATION postgres",
            "SET LOCAL ROLE postgres",
            "SELECT set_config('role', 'postgres', false)",
            "SET session_replication_role = replica",
        ):
            with pytest.raises((errors.InsufficientPrivilege, errors.InvalidParameterValue)):
                connection.execute(statement)


@pytest.mark.parametrize("kind", VERBS)
def test_what_a_role_may_run_and_read_is_listed_here(yard: Yard, kind: str) -> None:  # noqa: F811
    """Functions, tables, views and sequences; whatever comes later is for nobody."""
    with yard.connection(kind) as connection:
        functions = {
            name
            for (name,) in connection.execute(
                "SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace "
                "AND has_function_privilege(oid, 'EXECUTE')",
                [yard.schema],
            )
        }
        touched = connection.execute(
            "SELECT relname, privilege FROM pg_class CROSS JOIN unnest("
            "ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS privilege "
            "WHERE relnamespace = %s::regnamespace AND relkind <> 'S' "
            "AND has_table_privilege(pg_class.oid, privilege)",
            [yard.schema],
        ).fetchall()
        read = {
            name
            for (name,) in connection.execute(
                "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND CASE relkind "
                "WHEN 'S' THEN has_sequence_privilege(oid, 'USAGE, SELECT, UPDATE') "
                "WHEN 'i' THEN false WHEN 'I' THEN false WHEN 'c' THEN false "
                "ELSE has_any_column_privilege(oid, 'SELECT') END",
                [yard.schema],
            )
        }
    extra = {
        "producer": {"due"},
        "worker": {"due", "attempts", "live_workers", "read_entries", "write_entries"},
        "operator": {
            *("due", "live_workers", "retain", "flaws", "strays", "tags_of", "last_of", "stamp"),
            *("read_entries", "write_entries", "served", "used", "limit_named"),
        },
    }
    assert functions == {*VERBS[kind], *extra[kind]}
    assert touched == []
    records = {f"{name}_record" for name in ("job", "finished", "dead", "attempt")}
    tables = {"job", "finished", "attempt", "dead", "worker", "paused", "audit", "queue", "day"}
    all_ = {*records, *tables, "entry", "retention", "kept", "migration", "verbs"}
    assert read == (all_ if kind == "operator" else {"migration", "verbs"})


# Nobody in particular


def test_a_lock_that_anybody_can_take_holds_up_no_migration(
    yard: Yard,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, whoever could log in could hold an advisory lock that every migration waited for."""
    monkeypatch.setattr(migrating, "PATIENCE_SECONDS", 0.0)
    new = f"{yard.schema}_new"
    try:
        with yard.connection(None) as connection:
            for schema in (yard.schema, new):
                connection.execute(
                    "SELECT pg_advisory_lock(hashtextextended(%s, 0))", [f"fairlead {schema}"]
                )
            migrate(Address.of(yard.server.url(schema=new)))
    finally:
        yard.server.execute(f"DROP SCHEMA {new} CASCADE")


def test_a_migration_that_waits_in_vain_says_for_whom(
    yard: Yard,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = Migration(99, "colour", "ALTER TABLE job ADD COLUMN colour text")
    monkeypatch.setattr(migrating, "migrations", lambda: [*migrations(), step])
    monkeypatch.setattr(migrating, "PATIENCE_SECONDS", 0.0)
    with psycopg.connect(yard.server.url()) as reader:
        reader.execute(f"SELECT FROM {yard.schema}.job")
        words = rf"open for long \(server process {reader.info.backend_pid}\); let it end"
        with pytest.raises(StoreUnavailable, match=words):
            migrate(Address.of(yard.server.url(schema=yard.schema)))


def test_default_privileges_give_nobody_more_than_allow_does(yard: Yard) -> None:  # noqa: F811
    """Before, a producer read every job and emptied the audit log, where its owner had set them."""
    schema, web = f"{yard.schema}_new", f"{yard.schema}_producer"
    yard.url("producer")
    url = yard.server.url(schema=schema)
    for what in ("TABLES", "FUNCTIONS", "SEQUENCES"):
        yard.server.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {what} TO {web}, PUBLIC")
    try:
        migrate(Address.of(url))
        yard.server.execute(f"SELECT {schema}.allow('{web}', 'producer')")
        yard.server.execute(f"SET search_path = {schema}; SELECT open_day(stamp())")
        for who in (web, "pg_monitor"):  # One who is allowed, and one who has what all have.
            rows = yard.server.execute(
                """
                SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace
                AND relkind IN ('r', 'p', 'v')
                AND has_table_privilege(%s, oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')
                UNION ALL
                SELECT proname FROM pg_proc WHERE pronamespace = %s::regnamespace
                AND has_function_privilege(%s, oid, 'EXECUTE')
                """,
                *(schema, who, schema, who),
            )
            wanted = {"put", "find", "attempts", "due"} | {"migration", "verbs"}
            if who != web:
                wanted = set()
            assert {name for (name,) in rows} == wanted
    finally:
        for what in ("TABLES", "FUNCTIONS", "SEQUENCES"):
            yard.server.execute(f"ALTER DEFAULT PRIVILEGES REVOKE ALL ON {what} FROM {web}, PUBLIC")
        yard.server.execute("ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC")
        yard.server.execute(f"DROP SCHEMA {schema} CASCADE")


async def test_doctor_names_what_was_given_beside_allow_and_what_runs_beside_us(
    yard: Yard,  # noqa: F811
) -> None:
    web, operator = yard.url("producer"), store_for(yard.url("operator"))
    yard.url("worker")
    yard.url("tester")
    about = f" of schema {yard.schema}"
    assert [
        each for each in (await operator.admin.condition()).findings if about in each.problem
    ] == []
    role = web.partition("//")[2].partition(":")[0]
    yard.server.execute(f"GRANT DELETE, INSERT ON {yard.schema}.audit TO {role}")
    yard.server.execute(f"GRANT SELECT ON {yard.schema}.job TO {role}")
    yard.server.execute(f"GRANT EXECUTE ON FUNCTION {yard.schema}.open_day(bigint) TO PUBLIC")
    yard.server.execute(
        f"CREATE TRIGGER peep BEFORE UPDATE ON {yard.schema}.job FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    found = [each for each in (await operator.admin.condition()).findings if about in each.problem]
    await operator.close()
    told = [each.problem.partition(about)[0] for each in found]
    assert told == [
        "PUBLIC was given EXECUTE on function open_day(bigint)",
        f"{role} was given DELETE, INSERT on table audit",
        f"{role} was given SELECT on table job",
        "trigger peep ON job",
    ]
    for each in found:
        yard.server.execute(
            each.remedy.partition("run ")[2].partition(", and look")[0]
            or each.remedy.partition(": ")[2]
        )
    owner = store_for(yard.server.url(schema=yard.schema))
    assert [
        each for each in (await owner.admin.condition()).findings if about in each.problem
    ] == []
    await owner.close()


# Workers who may create tables


@pytest.mark.parametrize("whose", ["worker", "owner"])
async def test_a_table_that_waits_for_the_jobs_of_a_day_is_no_part_of_ours(
    yard: Yard,  # noqa: F811
    owner: Store,
    whose: str,
) -> None:
    """Before, what its triggers do was done with the owner's rights when a job ended."""
    await owner.put([new_job()])
    [job] = await claim(owner)
    url = yard.url("worker")
    role = url.partition("//")[2].partition(":")[0]
    [(day,)] = yard.server.execute(f"SELECT {yard.schema}.day_of({yard.schema}.stamp())")
    table = f"{yard.schema}.finished_{day}"
    yard.server.execute(
        f"CREATE TABLE {table} (LIKE {yard.schema}.finished);"
        f"CREATE TRIGGER trap BEFORE INSERT ON {table} FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    if whose == "worker":
        yard.server.execute(f"DROP TRIGGER trap ON {table}; ALTER TABLE {table} OWNER TO {role}")
    who = role if whose == "worker" else "postgres"
    words = f"somebody has made another of that name; let its owner, {who}, drop or rename it$"
    with pytest.raises(StoreUnavailable, match=words):
        await owner.settle([done(job)])
    yard.server.execute(f"DROP TABLE {table}; CREATE TABLE {table} (LIKE {yard.schema}.finished)")
    assert len(await owner.settle([done(job)])) == 1
    assert await owner.admin.audit() == []


# Producers


async def test_settings_of_the_caller_change_nothing_in_a_verb(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    job = new_job()
    await owner.put([job])
    with yard.connection("producer") as connection:
        for setting in (
            f"search_path = pg_temp, public, {yard.schema}",
            "row_security = off",
            "transform_null_equals = on",
            "standard_conforming_strings = off",
            "timezone = 'Pacific/Kiritimati'",
            "default_transaction_isolation = 'serializable'",
        ):
            connection.execute(f"SET {setting}")
        mine = new_job()
        assert say(connection, yard, "put", put_text([mine, job], None, None)) == [(None,)]
        assert say(connection, yard, "find", json.dumps({"id": job.id})) == []
        [(found,)] = say(connection, yard, "find", json.dumps({"id": mine.id}))
        assert json.loads(found)["id"] == mine.id


async def test_no_error_names_what_another_put(yard: Yard, owner: Store) -> None:  # noqa: F811
    """T26: in whatever isolation, the words and their details are the same as for a new id."""
    theirs = [new_job() for _ in range(3)]
    await owner.put(theirs)
    [one, *_] = await claim(owner, slots=1)
    await owner.settle([done(one)])
    with yard.connection("producer") as connection:
        for level in ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):
            for job in (*theirs, new_job()):
                with connection.transaction():
                    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
                    connection.execute("SELECT 1")
                    assert say(connection, yard, "put", put_text([job], None, None)) == [(None,)]


async def test_claims_do_not_go_over_tasks_that_nobody_knows(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    """Before, each claim that looked went over all their names, for good: more than a second."""
    await owner.open()
    yard.server.execute(
        f"INSERT INTO {yard.schema}.job "
        "(id, queue, task, version, parked, park_key, run_at, order_at, enqueued_at, payload) "
        f"SELECT 'j' || n, 'mail', 'task ' || n, 1, 2, {yard.schema}.kind_key('task ' || n, 1), "
        "0, 0, 0, '{}' FROM generate_series(1, 9000) AS n"
    )
    await owner.put([new_job() for _ in range(5)])
    capable = {"t": 1} | {f"known {n}": 1 for n in range(200)}
    for _ in range(5):
        [run] = await claim(owner, slots=1, capable=capable)
        await owner.upkeep(10**12)
        await owner.settle([done(run)])
    known = await owner.claim(plan(slots=2, capable={"t": 1, "task 7": 1}))
    assert [run.task for run in known.jobs] == ["task 7"]
    await owner.close()  # The server's figures come when a connection ends.
    assert await looked_at(yard, "job_parked") < 1_000
    assert len(await claim(owner, slots=2)) == 2


async def looked_at(where: Yard, index: str) -> int:
    """Return how many entries of an index were looked at, in more than 200 scans."""
    asked = "SELECT idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = %s"
    for _ in range(100):
        [(scans, seen)] = where.server.execute(f"{asked} AND schemaname = %s", index, where.schema)
        if scans > 200:
            return int(seen)
        await asyncio.sleep(0.1)
    raise AssertionError(f"the server told of {scans} scans")


async def test_no_delay_is_a_head_start(yard: Yard, owner: Store) -> None:  # noqa: F811
    """Neither a due time in the past is one nor a delay of less than nothing, alone or among many."""
    hasty = [new_job(delay=-(10**12)), new_job(delay=-(10**15)), new_job(run_at=1)]
    with yard.connection("producer") as connection:
        for jobs in (hasty[:1], hasty[1:]):
            say(connection, yard, "put", put_text(jobs, None, None))
    first = new_job(priority=60)
    await owner.put([first])
    assert (await claim(owner))[0].id == first.id
    assert await owner.admin.audit() == []


# Operators


async def test_what_an_operator_forgets_by_housekeeping_is_noted(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    """All of it, also where it wants to count little; what a worker forgets is nobody's action."""
    await owner.put([new_job() for _ in range(3)])
    await owner.settle([done(job) for job in await claim(owner)])
    with yard.connection("operator") as connection:
        for batch in (0, 1):
            say(connection, yard, "upkeep", json.dumps({"keep": 0, "batch": batch}))
    [line] = await owner.admin.audit_log()
    assert line.count == 3
    assert (line.user, line.verb) == (f"{yard.schema}_operator", "upkeep")
    assert line.target.startswith("all that ended before 20")


async def test_an_edit_is_of_one_job_and_within_the_limits(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    jobs = [new_job(), new_job()]
    await owner.put(jobs)
    runs = await claim(owner)
    await owner.settle([failed(run, 0, POLICY) for run in runs])
    ids = [job.id for job in jobs]
    doc = {"verb": "edit", "ids": ids, "was": jobs[0].payload, "states": [], "version": 1}
    with yard.connection("operator") as connection:
        for payload in ("[" * 65 + "]" * 65, '"' + "x" * 262_143 + '"', None):
            text = json.dumps(doc | {"payload": payload, "by": ["1", "ada", "edit", "x"]})
            with pytest.raises(psycopg.DatabaseError, match="payload"):
                say(connection, yard, "act", text)
        text = json.dumps(doc | {"payload": '{"n":7}', "by": ["2", "ada", "edit", "x"]})
        assert say(connection, yard, "act", text) == [(json.dumps([[ids[0]]]),)]
    [line] = await owner.admin.audit_log(job_id=jobs[0].id)
    assert (line.count, line.before) == (1, jobs[0].payload)
    record = await owner.admin.find(jobs[1].id)
    assert record is not None
    assert record.payload == jobs[1].payload


@pytest.mark.parametrize("name", ["", "q" * 129, "ü" * 65, None])
def test_no_queue_is_paused_that_cannot_be(yard: Yard, name: str | None) -> None:  # noqa: F811
    with yard.connection("operator") as connection:
        doc = {"verb": "pause", "queue": name, "by": ["1", "ada", "pause", "x"]}
        with pytest.raises(psycopg.DatabaseError, match="1 to 128 bytes"):
            say(connection, yard, "act", json.dumps(doc))
    assert yard.server.execute(f"SELECT FROM {yard.schema}.audit") == []


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_line_of_the_audit_log_is_no_place_to_keep_things(yard: Yard, place: int) -> None:  # noqa: F811
    name = ["1", "ada", "pause", "x"]
    name[place] = "x" * 20_001
    with yard.connection("operator") as connection:
        doc = {"verb": "pause", "queue": "mail", "by": name}
        with pytest.raises(psycopg.DatabaseError, match="at most 20,000 bytes"):
            say(connection, yard, "act", json.dumps(doc))
    assert yard.server.execute(f"SELECT FROM {yard.schema}.paused") == []


# Workers


async def test_a_job_cannot_end_in_a_state_that_there_is_not(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    """Before, it was nowhere then: neither live, nor finished, nor dead."""
    await owner.put([new_job()])
    [run] = await claim(owner)
    with yard.connection("worker") as connection:
        for state in ("nowhere", "", None, "running"):
            kind = [state, "done", True, False, False, None, None, None, None, None, None]
            kind.append([[run.id, run.fence, None, None, None, 0]])
            with pytest.raises(psycopg.DatabaseError, match="a run ends as done, waiting, dead or"):
                say(connection, yard, "settle", json.dumps({"count": 1, "kinds": [kind]}))
    record = await owner.admin.find(run.id)
    assert record is not None
    assert record.state is State.RUNNING


@pytest.mark.parametrize(
    ("worker", "lease"),
    [(None, 9), ("", 9), ("w" * 3_000, 9), ("ü" * 501, 9), ("w", None), ("w", -1), ("w", 10**14)],
)
def test_no_worker_announces_itself_that_cannot_claim(
    yard: Yard,  # noqa: F811
    worker: str | None,
    lease: int | None,
) -> None:
    doc = {"worker": [worker, {"t": 1}, "[]", 1], "lease": lease, "batch": 10}
    with yard.connection("worker") as connection:
        with pytest.raises(errors.InvalidParameterValue, match="a worker says its name, in up to"):
            say(connection, yard, "announce", json.dumps(doc))
        say(connection, yard, "announce", json.dumps(DOCUMENTS["announce"]))
    assert yard.server.execute(f"SELECT id FROM {yard.schema}.worker") == [("w",)]


@pytest.mark.parametrize("worker", [None, "", "w" * 1_001])
@pytest.mark.parametrize("lease", [10**9, None, -1, 10**14])
async def test_no_run_begins_damaged(
    yard: Yard,  # noqa: F811
    owner: Store,
    worker: str | None,
    lease: int | None,
) -> None:
    """Before, whatever was claimed without a worker's name became a dead letter, of all queues."""
    await owner.put([new_job()])
    shared = {"look": True, "steps": 10, "batch": 10, "bytes": 10**6, "shared": 10, "critical": 0}
    queue = ["mail", 1, 0, 0, False, 10]
    doc = shared | {"worker": worker, "lease": lease, "spare": False, "queues": [queue]}
    with yard.connection("worker") as connection:
        with pytest.raises(errors.InvalidParameterValue, match="a claim names its worker"):
            say(connection, yard, "claim", json.dumps(doc))
        if lease != 10**9:
            text = json.dumps({"lease": lease, "runs": []})
            with pytest.raises(errors.InvalidParameterValue, match="a lease is of 0 s to 366 days"):
                say(connection, yard, "extend", text)
            with pytest.raises(errors.InvalidParameterValue):
                say(connection, yard, "claim", json.dumps(doc | {"worker": "w"}))
        else:
            say(connection, yard, "claim", json.dumps(doc | {"worker": "w"}))
    assert await owner.admin.audit() == []
    assert len(await owner.held("w")) == (lease == 10**9)


async def test_a_retention_is_kept_though_its_row_was_lost(yard: Yard, owner: Store) -> None:  # noqa: F811
    await owner.put([new_job()])
    [run] = await claim(owner)
    await owner.settle([done(run)])
    yard.server.execute(f"DELETE FROM {yard.schema}.retention")
    with yard.connection("operator") as connection:
        connection.execute(f"SELECT {yard.schema}.retain('1 day')")
    with yard.connection("worker") as connection:
        say(connection, yard, "upkeep", json.dumps({"keep": 0, "batch": 10}))
    assert await owner.admin.find(run.id) is not None
    yard.server.execute(f"UPDATE {yard.schema}.retention SET keep = -1")
    [finding] = await owner.admin.audit()
    assert "retention" in finding.problem
    await owner.admin.repair(by())
    assert await owner.admin.audit() == []


async def test_what_a_trigger_of_somebody_raises_is_no_fault_of_the_settler(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    """It is a refusal, so that the batch is split; before, it was taken for one of ours."""
    await owner.put([new_job()])
    [run] = await claim(owner)
    yard.server.execute(
        f"CREATE FUNCTION {yard.schema}.no() RETURNS trigger LANGUAGE plpgsql "
        "AS 'BEGIN RAISE ''no''; END'; "
        f"CREATE TRIGGER no BEFORE INSERT ON {yard.schema}.attempt "
        f"FOR EACH ROW EXECUTE FUNCTION {yard.schema}.no()"
    )
    with pytest.raises(StoreRefused, match="no; `fairlead doctor`"):
        await owner.settle([done(run)])


def test_an_application_is_told_what_its_connection_may_not_put(yard: Yard) -> None:  # noqa: F811
    """By our own error, and in its own transaction, which is not ours to end."""
    store = store_for(yard.url("producer"))
    with yard.connection("producer", "app_") as connection, connection.transaction():
        with pytest.raises(EnqueueError, match="refuses this job: the name of a queue"):
            store.put_within(connection, [new_job(queue="")]).run()
        with pytest.raises(errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        raise psycopg.Rollback


# Large puts of honest programs


async def test_a_put_of_many_megabytes_is_all_or_nothing(yard: Yard) -> None:  # noqa: F811
    web = store_for(yard.url("producer"))

    def big() -> list[NewJob]:
        return [NewJob(new_job().id, "t", "mail", f'"{"é" * 100_000}"') for _ in range(200)]

    jobs = big()
    assert are_new(await web.put(jobs)) == [True] * 200
    assert are_new(await web.put(jobs)) == [False] * 200
    jobs = big()
    assert are_new(web.put_blocking([*jobs, jobs[0]])) == [True] * 200 + [False]
    bad = [*big(), new_job(id="x" * 37)]
    with pytest.raises(EnqueueError, match="36 ASCII"):
        await web.put(bad)
    with pytest.raises(EnqueueError, match="36 ASCII"):
        web.put_blocking(bad)
    assert await web.admin.find(bad[0].id) is None
    await web.close()
