"""A step of the schema that serves a program no longer, where the verbs are functions in the database."""

from collections.abc import AsyncIterator

import psycopg
import pytest

from fairlead import SchemaOutdated
from fairlead.core.clock import SystemClock
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.migrate import migrate
from tests.servers.postgres import PostgresServer
from tests.versions.conftest import Place
from tests.words import claim, done, new_job, plan

TOLD = "the store's schema is version 3, this program needs 1; upgrade this program"

pytestmark = pytest.mark.parametrize("plain_place", ["postgres"], indirect=True)


@pytest.fixture
async def store(plain_place: Place) -> AsyncIterator[Store]:
    store = store_for(plain_place.url, SystemClock())
    await store.open()
    yield store
    await store.close()


def theirs(place: Place) -> psycopg.Connection:
    """A connection of the application's own."""
    return psycopg.connect(place.url.partition("?")[0])


async def test_a_producer_in_a_transaction_is_told_too(store: Store, plain_place: Place) -> None:
    with theirs(plain_place) as mine:
        store.put_within(mine, [new_job()]).run()
        mine.commit()
        plain_place.future.step(serves=2)
        with pytest.raises(SchemaOutdated, match=TOLD):
            store.put_within(mine, [new_job()]).run()
        mine.rollback()
        store.level = 2
        assert len(store.put_within(mine, [new_job()]).run()) == 1
        mine.commit()
    assert len(await claim(store, level=2)) == 2


async def test_a_run_commits_on_a_schema_that_serves_its_program_no_longer(
    store: Store, plain_place: Place
) -> None:
    """What the program has claimed comes to its end; that is all it may still do."""
    await store.put([new_job()])
    [job] = await claim(store)
    plain_place.future.step(serves=2)
    with store.transaction() as connection:
        assert store.complete_within(connection, done(job)).run() == done(job)
    store.level = 2
    assert await store.held("w1") == []


async def test_functions_that_are_replaced_serve_nobody_whom_a_step_does_not(
    store: Store, plain_place: Place, postgres_server: PostgresServer
) -> None:
    """As a program does that finds other texts than its own, or some of them dropped."""
    await store.put([new_job()])
    plain_place.future.step(serves=2)
    schema = Address.of(plain_place.url).schema
    postgres_server.execute(f"UPDATE {schema}.verbs SET functions = 'other'")
    migrate(Address.of(postgres_server.url(schema=schema)), 2)
    with pytest.raises(SchemaOutdated, match=TOLD):
        await store.put([new_job()])


async def test_nobody_else_may_say_whom_the_schema_serves(
    store: Store, plain_place: Place, postgres_server: PostgresServer
) -> None:
    schema = Address.of(plain_place.url).schema
    plain_place.future.step(serves=1)
    with theirs(plain_place) as mine:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mine.execute(f"SELECT {schema}.least_level()".encode())
        mine.rollback()
        rows = mine.execute(f"SELECT {schema}.strays('{{}}')".encode()).fetchall()
    assert rows == []


async def test_people_are_told_too(store: Store, plain_place: Place) -> None:
    """Their questions are statements of our own, which a newer schema may answer otherwise."""
    plain_place.future.step(serves=2)
    asked = plan(capable={"t": 1})
    questions = (store.admin.count, store.admin.audit_log, lambda: store.admin.recent(0))
    for question in (*questions, lambda: store.admin.snapshot(asked, 10)):
        with pytest.raises(SchemaOutdated, match=TOLD):
            await question()
    store.level = 2
    assert await store.admin.count() == {}
