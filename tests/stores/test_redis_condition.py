"""What a Redis server must be like, and what is told of one that is not."""

from collections.abc import Iterator
from functools import partial

import pytest

from fairlead import ConfigError, StoreUnavailable
from fairlead.core.admin import Condition
from fairlead.core.errors import FairleadWarning, SchemaOutdated
from fairlead.stores import store_for
from fairlead.stores.redis import condition as conditions
from fairlead.stores.redis.address import Address, Node
from fairlead.stores.redis.condition import Server
from fairlead.stores.redis.functions import FUNCTIONS
from fairlead.stores.redis.talk import Conversation
from tests.conftest import LOAD
from tests.servers.redis import RedisCluster, RedisServer
from tests.words import new_job

SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """That Redis, whose settings a test may change."""
    yield redis_server
    for name, value in {**SETTINGS, "maxmemory": "0"}.items():
        redis_server.execute("CONFIG", "SET", name, value)
    redis_server.execute("REPLICAOF", "NO", "ONE")


async def condition(url: str) -> Condition:
    store = store_for(url)
    found = await store.admin.condition()
    await store.close()
    return found


def problems(found: Condition) -> str:
    return "\n".join(finding.problem for finding in found.findings)


async def refused(url: str, words: str) -> None:
    """Every way in is closed, and says the same."""
    store = store_for(url)
    for enter in (store.open, partial(store.put, [new_job()]), store.admin.condition):
        with pytest.raises(StoreUnavailable, match=words):
            await enter()
    await store.close()
    with pytest.raises(StoreUnavailable, match=words):
        store.put_blocking([new_job()])


async def test_a_node_of_a_cluster_is_not_taken_for_one_server() -> None:
    """It would run jobs, and refuse to settle those of two queues together."""
    with RedisCluster(size=1) as cluster:
        await refused(cluster.nodes[0].url(), r"is a node of a cluster; write redis\+cluster://")


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
async def test_a_server_that_may_evict_jobs_is_refused(
    server: RedisServer, redis_url: str, policy: str
) -> None:
    server.execute("CONFIG", "SET", "maxmemory-policy", policy)
    await refused(redis_url, "run CONFIG SET maxmemory-policy noeviction")


async def test_a_policy_that_evicts_only_what_may_expire_does_no_harm(
    server: RedisServer, redis_url: str
) -> None:
    server.execute("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    assert "evict" not in problems(await condition(redis_url))


async def test_a_server_without_a_file_is_refused_unless_the_url_says_so(
    server: RedisServer, redis_url: str
) -> None:
    server.execute("CONFIG", "SET", "appendonly", "no")
    await refused(redis_url, "run CONFIG SET appendonly yes")
    store = store_for(f"{redis_url}&durability=fast")
    await store.open()
    assert store.durability == "memory"
    assert "lost with the server" in store.survives
    assert "lost with the server" in problems(await store.admin.condition())
    await store.close()


@pytest.mark.parametrize(
    ("fsync", "durability", "told"),
    [
        ("everysec", "fast", "a power cut may take the last second of accepted jobs"),
        ("no", "fast", "a power cut takes what the system has not written yet"),
        ("always", "durable", ""),
    ],
)
async def test_what_a_power_cut_can_cost_is_told(
    server: RedisServer,
    redis_url: str,
    fsync: str,
    durability: str,
    told: str,
) -> None:
    server.execute("CONFIG", "SET", "appendfsync", fsync)
    store = store_for(redis_url)
    await store.open()
    assert store.durability == durability
    found = await store.admin.condition()
    await store.close()
    assert told in store.survives
    assert told in problems(found)
    assert f"appendfsync {fsync}" in found.facts["durability"]
    assert bool(told) == ("power cut" in problems(found))


async def test_who_may_not_see_the_settings_takes_the_worse_for_true(
    server: RedisServer, redis_url: str
) -> None:
    server.execute("CONFIG", "SET", "appendfsync", "always")
    server.execute("ACL", "SETUSER", "blind", "on", ">rope", "~*", "&*", "+@all", "-config")
    url = redis_url.replace("redis://", "redis://blind:rope@")
    store = store_for(url)
    await store.open()
    assert store.durability == "fast"
    assert "does not tell this user its settings (CONFIG GET)" in problems(
        await store.admin.condition()
    )
    await store.close()


@pytest.mark.parametrize(
    ("option", "durability", "told"),
    [
        ("", "fast", "so it is taken for fast"),
        ("&durability=fast", "fast", "so it is taken for fast"),
        ("&durability=durable", "durable", "the URL says durable"),
    ],
)
async def test_who_may_not_ask_takes_the_url_for_true_and_says_so(
    server: RedisServer, redis_url: str, option: str, durability: str, told: str
) -> None:
    blind = ("~*", "&*", "+@all", "-config", "-info")
    server.execute("ACL", "SETUSER", "blind", "reset", "on", ">rope", *blind)
    store = store_for(redis_url.replace("redis://", "redis://blind:rope@") + option)
    await store.open()
    assert store.durability == durability
    assert told in store.survives
    found = problems(await store.admin.condition())
    assert (
        f"does not tell this user its settings (INFO), so Fairlead takes it for {durability}"
        in (found)
    )
    await store.close()


@pytest.mark.parametrize("fsync", ["everysec", "no"])
async def test_a_server_that_is_less_safe_than_the_url_says_is_refused(
    server: RedisServer, redis_url: str, fsync: str
) -> None:
    server.execute("CONFIG", "SET", "appendfsync", fsync)
    await refused(f"{redis_url}&durability=durable", "take durability=durable out of the URL")
    server.execute("CONFIG", "SET", "appendfsync", "always")
    store = store_for(f"{redis_url}&durability=durable")
    await store.open()
    assert store.durability == "durable"
    await store.close()


@pytest.mark.parametrize(
    "url", ["redis://elsewhere.example", "redis+cluster://localhost,elsewhere.example:1"]
)
def test_who_sends_the_password_in_the_clear_is_warned(url: str) -> None:
    with pytest.warns(FairleadWarning, match="use rediss://"):
        store_for(url)


@pytest.mark.parametrize(
    "url", ["redis://localhost", "redis://127.0.0.2", "rediss://elsewhere.example", "unix:///s"]
)
def test_who_does_not_is_not(url: str, recwarn: pytest.WarningsRecorder) -> None:
    store_for(url)
    assert list(recwarn) == []


async def test_the_nodes_of_a_cluster_are_where_they_are(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that is named by an address of this machine may have nodes on others."""
    far = Server(Node("elsewhere.example", 1), 0, None)

    def found(*_: object) -> Conversation[list[Server]]:
        yield from ()
        return [far]

    monkeypatch.setattr("fairlead.stores.redis.store.begin", found)
    store = store_for(redis_url)
    with pytest.warns(FairleadWarning, match="use rediss://"):
        await store.open()
    await store.close()
    told = conditions.condition([far], Address.of(redis_url), None, hears=True)
    assert "in the clear" in problems(told)


async def test_a_replica_is_refused(server: RedisServer, redis_url: str) -> None:
    with RedisServer() as primary:
        server.execute("REPLICAOF", "127.0.0.1", str(primary.port))
        await refused(redis_url, "name the primary")
        server.execute("REPLICAOF", "NO", "ONE")


async def test_a_server_tells_of_itself(redis_crew_url: str) -> None:
    found = await condition(redis_crew_url)
    assert found.facts["server"].startswith("Redis ")
    assert found.facts["driver"].startswith("hiredis ")
    assert found.facts["user"] == "crew"
    assert found.facts["keys"].startswith(Address.of(redis_crew_url).prefix)
    assert found.facts["news"] == "heard"
    assert "news" not in problems(found)
    assert "network" not in problems(found)


async def test_memory_that_runs_out_is_told_before(server: RedisServer, redis_url: str) -> None:
    store = store_for(redis_url)
    await store.open()
    used = int(server.execute("INFO", "memory").partition("used_memory:")[2].split()[0])
    server.execute("CONFIG", "SET", "maxmemory", str(int(used * 1.05)))
    assert "no job is accepted" in problems(await store.admin.condition())
    await store.close()


async def test_jobs_of_a_newer_program_are_left_alone(server: RedisServer, redis_url: str) -> None:
    prefix = Address.of(redis_url).prefix
    server.execute("HSET", f"{prefix}:schema", "1", "0 1", "2", "0 2")
    store = store_for(redis_url)
    with pytest.raises(SchemaOutdated, match="upgrade this program"):
        await store.open()


async def test_what_redis_cannot_do_is_said_with_the_way_out(redis_url: str) -> None:
    store = store_for(redis_url)
    with pytest.raises(ConfigError, match="Enqueue after your commit"):
        store.put_within(object(), [new_job()]).run()
    with pytest.raises(ConfigError, match="job.commit"):
        store.transaction()
    with pytest.raises(ConfigError, match="job.commit"):
        store.atransaction()
    await store.close()


async def test_functions_under_our_names_that_somebody_else_made_are_told(
    server: RedisServer, redis_url: str
) -> None:
    names = [
        (each.name, "'no-writes'" if each.command == "FCALL_RO" else "")
        for each in FUNCTIONS.values()
    ]
    code = "#!lua name=other\n" + "".join(
        f"redis.register_function{{ function_name = '{name}', callback = function() return 7 end, "
        f"flags = {{ {flags} }} }}\n"
        for name, flags in names
    )
    server.execute("FUNCTION", "FLUSH")
    server.execute("FUNCTION", "LOAD", code)
    try:
        await refused(redis_url, "functions under our names that somebody else made")
    finally:
        server.execute("FUNCTION", "FLUSH")
        server.execute(*LOAD)
