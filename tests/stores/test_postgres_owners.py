"""Nothing of a schema is used that belongs to somebody who is not trusted (T27)."""

from collections.abc import Iterator

import psycopg
import pytest

from fairlead.core.errors import ConfigError, StoreUnavailable
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.migrate import migrate
from tests import deeds
from tests.servers.postgres import PostgresServer
from tests.words import are_new, by, new_job

TRAP = """
CREATE FUNCTION {schema}.spring() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'ALTER ROLE mallory SUPERUSER';
    RETURN 0;
END $$;
GRANT ALL ON SCHEMA {schema} TO PUBLIC;
GRANT ALL ON ALL FUNCTIONS IN SCHEMA {schema} TO PUBLIC;
"""
TRAPS = {
    "view": "CREATE VIEW {schema}.migration AS SELECT 1 AS number, {schema}.spring() AS applied_at",
    "default": "CREATE TABLE {schema}.migration "
    "(number integer PRIMARY KEY, applied_at bigint NOT NULL, x bigint DEFAULT {schema}.spring())",
    "function": "CREATE FUNCTION {schema}.stamp() RETURNS bigint LANGUAGE sql "
    "AS 'SELECT {schema}.spring()'",
    "schema": "SELECT 1",
}
GIVEN = "GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO PUBLIC"


class Town:
    """A database of its own, with an owner, a user and somebody who should not be trusted."""

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self.server = server
        self.schema = schema
        for role in ("keeper", "mallory", "guest"):
            server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'rope'")
        server.execute("CREATE DATABASE town OWNER keeper")
        server.execute("GRANT CREATE ON DATABASE town TO mallory", database="town")

    def url(self, role: str, **options: str) -> str:
        password = "" if role == "postgres" else "rope"
        return self.server.url("town", role, password, schema=self.schema, **options)

    def run(self, role: str, *statements: str) -> None:
        with psycopg.connect(self.url(role).partition("?")[0], autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.replace("{schema}", self.schema).encode())

    def is_taken(self) -> bool:
        return self.server.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'") == [
            (True,)
        ]

    def close(self) -> None:
        self.server.execute("DROP DATABASE town WITH (FORCE)")
        for role in ("keeper", "mallory", "guest"):
            self.server.execute(f"DROP ROLE {role}")


@pytest.fixture
def town(postgres_server: PostgresServer) -> Iterator[Town]:
    town = Town(postgres_server, "jobs")
    yield town
    town.close()


async def refuses(url: str, words: str) -> None:
    store = store_for(url)
    for call in (
        store.admin.migrations(),
        store.open(),
        store.put([new_job()]),
        store.admin.audit_log(),
    ):
        with pytest.raises(ConfigError, match=words):
            await call
    await store.close()


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("role", ["postgres", "keeper"])
async def test_a_schema_that_somebody_made_beforehand_is_refused(
    town: Town, trap: str, role: str
) -> None:
    """Before, a view named migration made its author superuser when an admin looked at jobs."""
    town.run("mallory", "CREATE SCHEMA {schema}", TRAP, TRAPS[trap], GIVEN)
    await refuses(town.url(role), "schema jobs belongs to mallory, whose code would run with our")
    with pytest.raises(ConfigError, match="schema jobs belongs to mallory"):
        migrate(Address.of(town.url(role)))
    assert not town.is_taken()


@pytest.mark.parametrize(
    ("trap", "what"),
    [
        ("CREATE FUNCTION {schema}.put(x varchar) RETURNS text LANGUAGE sql AS 'SELECT x'", "function put"),
        ("CREATE VIEW {schema}.jobs AS SELECT 1", "view jobs"),
        ("CREATE TABLE {schema}.jobs (x int)", "table jobs"),
        ("CREATE TYPE {schema}.jobs AS ENUM ('x')", "type jobs"),
        (
            "CREATE OPERATOR {schema}.#=# (LEFTARG = text, RIGHTARG = text, PROCEDURE = texteq)",
            "operator #=#",
        ),
    ],
)  # fmt: skip
async def test_what_somebody_put_into_a_schema_of_ours_is_refused(
    town: Town, trap: str, what: str
) -> None:
    migrate(Address.of(town.url("keeper")))
    town.run("keeper", "SELECT {schema}.allow('guest', 'producer')")
    guest = store_for(town.url("guest"))
    await guest.open()
    await guest.close()
    town.run("keeper", "GRANT ALL ON SCHEMA {schema} TO mallory")
    town.run("mallory", trap)
    for role in ("keeper", "guest"):
        await refuses(town.url(role), f"{what} of schema jobs belongs to mallory")


async def test_doctor_tells_of_what_came_after_the_store_was_opened(town: Town) -> None:
    store = store_for(town.url("keeper"))
    await store.open()
    assert not [
        each for each in (await store.admin.condition()).findings if "schema" in each.problem
    ]
    town.run("keeper", "GRANT CREATE ON SCHEMA {schema} TO mallory, PUBLIC")
    town.run("mallory", "CREATE TABLE {schema}.mine (x int)")
    told = [(each.problem, each.remedy) for each in (await store.admin.condition()).findings]
    await store.close()
    assert any(
        problem.startswith("table mine of schema jobs belongs to mal") for problem, _ in told
    )
    for who, role in (("everybody", "PUBLIC"), ("mallory", "mallory")):
        assert any(
            problem.startswith(f"{who} may create tables and functions in schema jobs")
            and remedy.endswith(f"REVOKE CREATE ON SCHEMA jobs FROM {role}")
            for problem, remedy in told
        )


@pytest.mark.parametrize("trap", TRAPS)
async def test_the_script_for_psql_stops_at_a_stranger_too(town: Town, trap: str) -> None:
    """`fairlead migrate sql` prints it, and whoever runs it may be a superuser."""
    store = store_for(town.url("keeper"))
    script = "".join(step.sql for step in await store.admin.migrations())
    await store.close()
    town.run("mallory", "CREATE SCHEMA {schema}", TRAP, TRAPS[trap], GIVEN)
    for role in ("postgres", "keeper"):
        with pytest.raises(psycopg.errors.RaiseException, match="schema jobs belongs to mallory"):
            town.run(role, script)
    assert not town.is_taken()


async def test_the_script_for_psql_makes_the_schema_of_its_owner(town: Town) -> None:
    store = store_for(town.url("keeper"))
    steps = await store.admin.migrations()
    for step in steps:
        town.run("keeper", step.sql)
    assert are_new(await store.put([new_job()])) == [True]
    await store.close()


async def test_nothing_of_a_stranger_is_called_on_a_connection_of_the_callers(town: Town) -> None:
    """Also by a program that has not opened its store before."""
    town.run(
        "mallory",
        "CREATE SCHEMA {schema}",
        TRAP,
        "CREATE FUNCTION {schema}.put(batch text) RETURNS text LANGUAGE sql "
        "AS 'SELECT {schema}.spring()::text'",
    )
    store = store_for(town.url("postgres"))
    with psycopg.connect(town.url("postgres").partition("?")[0]) as connection:
        with pytest.raises(ConfigError, match="schema jobs belongs to mallory"):
            store.put_within(connection, [new_job()]).run()
        with pytest.raises(ConfigError, match="schema jobs belongs to mallory"):
            await store.put_within(connection, [new_job()]).arun()
    await store.close()
    assert not town.is_taken()


async def test_a_superuser_does_not_run_what_an_owner_wrote(town: Town) -> None:
    migrate(Address.of(town.url("keeper")))
    for url in (town.url("postgres"), town.url("postgres", owner="keeper")):
        await refuses(
            url, "schema jobs belongs to keeper.*unless you trust.*connect as keeper or as a role"
        )


async def test_an_owner_that_the_url_names_is_trusted(town: Town) -> None:
    """As where an administrator made the schema for a role that may not make one itself."""
    town.run("keeper", "CREATE SCHEMA {schema}", "GRANT ALL ON SCHEMA {schema} TO mallory")
    migrate(Address.of(town.url("mallory")))
    town.run("mallory", "SELECT {schema}.allow('guest', kind) FROM unnest(ARRAY['producer', 'operator']) AS kind")  # fmt: skip
    town.run("keeper", "GRANT USAGE ON SCHEMA {schema} TO guest")
    await refuses(town.url("guest"), "if you do, add owner=mallory to the store's URL")
    store = store_for(town.url("guest", owner="mallory"))
    assert are_new(await store.put([new_job()])) == [True]
    assert await deeds.pause(store, "mail", by())
    assert [line.user for line in await store.admin.audit_log()] == ["guest"]
    await store.close()


async def test_a_user_who_may_not_make_a_schema_is_told(town: Town) -> None:
    store = store_for(town.url("guest"))
    with pytest.raises(StoreUnavailable, match="run `fairlead migrate up` as the owner"):
        await store.open()
    await store.close()
