"""Who may do what on PostgreSQL: verbs for roles, tables for nobody but the owner."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors

from fairlead import Fairlead
from fairlead.core.acts import Action
from fairlead.core.admin import Filter, Worker
from fairlead.core.errors import StoreDenied
from fairlead.core.job import State
from fairlead.core.outcome import Settlement
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.line import put_text
from fairlead.stores.postgres.migrate import migrate
from fairlead.stores.postgres.problems import typed
from tests import deeds
from tests.servers.postgres import PostgresServer
from tests.words import are_new, claim, done, new_job

BY = Action("a1", "ada", "cancel", "one job")
TABLES = (
    *("job", "finished", "attempt", "dead", "worker", "paused", "audit", "queue", "day"),
    *("retention", "job_record", "finished_record", "dead_record", "attempt_record"),
)
CHANGES = (
    "INSERT INTO {schema}.paused VALUES ('mail')",
    "UPDATE {schema}.job SET payload = '{{}}'",
    "DELETE FROM {schema}.job",
    "TRUNCATE {schema}.dead",
    "INSERT INTO {schema}.migration VALUES (99, 0)",
    "CREATE TABLE {schema}.mine (x int)",
    "SELECT nextval('{schema}.attempt_seq')",
    "SELECT {schema}.open_day(0)",
    "SELECT {schema}.close_days(9000000000000000)",
    "SELECT {schema}.forget('{{}}', '{{}}', 1)",
    "SELECT {schema}.allow(current_user, 'operator')",
    "INSERT INTO {schema}.job (id, queue, task, version, payload) VALUES ('1', 'mail', 't', 1, '{{}}')",
    "COPY {schema}.job (id, queue, task, version, payload, options) FROM STDIN",
    "SELECT {schema}.take_back('{{}}', NULL, '0', 'f', true, 0)",
    "SELECT {schema}.enter_new('{{}}', 0)",
    "SELECT {schema}.note('[]', 0, 0)",
    "UPDATE {schema}.retention SET before = 9000000000000000",
    "UPDATE {schema}.verbs SET revision = 1000000",
    "DROP TABLE {schema}.job",
)


class Yard:
    """A schema of its owner's, and roles that were allowed something in it."""

    def __init__(self, server: PostgresServer, url: str) -> None:
        self.server = server
        self.schema = Address.of(url).schema
        self._roles: list[str] = []
        migrate(Address.of(url))

    def url(self, kind: str | None, name: str = "") -> str:
        """Return the URL of a new role that is allowed this, or nothing."""
        role = f"{self.schema}_{name}{kind or 'nobody'}"
        self.server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'rope'")
        self._roles.append(role)
        if kind is not None:
            self.server.execute(f"SELECT {self.schema}.allow('{role}', '{kind}')")
        return self.server.url(user=role, password="rope", schema=self.schema)

    def connection(self, kind: str | None, name: str = "") -> psycopg.Connection[Any]:
        role_url = self.url(kind, name).partition("?")[0]
        return psycopg.connect(role_url, autocommit=True)

    def close(self) -> None:
        for role in self._roles:
            self.server.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture
def yard(postgres_server: PostgresServer, postgres_url: str) -> Iterator[Yard]:
    yard = Yard(postgres_server, postgres_url)
    yield yard
    yard.close()


async def refuses(call: Any, kind: str = "operator") -> None:
    whom = "SOMEBODY" if kind == "operator" else r"t_\w+"
    words = rf"permission denied.*let the owner .* run SELECT \w+\.allow\('{whom}', '{kind}'\)$"
    with pytest.raises(StoreDenied, match=words) as told:
        await call
    for_people = "; this is for operators: use the URL of one (--url, $FAIRLEAD_URL); to make one, "
    assert (for_people in str(told.value)) is (kind == "operator")


async def refuses_to_look(store: Store) -> None:
    for call in (
        deeds.jobs(store, Filter()),
        store.admin.count(),
        store.admin.groups(Filter()),
        store.admin.recent(0),
        deeds.waiting(store),
        deeds.running(store),
        deeds.unknown(store),
        deeds.paused(store),
        store.admin.audit_log(),
        store.admin.audit(),
    ):
        await refuses(call)


async def refuses_to_act(store: Store, job_id: Any) -> None:
    for call in (
        deeds.cancel(store, [job_id], "no", by=BY),
        deeds.revive(store, [job_id], [State.DEAD], BY),
        deeds.edit(store, job_id, "{}", "{}", 1, BY),
        deeds.delete(store, [job_id], [State.DEAD], BY),
        deeds.pause(store, "mail", BY),
        deeds.resume(store, "mail", BY),
        deeds.note(store, BY, 1),
        store.admin.repair(BY),
    ):
        await refuses(call)


async def refuses_to_work(store: Store) -> None:
    job_id = new_job().id
    for call in (
        claim(store),
        store.extend([(job_id, 1)], 1),
        store.settle([Settlement(job_id, 1, State.DONE, "done")]),
        store.held("w1"),
        store.announce(_worker(), 1),
    ):
        await refuses(call, "worker")


def _worker() -> Worker:
    return Worker("w1", {"t": 1}, [], 1, 0, 0)


async def test_a_producer_that_works_is_told_to_be_a_worker(yard: Yard) -> None:
    """And no operator, who may do more than it needs, and not even claim."""
    app = Fairlead(yard.url("producer"))
    app.task(name="t")(lambda: None)
    worker = app.worker()
    await refuses(worker.__aenter__(), "worker")
    for call in (app.store.upkeep(0), app.store.admin.workers()):
        await refuses(call, "worker")
    await app.aclose()


async def test_whoever_may_nothing_is_told_the_least_that_helps(yard: Yard) -> None:
    """One verb of ours after the other, as the database itself knows whose they are."""
    address = Address.of(yard.url(None))
    [(known,)] = yard.server.execute(
        f"SELECT jsonb_object_agg(kind, {yard.schema}.verbs_of(kind)) FROM "
        "unnest(ARRAY['producer', 'worker', 'operator', 'tester']) AS kind"
    )
    for kind, verbs in known.items():
        for verb in verbs:
            denied = psycopg.errors.InsufficientPrivilege(
                f"permission denied for function {verb.partition('(')[0]}"
            )
            least = next(each for each in ("producer", "worker", kind) if verb in known[each])
            assert str(typed(denied, address)).endswith(f"', '{least}')"), verb


async def test_a_producer_enqueues_and_finds_its_job_and_that_is_all(yard: Yard) -> None:
    store = store_for(yard.url("producer"))
    job = new_job()
    assert are_new(await store.put([job])) == [True]
    assert are_new(store.put_blocking([job])) == [False]
    found = await store.admin.find(job.id)
    assert found is not None
    assert found.state is State.WAITING
    assert await store.admin.attempts(job.id) == []
    assert await store.wait(0.01) is not None
    await refuses_to_look(store)
    await refuses_to_act(store, job.id)
    await refuses_to_work(store)
    await refuses(store.upkeep(0), "worker")
    await store.close()


async def test_a_worker_works_and_is_no_operator(yard: Yard) -> None:
    store = store_for(yard.url("worker"))
    await store.announce(_worker(), 10**9)
    await store.put([new_job(), new_job()])
    one, other = await claim(store, capable={"t": 1})
    assert len(await store.extend([(one.id, one.fence)], 10**9)) == 1
    assert [job.id for job in await store.held("w1")] != []
    assert set(await store.settle([done(one, "1")])) == {one.id}
    with store.transaction() as connection:
        assert store.complete_within(connection, done(other)).run() is not None
        assert are_new(store.put_within(connection, [new_job()]).run()) == [True]
    assert [line.outcome for line in await store.admin.attempts(one.id)] == ["done"]
    await store.upkeep(10**9)
    assert await store.admin.workers() != []
    await refuses_to_look(store)
    await refuses_to_act(store, one.id)
    await store.close()


async def test_an_operator_looks_and_acts_and_runs_no_job(yard: Yard) -> None:
    owner = store_for(yard.server.url(schema=yard.schema))
    job = new_job()
    await owner.put([job])
    await owner.close()
    store = store_for(yard.url("operator"))
    assert [record.id for record in await deeds.jobs(store, Filter())] == [job.id]
    assert await store.admin.count() == {"mail": {State.WAITING: 1}}
    assert await deeds.waiting(store) != {}
    assert await store.admin.groups(Filter()) != []
    assert await store.admin.recent(0) == []
    assert await deeds.running(store) == []
    assert await deeds.unknown(store) == {}
    assert await store.admin.audit() == []
    assert (await store.admin.condition()).facts["user"].endswith("_operator")
    assert await deeds.pause(store, "mail", BY)
    assert await deeds.paused(store) == {"mail"}
    assert await deeds.resume(store, "mail", Action("a2", "ada", "resume", "mail"))
    assert set(
        await deeds.cancel(store, [job.id], "enough", by=Action("a3", "a", "cancel", "x"))
    ) == {job.id}
    assert await deeds.revive(
        store, [job.id], [State.CANCELLED], Action("a4", "a", "revive", "x")
    ) == [job.id]
    assert len(await store.admin.audit_log()) == 4
    await store.upkeep(10**9)
    await refuses_to_work(store)
    await refuses(store.put([new_job()]), "producer")
    await store.close()


@pytest.mark.parametrize("kind", ["producer", "worker", "operator"])
def test_nobody_but_the_owner_changes_a_table(yard: Yard, kind: str) -> None:
    with yard.connection(kind) as connection:
        for change in CHANGES:
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(change.format(schema=yard.schema))
        for table in TABLES:
            if kind != "operator":
                with pytest.raises(errors.InsufficientPrivilege):
                    connection.execute(f"SELECT FROM {yard.schema}.{table}")
            else:
                connection.execute(f"SELECT FROM {yard.schema}.{table}")


def test_who_was_allowed_nothing_can_do_nothing(yard: Yard) -> None:
    """PUBLIC has neither the schema nor, were it given that, a single function or table of it."""
    with yard.connection(None) as connection:
        with pytest.raises(errors.InsufficientPrivilege, match="schema"):
            connection.execute(f"SELECT {yard.schema}.put('{{}}')")
        yard.server.execute(f"GRANT USAGE ON SCHEMA {yard.schema} TO PUBLIC")
        functions = yard.server.execute(
            "SELECT oid::regprocedure::text, oid FROM pg_proc WHERE pronamespace = %s::regnamespace",
            yard.schema,
        )
        assert len(functions) > 20
        let = [
            name
            for name, oid in functions
            if connection.execute(
                "SELECT has_function_privilege(%s::oid, 'EXECUTE')", [oid]
            ).fetchone()
            == (True,)
        ]
        assert let == []
        for table in (*TABLES, "migration"):
            with pytest.raises(errors.InsufficientPrivilege):
                connection.execute(f"SELECT FROM {yard.schema}.{table}")


async def test_who_was_allowed_nothing_is_told_who_can_help(yard: Yard) -> None:
    store = store_for(yard.url(None))
    words = r"allow\('\w+nobody', 'producer'\) if it enqueues, 'worker' if it runs jobs, 'operator' for "
    with pytest.raises(StoreDenied, match=words):
        await store.open()
    await store.close()


def test_a_role_that_there_is_not_is_refused_with_those_there_are(yard: Yard) -> None:
    for kind in ("'nonsense'", "NULL"):
        with pytest.raises(psycopg.DatabaseError, match="a producer, a worker, an operator or a"):
            yard.server.execute(f"SELECT {yard.schema}.allow('postgres', {kind})")


def test_a_table_slipped_into_the_way_is_not_used(yard: Yard) -> None:
    """What a verb of the owner's touches is not to be chosen by who calls it."""
    job = new_job()
    with yard.connection("producer") as connection:
        connection.execute("CREATE TEMP TABLE job (LIKE pg_catalog.pg_class)")
        connection.execute("CREATE TEMP TABLE dead (id text)")
        connection.execute(
            "CREATE FUNCTION pg_temp.stamp() RETURNS bigint LANGUAGE sql AS 'SELECT 1/0::bigint'"
        )
        connection.execute(f"SET search_path = pg_temp, pg_catalog, {yard.schema}")
        text = put_text([job], None, None)
        assert connection.execute(f"SELECT {yard.schema}.put(%s)", [text]).fetchone() == (None,)
        wanted = json.dumps({"id": job.id})
        found = connection.execute(f"SELECT {yard.schema}.find(%s)", [wanted]).fetchall()
    assert [json.loads(text)["id"] for (text,) in found] == [job.id]
    assert yard.server.execute(f"SELECT id FROM {yard.schema}.job") == [(job.id,)]


@pytest.mark.parametrize("kind", ["producer", "worker", "operator"])
def test_every_verb_that_is_given_runs_on_a_fixed_path(yard: Yard, kind: str) -> None:
    with yard.connection(kind) as connection:
        given = connection.execute(
            "SELECT proname, proconfig FROM pg_proc "
            "WHERE pronamespace = %s::regnamespace AND prosecdef "
            "AND has_function_privilege(oid, 'EXECUTE')",
            [yard.schema],
        ).fetchall()
    assert given
    for name, settings in given:
        assert f"search_path={yard.schema}, pg_temp" in settings, name
