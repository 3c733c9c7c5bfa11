"""The URL of a Redis store: what it may say, what it means, and that it keeps its secret."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions

from fairlead import ConfigError, StoreUnavailable
from fairlead.bench.servers.server import free_port
from fairlead.core.admin import ALL
from fairlead.stores import store_for
from fairlead.stores.redis.address import Address, Node
from fairlead.stores.redis.problems import typed
from tests import deeds
from tests.servers.redis import RedisServer
from tests.words import are_new, new_job

CANARY = "c4n4ry"


def refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as problem:
        store_for(url)
    assert CANARY not in str(problem.value)


def test_a_url_names_server_database_user_and_prefix() -> None:
    address = Address.of(f"redis://ada:{CANARY}@localhost:6380/3?prefix=shop&timeout=2.5")
    assert address.nodes == (Node("localhost", 6380),)
    assert address.options == {"username": "ada", "password": CANARY}
    assert (address.database, address.prefix, address.timeout) == (3, "shop", 2.5)
    assert (address.is_cluster, address.tls, address.durability) == (False, False, None)
    assert address.url == "redis://ada@localhost:6380/3?prefix=shop"
    assert CANARY not in repr(address)


def test_what_a_url_leaves_open_has_a_default() -> None:
    assert Address.of("redis://").nodes == (Node("localhost", 6379),)
    bare = Address.of("redis://h?durability=fast")
    assert (bare.prefix, bare.timeout, bare.database) == ("fairlead", 5.0, 0)
    assert bare.durability == "fast"
    assert Address.of("redis://h?durability=durable").durability == "durable"


def test_a_socket_is_a_path() -> None:
    address = Address.of("unix://ada:pw@/run/my%20redis.sock?db=2")
    assert address.nodes == (Node(path="/run/my redis.sock"),)
    assert (address.database, address.is_open) == (2, False)
    assert address.url == "unix://ada@/run/my%20redis.sock?db=2"


def test_a_cluster_is_named_by_some_of_its_nodes() -> None:
    address = Address.of("rediss+cluster://a:1,b:2,[::1]:3?prefix=x&ssl_ca_certs=/ca.pem")
    assert address.nodes == (Node("a", 1), Node("b", 2), Node("::1", 3))
    assert (address.is_cluster, address.tls) == (True, True)
    assert address.options == {"ssl_ca_certs": "/ca.pem"}


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_user_and_password_pass_through(user: str, password: str) -> None:
    try:
        url = f"redis://{quote(user, safe='')}:{quote(password, safe='')}@localhost"
    except UnicodeEncodeError:
        return
    address = Address.of(url)
    assert address.options == {"username": user, "password": password}


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"redis://:{CANARY}@h/first", "the database is a number"),
        (f"redis://:{CANARY}@h:70000", "the port is not a number"),
        (f"redis://:{CANARY}@h:port", "the port is not a number"),
        (f"redis://:{CANARY}@a,b", "one server has one host"),
        (f"redis+cluster://:{CANARY}@h/1", "only database 0"),
        (f"redis://:{CANARY}@h?prefx=a", "did you mean 'prefix'"),
        (f"redis://:{CANARY}@h?ssl_certfile=a", "knows no option 'ssl_certfile'"),
        (f"redis://:{CANARY}@h?prefix=" + quote("a{b}"), "cannot begin our keys"),
        (f"redis://:{CANARY}@h?durability=always", "durability=durable"),
        (f"redis://:{CANARY}@h?timeout=soon", "write timeout=5"),
        (f"redis://:{CANARY}@h#1", "what follows #"),
        ("unix://?db=1", "no path to a socket"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_way_out(url: str, words: str) -> None:
    refused(url, words)


# What it leads to


async def test_a_socket_leads_to_the_same_jobs(redis_server: RedisServer, redis_url: str) -> None:
    prefix = Address.of(redis_url).prefix
    by_port, by_socket = store_for(redis_url), store_for(redis_server.socket_url(prefix=prefix))
    job = new_job()
    await by_port.put([job])
    found = await by_socket.admin.find(job.id)
    assert found is not None
    assert are_new(by_socket.put_blocking([job])) == [False]
    for store in (by_port, by_socket):
        await store.close()


async def test_databases_and_prefixes_keep_jobs_apart(redis_server: RedisServer) -> None:
    urls = [
        redis_server.url(database=1, prefix="t_apart"),
        redis_server.url(database=2, prefix="t_apart"),
        redis_server.url(database=1, prefix="t_apart2"),
    ]
    stores = [store_for(url) for url in urls]
    for number, store in enumerate(stores):
        await store.put([new_job(id=f"{number}")])
    for number, store in enumerate(stores):
        assert [job.id for job in await deeds.jobs(store, ALL)] == [f"{number}"]
        await store.close()
    redis_server.execute("FLUSHALL")


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_wrong_password_is_told_at_once_and_not_repeated(
    redis_server: RedisServer, blocking: bool
) -> None:
    redis_server.execute("ACL", "SETUSER", "guarded", "on", ">right", "~*", "+@all")
    url = redis_server.url(user="guarded", password=CANARY)
    store = store_for(url)
    with pytest.raises(StoreUnavailable, match="check user and password") as problem:
        if blocking:
            await asyncio.to_thread(store.put_blocking, [new_job()])
        else:
            await store.put([new_job()])
    assert CANARY not in str(problem.value)
    await store.close()


async def test_nobody_there_is_told(redis_server: RedisServer) -> None:
    store = store_for("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable, match="is the server running"):
        await store.open()


# TLS


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that is only reached over TLS, with a certificate for localhost."""
    folder = Path(tempfile.mkdtemp(prefix="fairlead-tls-"))
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    folder.chmod(0o755)
    (folder / "key.pem").chmod(0o644)
    port = free_port()
    tls = {
        "tls-port": str(port),
        "tls-cert-file": str(folder / "cert.pem"),
        "tls-key-file": str(folder / "key.pem"),
        "tls-ca-cert-file": str(folder / "cert.pem"),
        "tls-auth-clients": "no",
    }
    with RedisServer(settings=tls) as server:
        server.tls = f"localhost:{port}", folder / "cert.pem"  # type: ignore[attr-defined]
        yield server
    shutil.rmtree(folder)


async def test_tls_works_with_a_server_that_is_trusted(tls_server: RedisServer) -> None:
    place, certificate = tls_server.tls  # type: ignore[attr-defined]
    store = store_for(f"rediss://{place}/0?ssl_ca_certs={certificate}")
    job = new_job()
    assert are_new(await store.put([job])) == [True]
    assert are_new(store.put_blocking([job])) == [False]
    condition = await store.admin.condition()
    assert condition.facts["tls"] == "on"
    assert condition.facts["news"] == "heard"
    await store.close()


@pytest.mark.parametrize("trusted", [False, True])
async def test_a_server_that_cannot_prove_who_it_is_is_refused(
    tls_server: RedisServer, trusted: bool
) -> None:
    """It is another's certificate, or it is for another name."""
    place, certificate = tls_server.tls  # type: ignore[attr-defined]
    url = f"rediss://{place}/0"
    if trusted:
        url = f"rediss://{place.replace('localhost', '127.0.0.1')}/0?ssl_ca_certs={certificate}"
    store = store_for(url)
    with pytest.raises(StoreUnavailable, match="ssl_ca_certs="):
        await store.open()
    with pytest.raises(StoreUnavailable, match="ssl_ca_certs="):
        store.put_blocking([new_job()])


def test_tls_on_a_plain_port_is_told_as_that(redis_server: RedisServer) -> None:
    """It waits for the rest of what it takes for a command, so nothing else would be said."""
    url = redis_server.url(timeout=0.5).replace("redis://", "rediss://")
    with pytest.raises(StoreUnavailable, match="this port does not speak TLS") as told:
        store_for(url).put_blocking([new_job()])
    assert "write redis:// instead" in str(told.value)


def test_a_server_that_answers_tls_in_the_clear_is_told_as_that() -> None:
    address = Address.of("rediss://cache.example")
    problem = exceptions.ConnectionError("Error 1 connecting: [SSL: WRONG_VERSION_NUMBER] wrong")
    assert "; this port does not speak TLS" in str(typed(problem, address, 5))
