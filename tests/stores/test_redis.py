"""What is so of Redis alone: full memory, a lost second, damaged values, lost answers, slots."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import redis

from fairlead import StoreUnavailable
from fairlead.core.admin import ALL, Worker
from fairlead.core.clock import SECOND
from fairlead.core.errors import EnqueueError, StoreFull
from fairlead.core.ids import IdMaker, JobId, mark_of
from fairlead.core.job import Reason, State
from fairlead.core.queue import Queue
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.gather import Gather
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.functions import FUNCTIONS, LIBRARY
from fairlead.stores.redis.keys import PARTS, Keys
from fairlead.stores.redis.talk import call
from tests import deeds
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisCluster, RedisServer
from tests.words import are_new, by, claim, done, new_job, plan

new_id = IdMaker()


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    """A Redis store by the server's own clock."""
    store = store_for(redis_url)
    await store.open()
    yield store
    await store.close()


def key(url: str, part: str, queue: str = "mail") -> str:
    return Keys(Address.of(url).prefix).key(queue, part)


# Which queue a job is in


async def test_an_id_made_for_a_queue_leads_there_without_being_written_down(
    store: Store, redis_server: RedisServer, redis_url: str
) -> None:
    job = new_job(id=new_id("mail"))
    assert job.id.endswith(mark_of("mail"))
    await store.put([job])
    fresh = store_for(redis_url)
    found = await fresh.admin.find(job.id)
    assert found is not None
    assert redis_server.execute("EXISTS", Keys(Address.of(redis_url).prefix).strays) == 0
    await fresh.close()


async def test_other_ids_are_found_as_well_and_are_in_one_queue_only(
    store: Store, redis_url: str
) -> None:
    assert are_new(await store.put([new_job(id="a", queue="mail")])) == [True]
    assert are_new(await store.put([new_job(id="a", queue="reports")])) == [False]
    assert are_new(
        await store.put([new_job(id="b", queue="mail"), new_job(id="b", queue="reports")])
    ) == [
        True,
        False,
    ]
    fresh = store_for(redis_url)
    assert are_new(fresh.put_blocking([new_job(id="a", queue="news")])) == [False]
    assert {job.id: job.queue for job in await deeds.jobs(fresh, ALL)} == {"a": "mail", "b": "mail"}
    await fresh.close()


async def test_an_id_made_for_another_queue_is_in_one_queue_only(store: Store) -> None:
    job_id = new_id("mail")
    assert are_new(await store.put([new_job(id=job_id, queue="mail")])) == [True]
    assert are_new(await store.put([new_job(id=job_id, queue="reports")])) == [False]
    assert are_new(await store.put([new_job(id=new_id("mail"), queue="reports")])) == [True]


async def test_a_stray_that_was_written_down_but_never_put_can_be_put(
    store: Store, redis_server: RedisServer, redis_url: str
) -> None:
    """Its producer died between the two steps; the next one finishes."""
    redis_server.execute("HSET", Keys(Address.of(redis_url).prefix).strays, "a", "reports")
    assert are_new(await store.put([new_job(id="a", queue="mail")])) == [True]
    found = await store.admin.find(JobId("a"))
    assert found is not None
    assert found.queue == "mail"


async def test_queues_with_the_same_mark_do_not_get_mixed_up(store: Store) -> None:
    marks: dict[str, str] = {}
    for number in range(10_000):
        name = f"q{number}"
        twin = marks.setdefault(mark_of(name), name)
        if twin != name:
            break
    jobs = [new_job(id=new_id(each), queue=each) for each in (name, twin)]
    await store.put(jobs)
    for job in jobs:
        found = await store.admin.find(job.id)
        assert found is not None
        assert found.queue == job.queue


async def test_a_forgotten_stray_leaves_nothing_behind(
    store: Store, redis_server: RedisServer, redis_url: str
) -> None:
    await store.put([new_job(id="a")])
    [job] = await claim(store)
    await store.settle([done(job)])
    await store.upkeep(0)
    assert await store.admin.find(job.id) is None
    assert redis_server.execute("EXISTS", Keys(Address.of(redis_url).prefix).strays) == 0


def test_all_keys_of_a_queue_are_in_one_slot_whatever_its_name() -> None:
    for queue in ("mail", "a:b", "{a}", "}a{", "a}", "%7B", "ü", "a b"):
        assert len({RedisCluster.slot_of(each) for each in Keys("p").of(queue)}) == 1
    names = [each for queue in ("a:b", "a", "{a}", "%7Ba%7D") for each in Keys("p").of(queue)]
    assert len(set(names)) == 4 * len(PARTS)


# Functions


async def test_functions_that_were_flushed_are_loaded_again(
    redis_url: str, redis_server: RedisServer
) -> None:
    store = store_for(redis_url)
    for verb in ("put", "claim", "settle"):
        redis_server.execute("FUNCTION", "FLUSH", "SYNC")
        if verb == "put":
            await store.put([new_job(), new_job(queue="reports")])
        elif verb == "claim":
            jobs = await claim(store, Queue("mail"), Queue("reports"))
        else:
            assert len(await store.settle([done(job) for job in jobs])) == 2
    redis_server.execute("FUNCTION", "FLUSH", "SYNC")
    assert are_new(store.put_blocking([new_job()])) == [True]
    await store.close()


async def test_who_may_not_load_functions_is_told_who_must(
    redis_crew_url: str, redis_server: RedisServer
) -> None:
    redis_server.execute("FUNCTION", "FLUSH", "SYNC")
    store = store_for(redis_crew_url)
    with pytest.raises(
        StoreUnavailable, match="let an administrator run `fairlead migrate up` once"
    ):
        await store.open()
    await store.close()


async def test_functions_of_another_program_are_left_alone(
    redis_url: str, redis_server: RedisServer
) -> None:
    """An older program that still runs must find what it calls."""
    other = LIBRARY.code.replace(LIBRARY.name, "fairlead_000000000000")
    redis_server.execute("FUNCTION", "LOAD", "REPLACE", other)
    store = store_for(redis_url)
    await store.put([new_job()])
    await store.close()
    names = {each["library_name"] for each in redis_server.execute("FUNCTION", "LIST")}
    assert names == {LIBRARY.name, "fairlead_000000000000"}
    redis_server.execute("FUNCTION", "DELETE", "fairlead_000000000000")


@pytest.mark.parametrize("number", ["-1", "0.5", "1e300", "inf", "nan", "x", " ", "9" * 400])
async def test_functions_refuse_numbers_that_are_out_of_range(
    store: Store, redis_url: str, redis_server: RedisServer, number: str
) -> None:
    """Before, a look at -2^63 jobs went on until somebody killed the function."""
    await store.put([new_job()])
    none, ids = b"\x80", b"\x90"
    calls = {
        "look": [("1", number, ""), (number, "1", "")],
        "places": [("ready", number, "1"), ("ready", "0", number)],
        "batches": [(number, "1"), ("0", number)],
        "bring_back": [("", none, number, "1"), ("", none, "1", number)],
        "upkeep": [
            ("", "1", none, number, "1"),
            ("", number, none, "1", "1"),
            (number, "1", none, "1", "1"),
            ("", "1", none, "1", number),
        ],
        "extend": [("", number, ids)],
        "claim": [
            ("", "w", number, "", "", "", "1", "1", "1", "", ""),
            ("", "w", "1", "", "", "", number, "1", "1", "", ""),
            ("", "w", "1", "", "", "", "1", number, "1", "", ""),
            ("", "w", "1", "", "", "", "1", "1", number, "", ""),
        ],
    }
    keys = Keys(Address.of(redis_url).prefix)
    for verb, ways in calls.items():
        for values in ways:
            with pytest.raises(redis.exceptions.ResponseError, match="a whole number from 0 to"):
                redis_server.execute(*call(keys, verb, "mail", *values))
    assert await store.admin.audit() == []


@pytest.mark.parametrize(
    "words", [["x"], ["-1"], ["3"], ["1", ""], ["2", "", "", ""], [str(10**400)]], ids=str
)
async def test_words_for_several_queues_must_fit_their_keys(
    store: Store, redis_url: str, redis_server: RedisServer, words: list[str]
) -> None:
    await store.put([new_job()])
    keys, function = Keys(Address.of(redis_url).prefix), FUNCTIONS["claim"]
    names = [name for queue in ("mail", "other") for name in keys.of(queue, function.parts)]
    with suppress(redis.exceptions.ResponseError):
        told = redis_server.execute("FCALL", function.name, len(names), *names, *words)
        assert told == [None, None]
    with pytest.raises(redis.exceptions.ResponseError, match="words do not fit the keys"):
        redis_server.execute("FCALL", function.name, len(names) - 1, *names[1:], "0")
    assert len(await claim(store)) == 1


@pytest.mark.parametrize("name", [b"", b"\xff\xfe", b"w\x80", b"\xe2w", b"w" * 1_001])
async def test_nobody_claims_under_a_name_that_nobody_can_read(
    store: Store, redis_url: str, redis_server: RedisServer, name: bytes
) -> None:
    """It is written into all jobs of the claim, and they would be unreadable."""
    job = new_job()
    await store.put([job])
    values = ("1", "", "", "", "1", "1", "1000", "", "")
    asked = call(Keys(Address.of(redis_url).prefix), "claim", "mail", "", name, *values)
    with pytest.raises(redis.exceptions.ResponseError, match="1 to 1,000 bytes of UTF-8"):
        redis_server.execute(*asked)
    assert [each.id for each in await claim(store, worker="büro-\N{ROCKET}/1")] == [job.id]


def test_functions_take_every_key_and_value_as_such() -> None:
    assert "loadstring" not in LIBRARY.code
    assert "redis.pcall" not in LIBRARY.code
    keys = set(re.findall(r"call\('[A-Z]+', *([^,)]+)", LIBRARY.code))
    assert not [each for each in keys if "'" in each or ".." in each]


# Memory


async def test_a_full_server_takes_no_job_and_lets_the_others_go_on(
    store: Store, redis_server: RedisServer
) -> None:
    await store.put([new_job() for _ in range(20)])
    [first] = await claim(store, slots=1)
    redis_server.execute("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreFull, match="maxmemory"):
            await store.put([new_job()])
        with pytest.raises(StoreFull, match="CONFIG SET maxmemory"):
            store.put_blocking([new_job(), new_job(queue="reports")])
        assert await store.extend([(first.id, first.fence)], SECOND)
        assert await store.settle([done(first)])
        for job in await claim(store, slots=19):
            assert await store.settle([done(job)])
        await store.announce(Worker("w", {"t": 1}), SECOND)
        assert await deeds.cancel(store, [first.id], "late", by()) == {}
        await store.upkeep(0)
        assert await store.admin.count() == {}
    finally:
        redis_server.execute("CONFIG", "SET", "maxmemory", "0")
    assert are_new(await store.put([new_job()])) == [True]


async def test_a_put_over_several_queues_is_all_or_none(
    store: Store, redis_server: RedisServer
) -> None:
    """Also where memory is full after the first of them."""
    queues = ("mail", "news", "reports")
    await store.put([new_job(queue=queue) for queue in queues])
    used = int(redis_server.execute("INFO", "memory").partition("used_memory:")[2].split()[0])
    large = [
        msgspec.structs.replace(new_job(queue=queue), payload=f'"{"x" * 260_000}"')
        for queue in queues
        for _ in range(4)
    ]
    redis_server.execute("CONFIG", "SET", "maxmemory", str(used + 500_000))
    try:
        with suppress(StoreFull):
            await store.put(large)
    finally:
        redis_server.execute("CONFIG", "SET", "maxmemory", "0")
    assert sum(are_new(await store.put(large))) in (0, len(large))


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "i" * 37},
        {"id": "a\nb"},
        {"id": ""},
        {"payload": '"' + "x" * 262_143 + '"'},
        {"options": '"' + "x" * 262_143 + '"'},
        {"version": -1},
        {"priority": 86_401},
        {"run_at": -1},
        {"expires_at": 2**53},
    ],
)
async def test_a_job_that_no_program_of_ours_puts_is_refused(
    store: Store, wrong: dict[str, object]
) -> None:
    """For itself and those it came with; a faulty program harms no queue."""
    job = new_job()
    with pytest.raises(EnqueueError, match="the store refuses this job"):
        await store.put([job, msgspec.structs.replace(new_job(), **wrong)])
    assert await store.admin.find(job.id) is None
    assert await store.admin.count() == {}


async def test_a_job_without_a_task_is_refused_as_the_first_of_a_put_too(
    store: Store, redis_url: str, redis_server: RedisServer
) -> None:
    keys = Keys(Address.of(redis_url).prefix)
    job = [new_job().id, None, "{}", None, 2**52, 0, None, None, None, None, 1]
    with pytest.raises(redis.exceptions.ResponseError):
        redis_server.execute(*call(keys, "put", "mail", "", msgspec.msgpack.encode([job]), "", ""))
    assert await store.admin.count() == {}


# A lost second (F35)


async def test_fences_never_go_back_when_the_server_loses_its_last_second(tmp_path: Path) -> None:
    """What was claimed and settled in it runs again, and who ran it then changes nothing."""
    with RedisServer() as server:
        store = store_for(server.url())
        await store.put([new_job(id="a"), new_job(id="b")])
        await claim(store, slots=1, worker="w0", lease=0.001)
        await store.close()
        server.stop()
        shutil.copytree(server.folder, tmp_path / "before", ignore=shutil.ignore_patterns("*.sock"))
        server.start()
        store = store_for(server.url())
        await asyncio.sleep(0.01)
        late = await claim(store, worker="w1")
        assert await store.settle([done(late[0])])
        server.kill()
        shutil.rmtree(server.folder / "appendonlydir")
        kept = shutil.copytree(
            tmp_path / "before" / "appendonlydir", server.folder / "appendonlydir"
        )
        owner = server.folder.stat()
        for each in (kept, *kept.iterdir()):
            os.chown(each, owner.st_uid, owner.st_gid)
        server.start()
        await store.close()
        store = store_for(server.url())
        again = await claim(store, worker="w2")
        assert {job.id for job in again} == {"a", "b"}
        for job in again:
            [old] = [each for each in late if each.id == job.id]
            assert job.fence > old.fence
        assert await store.settle([done(job) for job in late]) == {}
        assert await store.extend([(job.id, job.fence) for job in late], SECOND) == []
        assert len(await store.settle([done(job) for job in again])) == 2
        await store.close()


# Damage (F34, F43)


@pytest.mark.parametrize(
    "body",
    [
        b"garbage",
        b"",
        b"\x98",
        msgspec.msgpack.encode(["t", 1, 0]),
        msgspec.msgpack.encode([1, "t", 0, 0, None, 1, None, "{}"]),
        msgspec.msgpack.encode(["t", 1, 0, 0, None, 1, None, 7]),
        msgspec.msgpack.encode(["t", 1, 0, 0, None, 1, None, b"\xff\xfe"]),
        msgspec.msgpack.encode(["t", 1, 0, 0, None, 1, 7, "{}"]),
        msgspec.msgpack.encode({"task": "t"}),
    ],
)
async def test_a_damaged_job_is_a_dead_letter_and_the_others_go_on(
    store: Store, redis_server: RedisServer, redis_url: str, body: bytes
) -> None:
    jobs = [new_job() for _ in range(3)]
    await store.put(jobs)
    redis_server.execute("HSET", key(redis_url, "bodies"), jobs[1].id, body)
    assert [job.id for job in await claim(store, capable={"t": 1})] == [jobs[0].id, jobs[2].id]
    found = await store.admin.find(jobs[1].id)
    assert found is not None
    assert (found.state, found.reason) == (State.DEAD, Reason.UNREADABLE)
    assert len(await deeds.jobs(store, ALL)) == 3
    assert await claim(store) == []


async def test_an_entry_without_a_job_is_dropped_and_the_audit_tells_of_it(
    store: Store, redis_server: RedisServer, redis_url: str
) -> None:
    jobs = [new_job() for _ in range(2)]
    await store.put(jobs)
    redis_server.execute("HDEL", key(redis_url, "bodies"), jobs[0].id)
    assert any(jobs[0].id in finding.problem for finding in await store.admin.audit())
    assert [job.id for job in await claim(store)] == [jobs[1].id]
    assert await store.admin.audit() == []


async def test_a_lease_whose_run_is_missing_does_not_hold_its_job_for_ever(
    store: Store, redis_server: RedisServer, redis_url: str
) -> None:
    await store.put([new_job()])
    [job] = await claim(store, lease=0.001)
    redis_server.execute("HDEL", key(redis_url, "standings"), job.id)
    assert any(job.id in finding.problem for finding in await store.admin.audit())
    await asyncio.sleep(0.01)
    assert await claim(store) == []
    assert await store.admin.audit() == []
    record = await store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.reason) == (State.DEAD, Reason.UNREADABLE)


async def test_a_job_without_a_place_is_told_by_the_audit(
    store: Store, redis_server: RedisServer, redis_url: str
) -> None:
    job = new_job()
    await store.put([job])
    redis_server.execute("ZREM", key(redis_url, "ready"), job.id)
    assert any(job.id in finding.problem for finding in await store.admin.audit())


# Answers that are lost, or come when nobody waits any more


async def test_what_is_repeated_after_a_lost_answer_is_recognised(
    redis_url: str, redis_proxy: Proxy
) -> None:
    store = store_for(redis_proxy.through(redis_url))
    await store.put([new_job(id=new_id("mail"))])
    job = new_job(id=new_id("mail"))
    redis_proxy.lose_reply(b"FCALL")
    assert are_new(await store.put([job])) == [False], "it was repeated at once"
    redis_proxy.lose_reply(b"FCALL")
    assert are_new(store.put_blocking([new_job(id=new_id("mail"))])) == [False], (
        "it was repeated at once"
    )
    jobs = await claim(store)
    assert len(jobs) == 3
    redis_proxy.lose_reply(b"FCALL")
    with pytest.raises(StoreUnavailable):
        await store.settle([done(each) for each in jobs])
    assert await store.settle([done(each) for each in jobs]) == {}
    assert await store.admin.count() == {"mail": {State.DONE: 3}}
    await store.close()


async def test_answers_belong_to_their_questions_whoever_is_cancelled_when(store: Store) -> None:
    jobs = [new_job(id=new_id("mail")) for _ in range(40)]
    await store.put(jobs)

    async def ask(number: int) -> None:
        for job in jobs[number::8] * 5:
            asked = asyncio.ensure_future(store.admin.find(job.id))
            for _ in range(number):
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait({asked})
            found = await store.admin.find(job.id)
            assert found is not None
            assert found.id == job.id

    await asyncio.gather(*(ask(number) for number in range(8)))


async def test_a_connection_that_was_given_up_on_is_not_used_again(
    redis_url: str, redis_server: RedisServer
) -> None:
    """A late answer must not be taken for that of the next question (T15)."""
    store = store_for(f"{redis_url}&timeout=0.3")
    jobs = [new_job(id=new_id("mail")) for _ in range(2)]
    await store.put(jobs)
    assert await store.admin.find(jobs[0].id) is not None
    redis_server.freeze()
    try:
        with pytest.raises(StoreUnavailable, match=r"no answer within 0.3 s"):
            await store.admin.find(jobs[0].id)
        asked = asyncio.ensure_future(store.admin.find(jobs[1].id))
        for _ in range(20):
            await asyncio.sleep(0)  # It is asked before the late answer comes.
    finally:
        redis_server.thaw()
    found = await asked
    assert found is not None
    assert found.id == jobs[1].id
    await store.close()


# A cluster


async def test_queues_on_several_nodes_are_served_by_one_claim(
    cluster_url: str, redis_cluster: RedisCluster
) -> None:
    store = store_for(cluster_url)
    queues = [Queue(f"q{number}") for number in range(6)]
    await store.put([new_job(id=new_id(queue.name), queue=queue.name) for queue in queues * 4])
    owners = {
        redis_cluster.owner(redis_cluster.slot_of(key(cluster_url, "ready", queue.name))).port
        for queue in queues
    }
    assert len(owners) > 1
    answer = await store.claim(plan(*queues, slots=12))
    assert sorted(job.queue for job in answer.jobs) == sorted(queue.name for queue in queues * 2)
    assert len(await store.settle([done(job) for job in answer.jobs])) == 12
    assert await store.admin.audit() == []
    await store.close()


async def test_a_queue_is_followed_when_its_slot_moves(
    cluster_url: str, redis_cluster: RedisCluster
) -> None:
    store = store_for(cluster_url)
    await store.put([new_job() for _ in range(5)])
    slot = redis_cluster.slot_of(key(cluster_url, "ready"))
    home = redis_cluster.owner(slot)
    [away, *_] = [node for node in redis_cluster.nodes if node is not home]
    redis_cluster.move_slot(slot, away)
    try:
        jobs = await claim(store)
        assert len(jobs) == 5
        assert are_new(store.put_blocking([new_job()])) == [True]
        redis_cluster.open_slot(slot, home)
        settling = asyncio.ensure_future(store.settle([done(job) for job in jobs]))
        await asyncio.sleep(0.2)
        while await asyncio.to_thread(redis_cluster.move_keys, slot, home):
            pass
        await asyncio.to_thread(redis_cluster.hand_over, slot, home)
        assert len(await settling) == 5
    finally:
        if redis_cluster.owner(slot) is not home:
            redis_cluster.move_slot(slot, home)
    assert await store.admin.audit() == []
    await store.close()


async def test_large_jobs_of_several_callers_do_not_gather() -> None:
    together: list[int] = []

    async def work(items: Sequence[int]) -> Sequence[int]:
        together.append(len(items))
        await asyncio.sleep(0)
        return items

    gather: Gather[int, int] = Gather(work, lambda size: size)
    await asyncio.gather(*(gather.submit([1_000_000]) for _ in range(12)))
    assert together == [5, 5, 2]
