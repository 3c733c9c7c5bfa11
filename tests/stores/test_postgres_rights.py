"""What roles get out of the verbs that they are given: nothing of others, nothing unseen."""

import asyncio
import json
import time
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from psycopg import errors

from fairlead.core.acts import Action
from fairlead.core.clock import SECOND
from fairlead.core.errors import ConfigError, EnqueueError
from fairlead.core.ids import JobId
from fairlead.core.job import LATEST, NewJob, State
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres.line import put_text
from tests import deeds
from tests.stores.test_postgres_roles import Yard, yard  # noqa: F401 (a fixture)
from tests.words import POLICY, are_new, by, claim, done, failed, new_job

DAY = 24 * 3600 * SECOND
PAYLOAD, OPTIONS = 4, 5
"""Where a put tells them of a job."""


@pytest.fixture
async def owner(yard: Yard) -> Any:  # noqa: F811
    store = store_for(yard.server.url(schema=yard.schema))
    yield store
    await store.close()


def say(connection: Any, yard: Yard, verb: str, doc: object) -> list[Any]:  # noqa: F811
    """Call a verb, and read what it answers."""
    rows = connection.execute(f"SELECT {yard.schema}.{verb}(%s)", [json.dumps(doc)]).fetchall()
    return [json.loads(text) for (text,) in rows]


async def ended(store: Store, job: NewJob, state: State) -> None:
    """Let a job be in this state."""
    await store.put([job])
    if state is State.WAITING:
        return
    [run] = await claim(store)
    if state is State.DONE:
        await store.settle([done(run, '"secret"')])
    elif state is State.DEAD:
        await store.settle([failed(run, 0, POLICY)])
    elif state is State.CANCELLED:
        await store.settle([failed(run, 0, POLICY)])
        await deeds.revive(store, [job.id], [State.DEAD], by())
        await deeds.cancel(store, [job.id], "no", by())


# Producers


@pytest.mark.parametrize("state", list(State))
async def test_a_producer_gets_the_same_answers_whether_another_put_the_job_or_not(
    yard: Yard,  # noqa: F811
    owner: Store,
    state: State,
) -> None:
    """T26: by the verbs that it is given, for an id that it knows, alone and among many."""
    theirs, nobodys = new_job(), new_job()
    await ended(owner, theirs, state)
    with yard.connection("producer") as connection:

        def ask(job: NewJob, others: int) -> list[Any]:
            text = put_text([job, *(new_job() for _ in range(others))], None, "work")
            return [
                say(connection, yard, "find", {"id": job.id}),
                say(connection, yard, "attempts", {"id": job.id}),
                say(connection, yard, "due", {})[0][:1],
                connection.execute(f"SELECT {yard.schema}.put(%s)", [text]).fetchall(),
                [news.payload[:8] for news in connection.notifies(timeout=0.1)],
            ]

        connection.execute(f"LISTEN {yard.schema}")

        for others in (0, 100):
            told = ask(theirs, others)
            assert told[:-1] == [[], [], [None], [(None,)]]
            assert told == ask(nobodys, others)
            nobodys = new_job()
    record = await owner.admin.find(theirs.id)
    assert record is not None
    assert record.state is state
    assert await owner.admin.audit() == []


@pytest.mark.parametrize("state", list(State))
async def test_a_producer_sees_its_own_job_and_its_result(
    yard: Yard,  # noqa: F811
    owner: Store,
    state: State,
) -> None:
    """Whatever becomes of it, and also when a person lets it run again."""
    web, other = store_for(yard.url("producer")), store_for(yard.url("producer", "other_"))
    job = new_job()
    await web.put([job])
    await ended(owner, job, state)
    record = await web.admin.find(job.id)
    assert record is not None
    assert record.state is state
    assert record.result == ('"secret"' if state is State.DONE else None)
    assert len(await web.admin.attempts(job.id)) == (
        state in (State.DONE, State.DEAD, State.CANCELLED)
    )
    assert are_new(await web.put([job])) == [False]
    assert (
        are_new(web.put_blocking([job, *(new_job() for _ in range(100))])) == [False] + [True] * 100
    )
    assert await other.admin.find(job.id) is None
    if state.final:
        await deeds.revive(owner, [job.id], [state], by())
        assert await web.admin.find(job.id) is not None
    await web.close()
    await other.close()


async def test_workers_and_operators_see_the_jobs_of_all(yard: Yard) -> None:  # noqa: F811
    web, job, late = store_for(yard.url("producer")), new_job(), new_job(delay=60 * SECOND)
    await web.put([job, late])
    for kind in ("worker", "operator"):
        store = store_for(yard.url(kind))
        assert await store.admin.find(job.id) is not None
        with psycopg.connect(yard.server.url(), autocommit=True) as connection:
            connection.execute(f"SET SESSION AUTHORIZATION {yard.schema}_{kind}")
            [[next_at, _]] = say(connection, yard, "due", {})
            assert next_at is not None
        if kind == "worker":
            assert are_new(await store.put([job])) == [False]
        await store.close()
    await web.close()


def days_ago(yard: Yard, days: int) -> None:  # noqa: F811
    """Let all that ended have ended so many days before it did."""
    yard.server.execute(
        f"SET search_path = {yard.schema}; SELECT open_day(stamp() - {days * DAY});"
        f"UPDATE finished SET finished_at = finished_at - {days * DAY};"
        f"UPDATE attempt SET finished_at = finished_at - {days * DAY}; UPDATE retention SET before = 0"
    )


@pytest.mark.parametrize("others", [1, 100])
@pytest.mark.parametrize("theirs", ["order-4711", "{}-x", "{}-4711-4000", "{}-zzzz-7000"])
async def test_no_company_hides_that_an_id_is_taken(
    yard: Yard,  # noqa: F811
    owner: Store,
    theirs: str,
    others: int,
) -> None:
    """T26: ids that say when they were made stand around one that does not, and ended days ago."""
    now = new_job().id[:8]
    job = new_job(id=theirs.format("01" + "z" * 6 if "zzzz" in theirs else now))
    await ended(owner, job, State.DONE)
    days_ago(yard, 3)
    with yard.connection("producer") as connection:
        for low, high in (("{}-0000-7", "{}-ffff-7"), (f"{now}-0001-7", "zzzzzzzz-zzzz-7")):
            first, last = (new_job(id=each.format(job.id[:8])) for each in (low, high))
            more = (new_job(id=f"{first.id}{n}") for n in range(others))
            text = put_text([first, job, last, *more], None, None)
            assert connection.execute(f"SELECT {yard.schema}.put(%s)", [text]).fetchone() == (None,)
        found = say(connection, yard, "find", {"id": job.id})
    assert found == []
    assert await owner.admin.audit() == []


@pytest.mark.parametrize("others", [0, 1, 100])
async def test_one_who_puts_a_deleted_id_sees_its_own_runs_only(
    yard: Yard,  # noqa: F811
    owner: Store,
    others: int,
) -> None:
    job = new_job()
    await ended(owner, job, State.DONE)
    await deeds.delete(owner, [job.id], [State.DONE], by())
    web = store_for(yard.url("producer"))
    assert are_new(await web.put([job, *(new_job() for _ in range(others))])) == [True] * (
        others + 1
    )
    assert await web.admin.attempts(job.id) == []
    await owner.settle([done(run) for run in await claim(owner) if run.id == job.id])
    assert len(await web.admin.attempts(job.id)) == 1
    assert len(await owner.admin.attempts(job.id)) == 2
    await web.close()


async def test_an_id_of_a_dead_letter_does_not_come_back_to_life(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    """Before, it could be inserted beside the dead letter, and its settlement failed for ever."""
    job = new_job()
    await ended(owner, job, State.DEAD)
    web = store_for(yard.url("producer"))
    far = NewJob(job.id, "t", "mail", "{}", run_at=LATEST)
    for again in (job, far):
        assert are_new(await web.put([again])) == [True]
    text = json.loads(put_text([job], None, None)) | {"at": LATEST, "since": LATEST}
    with yard.connection("producer", "raw_") as connection, pytest.raises(psycopg.DatabaseError):
        connection.execute(f"SELECT {yard.schema}.put(%s)", [json.dumps(text)])
    assert await claim(owner) == []
    assert await owner.admin.audit() == []
    await web.close()


DEEP = "[" * 65 + "]" * 65
TAGS = json.dumps({"tags": [f"tag {n}" for n in range(65)]})
BAD = {
    "a payload has at most 262,144 bytes": {"payload": '"' + "x" * 262_143 + '"'},
    "a payload is nested at most 64 levels deep": {"payload": DEEP},
    "the options of a job are nested at most 64": {"options": f'{{"headers":{DEEP}}}'},
    "the options of a job have at most 262,144": {"options": '"' + "x" * 262_143 + '"'},
    "a job has at most 64 tags": {"options": TAGS},
    "the options of a job are JSON": {"options": "x" * 200},
    "the name of a queue has 1 to 128": {"queue": "q" * 129},
    "the name of a task has 1 to 128": {"task": ""},
    "the id of a job has 1 to 36 ASCII": {"id": "i" * 37},
    "the id of a job has 1 to 36 ASCII c": {"id": "é"},
    "the version of a task is 1 or more": {"version": 0},
    "a head start is at most a day": {"priority": -86_401},
    "instants are from 0 to 2\\^60 ": {"run_at": LATEST + 1},
    "instants are from 0 to 2\\^60 micro": {"expires_at": -1},
    "put behind others is due earlier than 2\\^60": {"run_at": LATEST, "priority": -1},
}


@pytest.mark.parametrize("words", BAD)
async def test_limits_hold_inside_the_database(yard: Yard, words: str) -> None:  # noqa: F811
    """One caller's bad job fails that caller alone, few or many."""
    parts = {"id": new_job().id, "task": "t", "queue": "mail", "payload": "{}"} | BAD[words]
    bad, web = NewJob(**parts), store_for(yard.url("producer"))
    for others in (0, 1, 100):
        good = [new_job() for _ in range(others)]
        answers = await asyncio.gather(
            web.put([new_job()]),
            web.put([bad, *good]),
            web.put([new_job()]),
            return_exceptions=True,
        )
        assert [are_new(each) for each in answers[::2]] == [[True], [True]]
        with pytest.raises(EnqueueError, match=words):
            raise answers[1]  # type: ignore[misc]
        assert [await web.admin.find(each.id) for each in good[:2]] == [None] * min(others, 2)
    await web.close()


async def test_what_is_just_within_the_limits_is_taken(yard: Yard) -> None:  # noqa: F811
    """What has NUL in it is JSON too, though the database's own kind of JSON cannot hold it."""
    web = store_for(yard.url("producer"))
    many = json.dumps([[n, {"x": "\0"}] for n in range(1_000)])
    jobs = [
        NewJob(new_job().id, "t" * 128, "q" * 128, '"' + "x" * 262_142 + '"', priority=86_400),
        NewJob(new_job().id, "t", "mail", DEEP[1:-1], priority=-86_400),
        NewJob(new_job().id, "t", "mail", many, options=json.dumps({"tags": ["\0["] * 64})),
        NewJob(new_job().id, "t", "mail", "no JSON", options="no JSON", run_at=LATEST - DAY),
        new_job(id="i" * 36),
        new_job(id="i"),
    ]
    assert are_new(await web.put(jobs)) == [True] * len(jobs)
    for job in jobs:
        record = await web.admin.find(job.id)
        assert record is not None
        assert (record.payload, record.options) == (job.payload, job.options)
    await web.close()


@pytest.mark.parametrize("text", ["{}", "[]", '{"count": 1}', '{"count": null, "kinds": []}'])
def test_a_put_of_nothing_is_not_taken_for_one_that_was_done(yard: Yard, text: str) -> None:  # noqa: F811
    with (
        yard.connection("producer") as connection,
        pytest.raises(psycopg.DatabaseError, match="a put has a job, or kinds and a count"),
    ):
        connection.execute(f"SELECT {yard.schema}.put(%s)", [text])


@pytest.mark.parametrize("count", [0, 2, 4])
async def test_the_answer_of_a_put_does_not_depend_on_what_others_put(
    yard: Yard,  # noqa: F811
    owner: Store,
    count: int,
) -> None:
    """T26: neither its order nor its news, whatever stands twice in it or stands for nothing."""
    theirs, nobodys, mine = new_job(id="zz-1"), new_job(id="zz-2"), new_job()
    await owner.put([theirs])
    told = []
    with yard.connection("producer") as connection:
        say = f"SELECT {yard.schema}.put(%s)"
        connection.execute(f"LISTEN {yard.schema}")
        connection.execute(say, [put_text([mine], None, None)])
        for job in (theirs, nobodys):
            doc = json.loads(put_text([job, new_job(id="a" + job.id)], None, "work"))
            [kind] = doc["kinds"]
            kind[3].append(mine.id)
            kind[4].append("{}")
            empty = [*kind[:3], [], [], None, None, 5, 86_400]
            alone = [*kind[:3], ["zz-1" if job is theirs else "zz-3"], ["{}"]]
            text = json.dumps(doc | {"count": 1, "kinds": [empty, alone]})
            assert connection.execute(say, [text]).fetchone() == (None,)
            text = json.dumps(doc | {"count": count, "kinds": [empty, kind]})
            with pytest.raises(psycopg.DatabaseError, match=f"it has 3, not {count}\n"):
                connection.execute(say, [text])
            text = json.dumps(doc | {"count": 3, "kinds": [empty, kind]})
            answer = connection.execute(say, [text]).fetchone()[0]  # type: ignore[index]
            news = [each.payload[:11] for each in connection.notifies(timeout=0.1)]
            told.append((answer.replace(job.id, "?"), news))
    assert told[0] == told[1]


async def test_a_put_of_many_of_which_one_is_known_takes_no_longer(yard: Yard) -> None:  # noqa: F811
    """Before, each of them was compared with every other: ten times as long for three times as many."""
    web, jobs = store_for(yard.url("producer")), [new_job() for _ in range(20_000)]
    await web.put(jobs[:1])
    began = time.monotonic()
    assert are_new(await web.put(jobs)) == [False] + [True] * 19_999
    assert (
        time.monotonic() - began < 10
    )  # It is a bound for a busy machine; it was 20 s on a free one.
    await web.close()


@pytest.mark.parametrize("value", ["1e131071", '{"x":1e131071}', "[[1e131071]]", "true"])
@pytest.mark.parametrize("number", [1, 2, 60])
@pytest.mark.parametrize("place", [PAYLOAD, OPTIONS])
def test_payloads_and_options_are_texts(
    yard: Yard,  # noqa: F811
    value: str,
    number: int,
    place: int,
) -> None:
    """A number of eight characters would be written out in 131,072."""
    jobs = [new_job(options="{}") for _ in range(number)]
    doc = json.loads(put_text(jobs, None, None))
    told = doc["job"] if number == 1 else doc["kinds"][0]
    told[place] = "?" if number == 1 or place == OPTIONS else [*told[place][1:], "?"]
    with (
        yard.connection("producer") as connection,
        pytest.raises(
            psycopg.DatabaseError, match="the payload and the options of a job are texts"
        ),
    ):
        text = json.dumps(doc).replace('"?"', value)
        connection.execute(f"SELECT {yard.schema}.put(%s)", [text])


async def test_a_producer_sees_its_own_row_alone(yard: Yard, owner: Store) -> None:  # noqa: F811
    """T26: though a snapshot older than the end of the other's job let it put the same id."""
    theirs = new_job()
    await owner.put([theirs])
    with yard.connection("producer") as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        [run] = await claim(owner)
        await owner.settle([done(run, '"secret"')])
        mine = replace(theirs, payload='{"mine":1}')
        connection.execute(f"SELECT {yard.schema}.put(%s)", [put_text([mine], None, None)])
        connection.execute("COMMIT")
        [found] = say(connection, yard, "find", {"id": theirs.id})
        assert (found["payload"], found["result"]) == ('{"mine":1}', None)
    await owner.admin.repair(by())


@pytest.mark.parametrize("others", [[], ["a-1"], ["a-1", "zz"]])
def test_no_id_is_of_another_day(yard: Yard, others: list[str]) -> None:  # noqa: F811
    """A day after its job had ended it would not be known any more."""
    later = (time.time_ns() // 1_000_000 + 3 * 86_400_000) >> 16
    jobs = [new_job(id=each) for each in (f"{later:08x}-0000-7000-8000-000000000000", *others)]
    with (
        yard.connection("producer") as connection,
        pytest.raises(psycopg.DatabaseError, match="more than a day from now; set the clock"),
    ):
        connection.execute(f"SELECT {yard.schema}.put(%s)", [put_text(jobs, None, None)])


def test_a_put_has_a_job_or_kinds_and_not_both(yard: Yard) -> None:  # noqa: F811
    """Else one of the two would be lost, or what was never put be taken back."""
    both = json.loads(put_text([new_job()], None, None))
    both |= json.loads(put_text([new_job(), new_job()], None, None))
    with (
        yard.connection("producer") as connection,
        pytest.raises(psycopg.DatabaseError, match="a job or kinds, not both"),
    ):
        connection.execute(f"SELECT {yard.schema}.put(%s)", [json.dumps(both)])


async def test_who_keeps_the_id_of_a_dead_letter_keeps_no_other_from_being_replayed(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    jobs = [new_job() for _ in range(5)]
    await owner.put(jobs)
    await owner.settle([failed(run, run.claimed_at, POLICY) for run in await claim(owner)])
    ids = [job.id for job in jobs]
    with yard.connection("producer") as connection:
        connection.execute("BEGIN")
        connection.execute(f"SELECT {yard.schema}.put(%s)", [put_text(jobs[:1], None, None)])
        assert sorted(await deeds.revive(owner, ids, [State.DEAD], by())) == sorted(ids[1:])
        connection.execute("ROLLBACK")
    assert list(await deeds.revive(owner, ids, [State.DEAD], by())) == ids[:1]


async def test_a_damaged_retention_lets_nobody_forget_without_a_line(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    await owner.put([new_job()])
    await owner.settle([done(run) for run in await claim(owner)])
    yard.server.execute(f"UPDATE {yard.schema}.retention SET before = (2 ^ 59)::bigint")
    with yard.connection("operator") as connection:
        text = json.dumps({"keep": 0, "batch": 100})
        connection.execute(f"SELECT {yard.schema}.upkeep(%s)", [text])
    assert [(line.verb, line.count) for line in await owner.admin.audit_log()] == [("upkeep", 1)]


def test_no_id_is_written_out_beside_others(yard: Yard) -> None:  # noqa: F811
    """Before, ids that are numbers were all written out first: half a megabyte of them took gigabytes."""
    told = ["mail", "t", 1, ["?"] * 2_000, ["{}"] * 2_000]
    text = json.dumps({"count": 2_000, "kinds": [told]}).replace('"?"', "1e131071")
    role = psycopg.conninfo.conninfo_to_dict(yard.url("producer").partition("?")[0])["user"]
    yard.server.execute(f"ALTER ROLE {role} SET temp_file_limit = '10MB'")
    with (
        psycopg.connect(yard.server.url(user=str(role), password="rope")) as connection,
        pytest.raises(psycopg.DatabaseError, match="the id of a job has 1 to 36 ASCII characters"),
    ):
        connection.execute(f"SELECT {yard.schema}.put(%s)", [text])


@pytest.mark.parametrize("number", [1, 2, 60])
@pytest.mark.parametrize("of", ["ids", "payloads"])
def test_no_job_of_a_put_lacks_its_id_or_payload(
    yard: Yard,  # noqa: F811
    number: int,
    of: str,
) -> None:
    ids, payloads = [new_job().id for _ in range(number)], ["{}"] * number
    (ids if of == "ids" else payloads).append("{}")
    text = json.dumps({"count": number, "kinds": [["mail", "t", 1, ids, payloads]]})
    with (
        yard.connection("producer") as connection,
        pytest.raises(psycopg.DatabaseError, match="a job has an id and a payload"),
    ):
        connection.execute(f"SELECT {yard.schema}.put(%s)", [text])


# Operators

ACTS = (
    {"verb": "cancel", "ids": ["{id}"], "states": ["waiting"], "reason": "no"},
    {"verb": "pause", "queue": "mail"},
    {"verb": "delete", "ids": ["{id}"], "states": ["done"]},
    {"verb": "nonsense"},
)
NOBODY = (
    None,
    [],
    ["", "ada", "cancel", "x"],
    ["1", "", "cancel", "x"],
    ["1", "ada", None, "x"],
    "x",
)


@pytest.mark.parametrize("nobody", NOBODY)
def test_an_operator_does_nothing_unnoted(yard: Yard, nobody: Any) -> None:  # noqa: F811
    yard.server.execute(f"SELECT {yard.schema}.put(%s)", put_text([new_job(id="1")], None, None))
    with yard.connection("operator") as connection:
        for act in ACTS:
            doc = {"at": None, "ids": [], "states": [], "by": nobody} | act
            with pytest.raises(psycopg.DatabaseError, match="an action needs its id, who and verb"):
                connection.execute(
                    f"SELECT {yard.schema}.act(%s)", [json.dumps(doc).replace("{id}", "1")]
                )
        for verb in ("act", "noted"):
            with pytest.raises(psycopg.DatabaseError, match="an action needs"):
                connection.execute(f"SELECT {yard.schema}.{verb}('{{}}')")
    assert yard.server.execute(f"SELECT lease_until FROM {yard.schema}.job") == [(0,)]
    assert yard.server.execute(f"SELECT FROM {yard.schema}.paused") == []


async def test_an_operator_adds_to_no_line_of_another_action(yard: Yard) -> None:  # noqa: F811
    """Neither to that of another user of the database, nor by less than nothing."""
    one, other = store_for(yard.url("operator")), store_for(yard.url("operator", "other_"))
    action = Action("1", "ada", "pause", "mail")
    assert await deeds.pause(one, "mail", action)
    assert await deeds.resume(one, "mail", action)
    with pytest.raises(ConfigError, match="the audit log has another action with the id '1'"):
        await deeds.pause(other, "mail", action)
    with yard.connection("operator", "raw_") as connection:
        for count in (-1, None):
            doc = {"by": ["2", "ada", "x", "y"], "count": count, "ids": []}
            with pytest.raises(psycopg.DatabaseError, match="done to 0 jobs or more"):
                connection.execute(f"SELECT {yard.schema}.noted(%s)", [json.dumps(doc)])
    [line] = await one.admin.audit_log()
    assert (line.who, line.user, line.count) == ("ada", f"{yard.schema}_operator", 2)
    assert await deeds.paused(one) == set()
    await one.close()
    await other.close()


async def test_an_id_of_an_action_long_ago_hides_no_action_of_today(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    """Calls of one action add to its line, but only as long as one action can take."""
    operator = store_for(yard.url("operator"))
    assert await deeds.pause(operator, "mail", Action("1", "ada", "tidy", "all"))
    assert await deeds.pause(operator, "news", Action("1", "ada", "tidy", "all"))
    yard.server.execute(f"UPDATE {yard.schema}.audit SET done_at = done_at - {3_601 * SECOND}")
    with pytest.raises(ConfigError, match="another action with the id '1'; give each action a new"):
        await deeds.resume(operator, "news", Action("1", "ada", "tidy", "all"))
    assert await deeds.paused(owner) == {"mail", "news"}
    await operator.close()


async def test_an_action_may_take_hours_and_its_line_keeps_its_job(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    """Before, it failed an hour after it began, and a call that did nothing took the job away."""
    operator, job = store_for(yard.url("operator")), new_job()
    await owner.put([job])
    action = Action("1", "ada", "tidy", "all")
    await deeds.cancel(operator, [job.id], "no", by=action)
    for queue in ("mail", "news", "post"):
        yard.server.execute(f"UPDATE {yard.schema}.audit SET done_at = done_at - {1_800 * SECOND}")
        await deeds.pause(operator, queue, action)
    [line] = await owner.admin.audit_log(job_id=job.id)
    assert line.count == 4
    await operator.close()


async def test_no_past_day_goes_without_a_line(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    """Before, upkeep dropped days while somebody else had what says how long they are kept."""
    job = new_job()
    await ended(owner, job, State.DONE)
    await owner.upkeep(DAY)
    days_ago(yard, 4)
    assert await owner.admin.find(job.id) is not None
    with yard.connection("operator") as other, yard.connection("operator", "second_") as mine:
        with other.transaction(force_rollback=True):
            other.execute(f"SELECT {yard.schema}.retain('0')")
            upkeep = json.dumps({"keep": 0, "batch": 10})
            mine.execute(f"SELECT {yard.schema}.upkeep(%s)", [upkeep])
        assert await owner.admin.find(job.id) is not None
        assert await owner.admin.audit_log() == []
        mine.execute(f"SELECT {yard.schema}.upkeep(%s)", [upkeep])
    assert await owner.admin.find(job.id) is None
    assert [line.verb for line in await owner.admin.audit_log()] == ["upkeep"]


# Workers


async def test_a_worker_forgets_nothing_that_an_operator_wants_kept(
    yard: Yard,  # noqa: F811
    owner: Store,
) -> None:
    job = new_job()
    await ended(owner, job, State.DONE)
    worker = store_for(yard.url("worker"))
    with yard.connection("operator") as connection:
        connection.execute(f"SELECT {yard.schema}.retain('30 days')")
        for period in ("-1 day", "40000 years", "170000000 years"):
            with pytest.raises(
                psycopg.DatabaseError, match="kept for 0 s to 36,000 years, not for"
            ):
                connection.execute(f"SELECT {yard.schema}.retain('{period}')")
    for keep in (0, DAY):
        await worker.upkeep(keep)
    for keep in (0, 1, LATEST):
        text = json.dumps({"at": None, "keep": keep, "batch": 100})
        with yard.connection("worker", f"raw_{keep}_") as connection:
            connection.execute(f"SELECT {yard.schema}.upkeep(%s)", [text])
    with pytest.raises(ConfigError, match="kept for 0 s or longer, not for"):
        await worker.upkeep(-1)
    assert await worker.admin.find(job.id) is not None
    assert len(await worker.admin.attempts(job.id)) == 1
    [line] = await owner.admin.audit_log()
    operator = f"{yard.schema}_operator"
    assert (line.who, line.user, line.verb, line.target) == (
        operator,
        operator,
        "retain",
        "30 days",
    )

    yard.server.execute(f"SELECT {yard.schema}.retain(NULL, 'ada')")
    await worker.upkeep(0)
    assert await worker.admin.find(job.id) is None
    [newest, _] = await owner.admin.audit_log()
    assert (newest.who, newest.user, newest.target) == ("ada", "postgres", "as workers say")
    await worker.close()


@pytest.mark.parametrize("kind", ["producer", "worker"])
def test_only_an_operator_says_what_is_kept(yard: Yard, kind: str) -> None:  # noqa: F811
    with yard.connection(kind) as connection, pytest.raises(errors.InsufficientPrivilege):
        connection.execute(f"SELECT {yard.schema}.retain('1 day')")


# Answers that the audit log keeps


async def test_the_id_of_an_action_tells_another_user_nothing(yard: Yard) -> None:  # noqa: F811
    """T26: he gets no answer of it, and the same refusal whatever it was asked and came to."""
    owner = store_for(yard.server.url(schema=yard.schema))
    first, other = store_for(yard.url("operator", "a_")), store_for(yard.url("operator", "b_"))
    jobs = [new_job() for _ in range(2)]
    await owner.put(jobs)
    ids = [job.id for job in jobs]
    action = Action("018f", "ada", "cancel", "two jobs")
    assert set(await deeds.cancel(first, ids, "no", action)) == set(ids)
    told = set()
    for asked in (ids, ids[:1], [JobId("no-such-job")]):
        with pytest.raises(ConfigError) as refused:
            await deeds.cancel(other, asked, "no", action)
        told.add(str(refused.value))
    assert len(told) == 1
    assert set(await deeds.cancel(first, ids, "no", action)) == set(ids)
    for store in (owner, first, other):
        await store.close()


@pytest.mark.parametrize("damage", ["", ";", ";;:.", "%s", "%s:", "%s:9,,x."])
async def test_a_damaged_answer_harms_only_itself(yard: Yard, damage: str) -> None:  # noqa: F811
    """I22: nobody can read it, so the call is done as if it were new; the next one is kept."""
    owner = store_for(yard.server.url(schema=yard.schema))
    job = new_job()
    await owner.put([job])
    action = Action("018f", "ada", "cancel", "a job")
    assert set(await deeds.cancel(owner, [job.id], "no", action)) == {job.id}
    [(kept,)] = yard.server.execute(f"SELECT answers FROM {yard.schema}.audit")
    damaged = damage % kept.split(":")[0] if "%s" in damage else damage
    yard.server.execute(f"UPDATE {yard.schema}.audit SET answers = %s", damaged)
    assert await deeds.cancel(owner, [job.id], "no", action) == {}
    assert await deeds.cancel(owner, [job.id], "no", action) == {}
    assert [line.count for line in await owner.admin.audit_log()] == [1]
    assert await owner.admin.audit() == []
    await owner.close()
