"""A newer program appends fields to every stored value; this one works on, and keeps them (P14, F52)."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
import redis

from fairlead.core.acts import FINAL
from fairlead.core.admin import ALL, Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.job import Gate, NewJob, State
from fairlead.core.outcome import Crashed, Settlement, Snoozed
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.functions import LIBRARY
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.layout import LAYOUTS, in_lua, put_of, settlement_of
from tests import deeds
from tests.servers.redis import RedisServer
from tests.words import POLICY, by, claim, done, failed, new_job, plan, returned, settled

pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
EXTRAS: dict[str, list[Any]] = {
    "one": ["new"],
    "nothing": [None],
    "several": [None, {"a": [1, None]}, "x"],
    "many": [None] * 20 + [2**40],
}
VALUES = {"bodies": "BODY", "standings": "STANDING", "acted": "ACT"}
DAY = 86_400


class Newer:
    """A program from the future, which appends fields to all that it comes by."""

    def __init__(self, server: Any, keys: Keys, extra: list[Any]) -> None:
        self._server = server
        self._keys = keys
        self._extra = extra

    def grow(self) -> None:
        """Append fields to every value that has none of them yet."""
        for part, layout in VALUES.items():
            self._grow_hash(self._keys.key("mail", part), layout)
        self._grow_hash(self._keys.workers, "WORKER")
        errors, log = self._keys.key("mail", "errors"), self._keys.key("mail", "log")
        for field, text in self._server.hgetall(errors).items():
            pasts = [self._grown(past, "PAST") for past in unpack(text)]
            self._server.hset(errors, field, pack(pasts))
        for at, batch in enumerate(self._server.lrange(log, 0, -1)):
            lines = [self._grown(line, "LINE") for line in unpack(batch[16:])]
            self._server.lset(log, at, batch[:16] + pack(lines))

    def _grow_hash(self, key: str, layout: str) -> None:
        for field, text in self._server.hgetall(key).items():
            self._server.hset(key, field, pack(self._grown(unpack(text), layout)))

    def _grown(self, fields: list[Any], layout: str) -> list[Any]:
        return [*fields[: len(LAYOUTS[layout])], *self._extra]

    def has_kept(self, part: str, *names: str) -> bool:
        """Say whether the values under these names, or under all, have what was appended."""
        key = self._keys.key("mail", part)
        fields = self._server.hgetall(key)
        wanted = [name.encode() for name in names] or list(fields)
        assert wanted
        layout = VALUES[part]
        return all(unpack(fields[name])[len(LAYOUTS[layout]) :] == self._extra for name in wanted)

    def first_errors(self, job_id: str) -> list[Any]:
        """What is kept of the failed runs of a job."""
        errors: list[Any] = unpack(self._server.hget(self._keys.key("mail", "errors"), job_id))
        return errors

    def worker(self, name: str) -> list[Any]:
        announced: list[Any] = unpack(self._server.hget(self._keys.workers, name))
        return announced


@pytest.fixture
async def store(redis_crew_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_for(redis_crew_url, clock)
    await store.open()
    yield store
    assert await store.admin.audit() == []
    await store.close()


@pytest.fixture(params=EXTRAS)
def newer(
    request: pytest.FixtureRequest, redis_server: RedisServer, redis_url: str, store: Store
) -> Iterator[Newer]:
    keys = Keys(Address.of(redis_url).prefix)
    with redis.Redis(port=redis_server.port) as server:
        yield Newer(server, keys, EXTRAS[request.param])


async def put(store: Store, newer: Newer, count: int = 1, **options: Any) -> list[NewJob]:
    jobs = [new_job(**options) for _ in range(count)]
    await store.put(jobs)
    newer.grow()
    return jobs


async def test_a_job_that_has_grown_is_claimed_renewed_and_settled(
    store: Store, newer: Newer
) -> None:
    [new] = await put(store, newer, options='{"tags":["a"]}', priority=5)
    [job] = await claim(store)
    assert (job.id, job.options, job.attempt) == (new.id, new.options, 1)
    newer.grow()
    [renewed] = await store.extend([(job.id, job.fence)], 20 * SECOND)
    assert renewed.id == job.id
    assert newer.has_kept("standings", job.id)
    assert set(await store.settle([done(job, "7")])) == {job.id}
    assert newer.has_kept("standings", job.id)
    assert newer.has_kept("bodies", job.id)
    found = await store.admin.find(job.id)
    assert found is not None
    assert (found.state, found.result) == (State.DONE, "7")


async def test_bytes_of_bodies_that_have_grown_are_counted_as_those_of_others(
    store: Store, newer: Newer
) -> None:
    for size in (3, 100, 5_000, 70_000):
        large = {"payload": "x" * size, "options": "{}"}
        await store.put([msgspec.structs.replace(new_job(), **large) for _ in range(3)])
        newer.grow()
        enough = await store.claim(plan(most_bytes=size + 2))
        rest = await store.claim(plan(most_bytes=size + 3))
        assert (len(enough.jobs), len(rest.jobs)) == (1, 2)
        await store.settle([done(each) for each in (*enough.jobs, *rest.jobs)])


async def test_a_lost_run_that_has_grown_is_taken_over_as_lost(
    store: Store, newer: Newer, clock: ManualClock
) -> None:
    """Else an outside effect would silently be repeated."""
    await put(store, newer)
    [job] = await claim(store)
    newer.grow()
    clock.advance(30)
    [lost] = await claim(store, worker="w2")
    assert (lost.id, lost.lost, lost.attempt, lost.worker) == (job.id, True, 1, "w1")
    assert newer.has_kept("standings", job.id)
    assert await store.settle([done(job)]) == {}
    assert set(await store.settle([done(lost)])) == {job.id}


async def test_crashes_of_a_run_that_has_grown_are_not_forgotten(
    store: Store, newer: Newer
) -> None:
    await put(store, newer)
    for crashes in range(2):
        [job] = await claim(store)
        assert job.crashes == crashes
        newer.grow()
        await store.settle([settled(job, Crashed("SIGKILL"))])
        assert newer.has_kept("standings", job.id)
    [job] = await claim(store)
    assert (job.crashes, job.attempt) == (2, 1)


async def test_failed_runs_that_have_grown_are_kept_with_those_after_them(
    store: Store, newer: Newer, clock: ManualClock
) -> None:
    await put(store, newer)
    [job] = await claim(store)
    await store.settle([failed(job, clock.now())])
    newer.grow()
    [before] = newer.first_errors(job.id)
    clock.advance(20)
    [job] = await claim(store)
    await store.settle([failed(job, clock.now(), POLICY)])
    [first, second] = newer.first_errors(job.id)
    assert (first, len(second)) == (before, len(LAYOUTS["PAST"]))
    found = await store.admin.find(job.id)
    assert found is not None
    assert [past.attempt for past in found.errors] == [1, 2]
    [group] = await store.admin.groups(ALL)
    assert group.count == 1


async def test_what_has_grown_waits_again_and_falls_due(
    store: Store, newer: Newer, clock: ManualClock
) -> None:
    [delayed] = await put(store, newer, delay=10 * SECOND)
    [other] = await put(store, newer)
    [job] = await claim(store)
    newer.grow()
    await store.settle([settled(job, Snoozed(5), clock.now())])
    assert newer.has_kept("standings", other.id)
    clock.advance(11)
    again = await claim(store)
    assert {each.id for each in again} == {other.id, delayed.id}
    newer.grow()
    await store.settle([returned(each) for each in again])
    assert newer.has_kept("standings", other.id, delayed.id)


async def test_what_has_grown_is_cancelled(store: Store, newer: Newer) -> None:
    await put(store, newer)
    [running] = await claim(store)
    [waiting] = await put(store, newer)
    touched = await deeds.cancel(store, [running.id, waiting.id], "no", by())
    assert set(touched) == {running.id, waiting.id}
    assert newer.has_kept("standings", running.id)
    [asked] = await store.extend([(running.id, running.fence)], SECOND)
    assert asked.cancel_requested
    [written] = (await store.settle([done(running)])).values()
    assert written.state is State.CANCELLED
    assert newer.has_kept("standings", running.id)


async def test_what_has_grown_expires(store: Store, newer: Newer, clock: ManualClock) -> None:
    await put(store, newer, 2, expires_in=5 * SECOND)
    [job] = await claim(store, slots=1)
    newer.grow()
    await store.settle([returned(job)])
    clock.advance(6)
    assert await claim(store) == []
    assert await store.admin.count() == {"mail": {State.CANCELLED: 2}}
    assert newer.has_kept("standings", job.id)


@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.CANCELLED])
async def test_an_end_that_has_grown_is_revived_with_all_that_it_has(
    store: Store, newer: Newer, clock: ManualClock, state: State
) -> None:
    [new] = await put(store, newer, expires_in=60 * SECOND)
    [job] = await claim(store)
    ended = Settlement(job.id, job.fence, state, "failed", reason="because")
    assert set(await store.settle([ended])) == {job.id}
    newer.grow()
    clock.advance(120)
    assert await deeds.revive(store, [job.id], FINAL, by()) == [job.id]
    assert newer.has_kept("standings", job.id)
    assert newer.has_kept("bodies", job.id)
    [again] = await claim(store)
    assert (again.id, again.attempt, again.expires_at) == (new.id, 1, None)
    assert again.fence > job.fence
    assert len(await store.admin.attempts(job.id)) == 1


async def test_a_delayed_job_that_has_grown_is_hurried(store: Store, newer: Newer) -> None:
    await put(store, newer)
    [job] = await claim(store)
    newer.grow()
    await store.settle([settled(job, Snoozed(50), 0)])
    await deeds.revive(store, [job.id], [State.WAITING], by())
    assert newer.has_kept("standings", job.id)


async def test_a_dead_letter_that_has_grown_is_edited_and_deleted(
    store: Store, newer: Newer, clock: ManualClock
) -> None:
    await put(store, newer)
    [job] = await claim(store)
    await store.settle([failed(job, clock.now(), POLICY)])
    newer.grow()
    assert await deeds.edit(store, job.id, "{}", "[]", 2, by())
    assert newer.has_kept("bodies", job.id)
    found = await store.admin.find(job.id)
    assert found is not None
    assert (found.payload, found.version) == ("[]", 2)
    assert await deeds.delete(store, [job.id], [State.DEAD], by()) == [job.id]
    assert await store.admin.find(job.id) is None


async def test_what_has_grown_is_parked_and_brought_back(store: Store, newer: Newer) -> None:
    await put(store, newer)
    [lost] = await claim(store, lease=0)
    newer.grow()
    [waiting] = await put(store, newer)
    await store.claim(plan(capable={"other": 1}))
    assert newer.has_kept("standings", lost.id)
    newer.grow()
    found = await store.admin.find(waiting.id)
    assert found is not None
    assert found.gate is Gate.NO_CAPABLE_WORKER
    assert await deeds.unknown(store) == {("t", 1): 2}
    await store.announce(Worker("w2", {"t": 1}), 20 * SECOND)
    assert newer.has_kept("standings", lost.id, waiting.id)
    back = await claim(store)
    assert {(job.id, job.lost) for job in back} == {(lost.id, True), (waiting.id, False)}


async def test_lines_of_the_logs_that_have_grown_are_read_and_pruned(
    store: Store, newer: Newer, clock: ManualClock
) -> None:
    await put(store, newer)
    [job] = await claim(store)
    await store.settle([done(job)])
    newer.grow()
    assert [line.outcome for line in await store.admin.attempts(job.id)] == ["done"]
    assert len(await store.admin.recent(0)) == 1
    action = by("cancel")
    for new in (await put(store, newer), await put(store, newer)):
        await deeds.cancel(store, [each.id for each in new], "no", action)
        newer.grow()
    assert newer.has_kept("acted")
    [line] = await store.admin.audit_log()
    assert (line.verb, line.count) == ("cancel", 2)
    again = await deeds.cancel(store, [each.id for each in new], "no", action)
    assert set(again) == {each.id for each in new}
    clock.advance(10 * DAY)
    assert (await store.upkeep(DAY * SECOND)).pruned_attempts == 1
    assert await deeds.jobs(store, ALL) == []


async def test_a_line_of_the_audit_log_keeps_what_it_has_when_its_action_goes_on(
    store: Store, newer: Newer
) -> None:
    action = by("cancel")
    for _ in range(2):
        [new] = await put(store, newer)
        await deeds.cancel(store, [new.id], "no", action)
        if _ == 0:
            newer.grow()
    assert newer.has_kept("acted")


async def test_a_worker_that_has_grown_is_known_and_announces_itself_again(
    store: Store, newer: Newer, clock: ManualClock
) -> None:
    worker = Worker("w1", {"t": 2}, processes=3, level=4)
    await store.announce(worker, 20 * SECOND)
    newer.grow()
    grown = newer.worker("w1")
    clock.advance(5)
    await store.announce(worker, 20 * SECOND)
    [known] = await store.admin.workers()
    assert (known.capable, known.processes, known.level) == ({"t": 2}, 3, 4)
    assert known.live_until - known.started_at == 25 * SECOND
    assert newer.worker("w1")[len(LAYOUTS["WORKER"]) :] == grown[len(LAYOUTS["WORKER"]) :]


async def test_a_repair_keeps_what_has_grown(
    store: Store, newer: Newer, redis_server: RedisServer, redis_url: str, clock: ManualClock
) -> None:
    keys = Keys(Address.of(redis_url).prefix)
    await put(store, newer)
    [job] = await claim(store)
    await store.settle([failed(job, clock.now())])
    newer.grow()
    [past] = newer.first_errors(job.id)
    redis_server.execute("HSET", keys.key("mail", "errors"), job.id, pack([past, "damaged"]))
    redis_server.execute("ZADD", keys.key("mail", "ready"), 5, job.id)
    assert await store.admin.repair(by("repair"))
    assert newer.has_kept("standings", job.id)
    assert newer.has_kept("bodies", job.id)
    assert newer.first_errors(job.id) == [past]


@pytest.mark.parametrize("part", ["bodies", "standings"])
@pytest.mark.parametrize("junk", [b"\xc1", b"\x01\x02", b""])
async def test_what_only_seems_to_have_grown_is_damaged(
    store: Store, redis_server: RedisServer, redis_url: str, part: str, junk: bytes
) -> None:
    """It says to have a field more, and has none, two, or none that can be read."""
    key = Keys(Address.of(redis_url).prefix).key("mail", part)
    await store.put([new_job()])
    [job] = await claim(store)
    with redis.Redis(port=redis_server.port) as server:
        fields = unpack(server.hget(key, job.id))
        grown = pack([*fields, 7])[:-1] + junk
        server.hset(key, job.id, grown)
    [finding] = await store.admin.audit()
    assert finding.problem == f"job {job.id} cannot be read"
    if part == "standings":
        assert await store.settle([done(job)]) == {}
    assert await store.admin.repair(by("repair"))


def test_puts_and_settlements_are_sent_field_by_field() -> None:
    """The order of the fields of core's classes is nobody's wire format."""
    job = new_job(priority=3, level=2, options="{}")
    sent = dict(zip(LAYOUTS["PUT"], put_of(job), strict=True))
    assert sent == {
        name: getattr(job, name) for name in NewJob.__struct_fields__ if name != "queue"
    }
    settlement = Settlement(job.id, 5, State.DONE, "done", result="7")
    told = dict(zip(LAYOUTS["SETTLEMENT"], settlement_of(settlement), strict=True))
    assert told == {name: getattr(settlement, name) for name in Settlement.__struct_fields__}


def test_what_lua_reads_is_what_the_layout_says() -> None:
    code = "local <PAIR> = unpack(x, 1, #PAIR) y[STANDING.LEASE_UNTIL] = @BODY .. @STANDING"
    assert in_lua(code) == r"local id, fence = unpack(x, 1, 2) y[2] = '\152' .. '\220\0\22'"
    assert in_lua("nil<STANDING state..result>") == r"'\192\192\192\192'"
    with pytest.raises(ValueError):
        in_lua("STANDING.NOBODY")
    assert not any(f"{layout}." in LIBRARY.code.partition("local bodies")[2] for layout in LAYOUTS)
