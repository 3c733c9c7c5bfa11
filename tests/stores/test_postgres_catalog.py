"""Functions and views are replaced by whoever has newer ones, and nobody gains or loses by it."""

import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psycopg
import pytest

from fairlead.core.errors import SchemaOutdated, StoreUnavailable
from fairlead.core.job import Attempt, NewJob
from fairlead.stores import store_for
from fairlead.stores.postgres import catalog, replies
from fairlead.stores.postgres import migrate as migrating
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.migrate import migrate
from tests import deeds
from tests.stores.test_postgres_roles import Yard, yard  # noqa: F401 (a fixture)
from tests.words import by, claim, done, new_job, plan

KINDS = "unnest(ARRAY['producer', 'worker', 'operator', 'tester']) AS kind"
FOR_PEOPLE = {"retain", "moment", "tags_of", "last_of", "stamp", "limit_named"}
"""What people call in psql, or what stands in a statement; all else that a role may call is a verb."""
COLOUR = """
CREATE OR REPLACE FUNCTION colour(batch text) RETURNS text LANGUAGE sql AS $$ SELECT 'red' $$;
"""
GIVEN = "            'put(text)', 'find(text)', 'attempts(text)', 'due(text)'\n        ]\n"


class Program:
    """A program with other functions than ours: some texts changed, some more, some fewer."""

    def __init__(self, yard: Yard, patch: pytest.MonkeyPatch) -> None:  # noqa: F811
        self._yard = yard
        self._patch = patch
        self._texts = {name: catalog.text_of(name) for name in catalog.ORDER}

    def change(self, name: str, code: str, other: str) -> "Program":
        assert self._texts[name].count(code) == 1, name
        self._texts[name] = self._texts[name].replace(code, other)
        return self

    def add(self, name: str, text: str) -> "Program":
        self._texts[name] = text
        return self

    def lack(self, name: str) -> "Program":
        del self._texts[name]
        return self

    def applies(self, revision: int = catalog.REVISION) -> None:
        with self._patch.context() as patch:
            patch.setattr(catalog, "ORDER", tuple(self._texts))
            patch.setattr(catalog, "text_of", self._texts.__getitem__)
            for module in (catalog, migrating):
                patch.setattr(module, "REVISION", revision)
            self.opens()

    def opens(self) -> None:
        migrate(Address.of(self._yard.server.url(schema=self._yard.schema)))

    def sql(self, statement: str) -> list[Any]:
        return self._yard.server.execute(statement.replace("{schema}", self._yard.schema))

    def colour(self) -> str | None:
        [(there,)] = self.sql("SELECT to_regprocedure('{schema}.colour(text)') IS NOT NULL")
        return self.sql("SELECT {schema}.colour('{}')")[0][0] if there else None


@pytest.fixture
def program(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> Program:  # noqa: F811
    return Program(yard, monkeypatch)


def may(yard: Yard, role: str, function: str) -> bool:  # noqa: F811
    [(answer,)] = yard.server.execute(
        "SELECT has_function_privilege(%s, %s, 'EXECUTE')", role, f"{yard.schema}.{function}"
    )
    return bool(answer)


# What a verb is


def test_a_verb_takes_a_text_and_returns_texts_for_good(yard: Yard) -> None:  # noqa: F811
    """So CREATE OR REPLACE is never refused, and no prepared statement ever breaks."""
    rows = yard.server.execute(
        f"SELECT DISTINCT p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), "
        f"prosecdef FROM {KINDS} CROSS JOIN unnest({yard.schema}.verbs_of(kind)) AS verb "
        f"JOIN pg_proc AS p ON p.oid = to_regprocedure('{yard.schema}.' || verb)"
    )
    verbs = {name: told for name, *told in rows if name not in FOR_PEOPLE}
    assert len(verbs) == 20
    for name, (takes, returns, definer) in verbs.items():
        assert takes == "batch text", name
        assert returns in ("text", "SETOF text"), name
        assert definer, name
        assert f"verbs/{name}" in catalog.ORDER


def test_every_file_is_in_the_order_once() -> None:
    found = [
        f"{folder}/{file.name.removesuffix('.sql')}"
        for folder in ("functions", "views", "verbs")
        for file in catalog._HERE.joinpath(folder).iterdir()
    ]
    assert sorted(found) == sorted(catalog.ORDER)


async def test_a_verb_passes_over_what_it_does_not_know(yard: Yard) -> None:  # noqa: F811
    """A newer program says more than these functions know."""
    text = '{"at": null, "new": [1], "job": ["mail", "t", 1, "1", "{}", null, null, 0, 0, null, null, 1, 7, {}]}'
    assert yard.server.execute(f"SELECT {yard.schema}.put(%s)", text) == [(None,)]
    owner = store_for(yard.server.url(schema=yard.schema))
    [job] = await claim(owner)
    assert job.id == "1"
    doc = {"lease": 10**9, "runs": [[job.id, job.fence, "new"]], "new": 1}
    [(answer,)] = yard.server.execute(
        f"SELECT {yard.schema}.extend(%s)", msgspec.json.encode(doc).decode()
    )
    assert msgspec.json.decode(answer) == [["1"], [], []]
    await owner.settle([done(job)])
    await owner.close()


LEASED = '[1,2,3,4,5,6,3,2,1,4,{"lost":true,"worker":"w0","claimed_at":9,"new":[1]},"new"]\n'


def test_an_answer_may_have_more_than_is_known() -> None:
    """A newer program's functions tell more than this one reads."""
    assert replies.due_of('[null,5,"new"]').now == 5
    assert replies.fresh_of('[["a"],"new"]').ids == {"a"}
    assert replies.upkeep_of("[1,2,3,4,5,6]").pruned_attempts == 5
    assert replies.rest_of('[["a"],{},[],1]').written == ["a"]
    assert replies.held_of('[["a"],["a"],[],1]').asked == {"a"}
    assert replies.brought_back_of("[3,4]").number == 3
    assert replies.touched_of('[["a"],1]').ids == ["a"]
    assert replies.mended_of('[[["a","b",null,1]],null,"",1]').met[0].whose == "b"
    assert replies.flaw_of('["a","b",1,2]').number == 1
    assert replies.stray_of('["TABLE","b","c",null,2]').who == "c"
    assert replies.announced_of('["w","{}","[]",1,2,3,4]').live_until == 3
    line = '["a",1,1,"t","q",null,null,1,2,null,3,"done",null,"new"]'
    assert isinstance(replies.attempt_of(line), Attempt)
    saw = replies.saw_of(
        '[1,[["a","t",1,"q",null,2,"new"]],{"q":[1,[1,"a"],2]},[],[],[],true,1,false,9]'
    )
    assert saw.gated["q"].stopped == (1, "a")
    leased = replies.leased_of(f"{LEASED}abtmail{{}}\n", "w1", 7, 8)
    job = leased.job
    assert (job.id, job.task, job.queue, job.payload) == ("ab", "t", "mail", "{}\n")
    assert (job.lost, job.worker, job.claimed_at, job.lease_until) == (True, "w0", 9, 8)
    assert leased.aside


@pytest.mark.parametrize("odd", ["a\nb", 'a"b', "ä€𝄞", "]", "\\n"])
async def test_texts_of_any_kind_come_back_from_a_claim(yard: Yard, odd: str) -> None:  # noqa: F811
    owner = store_for(yard.server.url(schema=yard.schema))
    payload = f'[\n"{odd.encode().hex()}"]'
    new = NewJob(new_job().id, odd, "mail", payload, options='{"tags": [\n"ä"]}')
    await owner.put([new])
    [job] = (await owner.claim(plan(worker=odd))).jobs
    assert (job.id, job.task, job.queue, job.payload) == (new.id, odd, "mail", new.payload)
    assert (job.options, job.worker) == (new.options, odd)
    assert await owner.held(odd) == [job]
    await owner.settle([done(job)])
    await owner.close()


# Who applies what


def test_another_text_is_applied_and_the_last_one_stays(program: Program) -> None:
    """As when somebody works on them: nobody has to count."""
    program.add("functions/colour", COLOUR).applies()
    assert program.colour() == "red"
    program.change("functions/colour", "red", "blue").applies()
    assert program.colour() == "blue"
    program.opens()
    [(functions, views)] = program.sql("SELECT functions, views FROM {schema}.verbs")
    assert (functions, views) == (catalog.functions_digest(), catalog.views_digest())


def test_what_is_there_is_not_applied_again(program: Program) -> None:
    before = program.sql("SELECT xmin, applied_at FROM {schema}.verbs")
    program.opens()
    assert program.sql("SELECT xmin, applied_at FROM {schema}.verbs") == before


def test_an_older_program_leaves_the_functions_of_a_newer_one(program: Program) -> None:
    program.add("functions/colour", COLOUR).applies(catalog.REVISION + 1)
    program.opens()
    assert program.colour() == "red"
    assert program.sql("SELECT revision FROM {schema}.verbs") == [(catalog.REVISION + 1,)]
    program.change("functions/colour", "red", "blue").applies(catalog.REVISION + 2)
    assert program.colour() == "blue"


@pytest.mark.parametrize("kind", ["producer", "worker", "operator"])
async def test_who_may_not_change_the_schema_goes_on_with_functions_as_new_as_its_own(
    yard: Yard,  # noqa: F811
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    url = yard.url(kind)
    for revision in (catalog.REVISION, catalog.REVISION + 1):
        program.add("functions/colour", COLOUR + f"-- {revision}\n").applies(revision)
        store = store_for(url)
        await store.open()
        assert all(step.applied_at for step in await store.admin.migrations())
        await store.close()
    for module in (catalog, migrating):
        monkeypatch.setattr(module, "REVISION", catalog.REVISION + 2)
    store = store_for(url)
    assert [bool(step.applied_at) for step in await store.admin.migrations()] == [True, False]
    with pytest.raises(
        StoreUnavailable, match="is not up to date, and this user may not change it"
    ):
        await store.open()
    await store.close()


async def test_the_script_for_psql_replaces_functions_but_no_newer_ones(
    yard: Yard,  # noqa: F811
    program: Program,
) -> None:
    owner = store_for(yard.server.url(schema=yard.schema))
    *_, step = await owner.admin.migrations()
    await owner.close()
    assert step.name == "verbs"
    program.add("functions/colour", COLOUR).applies()
    psql = ["psql", "-qX", "-v", "ON_ERROR_STOP=1", yard.server.url()]
    subprocess.run(psql, input=step.sql.encode(), check=True)
    [(functions,)] = program.sql("SELECT functions FROM {schema}.verbs")
    assert functions == catalog.functions_digest()
    program.applies(catalog.REVISION + 1)
    done_ = subprocess.run(psql, input=step.sql.encode(), capture_output=True, check=False)
    assert b"are those of a newer program" in done_.stderr
    assert program.sql("SELECT revision FROM {schema}.verbs") == [(catalog.REVISION + 1,)]


def test_a_script_in_parts_leaves_no_function_to_everybody(
    yard: Yard,  # noqa: F811
    program: Program,
) -> None:
    """psql can make a part of the transaction of each statement, to go on after errors."""
    program.sql("DROP FUNCTION {schema}.act(text)")
    psql = ["psql", "-qX", "-v", "ON_ERROR_STOP=1", "-v", "ON_ERROR_ROLLBACK=on"]
    script = catalog.script(Address.of(yard.server.url(schema=yard.schema)))
    path = f"BEGIN; SET search_path = {yard.schema}, pg_temp;"
    told = f"{path}\n{script}\nCOMMIT;".encode()
    subprocess.run([*psql, yard.server.url()], input=told, check=True)
    everybody = "has_function_privilege('public', '{schema}.act(text)', 'EXECUTE')"
    assert program.sql(f"SELECT {everybody}") == [(False,)]
    assert program.sql("SELECT 'put(text)' = ANY (made) FROM {schema}.verbs") == [(True,)]


def test_what_a_call_may_still_need_is_dropped_the_next_time(program: Program) -> None:
    program.add("functions/colour", COLOUR).applies()
    program.lack("functions/colour").applies()
    assert program.colour() == "red"
    program.change("verbs/due", "-- nothing", "-- nothing at all").applies()
    assert program.colour() is None


def test_functions_of_others_are_left_alone(program: Program) -> None:
    program.sql(COLOUR.replace("colour", "{schema}.colour"))
    for word in ("nothing at all", "nothing whatever"):
        program.applies()
        program.change("verbs/due", "-- nothing", f"-- {word}")
        program.applies()
        program.change("verbs/due", f"-- {word}", "-- nothing")
    assert program.colour() == "red"


# Rights


def test_a_new_verb_is_given_to_the_roles_of_its_kinds_and_to_nobody_else(
    yard: Yard,  # noqa: F811
    program: Program,
) -> None:
    roles = {kind: yard.url(kind).partition("//")[2].partition(":")[0] for kind in
             ("producer", "worker", "operator", "tester")}  # fmt: skip
    nobody = yard.url(None).partition("//")[2].partition(":")[0]
    yard.server.execute(f"GRANT EXECUTE ON FUNCTION {yard.schema}.put(text) TO {nobody}")
    yard.server.execute(f"CREATE ROLE {yard.schema}_gone")
    yard.server.execute(f"SELECT {yard.schema}.allow('{yard.schema}_gone', 'producer')")
    yard.server.execute(f"DROP OWNED BY {yard.schema}_gone; DROP ROLE {yard.schema}_gone")
    more = GIVEN.replace("'due(text)'", "'due(text)', 'colour(text)'")
    program.change("verbs/allow", GIVEN, more).add("verbs/colour", COLOUR).applies()
    assert may(yard, roles["producer"], "colour(text)")
    assert not may(yard, roles["operator"], "colour(text)")
    assert not may(yard, roles["tester"], "colour(text)")
    assert not may(yard, nobody, "colour(text)")
    assert not may(yard, "pg_monitor", "colour(text)")
    assert may(yard, nobody, "put(text)")
    assert not may(yard, nobody, "find(text)")


def test_default_privileges_and_everybody_get_nothing_by_a_replacement(
    yard: Yard,  # noqa: F811
    program: Program,
) -> None:
    web = yard.url("producer").partition("//")[2].partition(":")[0]
    yard.server.execute(f"GRANT EXECUTE ON FUNCTION {yard.schema}.open_day(bigint) TO PUBLIC")
    for what in ("FUNCTIONS", "TABLES"):
        yard.server.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {what} TO {web}")
    view = "CREATE OR REPLACE VIEW colours AS SELECT id FROM job;"
    try:
        program.add("functions/colour", COLOUR).add("views/colours", view).applies()
        assert not may(yard, web, "colour(text)")
        assert not may(yard, web, "open_day(bigint)")
        [(read,)] = yard.server.execute(
            "SELECT has_table_privilege(%s, %s, 'SELECT')", web, f"{yard.schema}.colours"
        )
        assert not read
    finally:
        for what in ("FUNCTIONS", "TABLES"):
            yard.server.execute(f"ALTER DEFAULT PRIVILEGES REVOKE ALL ON {what} FROM {web}")


async def test_a_view_gets_a_column_and_operators_still_read_it(
    yard: Yard,  # noqa: F811
    program: Program,
) -> None:
    operator = store_for(yard.url("operator"))
    owner = store_for(yard.server.url(schema=yard.schema))
    job = new_job()
    await owner.put([job])
    kept = "SELECT coalesce(max(before), 0) AS since FROM"
    program.change("views/kept", kept, "SELECT coalesce(max(before), 0) AS since, 1 AS one FROM")
    program.applies(catalog.REVISION + 1)
    assert (await operator.admin.find(job.id)) is not None
    assert await operator.admin.audit() == []
    assert await deeds.cancel(owner, [job.id], "no", by())
    await owner.close()
    await operator.close()


# Several at once


def test_several_who_replace_and_allow_at_once_do_not_stop_one_another(
    yard: Yard,  # noqa: F811
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems: list[Exception] = []
    roles = [yard.url(None, f"r{n}_").partition("//")[2].partition(":")[0] for n in range(4)]
    program.add("functions/colour", COLOUR)
    monkeypatch.setattr(catalog, "ORDER", tuple(program._texts))
    monkeypatch.setattr(catalog, "text_of", program._texts.__getitem__)

    def run(work: Any) -> None:
        try:
            work()
        except Exception as problem:
            problems.append(problem)

    allow = [
        lambda role=role: yard.server.execute(f"SELECT {yard.schema}.allow('{role}', 'worker')")
        for role in roles
    ]
    works = [work for each in allow for work in (program.opens, each)]
    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert problems == []
    assert program.colour() == "red"
    assert all(may(yard, role, "claim(text)") for role in roles)


@pytest.fixture
def granting(yard: Yard) -> Iterator[threading.Thread]:  # noqa: F811
    """Somebody who changes rights by hand, and takes a moment to commit."""
    role = yard.url(None).partition("//")[2].partition(":")[0]
    with psycopg.connect(yard.server.url()) as connection:
        connection.execute(f"GRANT EXECUTE ON FUNCTION {yard.schema}.put(text) TO {role}")

        def commit() -> None:
            time.sleep(0.3)
            connection.commit()

        thread = threading.Thread(target=commit)
        yield thread
        thread.join()


def test_who_meets_a_grant_by_hand_tries_again(
    program: Program, granting: threading.Thread
) -> None:
    granting.start()
    program.add("functions/colour", COLOUR).applies()
    assert program.colour() == "red"


async def test_a_newer_step_says_which_programs_it_still_serves(
    fresh_url: str, owner: psycopg.Connection
) -> None:
    """F54: who is served goes on, and who is not is told so before it does anything."""
    owner.execute("INSERT INTO migration VALUES (999, 0, 1)")
    store = store_for(fresh_url)
    await store.put([new_job()])
    assert len(await claim(store)) == 1
    assert all(step.applied_at is not None for step in await store.admin.migrations())
    await store.close()
    owner.execute("UPDATE migration SET serves = 2 WHERE number = 999")
    late = store_for(fresh_url)
    with pytest.raises(SchemaOutdated, match="999"):
        await late.put([new_job()])
    late.level = 2
    await late.put([new_job()])
    await late.close()
    # What somebody took from the list may be anything.
    owner.execute("DELETE FROM migration WHERE number = 999")
    owner.execute("COMMENT ON TABLE migration IS 'up to step 999'")
    lost = store_for(fresh_url)
    with pytest.raises(SchemaOutdated, match="999"):
        await lost.put([new_job()])
    owner.execute("COMMENT ON TABLE migration IS 'up to step 1'")
