"""What a person does is done once, however often the call arrives (L9, F13, F80)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import psycopg
import pytest
from msgspec.structs import replace

from fairlead import ConfigError, State, StoreUnavailable, Unanswered
from fairlead.core.acts import Action
from fairlead.core.answers import answer_in, mark_of, with_answer
from fairlead.core.clock import ManualClock
from fairlead.core.ids import JobId
from fairlead.core.outcome import Policy
from fairlead.core.retry import Retry
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.redis.functions import FUNCTIONS
from tests import deeds
from tests.conftest import STORES
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.words import by, claim, failed, new_id, new_job

SERVERS = [name for name in ("postgres", "redis") if name in STORES]
FINAL = (State.DONE, State.DEAD, State.CANCELLED)
DEAD = [State.DEAD]


async def die(store: Store, now: int, number: int) -> list[JobId]:
    """Let so many waiting jobs die."""
    jobs = await claim(store, slots=number)
    await store.settle([failed(job, now, Policy(Retry(attempts=1))) for job in jobs])
    return [job.id for job in jobs]


async def dead_jobs(store: Store, now: int, number: int = 2) -> list[JobId]:
    await store.put([new_job(id=new_id("mail")) for _ in range(number)])
    return await die(store, now, number)


async def state_of(store: Store, job_id: JobId) -> State | None:
    record = await store.admin.find(job_id)
    return record and record.state


# Every store


async def test_a_replay_repeated_is_one_replay(store: Store, clock: ManualClock) -> None:
    """Though the job has run and died again meanwhile, and could be replayed once more."""
    ids = await dead_jobs(store, clock.now())
    action = by("replay")
    assert sorted(await deeds.revive(store, ids, DEAD, action)) == sorted(ids)
    await die(store, clock.now(), 2)

    assert sorted(await deeds.revive(store, ids, DEAD, action)) == sorted(ids)
    assert [await state_of(store, job_id) for job_id in ids] == [State.DEAD] * 2
    assert [line.count for line in await store.admin.audit_log()] == [2]
    assert sorted(await deeds.revive(store, ids, DEAD, by("replay"))) == sorted(ids), (
        "a new one is new"
    )


async def test_a_cancel_repeated_says_what_the_first_said(store: Store, clock: ManualClock) -> None:
    running, waiting, unknown = new_job(), new_job(), JobId("no-such-job")
    await store.put([running])
    await claim(store)
    await store.put([waiting])
    ids = [running.id, unknown, waiting.id]
    action = by("cancel")
    first = await deeds.cancel(store, ids, "no need", action)
    again = await deeds.cancel(store, ids, "no need", action)
    assert first == again
    assert {job_id: record.state for job_id, record in again.items()} == {
        running.id: State.RUNNING,
        waiting.id: State.CANCELLED,
    }
    assert await deeds.cancel(store, ids, "no need", by("cancel")) == {}, (
        "a new one finds nothing to do"
    )
    assert [line.count for line in await store.admin.audit_log()] == [0, 2]


async def test_an_action_has_the_latest_time_of_its_calls(store: Store, clock: ManualClock) -> None:
    """Whatever the clock did meanwhile, and whether the calls were about one queue or about two (F28)."""
    jobs = [new_job() for _ in range(2)]
    await store.put(jobs)
    last = clock.now()
    cancel, pause = by("cancel"), by("pause")
    for job, queue in zip(jobs, ("mail", "other"), strict=True):
        await deeds.cancel(store, [job.id], "so", cancel)
        await deeds.pause(store, queue, pause)
        clock.advance(-1)
    assert [line.done_at for line in await store.admin.audit_log()] == [last, last]


async def test_a_repeated_delete_says_what_was_deleted(store: Store, clock: ManualClock) -> None:
    ids = await dead_jobs(store, clock.now(), 3)
    action = by("delete")
    assert sorted(await deeds.delete(store, ids, FINAL, action)) == sorted(ids)
    assert sorted(await deeds.delete(store, ids, FINAL, action)) == sorted(ids)
    assert await deeds.delete(store, ids, FINAL, by("delete")) == []
    assert [line.count for line in await store.admin.audit_log()] == [0, 3]


async def test_a_repeated_pause_does_not_pause_again(store: Store) -> None:
    """What somebody else did since is not undone."""
    pause, resume = by("pause"), by("resume")
    assert await deeds.pause(store, "mail", pause)
    assert await deeds.resume(store, "mail", resume)
    assert await deeds.pause(store, "mail", pause)
    assert await deeds.paused(store) == set()
    late = by("pause")
    assert await deeds.pause(store, "mail", late)
    assert await deeds.resume(store, "mail", resume)
    assert await deeds.paused(store) == {"mail"}
    none = by("pause")
    assert not await deeds.pause(store, "mail", none)
    await deeds.resume(store, "mail", by("resume"))
    assert not await deeds.pause(store, "mail", none)
    assert await deeds.paused(store) == set()


async def test_a_repeated_edit_says_that_it_was_done(store: Store, clock: ManualClock) -> None:
    [job_id] = await dead_jobs(store, clock.now(), 1)
    action = by("edit")
    assert await deeds.edit(store, job_id, "{}", "[1]", 2, action)
    assert await deeds.edit(store, job_id, "{}", "[1]", 2, action)
    assert not await deeds.edit(store, job_id, "{}", "[2]", 2, by("edit"))
    assert [(line.before, line.count) for line in await store.admin.audit_log()] == [("{}", 1)]


async def test_what_is_noted_twice_is_counted_once(store: Store) -> None:
    action = by("enqueue")
    await deeds.note(store, action, 3)
    await deeds.note(store, action, 3)
    assert [line.count for line in await store.admin.audit_log()] == [3]


async def test_each_batch_of_an_action_is_recognised_by_itself(
    store: Store, clock: ManualClock
) -> None:
    ids = await dead_jobs(store, clock.now(), 6)
    action = by("replay")
    batches = [ids[:2], ids[2:3], ids[3:]]
    for batch in batches:
        assert sorted(await deeds.revive(store, batch, DEAD, action)) == sorted(batch)
    await die(store, clock.now(), 6)
    for batch in batches[::-1]:
        assert sorted(await deeds.revive(store, batch, DEAD, action)) == sorted(batch)
    assert [await state_of(store, job_id) for job_id in ids] == [State.DEAD] * 6
    assert [line.count for line in await store.admin.audit_log()] == [6]


async def test_an_answer_is_kept_as_long_as_the_audit_log_has_the_line(
    store: Store, clock: ManualClock
) -> None:
    ids = await dead_jobs(store, clock.now())
    action = by("replay")
    await deeds.revive(store, ids, DEAD, action)
    await die(store, clock.now(), 2)
    clock.advance(40 * 24 * 3600)
    await store.upkeep(0)
    assert sorted(await deeds.revive(store, ids, DEAD, action)) == sorted(ids)
    assert [await state_of(store, job_id) for job_id in ids] == [State.DEAD] * 2


async def test_nobody_gets_the_answer_of_another_action(store: Store, clock: ManualClock) -> None:
    """T26: who knows its id is refused, or it is done anew for him."""
    ids = await dead_jobs(store, clock.now())
    action = by("replay")
    await deeds.revive(store, ids, DEAD, action)
    for other in (replace(action, who="eve"), replace(action, target="else")):
        answer: list[JobId] = []
        with suppress(ConfigError):
            answer = await deeds.revive(store, ids, DEAD, other)
        assert answer == []


# Answers on their way


class Way(NamedTuple):
    """A store behind a way on which things go wrong, and how its verbs are known there."""

    store: Store
    proxy: Proxy
    direct: Store
    marks: Callable[[str], bytes | Callable[[bytes], bool]]


def in_postgres(verb: str) -> Callable[[bytes], bool]:
    wanted = f'"verb":"{verb}"'.encode()
    return lambda asked: b".act(" in asked and wanted in asked


def in_redis(verb: str) -> bytes:
    return FUNCTIONS["pause" if verb == "resume" else verb].name.encode()


@pytest.fixture(params=SERVERS)
async def way(request: pytest.FixtureRequest) -> AsyncIterator[Way]:
    crew, name = ("crew_url", "proxy")
    if request.param == "redis":
        crew, name = "redis_crew_url", "redis_proxy"
    url, proxy = request.getfixturevalue(crew), request.getfixturevalue(name)
    marks = in_postgres if request.param == "postgres" else in_redis
    way = Way(store_for(f"{proxy.through(url)}&timeout=2"), proxy, store_for(url), marks)
    await way.store.open()
    yield way
    assert await way.direct.admin.audit() == []
    await way.direct.close()
    await way.store.close()


Act = Callable[[Store, list[JobId], Action], Awaitable[object]]
DEAD_BEFORE: dict[str, Act] = {
    "revive": lambda store, ids, action: deeds.revive(store, ids, DEAD, action),
    "delete": lambda store, ids, action: deeds.delete(store, ids, FINAL, action),
    "edit": lambda store, ids, action: deeds.edit(store, ids[0], "{}", "[1]", 1, action),
    "pause": lambda store, _, action: deeds.pause(store, "mail", action),
}


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("verb", DEAD_BEFORE)
async def test_an_act_whose_answer_is_lost_is_done_once(way: Way, verb: str, size: int) -> None:
    """The caller does not notice: it was repeated, and answered as if nothing had happened."""
    ids = await dead_jobs(way.store, 0, 3)
    fault = way.proxy.cut_within(way.marks(verb), size)
    answer = await DEAD_BEFORE[verb](way.store, ids, by(verb))
    assert await asyncio.to_thread(fault.happened.wait, 10)
    assert answer is True or sorted(answer) == sorted(ids)  # type: ignore[call-overload]
    assert [line.count for line in await way.direct.admin.audit_log()] == [
        1 if verb in ("edit", "pause") else 3
    ]


@pytest.mark.parametrize("size", [0, 1, 3])
async def test_a_cancel_whose_answer_is_lost_is_done_once(way: Way, size: int) -> None:
    jobs = [new_job(id=new_id("mail")) for _ in range(3)]
    await way.store.put(jobs)
    way.proxy.cut_within(way.marks("cancel"), size)
    answer = await deeds.cancel(way.store, [job.id for job in jobs], "no", by("cancel"))
    assert {job_id: record.state for job_id, record in answer.items()} == dict.fromkeys(
        (job.id for job in jobs), State.CANCELLED
    )
    assert [line.count for line in await way.direct.admin.audit_log()] == [3]


async def test_without_any_answer_an_act_says_that_it_may_be_done(way: Way) -> None:
    """F80: and the same call, under the same action, makes sure."""
    ids = await dead_jobs(way.store, 0)
    await deeds.pause(way.store, "other", by("pause"))
    action = by("replay")
    for _ in range(200):  # However often it is repeated.
        way.proxy.lose_reply(way.marks("revive"))
    with pytest.raises(Unanswered, match=r"It may have been done all the same \(replay") as caught:
        await deeds.revive(way.store, ids, DEAD, action)
    assert isinstance(caught.value, StoreUnavailable)
    assert caught.value.action == action
    assert "Do it again to make sure" in str(caught.value)
    assert sorted(await deeds.revive(way.direct, ids, DEAD, action)) == sorted(ids)
    assert [line.count for line in await way.direct.admin.audit_log(1)] == [2]


async def test_what_could_not_be_asked_was_not_done(way: Way) -> None:
    await way.store.close()
    way.proxy.close()
    with pytest.raises(StoreUnavailable) as caught:
        await deeds.pause(way.store, "mail", by("pause"))
    assert type(caught.value) is StoreUnavailable
    assert await deeds.paused(way.direct) == set()


# PostgreSQL: the first call may still be under way


@pytest.mark.skipif("postgres" not in STORES, reason="not among the stores")
async def test_a_repeat_waits_for_the_first(crew_url: str, postgres_server: PostgresServer) -> None:
    """The server is still busy with a call whose caller lost his connection: one replay."""
    first, second = store_for(crew_url), store_for(crew_url)
    ids = await dead_jobs(first, 0, 2)
    action = by("replay")
    async with await psycopg.AsyncConnection.connect(postgres_server.url()) as connection:
        schema = crew_url.partition("schema=")[2]
        # Whoever writes to the line has to wait for this.
        await connection.execute(f"LOCK TABLE {schema}.dead IN SHARE MODE")
        trying = [
            asyncio.create_task(deeds.revive(each, ids, DEAD, action)) for each in (first, second)
        ]
        done, _ = await asyncio.wait(trying, timeout=0.1)
        assert done == set()
        await connection.rollback()
    answers = await asyncio.gather(*trying)
    assert sorted(answers[0]) == sorted(answers[1]) == sorted(ids)
    assert [line.count for line in await first.admin.audit_log()] == [2]
    await first.close()
    await second.close()


# What is kept


def test_an_answer_takes_few_bytes_however_many_jobs_it_is_for() -> None:
    asked = [str(n) for n in range(1000)]
    mark = mark_of("revive", asked, ["dead"])
    kept = with_answer("", mark, asked, asked)
    assert len(kept) < 20
    assert answer_in(kept, mark, asked) == asked
    less = with_answer(kept, "0" * 16, asked, asked[1:-1])
    assert answer_in(less, "0" * 16, asked) == asked[1:-1]
    assert answer_in(less, mark, asked) == asked
    assert answer_in(less, "1" * 16, asked) is None


@pytest.mark.parametrize(
    "damage",
    [
        "",
        ";",
        "x",
        None,
        b"x",
        "{mark}",
        "{mark}:",
        ";{mark}",
        ";{mark}:",
        ";{mark}:x.",
        ";{mark}.0",
    ],
)
def test_what_cannot_be_read_is_no_answer(damage: object) -> None:
    mark = mark_of("pause", "mail")
    kept = damage.replace("{mark}", mark) if isinstance(damage, str) else damage
    assert answer_in(kept, mark, ["mail"]) is None
    again = with_answer(kept, "0" * 16, ["mail"], [])
    assert answer_in(again, "0" * 16, ["mail"]) == [], "the next one is kept as ever"
