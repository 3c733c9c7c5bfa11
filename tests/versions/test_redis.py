"""What only arrays in Redis can show of values that grow (P14, F52)."""

from collections.abc import AsyncIterator, Iterator
from importlib.resources import files

import msgspec
import pytest
import redis

from fairlead.core.admin import Worker
from fairlead.core.clock import SECOND, ManualClock
from fairlead.core.entries import Change
from fairlead.core.job import NewJob, State
from fairlead.core.outcome import Settlement
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.redis import layout
from fairlead.stores.redis.address import Address
from fairlead.stores.redis.functions import FUNCTIONS, LIBRARY, SHARED
from fairlead.stores.redis.keys import Keys
from fairlead.stores.redis.layout import LAYOUTS, in_lua, put_of, settlement_of
from tests import deeds
from tests.servers.redis import RedisServer
from tests.versions.future import DAY
from tests.versions.future_redis import EXTRAS, RedisFuture, pack, unpack
from tests.words import by, claim, done, failed, new_job, plan


@pytest.fixture
async def store(redis_crew_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    store = store_for(redis_crew_url, clock)
    await store.open()
    yield store
    assert await store.admin.audit() == []
    await store.close()


@pytest.fixture(params=EXTRAS)
def future(request: pytest.FixtureRequest, redis_url: str) -> Iterator[RedisFuture]:
    future = RedisFuture(redis_url, EXTRAS[request.param])
    yield future
    future.close()


async def test_bytes_of_bodies_that_have_grown_are_counted_as_those_of_others(
    store: Store, future: RedisFuture
) -> None:
    for size in (3, 100, 5_000, 70_000):
        large = {"payload": "x" * size, "options": "{}"}
        await store.put([msgspec.structs.replace(new_job(), **large) for _ in range(3)])
        future.grow()
        enough = await store.claim(plan(most_bytes=size + 2))
        rest = await store.claim(plan(most_bytes=size + 3))
        assert (len(enough.jobs), len(rest.jobs)) == (1, 2)
        await store.settle([done(each) for each in (*enough.jobs, *rest.jobs)])


async def test_a_repair_keeps_what_has_grown(
    store: Store, future: RedisFuture, clock: ManualClock
) -> None:
    await store.put([new_job()])
    [job] = await claim(store)
    await store.settle([failed(job, clock.now())])
    future.grow()
    errors, ready = (future.keys.key("mail", part) for part in ("errors", "ready"))
    [past] = unpack(future.server.hget(errors, job.id))
    future.server.hset(errors, job.id, pack([past, "damaged"]))
    future.server.zadd(ready, {job.id: 5})
    assert await store.admin.repair(by("repair"))
    assert future.lost() == []
    assert unpack(future.server.hget(errors, job.id)) == [past]


async def test_a_repair_keeps_the_names_that_it_does_not_know(
    store: Store, future: RedisFuture
) -> None:
    """A newer program may have one more setting; a setting of ours with a damaged value has it mended."""
    await store.put([new_job(priority=1)])
    await deeds.pause(store, "mail", by("pause"))
    future.grow()
    assert await store.admin.audit() == []
    future.server.hset(future.keys.key("mail", "settings"), "apart", "many")
    future.server.hset(future.keys.schema, "1", "soon")
    assert len(await store.admin.repair(by("repair"))) == 2
    await deeds.resume(store, "mail", by("resume"))
    assert future.lost() == []


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


# Jobs of a newer program, out of our bounds


@pytest.mark.parametrize("verb", ["claim", "upkeep"])
async def test_what_falls_due_out_of_our_bounds_keeps_its_place(
    store: Store, future: RedisFuture, clock: ManualClock, verb: str
) -> None:
    await store.put([new := new_job(level=2, delay=10 * SECOND)])
    future.overstep(new.id)
    before, run_at = future.content(new.id), clock.now() + 10 * SECOND
    clock.advance(11)
    assert await claim(store) == [] if verb == "claim" else await store.upkeep(DAY * SECOND)
    ready = future.keys.key("mail", "ready")
    assert future.server.zscore(ready, new.id) == run_at - 2 * DAY * SECOND
    assert future.content(new.id) == before


async def test_a_lost_run_out_of_our_bounds_keeps_its_place(
    store: Store, future: RedisFuture, clock: ManualClock
) -> None:
    order_at = clock.now()
    await store.put([new := new_job(level=2)])
    await claim(store, level=2)
    future.overstep(new.id)
    clock.advance(30)
    assert await claim(store) == []
    assert future.server.zscore(future.keys.key("mail", "lost"), new.id) == order_at


async def test_what_is_parked_out_of_our_bounds_stays_so(store: Store, future: RedisFuture) -> None:
    newer, older = new_job("strange", level=2), new_job("strange")
    await store.put([newer, older])
    await store.claim(plan(capable={"t": 1}, level=2))
    future.overstep(newer.id)
    future.server.hset(future.keys.key("mail", "standings"), newer.id, pack("none of ours"))
    [before] = [each for each in _parked(future) if each.endswith(newer.id.encode())]
    await store.announce(Worker("w1", {"strange": 1}), DAY * SECOND)
    assert _parked(future) == [before]
    await store.upkeep(DAY * SECOND)
    assert [job.id for job in await claim(store)] == [older.id]
    assert (await store.claim(plan())).cut is False
    assert _parked(future) == [before]


def _parked(future: RedisFuture) -> list[bytes]:
    return list(future.server.zrange(future.keys.key("mail", "parked"), 0, -1))


async def test_entries_and_options_of_a_newer_job_are_its_programs_business(
    store: Store, future: RedisFuture
) -> None:
    store.level = 2
    newer, older = (new_job(id=f"j{level}", level=level, options="{}") for level in (2, 1))
    await store.put([newer, older])
    await store.entries.write([Change("step", "a", "1", owner=each.id) for each in (newer, older)])
    key = future.keys.key
    for each in (newer, older):
        future.change(key("mail", "bodies"), "BODY", each.id, options="[")
        future.server.hset(key("mail", "entries"), f"{each.id}\0step\0a", "other")
        future.server.hdel(future.keys.strays, each.id)
    store.level = 1
    found = [each.problem for each in await store.admin.audit()]
    assert len(found) == 3
    assert not any("j2" in problem for problem in found)
    assert not any("j2" in told for told in await store.admin.repair(by()))
    assert future.server.hget(key("mail", "entries"), "j2\0step\0a") == b"other"
    store.level = 2
    assert await store.admin.repair(by())


async def test_a_job_that_turns_out_to_be_a_newer_programs_is_not_mended(
    store: Store, future: RedisFuture
) -> None:
    """It may have come to its id since the audit."""
    await store.put([new := new_job(level=2)])
    future.overstep(new.id)
    before, function = future.content(new.id), FUNCTIONS["repair"]
    keys = future.keys.of("mail", function.parts)
    called = (function.command, function.name, len(keys), *keys)
    assert future.server.execute_command(*called, "", "mark", 1, new.id, "", 0) == [b""]
    assert future.content(new.id) == before


@pytest.mark.parametrize("level", [0, 1001, 2.5, -2, "2", None])
async def test_a_level_that_can_be_none_is_damage(
    store: Store, future: RedisFuture, level: object
) -> None:
    first, second = new_job(), new_job()
    await store.put([first])
    for each in (first, second):
        await store.put([each])
        future.change(future.keys.key("mail", "bodies"), "BODY", each.id, level=level)
        assert len(await store.admin.audit()) == 1
        if each is first:
            assert await claim(store) == []
        else:
            assert await store.admin.repair(by())
        record = await store.admin.find(each.id)
        assert record is not None
        assert (record.state, record.reason) == (State.DEAD, "unreadable")


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


STORED = ("BODY", "STANDING", "PAST", "ENTRY")
READ = """
redis.register_function('newer_read', function(_, arguments)
  local kind, text = arguments[1], arguments[2]
  if kind == 'BODY' then return packed(body_of(text), #BODY) end
  if kind == 'STANDING' then return packed(standing_of(text), #STANDING) end
  if kind == 'ENTRY' then return packed(entry.of(text), #ENTRY) end
  if kind == 'PAST' then return packed(fields_of(text, #PAST, &PAST, is_past_run), #PAST) end
  local is_read, fence = pcall(kind == 'live' and read_live or orders.read_body, text)
  return { is_read and fence and 1 or 0, kind == 'live' and (select(19, read_live(text))) or '' }
end)
"""
"""What reads a value as a program does, and writes it back."""


async def test_a_program_that_knows_a_field_more_reads_what_was_written_before(
    store: Store, redis_url: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there without that field, and has a place for it when it is written back."""
    new, clock_time = new_job(options="{}"), 1_700_000_000_000_000
    await store.put([new])
    [job] = await claim(store)
    await store.settle([failed(job, clock_time)])
    await store.entries.write([Change("kind", "key", "1", owner=new.id)])
    future = RedisFuture(redis_url, EXTRAS["one"])
    server, key = future.server, future.keys.key
    [past] = unpack(server.hget(key("mail", "errors"), new.id))
    [small] = server.hvals(key("mail", "entries"))
    values = {
        "BODY": server.hget(key("mail", "bodies"), new.id),
        "STANDING": server.hget(key("mail", "standings"), new.id),
        "PAST": pack(past),
        "ENTRY": small,
    }
    grown = {
        name: (*LAYOUTS[name], "mood") if name in STORED else LAYOUTS[name] for name in LAYOUTS
    }
    monkeypatch.setattr(layout, "LAYOUTS", grown)
    folder = files("fairlead.stores.redis") / "lua"
    shared = [(folder / f"{name}.lua").read_text() for name in SHARED]
    code = "#!lua name=newer\n" + "".join(map(in_lua, shared)) + in_lua(READ)
    redis_server.execute("FUNCTION", "LOAD", "REPLACE", code)
    for name, text in values.items():
        back = server.fcall("newer_read", 0, name, text)
        assert unpack(back) == [*unpack(text), None], name
    assert server.fcall("newer_read", 0, "head", values["BODY"])[0] == 1
    is_read, head = server.fcall("newer_read", 0, "live", values["STANDING"])
    assert (is_read, head) == (1, bytes([0xDC, 0, len(grown["STANDING"])]))
    redis_server.execute("FUNCTION", "DELETE", "newer")
    future.close()
