"""Whatever somebody writes into our keys, only what he wrote into is harmed (I22, F34, F75, F82)."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

import msgspec
import pytest
import redis

from fairlead.core.admin import ALL, Filter, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.errors import StoreRefused, StoreUnavailable
from fairlead.core.ids import JobId
from fairlead.core.job import Job, NewJob, Reason, State
from fairlead.core.outcome import Policy
from fairlead.core.queue import Queue
from fairlead.core.retry import Retry, fixed
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.audit import Damage
from fairlead.stores.redis.functions import FUNCTIONS
from fairlead.stores.redis.keys import LINE, PARTS, Keys
from fairlead.stores.redis.lane import Wire
from fairlead.stores.redis.layout import Standing
from fairlead.stores.redis.repair import Repair
from fairlead.stores.redis.talk import Command, Conversation
from tests import deeds
from tests.fuzz.redis import OWN, SHARED, TYPES
from tests.servers.redis import RedisServer
from tests.words import POLICY, are_new, by, claim, done, failed, new_job, plan, returned

MAIL, OTHER = Queue("mail"), Queue("other")
pack = msgspec.msgpack.encode


class Yard(NamedTuple):
    """A store, and its keys as somebody else can write them."""

    store: Store
    server: Any
    keys: Keys

    def do(self, command: str, part: str, *words: Any) -> Any:
        """Do something to a key of the queue mail."""
        return self.server.execute_command(command, self.keys.key("mail", part), *words)

    def everything(self) -> dict[str, Any]:
        """What is under the keys of the queue mail."""
        return {part: self.do("DUMP", part) for part in PARTS}

    async def problems(self) -> str:
        return "; ".join(finding.problem for finding in await self.store.admin.audit())

    async def repair(self) -> str:
        """Mend everything, and say what was done."""
        told = await self.store.admin.repair(by("repair"))
        assert await self.store.admin.audit() == []
        return "; ".join(told)


@pytest.fixture
async def yard(
    redis_server: RedisServer, redis_url: str, redis_crew_url: str
) -> AsyncIterator[Yard]:
    store = store_for(redis_crew_url)
    await store.open()
    with redis.Redis(port=redis_server.port) as raw:
        yield Yard(store, raw, Keys(Address.of(redis_url).prefix))
    await store.close()


def ids_of(jobs: Sequence[Job | NewJob]) -> list[JobId]:
    return [job.id for job in jobs]


async def put(store: Store, count: int = 1, queue: str = "mail", **options: Any) -> list[NewJob]:
    jobs = [new_job(queue=queue, **options) for _ in range(count)]
    await store.put(jobs)
    return jobs


async def look(store: Store) -> None:
    """Ask all that people ask; nothing may raise."""
    await deeds.jobs(store, ALL)
    await store.admin.count()
    await store.admin.groups(ALL)
    await store.admin.recent(0)
    await deeds.waiting(store)
    await deeds.running(store)
    await deeds.unknown(store)
    await deeds.paused(store)
    await store.admin.workers()
    await store.admin.audit_log()
    await store.admin.condition()
    await store.admin.migrations()
    await store.held("w1")
    await store.upkeep(3600 * SECOND)
    await store.wait(0.01)


# Names that cannot be read


async def test_a_member_that_is_no_text_among_the_queues_harms_nobody(yard: Yard) -> None:
    jobs = await put(yard.store, 3)
    yard.server.execute_command("SADD", yard.keys.queues, b"\xff\xfe")
    assert ids_of(await claim(yard.store)) == ids_of(jobs)
    await yard.store.announce(Worker("w1", {"t": 1}), 10 * SECOND)
    await look(yard.store)
    assert "cannot be a queue" in await yard.problems()
    assert "removed it from the list" in await yard.repair()
    assert len(await deeds.jobs(yard.store, ALL)) == 3


async def test_a_stray_that_leads_to_no_text_harms_nobody(yard: Yard) -> None:
    """Others are found in the same look, and the audit leads it home."""
    jobs = [new_job(id=JobId("stray")), *(await put(yard.store, 2))]
    await yard.store.put(jobs[:1])
    [first, *others] = sorted(await claim(yard.store), key=lambda job: job.id == jobs[0].id)[::-1]
    assert first.id == "stray"
    yard.server.execute_command("HSET", yard.keys.strays, "stray", b"\xff\xfe")
    other = store_for(yard.store.url.replace("crew@", "crew:rope@"))
    pairs = [(job.id, job.fence) for job in (first, *others)]
    assert {each.id for each in await other.extend(pairs, 20 * SECOND)} == set(ids_of(others))
    await other.close()
    assert "stray" in await yard.repair()
    found = await yard.store.admin.find(JobId("stray"))
    assert found is not None


@pytest.mark.parametrize("name", [b"\xff\xfe", b"", b"x" * 37, "jöb".encode(), b"a\nb"])
async def test_an_id_that_cannot_be_one_is_passed_over_and_gets_another(
    yard: Yard, name: bytes
) -> None:
    [victim, *others] = await put(yard.store, 3)
    body, score = yard.do("HGET", "bodies", victim.id), yard.do("ZSCORE", "ready", victim.id)
    yard.do("HDEL", "bodies", victim.id)
    yard.do("ZREM", "ready", victim.id)
    yard.do("HSET", "bodies", name, body)
    yard.do("ZADD", "ready", score, name)
    for _ in range(2):
        jobs = await claim(yard.store)
        assert ids_of(jobs) == ids_of(others)
        await yard.store.settle([returned(job) for job in jobs])
    await look(yard.store)
    assert yard.do("ZCARD", "ready") == 2
    assert "has an id that cannot be one" in await yard.problems()
    assert "it is dead letter" in await yard.repair()
    [dead] = [job for job in await deeds.jobs(yard.store, ALL) if job.state is State.DEAD]
    assert (dead.reason, dead.task, dead.payload) == (Reason.UNREADABLE, "t", "{}")
    assert await yard.store.admin.find(dead.id) is not None


async def test_ids_that_cannot_be_do_not_starve_their_queue(yard: Yard) -> None:
    [victim, mine] = await put(yard.store, 2)
    body = yard.do("HGET", "bodies", victim.id)
    names = [f"jöb {n}".encode() for n in range(2_500)]
    yard.do("HSET", "bodies", *(word for name in names for word in (name, body)))
    yard.do("ZADD", "ready", *(word for name in names for word in (0, name)))
    for worker in ("w1", "w2", "w3"):
        await yard.store.claim(plan(worker=worker))
    assert yard.do("ZCARD", "ready") == 0
    found = await yard.store.admin.find(mine.id)
    assert found
    assert found.state is State.RUNNING
    assert (await yard.problems()).count("has an id that cannot be one") == 2_500


# Scores


@pytest.mark.parametrize("score", ["-inf", "0.5", "-1e300", "1700000000000000.5"])
async def test_a_score_that_is_no_time_keeps_no_claim_from_its_jobs(yard: Yard, score: str) -> None:
    """The job itself runs too: when it was enqueued is a time."""
    jobs = await put(yard.store, 3)
    yard.do("ZADD", "ready", score, jobs[1].id)
    assert "stands where no time is" in await yard.problems()
    claimed = await claim(yard.store)
    assert sorted(ids_of(claimed)) == sorted(ids_of(jobs))
    assert all(job.run_at > 0 for job in claimed)
    assert len(await yard.store.settle([done(job) for job in claimed])) == 3
    assert await yard.store.admin.audit() == []


@pytest.mark.parametrize("part", ["ready", "due"])
async def test_a_score_without_end_is_mended(yard: Yard, part: str) -> None:
    """Nobody waits for such a time, and whoever asks when the next job is due gets an answer."""
    [victim] = await put(yard.store, delay=3600 * SECOND if part == "due" else 0)
    others = await put(yard.store, 2)
    yard.do("ZADD", part, "inf", victim.id)
    await look(yard.store)
    assert ids_of(await claim(yard.store)) == ids_of(others)
    assert victim.id in await yard.problems()
    assert victim.id in await yard.repair()
    assert ids_of(await claim(yard.store)) == [victim.id]


async def test_parked_jobs_come_back_whatever_score_stands_among_them(yard: Yard) -> None:
    jobs = await put(yard.store, 2, task="b")
    await claim(yard.store, capable={"a": 1})
    ghost = b"no_capable_worker\x00zz\x000000000001\x00wghost"
    yard.do("ZADD", "parked", "-inf", ghost)
    assert ids_of(await claim(yard.store, capable={"b": 1})) == ids_of(jobs)


async def test_a_mark_that_is_early_expires_nobody(yard: Yard) -> None:
    jobs = await put(yard.store, 2, expires_in=3600 * SECOND)
    plain = await put(yard.store)
    for job in (*jobs, *plain):
        yard.do("ZADD", "expiring", "-inf", job.id)
    assert ids_of(await claim(yard.store)) == ids_of([*jobs, *plain])


async def test_a_mark_of_an_end_that_never_was_forgets_no_job(yard: Yard) -> None:
    [job] = await put(yard.store)
    yard.do("ZADD", "done", 1, job.id)
    await yard.store.upkeep(0)
    assert ids_of(await claim(yard.store)) == [job.id]


async def test_a_job_that_lost_its_place_is_not_forgotten_for_a_mark_of_an_end(yard: Yard) -> None:
    """Nobody knows whether it ever ran."""
    [job] = await put(yard.store)
    yard.do("ZREM", "ready", job.id)
    yard.do("ZADD", "done", 1, job.id)
    await yard.store.upkeep(0)
    assert yard.do("HEXISTS", "bodies", job.id) == 1
    assert await yard.repair()


@pytest.mark.parametrize("where", ["leases", "lost", "ready", "parked"])
@pytest.mark.parametrize("mended", ["by a claim", "by a repair"])
async def test_a_job_whose_run_cannot_be_read_does_not_begin_anew(
    yard: Yard, where: str, mended: str
) -> None:
    """Nobody knows how often it ran; one with an outside effect must not simply repeat it."""
    await put(yard.store)
    [job] = await claim(yard.store, lease=0)
    if where in ("lost", "parked"):
        capable = {"other": 1} if where == "parked" else None
        await claim(yard.store, spare_lost=where == "lost", capable=capable)
    if where == "ready":
        await yard.store.settle([returned(job)])
    [found] = [part for part in ("leases", "lost", "ready") if yard.do("ZCARD", part)] or [where]
    assert found == where
    yard.do("HSET", "standings", job.id, b"garbage")
    if mended == "by a repair":
        assert "made it a dead letter" in await yard.repair()
    for _ in range(2):
        assert await claim(yard.store) == []
    assert await yard.store.admin.audit() == []
    record = await yard.store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.reason) == (State.DEAD, Reason.UNREADABLE)


@pytest.mark.parametrize("fence", [2**63 - 1, 2**53 + 1, -1, 0.5])
async def test_a_fence_that_cannot_be_stops_nobody(yard: Yard, fence: float) -> None:
    """The others of its batch are settled, and its own job can be replayed."""
    await put(yard.store, 2)
    jobs = await claim(yard.store, lease=0.3)
    run = msgspec.msgpack.decode(yard.do("HGET", "standings", jobs[0].id))
    yard.do("HSET", "standings", jobs[0].id, pack([fence, *run[1:]]))
    assert jobs[0].id in await yard.problems()
    pairs = [(job.id, job.fence) for job in jobs]
    assert [each.id for each in await yard.store.extend(pairs, 20 * SECOND)] == [jobs[1].id]
    assert list(await yard.store.settle([done(job) for job in jobs])) == [jobs[1].id]
    assert f"{jobs[0].id} cannot be read: made it a dead letter" in await yard.repair()
    assert await deeds.revive(yard.store, [jobs[0].id], [State.DEAD], by()) == [jobs[0].id]
    [again] = await claim(yard.store)
    assert again.fence > jobs[0].fence


async def test_a_member_that_no_cursor_has_room_for_hides_no_job(yard: Yard) -> None:
    first, second = await put(yard.store, 2)
    # A page looks at more jobs behind one that it cannot tell of: the first ends with the long one.
    for score, member in enumerate([b"short", first.id, b"\xfe" * 9_000, second.id]):
        yard.do("ZADD", "ready", score, member)
    which = Filter(states=(State.WAITING,))
    page = await yard.store.admin.page(which, 1)
    assert [job.id for job in page.jobs] == [first.id]
    page = await yard.store.admin.page(which, 1, page.cursor)
    assert [job.id for job in page.jobs] == [second.id]


@pytest.mark.parametrize("field", ["finished_at", "reason", "result"])
async def test_a_live_job_tells_of_no_end(yard: Yard, field: str) -> None:
    """Before, it ran, and people were told that it is a dead letter."""
    await put(yard.store)
    [job] = await claim(yard.store)
    await yard.store.settle([returned(job)])
    standing = msgspec.msgpack.decode(yard.do("HGET", "standings", job.id))
    standing[Standing.__struct_fields__.index(field)] = -1
    yard.do("HSET", "standings", job.id, pack(standing))
    assert job.id in await yard.problems()
    assert await claim(yard.store) == []
    record = await yard.store.admin.find(job.id)
    assert record is not None
    assert (record.state, record.reason) == (State.DEAD, Reason.UNREADABLE)


# Keys of another type


@pytest.mark.parametrize("part", PARTS)
async def test_a_key_of_another_type_stops_its_own_queue_only(yard: Yard, part: str) -> None:
    victim = await put(yard.store)
    others = await put(yard.store, 3, "other")
    kind = "string" if OWN[part] != "string" else "list"
    command, *words = TYPES[kind]
    yard.do("DEL", part)
    yard.do(command, part, *words)
    claimed = [job for job in await claim(yard.store, MAIL, OTHER) if job.queue == "other"]
    assert ids_of(claimed) == ids_of(others)
    assert len(await yard.store.settle([done(job) for job in claimed])) == 3
    await look(yard.store)
    key = yard.keys.key("mail", part)
    assert f"key {key} is of a type that is not ours" in await yard.problems()
    assert f"moved it to {key}.unreadable." in await yard.repair()
    [aside] = yard.server.execute_command("KEYS", f"{key}.unreadable.*".replace("{", r"\{"))
    assert yard.server.execute_command("TYPE", aside) == kind.encode()
    await put(yard.store)
    jobs = await claim(yard.store)
    assert jobs
    await yard.store.settle([done(job) for job in jobs])
    if part not in ("bodies", "leases", "standings"):
        assert await yard.store.admin.find(victim[0].id) is not None
    assert await yard.store.admin.audit() == []


@pytest.mark.parametrize("name", SHARED)
async def test_a_shared_key_of_another_type_stops_nobody(yard: Yard, name: str) -> None:
    jobs = await put(yard.store)
    key = getattr(yard.keys, name)
    command, *words = TYPES["zset"]
    yard.server.execute_command("DEL", key)
    yard.server.execute_command(command, key, *words)
    jobs += await put(yard.store)
    await yard.store.announce(Worker("w1", {"t": 1}), 10 * SECOND)
    claimed = await claim(yard.store)
    assert ids_of(claimed) == ids_of(jobs)
    assert len(await yard.store.settle([done(job) for job in claimed])) == 2
    await deeds.pause(yard.store, "mail", by())
    await look(yard.store)
    again = store_for(yard.store.url.replace("crew@", "crew:rope@"))
    await again.open()
    await again.close()
    assert key in await yard.problems()
    assert "moved it to" in await yard.repair()
    assert len(await deeds.jobs(yard.store, ALL)) == 2


OF_THE_LINE = ("claim", "put aside", "settle", "settle a failure", "settle both", "upkeep", "put")
OF_PEOPLE = ("cancel", "revive", "delete", "edit", "pause")


@pytest.mark.parametrize("verb", [*OF_THE_LINE, *OF_PEOPLE])
@pytest.mark.parametrize("part", PARTS)
async def test_what_a_key_of_another_type_refuses_changes_nothing(
    yard: Yard, part: str, verb: str
) -> None:
    """Else a job that is taken from one key, and cannot be added to the next, would be lost."""
    store = yard.store
    over, dead, *_ = await put(store, 4)
    jobs = await claim(store)
    await store.settle([done(jobs[0]), failed(jobs[1], jobs[1].claimed_at, POLICY)])
    [waiting], running, other = await put(store), jobs[2], jobs[3]
    if verb == "put aside":
        yard.do("HSET", "bodies", waiting.id, "x")
    else:
        await put(store, expires_in=1)
        await put(store, delay=1)
    yard.do("DEL", part)
    yard.do("SET", part, "x")
    every_key = [new_job(), new_job(delay=SECOND), new_job(expires_in=SECOND), new_job(priority=5)]
    failure = failed(running, running.claimed_at)
    verbs: dict[str, Callable[[], Awaitable[object]]] = {
        "claim": lambda: claim(store),
        "put aside": lambda: claim(store),
        "settle": lambda: store.settle([done(running)]),
        "settle a failure": lambda: store.settle([failure]),
        "settle both": lambda: store.settle([done(other), failure]),
        "upkeep": lambda: store.upkeep(0),
        "put": lambda: store.put(every_key),
        "cancel": lambda: deeds.cancel(store, [waiting.id], "no", by=by()),
        "revive": lambda: deeds.revive(store, [dead.id], [State.DEAD], by()),
        "delete": lambda: deeds.delete(store, [over.id], [State.DONE], by()),
        "edit": lambda: deeds.edit(store, dead.id, dead.payload, '{"n":2}', 1, by()),
        "pause": lambda: deeds.pause(store, "mail", by()),
    }
    before = yard.everything()
    try:
        await verbs[verb]()
    except StoreRefused:
        assert yard.everything() == before
    else:
        assert yard.do("GET", part) == b"x"
    assert part in await yard.problems()


async def test_a_queue_that_is_refused_takes_nothing_from_others_of_the_same_call(
    yard: Yard, redis_server: RedisServer
) -> None:
    names = ("a", "mail", "z")
    queues = [Queue(name) for name in names]
    jobs = {name: (await put(yard.store, queue=name))[0] for name in names}
    assert len(await claim(yard.store, *queues, slots=1)) == 1
    await put(yard.store, queue="a")
    yard.do("DEL", "bodies")
    yard.do("SET", "bodies", "x")
    claimed = await claim(yard.store, *queues)
    assert sorted(job.queue for job in claimed) == ["a", "z"]
    assert jobs["z"].id in ids_of(claimed)
    assert len(await yard.store.settle([done(job) for job in claimed])) == 2


@pytest.mark.parametrize("part", LINE)
async def test_nothing_is_claimed_that_could_not_be_settled(
    yard: Yard, redis_crew_url: str, clock: ManualClock, part: str
) -> None:
    """Keys that a plain claim need not touch are asked for every five seconds."""
    store = store_for(redis_crew_url, clock)
    await put(store, 2)
    assert len(await claim(store, slots=1)) == 1
    yard.do("DEL", part)
    yard.do("SET", part, "x")
    clock.advance(5)
    before = yard.everything()
    with suppress(StoreRefused):
        assert await claim(store) == []
    assert yard.everything() == before
    await store.close()


async def test_a_put_needs_only_the_keys_that_it_writes(yard: Yard) -> None:
    for part in ("due", "expiring", "settings"):
        yard.do("DEL", part)
        yard.do("SET", part, "x")
    assert are_new(await yard.store.put([new_job()])) == [True]


async def test_what_a_function_stumbles_over_is_no_outage(yard: Yard) -> None:
    await put(yard.store)
    yard.do("DEL", "leases")
    yard.do("SET", "leases", "x")
    with pytest.raises(StoreRefused, match="WRONGTYPE.*fairlead doctor"):
        await claim(yard.store)


async def test_what_is_refused_for_one_queue_is_settled_for_the_other(yard: Yard) -> None:
    await put(yard.store, 2)
    await put(yard.store, 2, "other")
    jobs = await claim(yard.store, MAIL, OTHER)
    yard.do("DEL", "log")
    yard.do("SET", "log", "x")
    mine, others = ([job for job in jobs if job.queue == name] for name in ("mail", "other"))
    with pytest.raises(StoreRefused):  # Else nobody would know that some are not settled.
        await yard.store.settle([done(job) for job in jobs])
    for job in others:
        record = await yard.store.admin.find(job.id)
        assert record is not None
        assert record.state is State.DONE
    with pytest.raises(StoreRefused):
        await yard.store.settle([done(job) for job in mine])


async def test_a_claim_keeps_what_it_leased_when_the_store_goes_away_after_it(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has jobs of others to park; that must not cost it those it has."""
    await put(yard.store, task="of others")
    jobs = await put(yard.store, 2)
    real = Wire.ask

    async def ask(wire: Wire, commands: Sequence[Command]) -> list[Any]:
        if any(yard.keys.workers in command for command in commands):
            raise redis.ConnectionError("cut")
        return await real(wire, commands)

    monkeypatch.setattr(Wire, "ask", ask)
    assert ids_of(await claim(yard.store, capable={"t": 1})) == ids_of(jobs)


async def test_a_damaged_number_and_a_damaged_audit_log_are_both_mended(yard: Yard) -> None:
    await deeds.pause(yard.store, "mail", by())
    await deeds.pause(yard.store, "other", by())
    yard.server.set(yard.keys.number, "abc")
    yard.do("DEL", "acts")
    yard.do("SET", "acts", "x")
    await yard.repair()
    await deeds.resume(yard.store, "other", by("resume"))
    verbs = [line.verb for line in await yard.store.admin.audit_log()]
    assert verbs[:2] == ["resume", "repair"]


async def test_actions_after_a_repair_are_the_latest(yard: Yard) -> None:
    """Also if the number of the last one was of another type."""
    for _ in range(3):
        await deeds.pause(yard.store, "mail", by())
    yard.server.delete(yard.keys.number)
    yard.server.lpush(yard.keys.number, "x")
    assert "it is 3 now" in await yard.repair()
    await deeds.resume(yard.store, "mail", by("resume"))
    [latest, *_] = await yard.store.admin.audit_log()
    assert latest.verb == "resume"


@pytest.mark.parametrize("number", [2**53 - 1, 2**53 - 2, 2**52 + 1])
async def test_an_action_past_all_numbers_can_be_read_and_is_mended(
    yard: Yard, number: int
) -> None:
    yard.server.set(yard.keys.number, number)
    await deeds.pause(yard.store, "mail", by("pause"))
    assert "the number of the last action" in await yard.problems()
    assert "of the audit log" not in await yard.problems()
    [action] = yard.do("ZRANGE", "acts", 0, -1)
    yard.do("ZADD", "acts", number, action)
    assert "of the audit log" in await yard.problems()
    assert "it is 0 now" in await yard.repair()
    await deeds.resume(yard.store, "mail", by("resume"))
    assert {line.verb for line in await yard.store.admin.audit_log()} == {
        "pause",
        "repair",
        "resume",
    }


async def test_actions_are_counted_as_far_as_can_be_and_then_by_the_time(yard: Yard) -> None:
    yard.server.set(yard.keys.number, 2**52 - 1)
    for verb in ("pause", "resume", "pause"):
        await deeds.pause(yard.store, "mail", by(verb))
    assert yard.server.get(yard.keys.number) == str(2**52).encode()
    assert await yard.problems() == ""
    [_, action] = yard.do("ZREVRANGE", "acts", 0, 1)
    yard.do("ZADD", "acts", "inf", action)
    assert "gave it a number" in await yard.repair()


async def test_a_repair_that_cannot_mend_all_says_what_it_mended(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(_repair: Repair, _damage: Damage) -> Conversation[str | None]:
        yield from ()
        return None

    [job] = await put(yard.store)
    yard.do("HSET", "standings", job.id, "damaged")
    yard.server.sadd(yard.keys.queues, b"\xff")
    monkeypatch.setattr(Repair, "_strike_queue", nothing)
    assert [job.id in each for each in await yard.store.admin.repair(by())] == [True]
    assert [line.count for line in await yard.store.admin.audit_log()] == [1]
    assert len(await yard.store.admin.audit()) == 1


async def test_a_repair_goes_on_past_what_the_server_refuses(yard: Yard) -> None:
    [job] = await put(yard.store)
    yard.do("HSET", "standings", job.id, "damaged")
    yard.do("HSET", "settings", "apart", "many", "log_start", "soon")
    await put(yard.store, id="stray")
    yard.server.hdel(yard.keys.strays, "stray")
    yard.server.config_set("maxmemory", "1mb")
    try:
        told = await yard.store.admin.repair(by("repair"))
    finally:
        yard.server.config_set("maxmemory", "0")
    refused = [each for each in told if each.startswith("could not mend this: ")]
    assert len(refused) == 2
    assert all("at its maxmemory" in each for each in refused)
    assert sum(job.id in each or "log_start" in each for each in told) == len(told) - 2 == 2
    assert [line.count for line in await yard.store.admin.audit_log()] == [2]
    await yard.repair()


async def test_what_a_repair_did_before_it_failed_is_in_the_audit_log(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_repair: Repair, _damage: Damage) -> Conversation[str | None]:
        yield from ()
        raise StoreUnavailable("redis://", "gone")

    yard.server.sadd(yard.keys.queues, b"\xff")
    yard.server.hset(yard.keys.workers, "w", "damaged")
    monkeypatch.setattr(Repair, "_forget_worker", fails)
    with pytest.raises(StoreUnavailable, match="gone"):
        await yard.store.admin.repair(by("repair"))
    assert [(line.verb, line.count) for line in await yard.store.admin.audit_log()] == [
        ("repair", 1)
    ]


# Texts, logs and numbers


async def test_options_nested_deep_harm_only_their_job(yard: Yard) -> None:
    """Every look answers, and the repair makes a dead letter of it."""
    deep = '{"later":' + "[" * 2_000 + "]" * 2_000 + "}"
    [victim] = await put(yard.store, options=deep)
    others = await put(yard.store, 2)
    await look(yard.store)
    assert f"job {victim.id} has options that cannot be read" in await yard.problems()
    assert "made it a dead letter" in await yard.repair()
    assert ids_of(await claim(yard.store)) == ids_of(others)
    found = await yard.store.admin.find(victim.id)
    assert found is not None
    assert (found.state, found.reason) == (State.DEAD, Reason.UNREADABLE)


async def test_a_damaged_line_of_the_log_harms_only_itself(yard: Yard) -> None:
    await put(yard.store, 3)
    jobs = await claim(yard.store)
    await yard.store.settle([done(job) for job in jobs])
    batch = yard.do("LINDEX", "log", 0)
    lines = msgspec.msgpack.decode(batch[16:])
    lines[1] = "no line"
    yard.do("LSET", "log", 0, batch[:16] + pack(lines))
    left = {jobs[0].id, jobs[2].id}
    assert {line.job_id for line in await yard.store.admin.recent(0)} == left
    assert "lines that cannot be read" in await yard.problems()
    assert "took them out" in await yard.repair()
    assert {line.job_id for line in await yard.store.admin.recent(0)} == left
    assert len(await yard.store.admin.attempts(jobs[0].id)) == 1


async def test_a_damaged_failure_hides_no_other_failure(yard: Yard) -> None:
    await put(yard.store)
    for _ in range(2):
        [job] = await claim(yard.store)
        await yard.store.settle([failed(job, job.claimed_at - 10 * SECOND)])
    pasts = msgspec.msgpack.decode(yard.do("HGET", "errors", job.id))
    yard.do("HSET", "errors", job.id, pack([["x"] * 10, pasts[1]]))
    found = await yard.store.admin.find(job.id)
    assert found is not None
    assert len(found.errors) == 1
    assert "history that cannot be read" in await yard.problems()
    assert "put it right" in await yard.repair()


@pytest.mark.parametrize("number", ["soon", "0.5", "9223372036854775807", "-1", "05"])
async def test_damaged_numbers_keep_nobody_from_work(yard: Yard, number: str) -> None:
    """The number of the last action, and those among the settings."""
    yard.server.execute_command("SET", yard.keys.number, number)
    for field in ("log_start", "apart"):
        yard.do("HSET", "settings", field, number)
    await put(yard.store, 2, priority=5)
    jobs = await claim(yard.store)
    assert len(await yard.store.settle([done(job) for job in jobs])) == 2
    await deeds.delete(yard.store, [jobs[0].id], [State.DONE], by("delete"))
    await yard.store.upkeep(0)
    assert [line.verb for line in await yard.store.admin.audit_log()] == ["delete"]
    assert await yard.problems()
    await yard.repair()


@pytest.mark.parametrize("start", [2**53 - 1, 2**53 - 5])
async def test_a_log_that_begins_past_all_numbers_costs_no_run_and_no_result(
    yard: Yard, start: int
) -> None:
    again = Policy(Retry(attempts=9, backoff=fixed(0, jitter=0)))
    await put(yard.store, 2)
    yard.do("HSET", "settings", "log_start", start)
    for attempt in (1, 2):
        [first, second] = await claim(yard.store)
        assert (first.attempt, second.attempt) == (attempt, attempt)
        await yard.store.settle([failed(first, 0, again), failed(second, 0, again)])
    [first, second] = await claim(yard.store)
    await yard.store.settle([done(first, "7"), returned(second)])
    assert "has the setting log_start" in await yard.problems()
    assert "counted the log from its beginning" in await yard.repair()
    assert len(await yard.store.admin.attempts(first.id)) == 3


@pytest.mark.parametrize("numbers", [[2**53], [1.5], "none", [3, "x", -1]])
async def test_numbers_of_lines_that_cannot_be_cost_no_run_and_no_result(
    yard: Yard, numbers: object
) -> None:
    await put(yard.store, 2)
    [first, second] = await claim(yard.store)
    await yard.store.settle([done(first, "7"), returned(second)])
    for job in (first, second):
        fields = msgspec.msgpack.decode(yard.do("HGET", "standings", job.id))
        fields[10] = numbers
        yard.do("HSET", "standings", job.id, pack(fields))
    told = await yard.repair()
    assert told.count("put it right") == 2
    found, again = await yard.store.admin.find(first.id), await yard.store.admin.find(second.id)
    assert found
    assert (found.state, found.result) == (State.DONE, "7")
    assert again
    assert (again.state, again.attempt) == (State.WAITING, 0)


async def test_a_damaged_line_of_the_audit_log_hides_no_other(yard: Yard) -> None:
    for verb in ("one", "two"):
        await deeds.pause(yard.store, "mail", by(verb))
    first, second = yard.do("ZRANGE", "acts", 0, -1)
    yard.do("HSET", "acted", first, b"garbage")
    yard.do("ZADD", "acts", "inf", second)
    assert [line.verb for line in await yard.store.admin.audit_log()] == ["two"]
    await yard.repair()
    assert [line.verb for line in await yard.store.admin.audit_log()] == ["repair", "two"]


# The repair


async def test_the_repair_says_what_it_did_and_leaves_alone_what_is_sound(yard: Yard) -> None:
    assert await yard.store.admin.repair(by("repair")) == []
    assert await yard.store.admin.audit_log() == []
    await put(yard.store, 2)
    running = await claim(yard.store)
    [victim, *others] = await put(yard.store, 3)
    yard.do("HSET", "bodies", victim.id, b"garbage")
    [told] = await yard.store.admin.repair(by("repair"))
    assert told == f"job {victim.id} cannot be read: made it a dead letter"
    [line] = await yard.store.admin.audit_log()
    assert (line.verb, line.count) == ("repair", 1)
    assert len(await yard.store.settle([done(job) for job in running])) == 2
    assert ids_of(await claim(yard.store)) == ids_of(others)


@pytest.mark.parametrize("part", ["done", "dead", "leases", "lost", "due"])
async def test_a_job_in_two_places_is_brought_back_to_one(yard: Yard, part: str) -> None:
    [job] = await put(yard.store)
    yard.do("ZADD", part, 1, job.id)
    assert "is in two places at once" in await yard.problems()
    assert "put it right" in await yard.repair()
    assert ids_of(await claim(yard.store)) == [job.id]


@pytest.mark.parametrize("where", ["waiting", "running", "done"])
async def test_a_job_in_no_place_is_given_one(yard: Yard, where: str) -> None:
    [job] = await put(yard.store)
    jobs = await claim(yard.store) if where != "waiting" else []
    if where == "done":
        await yard.store.settle([done(each) for each in jobs])
    part = {"waiting": "ready", "running": "leases", "done": "done"}[where]
    yard.do("ZREM", part, job.id)
    assert "is in no place" in await yard.problems()
    assert "put it right" in await yard.repair()
    assert yard.do("ZSCORE", part, job.id) is not None


# The bytes of a claim (F82)


async def sized(store: Store, sizes: Sequence[int], queue: str = "mail", task: str = "t") -> Any:
    jobs = [NewJob(new_job(queue=queue).id, task, queue, f'"{"x" * (n - 2)}"') for n in sizes]
    for job in jobs:
        await store.put([job])
    return ids_of(jobs)


async def test_a_claim_ends_with_the_job_that_fills_its_bytes(yard: Yard) -> None:
    ids = await sized(yard.store, [100_000] * 12)
    first = await yard.store.claim(plan(slots=100, most_bytes=450_000))
    assert (ids_of(first.jobs), first.cut) == (ids[:5], True)
    # Nothing beyond was touched: another has it at once.
    second = await yard.store.claim(plan(slots=100, worker="w2", most_bytes=500_000))
    assert (ids_of(second.jobs), second.cut) == (ids[5:10], True)
    rest = await yard.store.claim(plan(slots=100, most_bytes=500_000))
    assert (ids_of(rest.jobs), rest.cut) == (ids[10:], False)


async def test_a_job_bigger_than_a_claim_comes_alone(yard: Yard) -> None:
    ids = await sized(yard.store, [260_000, 10, 10])
    first = await yard.store.claim(plan(slots=100, most_bytes=1_000))
    assert (ids_of(first.jobs), first.cut) == (ids[:1], True)
    rest = await yard.store.claim(plan(slots=100, most_bytes=1_000))
    assert (ids_of(rest.jobs), rest.cut) == (ids[1:], False)


async def test_queues_share_the_bytes_of_a_claim(yard: Yard) -> None:
    big = await sized(yard.store, [100_000] * 8)
    small = await sized(yard.store, [100] * 8, "other")
    got = await yard.store.claim(plan(MAIL, OTHER, slots=100, most_bytes=400_000))
    assert sorted(ids_of(got.jobs)) == sorted([*big[:4], *small])
    assert got.cut


async def test_a_claim_does_not_read_all_that_it_steps_over(yard: Yard) -> None:
    """Large jobs of another worker's task: the claim stops, and the next ones go on from there."""
    await yard.store.announce(Worker("other", {"large": 1}), 60 * SECOND)
    await sized(yard.store, [250_000] * 96, task="large")
    [mine] = await put(yard.store)
    claims = []
    while not claims or not claims[-1].jobs:
        claims.append(await yard.store.claim(plan(capable={"t": 1})))
        assert len(claims) < 10
    assert all(each.cut for each in claims[:-1])
    assert len(claims) >= 3
    assert ids_of(claims[-1].jobs) == [mine.id]


# The bytes of a check and of a repair


async def large(store: Store, count: int) -> list[JobId]:
    """Put jobs that are as large as may be, and none of it ASCII."""
    jobs = [NewJob(new_job().id, "t", "mail", f'"{"é" * 130_000}"') for _ in range(count)]
    for job in jobs:
        await store.put([job])
    return ids_of(jobs)


class Calls:
    """The calls of functions on a server: how long the longest took, in seconds."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def __enter__(self) -> Self:
        self._server.config_set("slowlog-log-slower-than", 0)
        self._server.config_set("slowlog-max-len", 10_000)
        self._server.slowlog_reset()
        return self

    def __exit__(self, *_: object) -> None:
        calls = self._server.slowlog_get(10_000)
        self._words = [bytes(each["command"]) for each in calls]
        self.longest = max((each["duration"] for each in calls), default=0) / 1_000_000
        self._server.config_set("slowlog-log-slower-than", 10_000)

    def count(self, verb: str) -> int:
        """How often a function was called."""
        return sum(FUNCTIONS[verb].name.encode() in words for words in self._words)


async def test_a_check_and_a_repair_of_large_jobs_keep_nobody_waiting(yard: Yard) -> None:
    ids = await large(yard.store, 40)
    with Calls(yard.server) as checks:
        assert await yard.store.admin.audit() == []
    for job_id in ids:
        yard.do("ZREM", "ready", job_id)
    with Calls(yard.server) as repairs:
        told = await yard.store.admin.repair(by())
    assert len(told) == 40
    assert await yard.store.admin.audit() == []
    # It was seconds; a busy machine may take some time for the milliseconds that it is.
    assert checks.longest < 0.5
    assert repairs.longest < 0.5


async def test_a_call_checks_and_mends_a_megabyte_at_most(yard: Yard) -> None:
    ids = await large(yard.store, 40)
    function = FUNCTIONS["check"]
    keys = yard.keys.of("mail", function.parts)
    answer = yard.server.execute_command(
        *(function.command, function.name, len(keys), *keys, "", "bodies", 0, 1)
    )
    assert 1 <= len(answer[1]) <= 12
    function = FUNCTIONS["repair"]
    for job_id in ids:
        yard.do("ZREM", "ready", job_id)
    words = [word for job_id in ids for word in (job_id, "", 0)]
    answers = yard.server.execute_command(
        *(function.command, function.name, len(keys), *keys, "", "mark", 1, *words)
    )
    assert 1 <= len(answers) <= 4


async def test_what_people_do_with_large_jobs_keeps_nobody_waiting(yard: Yard) -> None:
    """All of them are done and told, however many calls that takes."""
    store, count = yard.store, 60
    ids = await large(store, count)
    with Calls(yard.server) as calls:
        assert sorted(job.id for job in await deeds.jobs(store, ALL)) == sorted(ids)
        assert set(await deeds.cancel(store, ids, "no", by("cancel"))) == set(ids)
        assert await deeds.revive(store, ids, [State.CANCELLED], by("revive")) == ids
        jobs = []
        while some := await claim(store, slots=100):
            jobs += some
        assert {job.id for job in await store.held("w1")} == set(ids)
        result = f'"{"é" * 130_000}"'
        assert len(await store.settle([done(job, result) for job in jobs])) == count
        assert await deeds.delete(store, ids, [State.DONE], by("delete")) == ids
    lines = await store.admin.audit_log()
    assert [(line.verb, line.count) for line in lines] == [
        ("delete", count),
        ("revive", count),
        ("cancel", count),
    ]
    assert calls.longest < 0.3
    assert calls.count("cancel") >= 8
    assert calls.count("revive") >= 8
    assert calls.count("delete") >= 8
    assert calls.count("settle") >= 8
    assert calls.count("records") >= 75  # Without a bound, 62.


async def test_where_large_jobs_stand_is_told_though_they_are_read_in_pieces(yard: Yard) -> None:
    ids = await large(yard.store, 40)
    last = new_job(priority=-5)
    await yard.store.put([last])
    yard.do("ZADD", "ready", "XX", 10**12, last.id)
    assert await yard.store.admin.ahead(ids[-1]) == 40
    assert (await deeds.waiting(yard.store))["mail"].oldest
    snapshot = await yard.store.admin.snapshot(plan(), 100)
    assert 20 < len(snapshot.lines["mail"].heads) < 40


async def test_an_act_on_a_sick_and_a_sound_queue_tells_of_the_sound_one(yard: Yard) -> None:
    [sick] = await put(yard.store)
    [sound] = await put(yard.store, queue="other")
    yard.do("DEL", "due")
    yard.do("SET", "due", "x")
    assert set(await deeds.cancel(yard.store, [sick.id, sound.id], "no", by())) == {sound.id}
    with pytest.raises(StoreRefused):
        await deeds.cancel(yard.store, [sick.id], "no", by())


@pytest.mark.parametrize(
    ("text", "is_text"),
    [
        ("é€𝄞\u07ff\u0800\uffff\U0010ffff\ud7ff\ue000", True),
        (b"\xc0\xaf", False),
        (b"\xe0\x80\xaf", False),
        (b"\xed\xa0\x80", False),
        (b"\xf0\x80\x80\xaf", False),
        (b"\xf4\x90\x80\x80", False),
        (b"\xf5\x80\x80\x80", False),
        (b"\xe2\xc3\xa9\x82\xac", False),
        (b"\xc3", False),
        (b"\xa9", False),
        (b"\xc3\xc3\xa9\xa9", False),
    ],
)
async def test_a_text_is_checked_as_utf8(yard: Yard, text: str | bytes, is_text: bool) -> None:
    [job] = await put(yard.store)
    raw = text.encode() if isinstance(text, str) else text
    values = pack(["t", 1, 0, 0, None, 1, None])
    yard.do("HSET", "bodies", job.id, b"\x98" + values[1:] + b"\xd9" + bytes([len(raw)]) + raw)
    assert ("cannot be read" in await yard.problems()) is not is_text
