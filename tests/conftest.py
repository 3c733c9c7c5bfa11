"""Stores on a clock that tests move, and the small words tests are written in."""

import hashlib
import hmac
import os
import re
import signal
import sqlite3
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from fairlead import Fairlead
from fairlead.bench.servers.programs import MissingProgram
from fairlead.core.clock import ManualClock
from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.migrate import migrate
from fairlead.stores.redis.functions import LIBRARY
from fairlead.stores.sqlite.own import Own
from tests.needs import without
from tests.servers.bouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisCluster, RedisServer
from tests.servers.talk import RedisTalk

settings.register_profile(
    "fairlead",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("fairlead")

# A shell lets what it starts in the background ignore Ctrl-C, and programs that tests start would, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    """Skip what needs a server program that this machine does not have."""
    yield from _without_programs()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Do the same where the test itself starts the server."""
    yield from _without_programs()


def _without_programs() -> Generator[None, None, None]:
    try:
        return (yield)
    except MissingProgram as problem:
        without(str(problem))


STORES = tuple(os.environ.get("FAIRLEAD_STORES", "memory sqlite postgres redis").split())
"""The stores that tests of all stores are run on; `cluster` is one, and has a target of its own."""


WITH_TRANSACTIONS = [name for name in STORES if name in ("sqlite", "postgres")]
"""Those that can share a transaction with the application's own rows."""
CREWS = {"postgres": "crew_url", "redis": "redis_crew_url", "cluster": "cluster_crew_url"}
"""Stores on servers, and the fixture that gives a URL for a user who may do no more than he must."""


@pytest.fixture(autouse=True)
def _close_what_tests_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the SQLite connections of tests; Python 3.13 warns of those, and of ours, left open."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*args: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*args, **named)
        if not isinstance(connection, Own):
            opened.append(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", noted)
    yield
    for connection in opened:
        with suppress(sqlite3.ProgrammingError):  # Of a thread, which is no more.
            connection.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URL of every store in turn, each with nothing in it."""
    if request.param in CREWS:
        url: str = request.getfixturevalue(CREWS[request.param])
        return url
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture(params=[name for name in STORES if name != "memory"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """A new URL with every call, of every store in turn but memory, which they are compared with."""
    return new_urls(request, tmp_path)


def new_urls(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Return what gives a new URL of the store that is asked for with every call."""
    if request.param == "postgres":
        crew_url: str = request.getfixturevalue("crew_url")
        server: PostgresServer = request.getfixturevalue("postgres_server")
        return lambda: emptied(server, crew_url)
    number = count()
    if request.param in CREWS:
        place: str = request.getfixturevalue(CREWS[request.param])
        return lambda: f"{place}.{next(number)}"
    return lambda: f"sqlite:///{tmp_path}/{next(number)}.db?durability=fast"


@pytest.fixture
async def store(any_url: str, clock: ManualClock) -> AsyncIterator[Store]:
    """Every store in turn. Whatever a test did, the audit must be clean after it."""
    store = store_for(any_url, clock)
    await store.open()
    yield store
    assert await store.admin.audit() == []
    await store.close()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Fairlead]:
    """An app on a fresh SQLite file, with the machine's clock."""
    app = Fairlead(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    assert app.bridge.run(app.store.admin.audit()) == []
    app.close()


@pytest.fixture
def any_app(any_url: str) -> Iterator[Fairlead]:
    """An app on every store in turn."""
    app = Fairlead(any_url)
    yield app
    assert app.bridge.run(app.store.admin.audit()) == []
    app.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of this process. Who changes its settings starts another."""
    with PostgresServer() as server:
        yield server


SCHEMAS = count(1)
# Of most tables a test uses none, and to truncate one makes new files for it and its indexes.
EMPTY = """
SET search_path = {schema};
SELECT close_days(9000000000000000);
LOCK TABLE job, queue, finished, attempt, dead, entry, paused, worker, audit;
DO $$
DECLARE
    used text;
BEGIN
    SELECT string_agg(name, ', ') INTO used
    FROM unnest('{job,queue,finished,attempt,dead,entry,paused,worker,audit}'::text[]) AS name
    WHERE pg_relation_size(name::regclass) > 0
    OR EXISTS (SELECT FROM pg_inherits WHERE inhparent = name::regclass);
    IF used IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || used;
    END IF;
END $$;
UPDATE retention SET before = 0, keep = NULL
"""
KINDS = ("producer", "worker", "operator", "tester")
# What there is in a schema, in which shape, and who else is here that could still change it.
LOOK = """
WITH ours AS (SELECT oid, nspacl FROM pg_namespace WHERE nspname = %s), seen AS (
    SELECT concat_ws(' ', c.oid, c.relkind, c.relnatts, c.relacl, c.reloptions, c.relhastriggers)
    FROM pg_class AS c, ours WHERE c.relnamespace = ours.oid
    UNION ALL
    SELECT concat_ws(' ', p.oid, p.xmin, p.proacl)
    FROM pg_proc AS p, ours WHERE p.pronamespace = ours.oid
    UNION ALL
    SELECT nspacl::text FROM ours
    UNION ALL
    SELECT concat_ws(' ', pid, query) FROM pg_stat_activity WHERE usename = 'crew'
)
SELECT md5(string_agg(concat_ws, E'\\n' ORDER BY concat_ws)) FROM seen
"""
AS_NEW: list[str] = []
LOOKS: dict[str, str] = {}


def kept(password: str) -> str:
    """What PostgreSQL keeps of a password, of one round: 4,096 are five times a connection's cost."""
    salt, rounds = b"fairlead", 1
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    client, server = (hmac.digest(salted, key, "sha256") for key in (b"Client Key", b"Server Key"))
    parts = [salt, hashlib.sha256(client).digest(), server]
    return "SCRAM-SHA-256${}:{}${}:{}".format(rounds, *(b64encode(part).decode() for part in parts))


CREW = f"""
DO $$ BEGIN
    CREATE ROLE crew LOGIN PASSWORD '{kept("rope")}';
EXCEPTION WHEN duplicate_object THEN NULL; END $$
"""


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A URL with the name of a schema that nobody else uses; nobody has made it yet."""
    # The test before may have left it frozen, or dead.
    postgres_server.thaw()
    postgres_server.start()
    schema = f"t_{next(SCHEMAS)}"
    yield postgres_server.url(schema=schema)
    postgres_server.thaw()
    postgres_server.start()
    # Who still holds a lock on it has left something open, and shall fail rather than wait.
    postgres_server.execute(f"SET lock_timeout = '5s'; DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
def fresh_url(postgres_server: PostgresServer, postgres_url: str) -> str:
    """The same, with the schema made by its owner, for a user who may do no more than he must."""
    return admitted(postgres_server, Address.of(postgres_url).schema)


@pytest.fixture
def crew_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The same once more, but perhaps in a schema that served other tests and is as new again.

    To make one takes several times as long as to empty it, and most tests need nothing else.
    """
    postgres_server.thaw()
    postgres_server.start()
    schema = AS_NEW.pop() if AS_NEW else f"t_{next(SCHEMAS)}"
    if schema not in LOOKS:
        admitted(postgres_server, schema)
        [(LOOKS[schema],)] = postgres_server.execute(LOOK, schema)
    yield postgres_server.url(user="crew", password="rope", schema=schema)
    postgres_server.thaw()
    postgres_server.start()
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        # As above: who still holds a lock shall fail.
        connection.execute("SET lock_timeout = '5s';" + EMPTY.replace("{schema}", schema))
        as_new = connection.execute(LOOK, [schema]).fetchall() == [(LOOKS[schema],)]
    if as_new:
        AS_NEW.append(schema)
    else:
        postgres_server.execute(f"SET lock_timeout = '5s'; DROP SCHEMA {schema} CASCADE")


def admitted(server: PostgresServer, schema: str) -> str:
    """Make a schema, admit the crew to it, and return the crew's URL."""
    migrate(Address.of(server.url(schema=schema)))
    grants = "; ".join(f"SELECT {schema}.allow('crew', '{kind}')" for kind in KINDS)
    server.execute(f"{CREW}; {grants}")
    return server.url(user="crew", password="rope", schema=schema)


def emptied(server: PostgresServer, url: str) -> str:
    """Empty the tables of a schema, which is quicker than to make them anew."""
    server.execute(EMPTY.replace("{schema}", Address.of(url).schema))
    return url


@pytest.fixture(scope="session")
def bouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """PgBouncer before that PostgreSQL, with pools per transaction."""
    with PgBouncer(postgres_server.port) as bouncer:
        yield bouncer


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    """A way to that PostgreSQL on which things go wrong: `proxy.through(postgres_url)`."""
    with Proxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for all tests of this process. Who changes its settings starts another."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """The same for a cluster of three; it takes seconds to start."""
    with RedisCluster() as cluster:
        yield cluster


PREFIXES = count(1)


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """A URL with a prefix that nobody else uses, on a server with nothing in it."""
    # The test before may have left it frozen, or dead.
    redis_server.thaw()
    redis_server.start()
    yield redis_server.url(prefix=f"t_{next(PREFIXES)}")
    redis_server.thaw()
    redis_server.start()
    redis_server.execute("FLUSHALL")


@pytest.fixture
def cluster_url(redis_cluster: RedisCluster) -> Iterator[str]:
    """The same on the cluster."""
    redis_cluster.start()
    yield redis_cluster.url(prefix=f"t_{next(PREFIXES)}")
    redis_cluster.start()
    redis_cluster.execute("FLUSHALL")


LOAD = ("FUNCTION", "LOAD", "REPLACE", LIBRARY.code)
"""What an administrator does, for users who may not."""
ROLES = dict(
    re.findall(
        r"^ACL SETUSER shop_(web|worker|operator) on >secret (.*)$",
        (Path(__file__).parent.parent / "docs" / "redis.md").read_text(),
        re.MULTILINE,
    )
)
"""The rights that the documentation gives to a producer (web), a worker and an operator."""


def rights(prefix: str, *roles: str) -> list[str]:
    """Those rights for keys of another prefix: of some roles, or of all three.

    Each role is a selector of its own, so the rights of two do not mix.
    """
    chosen = [ROLES[role] for role in roles or ROLES]
    return [
        selector.replace("fairlead:", prefix)
        for rule in chosen
        for selector in (f"({rule.partition(' (')[0]})", *re.findall(r"\(.*?\)", rule))
    ]


@pytest.fixture
def redis_crew_url(redis_server: RedisServer, redis_url: str) -> str:
    """The same for a user who may do no more than he must."""
    redis_server.execute("ACL", "SETUSER", "crew", "reset", "on", ">rope", *rights("t_*:"))
    redis_server.execute(*LOAD)
    return redis_url.replace("redis://", "redis://crew:rope@")


@pytest.fixture
def cluster_crew_url(redis_cluster: RedisCluster, cluster_url: str) -> str:
    """The same on the cluster."""
    redis_cluster.execute("ACL", "SETUSER", "crew", "reset", "on", ">rope", *rights("t_*:"))
    redis_cluster.execute(*LOAD)
    return cluster_url.replace("redis+cluster://", "redis+cluster://crew:rope@")


@pytest.fixture
def redis_proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    """A way to that Redis on which things go wrong: `redis_proxy.through(redis_url)`."""
    with Proxy(redis_server.port, RedisTalk) as proxy:
        yield proxy


OpenStore = Callable[[], Store]
