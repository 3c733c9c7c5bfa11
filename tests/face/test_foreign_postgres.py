"""What only PostgreSQL does in the caller's own transaction: its rights, its sessions (P2, I2)."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import pq

from fairlead import ConfigError, Fairlead, Queue
from fairlead.producer import BoundTask
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.migrate import migrate
from tests.face.desk import PostgresDesk, with_libraries
from tests.servers.libraries import LIBRARIES, go
from tests.servers.postgres import PostgresServer
from tests.stores.test_postgres_owners import TRAP, Town
from tests.system.tree import until
from tests.words import claim, done, new_job

EVERY = with_libraries("postgres")
EVERY_LIBRARY = pytest.mark.parametrize("library", LIBRARIES)


@EVERY
def test_a_database_without_our_schema_is_told_with_what_to_do(desk: PostgresDesk) -> None:
    async def work(url: str) -> None:
        async with desk.connection(url) as mine:
            with pytest.raises(ConfigError, match=r"has no jobs in it.*run `fairlead migrate up`"):
                await desk.order(mine)

    desk.go(work(desk.server.url("template1")))


@EVERY
def test_who_may_not_enqueue_is_told_who_can_let_him(desk: PostgresDesk) -> None:
    desk.server.execute("CREATE ROLE guest LOGIN PASSWORD 'g'")

    async def work(url: str) -> None:
        async with desk.connection(url) as mine:
            with pytest.raises(
                ConfigError, match=r"permission denied.*allow\('role', 'producer'\)"
            ):
                await desk.order(mine)

    try:
        desk.go(work(desk.server.url(user="guest", password="g")))
    finally:
        desk.server.execute("DROP ROLE guest")


@EVERY
def test_other_errors_stay_the_librarys_own(desk: PostgresDesk) -> None:
    """A transaction that failed before is not ours to explain, nor to try again."""

    async def work() -> Exception:
        async with desk.connection() as mine:
            with pytest.raises(Exception, match="division by zero"):
                await mine.execute("SELECT 1/0")
            with pytest.raises(Exception, match="aborted") as problem:
                await desk.order(mine)
            await mine.rollback()
        return problem.value

    assert type(desk.go(work())).__module__.split(".")[0] in desk.library.replace(" ", "_")
    assert desk.jobs() == []


# What is no connection of these


STRANGERS: dict[str, Callable[[], Any]] = {
    "sqlite3.Connection": lambda: sqlite3.connect(":memory:"),
    "builtins.str": lambda: "postgresql://localhost",
    "builtins.object": object,
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_is_refused(postgres_desk: PostgresDesk, name: str) -> None:
    stranger = STRANGERS[name]()
    with pytest.raises(ConfigError, match=rf"not {name}; pass a psycopg, psycopg2 or asyncpg"):
        postgres_desk.task.using(connection=stranger).enqueue(1)
    with pytest.raises(ConfigError, match="must be a connection to the same PostgreSQL"):
        postgres_desk.app.store.put_within(stranger, []).run()
    if hasattr(stranger, "close"):
        stranger.close()
    assert postgres_desk.jobs() == []


# What is left as it was


def test_a_connection_that_commits_by_itself_is_let(postgres_desk: PostgresDesk) -> None:
    """Whoever asks for it has the job at once, and no transaction is left open."""
    with psycopg.connect(postgres_desk.address, autocommit=True) as connection:
        job = postgres_desk.task.using(connection=connection).enqueue(1)
        assert postgres_desk.jobs() == [job.id]
        assert connection.info.transaction_status == pq.TransactionStatus.IDLE
        with pytest.raises(ZeroDivisionError), connection.transaction():
            postgres_desk.task.using(connection=connection).enqueue(2)
            raise ZeroDivisionError
    assert postgres_desk.jobs() == [job.id]


def test_a_savepoint_takes_its_jobs_with_it(postgres_desk: PostgresDesk) -> None:
    with psycopg.connect(postgres_desk.address) as connection:
        kept = postgres_desk.task.using(connection=connection).enqueue(1)
        with pytest.raises(ZeroDivisionError), connection.transaction():
            postgres_desk.task.using(connection=connection).enqueue(2)
            raise ZeroDivisionError
    assert postgres_desk.jobs() == [kept.id]


SETTINGS = (
    "SELECT name, setting FROM pg_settings WHERE source IN ('session', 'override') ORDER BY 1"
)


async def test_no_setting_of_the_connection_is_changed(postgres_desk: PostgresDesk) -> None:
    connection = await asyncpg.connect(postgres_desk.address)
    await connection.execute("SET search_path = pg_catalog; SET enable_seqscan = off; BEGIN")
    before = await connection.fetch(SETTINGS)
    await postgres_desk.task.using(connection=connection).aenqueue(1)
    assert await connection.fetch(SETTINGS) == before
    assert connection.is_in_transaction()
    await connection.execute("COMMIT")
    await connection.close()
    assert len(postgres_desk.jobs()) == 1


# Producers that die


WRITER = """
import random, sys
import psycopg
from fairlead import Fairlead

url, plain, table, seed = sys.argv[1:]
choose = random.Random(int(seed))
app = Fairlead(url)
task = app.task(name="t")(lambda n: n)
rows = psycopg.connect(plain)
print("ready", flush=True)
while True:
    for _ in range(choose.randrange(1, 4)):
        if choose.random() < 0.5:
            ids = [task.using(connection=rows).enqueue(1).id]
        else:
            calls = [task.call(n) for n in range(choose.randrange(1, 5))]
            app.enqueue_many(calls, connection=rows)
            ids = [call.id for call in calls]
        for id_ in ids:
            rows.execute(f"INSERT INTO {table} VALUES (%s)", [id_])
    rows.commit() if choose.random() < 0.6 else rows.rollback()
"""


@pytest.mark.parametrize("seed", range(3))
def test_rows_and_jobs_agree_after_random_aborts_and_kills(
    postgres_desk: PostgresDesk, seed: int
) -> None:
    """I2: writers roll back at random and are killed at random; what is there agrees."""
    choose = random.Random(seed)
    words = [
        postgres_desk.app.store.url.replace("crew@", "crew:rope@"),
        postgres_desk.address,
        postgres_desk.rows_table,
    ]
    for round_ in range(3):
        target = len(postgres_desk.rows()) + choose.randrange(5, 60)
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, *words, f"{seed}{round_}{n}"],
                stdout=subprocess.PIPE,
            )
            for n in range(2)
        ]
        try:
            for writer in writers:
                assert writer.stdout is not None
                assert writer.stdout.readline() == b"ready\n"
            until(lambda: len(postgres_desk.rows()) >= target, what="rows of the writers")
        finally:
            for writer in writers:
                os.kill(writer.pid, signal.SIGKILL)
                writer.communicate()
        # A commit that was on its way when its writer died may still be carried out.
        until(lambda: not sessions(postgres_desk), what="the end of the writers' sessions")
        assert sorted(postgres_desk.rows()) == sorted(postgres_desk.jobs()), f"round {round_}"
    assert len(postgres_desk.jobs()) > 15


def sessions(postgres_desk: PostgresDesk) -> list[Any]:
    """The sessions of writers: those of the app itself have its name."""
    return postgres_desk.server.execute(
        "SELECT pid FROM pg_stat_activity WHERE usename = 'crew' AND application_name <> 'fairlead'"
    )


# Whose code runs on the caller's connection (T27)

TRAPS = {
    # Runs when it is called.
    "called": "CREATE OR REPLACE FUNCTION {schema}.%s(batch text) RETURNS text LANGUAGE plpgsql "
    "SECURITY INVOKER AS $$ BEGIN PERFORM {schema}.spring(); RETURN NULL; END $$",
    # Runs when a statement is planned in which it is called, even if it is not.
    "planned": "DROP FUNCTION {schema}.%s(text); CREATE FUNCTION {schema}.%s(batch text) RETURNS text "
    "LANGUAGE sql AS $$ SELECT {schema}.spring()::text $$; "
    "ALTER FUNCTION {schema}.spring() IMMUTABLE",
}
REFUSED = "schema jobs belongs to keeper, whose code .*; if you do, connect as keeper"


@pytest.fixture
def town(postgres_server: PostgresServer) -> Iterator[Town]:
    """A database whose owner has written code for whoever enqueues or ends a job."""
    town = Town(postgres_server, "jobs")
    migrate(Address.of(town.url("keeper")))
    town.run("keeper", TRAP.replace("mallory", "keeper"))
    yield town
    town.close()


def _is_superuser(town: Town) -> bool:
    return town.server.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'keeper'") == [
        (True,)
    ]


@pytest.mark.parametrize("trap", TRAPS)
@EVERY_LIBRARY
def test_no_code_of_an_owner_runs_with_the_rights_of_the_callers_user(
    town: Town, library: str, trap: str
) -> None:
    """The app's own user is the owner, so the app trusts him; a superuser's connection cannot."""
    app = Fairlead(town.url("keeper"))
    task: BoundTask[..., Any] = app.task(name="t")(lambda: None)
    task.enqueue()
    [job] = app.bridge.run(claim(app.store, Queue("default")))
    for verb in ("put", "settle"):
        town.run("keeper", TRAPS[trap].replace("%s", verb))

    async def work() -> None:
        async with LIBRARIES[library](town.url("postgres").partition("?")[0]) as mine:
            with pytest.raises(ConfigError, match=REFUSED):
                if mine.is_async:
                    await task.using(connection=mine.connection).aenqueue()
                else:
                    task.using(connection=mine.connection).enqueue()
            with pytest.raises(ConfigError, match=REFUSED):
                if mine.is_async:
                    await app.store.complete_within(mine.connection, done(job)).arun()
                else:
                    app.store.complete_within(mine.connection, done(job)).run()

    go(library, work())
    app.close()
    assert not _is_superuser(town)


@EVERY_LIBRARY
def test_the_user_of_a_connection_trusts_those_whom_the_store_does(
    town: Town, library: str
) -> None:
    """The owner of the database, and one whom the URL names."""
    town.run("keeper", "SELECT {schema}.allow('guest', 'producer')")
    for owner, options in (("keeper", {}), ("mallory", {"owner": "mallory"})):
        town.run("postgres", f"ALTER SCHEMA {{schema}} OWNER TO {owner}")
        app = Fairlead(town.url("guest", **options))
        task: BoundTask[..., Any] = app.task(name="t")(lambda: None)

        async def work(task: BoundTask[..., Any] = task) -> None:
            async with LIBRARIES[library](town.url("guest").partition("?")[0]) as mine:
                if mine.is_async:
                    await task.using(connection=mine.connection).aenqueue()
                else:
                    task.using(connection=mine.connection).enqueue()
                await mine.commit()

        go(library, work())
        app.close()
    assert town.server.execute("SELECT count(*) FROM jobs.job", database="town") == [(2,)]


async def test_an_overload_that_a_stranger_added_is_not_called(town: Town) -> None:
    store = store_for(town.url("keeper"))
    await store.open()
    town.run("keeper", "GRANT ALL ON SCHEMA {schema} TO mallory")
    town.run(
        "mallory",
        "CREATE FUNCTION {schema}.put(x varchar) RETURNS text LANGUAGE sql AS 'SELECT x'",
    )
    with (
        psycopg.connect(town.url("keeper").partition("?")[0]) as connection,
        pytest.raises(ConfigError, match="function put of schema jobs belongs to mallory"),
    ):
        store.put_within(connection, [new_job()]).run()
    await store.close()
