"""A shop per test; whatever a test did to its workers, the same must hold after it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.system.faults import PostgresShop
from tests.system.redis_faults import CREW, SETTINGS, RedisShop
from tests.system.tree import Shop

SERVERS = {"postgres": "pg_shop", "redis": "redis_shop"}
"""The fixtures of the shops on servers, by store."""


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop on SQLite; with `tree.on_every_store`, on each server too."""
    server = SERVERS.get(getattr(request, "param", "sqlite"))
    if server is not None:
        yield request.getfixturevalue(server)
        return
    with Shop(tmp_path) as shop:
        yield shop


@pytest.fixture(scope="session")
def rough_server() -> Iterator[PostgresServer]:
    """A PostgreSQL of these tests alone, which they restart, kill and freeze."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def pg_shop(tmp_path: Path, rough_server: PostgresServer) -> Iterator[PostgresShop]:
    """A shop on that PostgreSQL; after whatever happened, nothing is lost and all marks agree."""
    try:
        with PostgresShop(tmp_path, rough_server) as shop:
            yield shop
    finally:
        rough_server.thaw()


@pytest.fixture(scope="session")
def rough_redis() -> Iterator[RedisServer]:
    """A Redis of these tests alone, which they restart, kill, freeze and fill.

    With `everysec`, a kill loses jobs that were accepted while a slow disk is synced.
    """
    with RedisServer(appendfsync="always", acl=[CREW], settings=SETTINGS) as server:
        yield server


@pytest.fixture
def redis_shop(tmp_path: Path, rough_redis: RedisServer) -> Iterator[RedisShop]:
    """A shop on that Redis; after whatever happened, nothing is lost and all marks agree."""
    try:
        with RedisShop(tmp_path, rough_redis) as shop:
            yield shop
    finally:
        rough_redis.thaw()
        rough_redis.start()
        rough_redis.execute("FLUSHALL")
