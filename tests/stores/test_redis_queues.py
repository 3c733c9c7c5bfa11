"""Many queues on Redis: who is asked, counted in calls, and how a wrong belief is put right (F78)."""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from math import ceil
from typing import Any

import pytest
from msgspec import structs

from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.errors import StoreUnavailable
from fairlead.core.job import State
from fairlead.core.queue import Queue
from fairlead.core.selection import Claim, ClaimPlan
from fairlead.core.store import Store
from fairlead.core.turns import Lineup
from fairlead.stores import store_for
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.seen import FEW, Seen
from fairlead.stores.redis.store import RedisStore
from fairlead.stores.redis.talk import Conversation, Part, Word, ask_each
from fairlead.stores.redis.wake import Bell, heard
from tests import deeds
from tests.servers.redis import RedisServer
from tests.words import by, done, new_job, returned

MANY = Lineup(Queue(f"q{n}") for n in range(200))


@pytest.fixture
async def store(redis_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_for(redis_url, clock)
    yield store
    assert await store.admin.audit() == []
    await store.close()


@pytest.fixture
async def other(redis_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    """Another process, of which the first hears only what is told on the channel."""
    store = store_for(redis_url, clock)
    yield store
    await store.close()


class Asked(Counter[str]):
    """How many queues were asked, by verb."""

    def taken(self) -> tuple[int, int]:
        """Return how many claims and how many glances there were since the last time."""
        taken = self["claim"], self["glance"]
        self.clear()
        return taken


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()

    def counted(
        keys: Keys, verb: str, shared: tuple[Word, ...], parts: Sequence[Part]
    ) -> Conversation[list[Any]]:
        asked[verb] += len(parts)
        return ask_each(keys, verb, shared, parts)

    monkeypatch.setattr("fairlead.stores.redis.claims.ask_each", counted)
    return asked


def calls(server: RedisServer) -> int:
    """How often functions that write were called since the last time."""
    told = str(server.execute("INFO", "commandstats"))
    server.execute("CONFIG", "RESETSTAT")
    found = re.search(r"cmdstat_fcall:calls=(\d+)", told)
    return int(found[1]) if found else 0


async def ask(
    store: Store, slots: int = 50, credits: Mapping[str, float] | None = None, **options: object
) -> Claim:
    asked = {"lease": 60 * SECOND, "credits": credits or {}, **options}
    return await store.claim(ClaimPlan("w1", MANY, slots, **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("every", [1, 10])
async def test_a_claim_asks_as_many_queues_as_it_serves(
    store: Store, asked: Asked, every: int
) -> None:
    await store.put([new_job(queue=f"q{n}") for _ in range(20) for n in range(0, 200, every)])
    credits = (await ask(store)).credits
    asked.taken()
    answer = await ask(store, credits=credits)
    assert len(answer.jobs) == 50
    assert asked.taken() == (min(50, 200 // every), 0)


async def test_one_call_asks_several_queues(store: Store, redis_server: RedisServer) -> None:
    """A call costs more than a short function does."""
    await store.put([new_job(queue=f"q{n}") for _ in range(2) for n in range(200)])
    credits = (await ask(store)).credits
    calls(redis_server)
    jobs = (await ask(store, credits=credits)).jobs
    assert len({job.queue for job in jobs}) == 50
    assert calls(redis_server) == ceil(50 / 16)
    await store.settle([done(job) for job in jobs])
    assert calls(redis_server) == ceil(50 / 16)


async def test_a_call_for_many_jobs_asks_few_queues(
    store: Store, redis_server: RedisServer
) -> None:
    """It keeps everybody else waiting: 500 jobs at most."""
    await store.put([new_job(queue=f"q{n}") for _ in range(300) for n in range(4)])
    queues = Lineup(Queue(f"q{n}") for n in range(4))
    await store.claim(ClaimPlan("w1", queues, 4, 60 * SECOND))
    calls(redis_server)
    jobs = (await store.claim(ClaimPlan("w1", queues, 800, 60 * SECOND))).jobs
    assert len(jobs) == 800
    assert calls(redis_server) == 2


async def test_a_call_that_looked_at_many_jobs_leaves_the_other_queues(
    store: Store, redis_server: RedisServer
) -> None:
    """It keeps everybody else waiting: those are asked one by one."""
    jobs = [new_job(queue=f"q{n}", task="theirs") for n in range(4) for _ in range(600)]
    await store.put([*jobs, *(new_job(queue=f"q{n}") for n in range(4))])
    await store.announce(Worker("other", {"theirs": 1}), 60 * SECOND)
    queues = Lineup(Queue(f"q{n}") for n in range(4))
    calls(redis_server)
    asked = ClaimPlan("w1", queues, 4, 60 * SECOND, capable={"t": 1})
    assert len((await store.claim(asked)).jobs) == 4
    assert calls(redis_server) == 1 + 2


async def test_a_claim_reads_no_more_bodies_than_it_takes(
    store: Store, redis_server: RedisServer
) -> None:
    """What a call reads is bounded in bytes, so whoever reads too much leaves other queues."""
    payload = json.dumps([["x" * 50_000], {}])
    jobs = [new_job(queue=f"q{n}") for _ in range(40) for n in range(4)]
    await store.put([structs.replace(job, payload=payload) for job in jobs])
    queues = Lineup(Queue(f"q{n}") for n in range(4))
    await store.claim(ClaimPlan("w1", queues, 4, 60 * SECOND))
    calls(redis_server)
    assert len((await store.claim(ClaimPlan("w1", queues, 44, 60 * SECOND))).jobs) == 44
    assert calls(redis_server) == 1


async def test_a_wave_of_failures_asks_for_the_keys_once(
    store: Store, redis_server: RedisServer
) -> None:
    await store.put([new_job() for _ in range(100)])
    jobs = (await store.claim(ClaimPlan("w1", (Queue("mail"),), 100, 60 * SECOND))).jobs
    calls(redis_server)
    assert len(await store.settle([returned(job) for job in jobs])) == 100
    told = str(redis_server.execute("INFO", "commandstats"))
    found = re.search(r"cmdstat_zscore:calls=(\d+)", told)
    assert found
    assert int(found[1]) < 20


def test_what_some_queues_answered_counts_though_the_rest_times_out() -> None:
    """Jobs that were given out must reach who claimed them (P1)."""
    talk = ask_each(Keys("p"), "claim", (), [Part("a"), Part("b")])
    assert len(next(talk)) == 1
    assert len(talk.send([[["an answer"], None]])) == 1
    with pytest.raises(StopIteration) as end:
        talk.throw(StoreUnavailable("redis://", "no answer"))
    [first, second] = end.value.value
    assert first == ["an answer"]
    assert isinstance(second, StoreUnavailable)


async def test_queues_of_which_nothing_is_known_are_looked_at_and_those_with_jobs_asked(
    store: Store, other: Store, asked: Asked
) -> None:
    await store.open()
    await other.put([new_job(queue="q42")])
    asked.taken()
    assert [job.queue for job in (await ask(store, slots=1)).jobs] == ["q42"]
    assert asked.taken() == (1, 200)


async def test_what_a_process_put_itself_is_asked_for_and_nothing_else(
    store: Store, asked: Asked
) -> None:
    assert (await ask(store)).jobs == []
    await store.wait(0, for_work=True)
    await store.put([new_job(queue="q42")])
    asked.taken()
    assert [job.queue for job in (await ask(store)).jobs] == ["q42"]
    assert asked.taken() == (1, 0)


async def test_news_name_the_queue_that_is_asked_then(
    store: Store, other: Store, asked: Asked
) -> None:
    mark = await store.wait(0, for_work=True)
    assert (await ask(store)).jobs == []
    await other.put([new_job(queue="q42")])
    assert await store.wait(10, mark, for_work=True) != mark
    asked.taken()
    assert [job.queue for job in (await ask(store)).jobs] == ["q42"]
    assert asked.taken() == (1, 0)


async def test_work_of_queues_that_we_do_not_serve_wakes_nobody(store: Store) -> None:
    await ask(store)
    assert isinstance(store, RedisStore)
    mark = store.news.mark(for_work=True)
    store.hear("work elsewhere")
    assert store.news.mark(for_work=True) == mark
    store.hear("work q1")
    assert store.news.mark(for_work=True) != mark


async def test_a_job_of_which_no_news_came_is_found_after_a_wait(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To lose all news costs at most one poll interval."""
    mark = await store.wait(0, for_work=True)
    await ask(store)
    monkeypatch.setattr(Bell, "work", lambda self, queue: "")
    await other.put([new_job(queue="q42")])
    assert (await ask(store)).jobs == []
    assert await store.wait(0.01, mark, for_work=True) == mark
    assert [job.queue for job in (await ask(store)).jobs] == ["q42"]


async def test_a_job_of_which_no_news_came_is_found_while_others_keep_us_busy(
    store: Store, other: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put([new_job(queue="q0") for _ in range(30)])
    credits = (await ask(store, slots=10)).credits
    monkeypatch.setattr(Bell, "work", lambda self, queue: "")
    await other.put([new_job(queue="q42")])
    answer = await ask(store, slots=10, credits=credits)
    assert {job.queue for job in answer.jobs} == {"q0"}
    clock.advance(1)
    answer = await ask(store, slots=10, credits=answer.credits)
    assert {job.queue for job in answer.jobs} == {"q0", "q42"}


async def test_who_waits_knows_when_something_falls_due_without_asking(
    store: Store, asked: Asked, clock: ManualClock
) -> None:
    await store.put([new_job(queue="q7", delay=5 * SECOND)])
    mark = await store.wait(0, for_work=True)
    assert (await ask(store)).jobs == []
    asked.taken()
    await store.wait(0.01, mark, for_work=True)
    assert asked.taken() == (0, 0)
    clock.advance(6)
    assert [job.queue for job in (await ask(store)).jobs] == ["q7"]


async def test_a_queue_is_asked_as_soon_as_something_in_it_falls_due(
    store: Store, asked: Asked, clock: ManualClock
) -> None:
    await store.put([new_job(queue="q7", delay=SECOND // 5)])
    assert (await ask(store)).jobs == []
    clock.advance(0.3)
    asked.taken()
    assert [job.queue for job in (await ask(store, slots=1)).jobs] == ["q7"]
    assert asked.taken() == (1, 0)


@pytest.mark.parametrize("full", [False, True])
async def test_a_lease_that_passes_in_a_queue_that_nobody_asks_is_found(
    store: Store, other: Store, clock: ManualClock, full: bool
) -> None:
    await other.put([new_job(queue="q42"), *[new_job(queue="q1") for _ in range(50 * full)]])
    only = ClaimPlan("w2", (Queue("q42"),), 1, 10 * SECOND)
    [held] = (await other.claim(only)).jobs
    credits = (await ask(store, slots=10)).credits
    clock.advance(11)
    jobs = (await ask(store, slots=10, credits=credits)).jobs
    assert [job.id for job in jobs if job.lost] == [held.id]


async def test_a_job_expires_in_a_queue_that_has_no_turn(store: Store, clock: ManualClock) -> None:
    await store.put([new_job(queue=f"q{n}") for n in range(50)])
    await ask(store, slots=1)
    old = new_job(queue="q199", expires_in=2 * SECOND)
    await store.put([old])
    clock.advance(3)
    await ask(store, slots=1)
    found = await store.admin.find(old.id)
    assert found is not None
    assert found.state is State.CANCELLED


async def test_a_queue_that_is_resumed_is_asked_again(store: Store, other: Store) -> None:
    await other.put([new_job(queue="q9")])
    await deeds.pause(other, "q9", by())
    mark = await store.wait(0, for_work=True)
    assert (await ask(store)).jobs == []
    await deeds.resume(other, "q9", by())
    assert await store.wait(10, mark, for_work=True) != mark
    assert [job.queue for job in (await ask(store)).jobs] == ["q9"]


async def test_one_damaged_queue_among_many_harms_only_itself(
    store: Store, redis_server: RedisServer, redis_url: str
) -> None:
    await store.put([new_job(queue=f"q{n}") for n in range(200)])
    key = Keys(Address.of(redis_url).prefix).key("q3", "leases")
    redis_server.execute("SET", key, "x")
    credits: Mapping[str, float] = {}
    claimed = []
    for _ in range(5):
        answer = await ask(store, credits=credits)
        credits = answer.credits
        claimed += [job.queue for job in answer.jobs]
    assert sorted(claimed) == sorted(f"q{n}" for n in range(200) if n != 3)
    redis_server.execute("DEL", key)


async def test_one_slot_and_many_queues_that_others_emptied_take_few_rounds(
    store: Store, other: Store, asked: Asked
) -> None:
    """They are looked at together, and not asked one after the other."""
    await store.put([new_job(queue=f"q{n}") for n in range(200)])
    await ask(store, slots=1)
    taken = (await ask(other, slots=198)).jobs
    assert len(taken) == 198
    asked.taken()
    assert len((await ask(store, slots=1)).jobs) == 1
    assert asked.taken()[0] <= 4


# What is believed


def test_what_is_told_while_an_answer_is_on_its_way_is_not_forgotten() -> None:
    seen = Seen(ManualClock())
    seen.serve(MANY, "")
    tick = seen.tick
    seen.told("q1")
    for queue in ("q1", "q2"):
        seen.found(queue, tick, more=False, now=1, soon=-1)
    assert "q1" in seen.among(MANY)
    assert "q2" not in seen.among(MANY)


def test_looks_take_a_twentieth_of_the_time(clock: ManualClock) -> None:
    seen = Seen(clock)
    seen.serve(MANY, "")
    for queue in MANY.at:
        seen.found(queue, seen.tick, more=False, now=1, soon=-1)
    spent, began = 0.0, clock.now()
    while clock.now() < began + 60 * SECOND:
        seen.doubt()
        if seen.to_look_at():
            since = clock.now()
            clock.advance(0.1)
            spent += 0.1
            seen.looked(since)
        else:
            clock.advance(0.01)
    assert 2 < spent <= 3.1


def test_workers_who_know_other_tasks_may_find_what_these_did_not() -> None:
    seen = Seen(ManualClock())
    seen.serve(MANY, b"ours")
    seen.found("q1", seen.tick, more=False, now=1, soon=-1)
    assert "q1" not in seen.among(MANY)
    seen.serve(MANY, b"theirs")
    assert "q1" in seen.among(MANY)


def test_a_few_queues_are_asked_and_not_looked_at(clock: ManualClock) -> None:
    seen, few = Seen(clock), Lineup(Queue(f"q{n}") for n in range(FEW))
    seen.serve(few, "")
    for queue in few.at:
        seen.found(queue, seen.tick, more=False, now=1, soon=-1)
    clock.advance(1)
    assert not seen.to_look_at()
    assert seen.among(few) == few.at.keys()


# What is told


def test_a_bell_names_queues_and_before_it_rests_says_that_it_may_be_any() -> None:
    bell = Bell()
    told = [bell.work(f"q{n}") for n in range(100)]
    named = [queue for _, queue in map(heard, told) if queue]
    assert named == [f"q{n}" for n in range(len(named))]
    assert told[len(named)] == "work"
    assert 10 < len(named) < 30
    assert told[-1] == ""


def test_a_bell_tells_of_a_queue_once_for_a_while() -> None:
    bell = Bell()
    assert [bell.work("mail"), bell.work("mail"), bell.work("a b")] == ["work mail", "", "work a b"]
    assert heard("work a b") == ("work", "a b")
    assert [bell.ended(), bell.ended()] == ["ended", ""]
