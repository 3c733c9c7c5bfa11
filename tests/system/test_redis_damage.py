"""Somebody wrote into our keys: what is damaged is put aside and told, and all others flow (F34)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from fairlead import State
from fairlead.core.acts import Action
from fairlead.core.admin import ALL, Worker
from fairlead.core.clock import SECOND
from fairlead.core.job import Job, NewJob, Reason
from fairlead.core.queue import Queue
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.keys import Keys
from tests import deeds
from tests.servers.redis import RedisServer
from tests.system.redis_faults import RedisShop
from tests.system.tree import until
from tests.words import claim, done, failed, new_job, plan

MAIL = Queue("mail")
pack = msgspec.msgpack.encode
NAN, ENDLESS = float("nan"), float("inf")

BODIES: dict[str, Any] = {
    "no msgpack": b"\xc1garbage",
    "nothing": b"",
    "cut": b"\x98\xa1t",
    "a number": pack(5),
    "a map": pack({"task": "t"}),
    "too short": pack(["t", 1, 0, 0, None, 1, None]),
    "longer than it says": pack(["t", 1, 0, 0, None, 1, None, "{}"]) + b"\x08",
    "no text": b"\x98\xa2\xff\xfe" + pack(["", 1, 0, 0, None, 1, None, "{}"])[2:],
    "task": pack([7, 1, 0, 0, None, 1, None, "{}"]),
    "task with a zero": pack(["t\0t", 1, 0, 0, None, 1, None, "{}"]),
    "version": pack(["t", "1", 0, 0, None, 1, None, "{}"]),
    "version and a half": pack(["t", 1.5, 0, 0, None, 1, None, "{}"]),
    "priority": pack(["t", 1, "0", 0, None, 1, None, "{}"]),
    "priority that is no number": pack(["t", 1, NAN, 0, None, 1, None, "{}"]),
    "priority without end": pack(["t", 1, ENDLESS, 0, None, 1, None, "{}"]),
    "priority of a century": pack(["t", 1, -(10**10), 0, None, 1, None, "{}"]),
    "enqueued_at": pack(["t", 1, 0, [], None, 1, None, "{}"]),
    "expires_at": pack(["t", 1, 0, 0, "soon", 1, None, "{}"]),
    "expires_at is a list": pack(["t", 1, 0, 0, [], 1, None, "{}"]),
    "level": pack(["t", 1, 0, 0, None, 0, None, "{}"]),
    "level is a text": pack(["t", 1, 0, 0, None, "1", None, "{}"]),
    "options": pack(["t", 1, 0, 0, None, 1, 7, "{}"]),
    "payload": pack(["t", 1, 0, 0, None, 1, None, 7]),
    "payload is no text": pack(["t", 1, 0, 0, None, 1, None, b"\xff"]),
}
RUNS: dict[str, Any] = {
    "missing": None,
    "no msgpack": b"\xc1garbage",
    "nothing": b"",
    "cut": b"\xdc\x00\x16\x01",
    "a number": pack(5),
    "too short": pack([1, 1]),
    "a map": pack({"fence": 1}),
    "texts": pack(["x"] * 22),
    "nothings": pack([None] * 22),
    "numbers": pack([1] * 22),
}


class Vandal:
    """Writes into the keys of a store."""

    def __init__(self, server: RedisServer, url: str) -> None:
        self._server = server
        self._keys = Keys(Address.of(url).prefix)

    def spoil(self, part: str, field: str, value: Any) -> None:
        """Write something else under a field of a hash, or take it away."""
        key = self._keys.key("mail", part)
        if value is None:
            self._server.execute("HDEL", key, field)
        else:
            self._server.execute("HSET", key, field, value)

    def do(self, command: str, part: str, *words: Any) -> Any:
        return self._server.execute(command, self._keys.key("mail", part), *words)

    def spoil_worker(self, name: str, value: Any) -> None:
        self._server.execute("HSET", self._keys.workers, name, value)


@pytest.fixture
def vandal(redis_server: RedisServer, redis_url: str) -> Vandal:
    return Vandal(redis_server, redis_url)


@pytest.fixture
async def store(redis_crew_url: str) -> AsyncIterator[Store]:
    store = store_for(redis_crew_url)
    await store.open()
    yield store
    await store.close()


async def look(store: Store) -> None:
    """Look at everything as people do; what cannot be read stops nobody."""
    await store.admin.count()
    await store.admin.audit()
    for job in await deeds.jobs(store, ALL, 1000):
        assert await store.admin.find(job.id) is not None
        await store.admin.attempts(job.id)
    await deeds.waiting(store)
    await deeds.running(store)
    await deeds.unknown(store)
    await store.held("w1")


async def named(store: Store, victim: Job | NewJob) -> bool:
    """Say whether the audit names the job."""
    return any(victim.id in finding.problem for finding in await store.admin.audit())


async def work_off(store: Store, *others: Job | NewJob) -> None:
    """Do as workers do until all others are done, or fail if that never comes to be."""
    worker = Worker("w1", {"t": 1}, (), 1, 0, 0)
    async with asyncio.timeout(20):
        while not await _ended(store, *others):
            await store.announce(worker, 10 * SECOND)
            jobs = await claim(store, MAIL, slots=3, capable={"t": 1})
            await store.extend([(job.id, job.fence) for job in jobs], 10 * SECOND)
            await store.settle([done(job) for job in jobs])
            await store.upkeep(3600 * SECOND)


async def _ended(store: Store, *jobs: Job | NewJob) -> bool:
    found = [await store.admin.find(job.id) for job in jobs]
    return all(each is not None and each.state.final for each in found)


async def victims(
    store: Store, number: int, where: str
) -> tuple[Sequence[Job | NewJob], list[NewJob]]:
    """Put jobs to be damaged, in one of the places that jobs have, and others after them."""
    options = {"due": {"delay": SECOND // 5}, "expiring": {"expires_in": SECOND // 5}}
    task = "unknown" if where == "parked" else "t"
    some: Sequence[Job | NewJob]
    some = [new_job(task, **options.get(where, {})) for _ in range(number)]
    await store.put(list(some))  # type: ignore[arg-type]
    if where == "parked":
        [parked] = (await store.claim(plan(MAIL, capable={"t": 1}))).parked
        assert parked.jobs == number
    elif where in ("running", "lost", "again"):
        some = await claim(store, MAIL, slots=number, lease=20 if where == "running" else 0.2)
        assert len(some) == number
    if where == "again":
        await store.settle([failed(job, job.claimed_at - 10 * SECOND) for job in some])  # type: ignore[union-attr,arg-type]
    others = [new_job() for _ in range(5)]
    await store.put(others)
    return some, others


@pytest.mark.parametrize(
    "where", ["waiting", "due", "expiring", "running", "lost", "again", "parked"]
)
async def test_damaged_bodies_harm_only_themselves(
    store: Store, vandal: Vandal, where: str
) -> None:
    """Wherever its job is; one that a claim finds unreadable is a dead letter."""
    some, others = await victims(store, len(BODIES), where)
    for victim, body in zip(some, BODIES.values(), strict=True):
        vandal.spoil("bodies", victim.id, body)
    await look(store)
    assert await named(store, some[0])
    if where == "running":
        pairs = [(job.id, job.fence) for job in some if isinstance(job, Job)]
        assert len(await store.extend(pairs, 20 * SECOND)) == len(some)
        assert len(await store.settle([done(job) for job in some if isinstance(job, Job)]))
    else:
        await asyncio.sleep(0.25)
    await work_off(store, *others)
    await look(store)
    if where in ("waiting", "due", "lost", "again"):
        for name, victim in zip(BODIES, some, strict=True):
            assert await _is_aside(store, victim), name


async def _is_aside(store: Store, victim: Job | NewJob) -> bool:
    """Say whether a job is a dead letter, done because it could be read, or parked, or named."""
    found = await store.admin.find(victim.id)
    assert found is not None
    if found.state is State.DEAD:
        return found.reason == Reason.UNREADABLE
    return found.state is State.DONE or found.gate is not None or await named(store, victim)


@pytest.mark.parametrize("where", ["running", "lost", "again", "parked"])
async def test_damaged_runs_harm_only_themselves(store: Store, vandal: Vandal, where: str) -> None:
    """Their jobs become dead letters, or are named by the audit."""
    some, others = await victims(store, len(RUNS), where)
    for victim, run in zip(some, RUNS.values(), strict=True):
        vandal.spoil("standings", victim.id, run)
        if where == "again":
            vandal.do("ZADD", "expiring", 1, victim.id)
    await look(store)
    assert await named(store, some[1])
    if where in ("running", "lost"):
        pairs = [*((job.id, job.fence) for job in some if isinstance(job, Job)), (others[0].id, 1)]
        assert await store.extend(pairs, 20 * SECOND) == []
        assert await store.settle([done(job) for job in some if isinstance(job, Job)]) == {}
        await asyncio.sleep(0.25)
    await work_off(store, *others)
    await look(store)
    if where in ("lost", "again"):
        await work_off(store, *some)
    if where == "parked":
        await claim(store, MAIL, slots=100, capable=None)
        await look(store)
        assert all([await _is_aside(store, victim) for victim in some])


@pytest.mark.parametrize("part", ["ready", "due", "leases", "lost", "expiring", "dead", "done"])
async def test_a_mark_without_a_job_harms_nobody(store: Store, vandal: Vandal, part: str) -> None:
    """The audit names it; those that a claim comes by are gone after it."""
    others = [new_job() for _ in range(3)]
    await store.put(others)
    ghost = new_job()
    vandal.do("ZADD", part, 1, ghost.id)
    assert await named(store, ghost)
    await work_off(store, *others)
    await look(store)
    if part not in ("dead", "done"):
        assert not await named(store, ghost)


@pytest.mark.parametrize("member", ["", "x", "t\0x", "t\0001\0", "t\0001\0wghost", "\0\0\0\0", "ü"])
async def test_a_mark_of_nothing_among_the_parked_harms_nobody(
    store: Store, vandal: Vandal, member: str
) -> None:
    others = [new_job() for _ in range(3)]
    await store.put(others)
    vandal.do("ZADD", "parked", 0, member)
    await work_off(store, *others)
    await look(store)


@pytest.mark.parametrize("text", [b"garbage", b"", pack(5), pack([5]), pack([[1]]), pack({"a": 1})])
async def test_damaged_errors_of_a_job_do_not_keep_it_from_its_end(
    store: Store, vandal: Vandal, text: bytes
) -> None:
    """A failure is settled all the same, and others in the batch with it."""
    await store.put([new_job(), new_job()])
    jobs = await claim(store, MAIL)
    await store.settle([failed(job, job.claimed_at - 10 * SECOND) for job in jobs])
    again = await claim(store, MAIL)
    vandal.spoil("errors", again[0].id, text)
    assert (
        len(await store.settle([failed(job, job.claimed_at - 10 * SECOND) for job in again])) == 2
    )
    found = await store.admin.find(again[1].id)
    assert found is not None
    assert len(found.errors) == 2
    assert len(await deeds.jobs(store, ALL)) == 2


@pytest.mark.parametrize("text", [b"garbage", b"", pack(5), pack([1, 2]), pack(["x"] * 22)])
async def test_a_damaged_end_harms_only_itself(store: Store, vandal: Vandal, text: bytes) -> None:
    """Lists go on, the audit names it, upkeep forgets it when its time has come."""
    await store.put([new_job() for _ in range(4)])
    victim, *others = await claim(store, MAIL)
    await store.settle([done(job) for job in (victim, *others)])
    vandal.spoil("standings", victim.id, text)
    await look(store)
    assert await named(store, victim)
    by = Action("1", "me", "delete", "all")
    await deeds.delete(store, [job.id for job in others], [State.DONE], by)
    assert (await store.upkeep(0)).pruned_jobs == 1
    assert await deeds.jobs(store, ALL) == []


@pytest.mark.parametrize("text", [b"garbage", b"", pack(5), pack([]), pack([1, "x", 3]), pack({})])
async def test_a_damaged_worker_harms_nobody(store: Store, vandal: Vandal, text: bytes) -> None:
    """Others announce themselves, claim and keep house; whom it meant announces itself anew."""
    vandal.spoil_worker("w1", text)
    vandal.spoil_worker("w2", text)
    jobs = [new_job(), new_job("unknown")]
    await store.put(jobs)
    await work_off(store, jobs[0])
    assert [worker.id for worker in await store.admin.workers()] == ["w1"]


async def test_a_damaged_log_keeps_nobody_from_work(store: Store, vandal: Vandal) -> None:
    jobs = [new_job() for _ in range(3)]
    await store.put(jobs)
    vandal.do("RPUSH", "log", "garbage")
    await work_off(store, *jobs)
    await store.upkeep(0)
    assert await deeds.jobs(store, ALL) == []


def test_workers_and_people_get_past_the_damage(redis_shop: RedisShop) -> None:
    """A worker tree goes on, and `doctor` sees what is left."""
    tree = redis_shop.start("--lease", "1")
    redis_shop.until_up()
    jobs = redis_shop.put_many("quick", 20, delay=0.7)
    damaged = {jobs[3]: "garbage", jobs[11]: pack(["shop.quick", 1, 0, 0, None, 1, None, 7])}
    for job, body in damaged.items():
        redis_shop.do("HSET", redis_shop.key("loop", "bodies"), job, body)
    lost = jobs[7]
    redis_shop.do("HDEL", redis_shop.key("loop", "bodies"), lost)
    redis_shop.accepted.remove(lost)
    redis_shop.until_final()
    for job in redis_shop.accepted:
        record = redis_shop.record(job)
        assert record.state is (State.DEAD if job in damaged else State.DONE)
        assert record.reason == (Reason.UNREADABLE if job in damaged else None)
    after = redis_shop.put("quick")
    until(lambda: redis_shop.record(after).state is State.DONE, 10, "work after it")
    assert "cannot be used" not in tree.log
    redis_shop.accepted = [job for job in redis_shop.accepted if job not in damaged]
