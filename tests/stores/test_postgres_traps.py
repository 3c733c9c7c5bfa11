"""Nothing on a user's search path takes part in what we do (T27).

Whoever may make functions in a schema that others search, as everybody may in `public` up to
PostgreSQL 14, could make some that fit better than the server's own, and run with the rights of who
uses the store.
"""

from collections.abc import Iterator

import psycopg
import pytest

from fairlead.core.admin import Filter, Worker
from fairlead.core.clock import SECOND
from fairlead.core.job import State
from fairlead.core.queue import Queue
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.migrate import migrate
from tests import deeds
from tests.servers.postgres import PostgresServer
from tests.words import POLICY, are_new, by, claim, done, failed, new_job, plan

# Every function and operator of the server has a twin that raises, and that is found before it.
TWINS = """
DO $twins$
DECLARE
    each record;
BEGIN
    FOR each IN
        SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments,
               pg_get_function_result(p.oid) AS result
        FROM pg_proc AS p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND prokind <> 'p'
    LOOP
        BEGIN
            EXECUTE format(
                'CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS '
                '$$ BEGIN RAISE ''trapped by function %s''; END $$',
                each.proname, each.arguments, each.result, each.proname
            );
        EXCEPTION WHEN OTHERS THEN NULL;  -- Those of internal types nobody can make.
        END;
    END LOOP;
    FOR each IN
        SELECT o.oid, oprname, oprleft::regtype AS l, oprright::regtype AS r, oprresult::regtype AS result
        FROM pg_operator AS o WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprkind = 'b'
    LOOP
        BEGIN
            EXECUTE format(
                'CREATE FUNCTION public.twin_%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS '
                '$$ BEGIN RAISE ''trapped by operator %s''; END $$',
                each.oid, each.l, each.r, each.result, replace(each.oprname, '%', 'percent')
            );
            EXECUTE format(
                'CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.twin_%s)',
                each.oprname, each.l, each.r, each.oid
            );
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
END $twins$
"""


@pytest.fixture
def trapped(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of the owner of a database who finds traps wherever he looks."""
    postgres_server.execute("CREATE ROLE keeper LOGIN PASSWORD 'rope'")
    postgres_server.execute("CREATE DATABASE town OWNER keeper")
    postgres_server.execute(TWINS, database="town")
    postgres_server.execute("ALTER ROLE keeper SET search_path = public, pg_catalog")
    yield postgres_server.url("town", "keeper", "rope")
    postgres_server.execute("DROP DATABASE town WITH (FORCE)")
    postgres_server.execute("DROP ROLE keeper")


def test_the_traps_are_set(trapped: str) -> None:
    """Otherwise the tests below would say nothing."""
    for question, name in {
        "SELECT hashtextextended('x', 0)": "function hashtextextended",
        "SELECT 1 + 1": "operator",
        "SELECT ARRAY['x'] @> ARRAY['y']": "operator @>",
        "SELECT current_setting('fsync')": "function current_setting",
        "SELECT count(*) FROM pg_roles": "count",
    }.items():
        with (
            psycopg.connect(trapped) as connection,
            pytest.raises(psycopg.Error, match=name),
        ):
            connection.execute(question.encode())


async def test_no_question_of_ours_calls_what_somebody_put_on_the_search_path(trapped: str) -> None:
    """All that a store can be asked, from the first migration on."""
    migrate(Address.of(trapped))
    store = store_for(trapped)
    assert all(step.applied_at for step in await store.admin.migrations())
    mail = Queue("mail")
    jobs = [new_job(queue="mail") for _ in range(3)]
    await store.put(jobs[:2])
    store.put_blocking(jobs[2:])
    await store.wait(0, for_work=True)
    await store.announce(Worker("w1", {"t": 1}, (), 1, 0, 0), 20 * SECOND)
    first, second, third = await claim(store, mail, slots=3)
    await store.extend([(first.id, first.fence)], 60 * SECOND)
    await store.held("w1")
    await store.settle([done(first), failed(second, 0, POLICY), failed(third, 0)])
    await store.admin.find(first.id)
    await store.admin.attempts(first.id)
    everything = Filter(
        queues=("mail",), tasks=("t",), states=tuple(State), since=1, tags=("x",), error="oops"
    )
    for which in (Filter(), everything):
        await deeds.jobs(store, which)
        await store.admin.count(which)
        await store.admin.groups(which)
    await store.admin.recent(0, queue="mail")
    await deeds.waiting(store)
    await deeds.running(store)
    await store.admin.snapshot(plan(mail, capable={"t": 1}), 10)
    await store.admin.ahead(third.id)
    await deeds.unknown(store)
    await deeds.paused(store)
    await store.admin.workers()
    await deeds.cancel(store, [third.id], "no", by())
    await deeds.revive(store, [second.id], [State.DEAD], by())
    await deeds.pause(store, "mail", by())
    await deeds.note(store, by(), 1)
    await store.upkeep(SECOND)
    await store.admin.audit_log(job_id=first.id)
    assert await store.admin.audit() == []
    assert await store.admin.repair(by()) == []
    facts = (await store.admin.condition()).facts
    assert facts["news"] == "heard"
    await store.close()


async def test_no_put_in_the_callers_transaction_calls_it(trapped: str) -> None:
    store = store_for(trapped)
    with psycopg.connect(trapped) as connection:
        assert are_new(store.put_within(connection, [new_job()]).run()) == [True]
    async with await psycopg.AsyncConnection.connect(trapped) as connection_:
        assert are_new(await store.put_within(connection_, [new_job()]).arun()) == [True]
    [first, second] = await claim(store)
    with store.transaction() as ours:
        assert store.complete_within(ours, done(first)).run() is not None
    with psycopg.connect(trapped) as connection:
        assert store.complete_within(connection, done(second)).run() is not None
    await store.close()
