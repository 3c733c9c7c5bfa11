"""Two programs at every store in turn: today's, and one of the version to come."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fairlead import Fairlead
from fairlead.core.clock import ManualClock
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from tests.conftest import STORES, admitted, emptied
from tests.servers.postgres import PostgresServer
from tests.system.conftest import (  # noqa: F401 (fixtures)
    pg_shop,
    redis_shop,
    rough_redis,
    rough_server,
    shop,
)
from tests.versions.future import Future, Newer, Program
from tests.versions.future_postgres import PostgresFuture
from tests.versions.future_redis import EXTRAS, RedisFuture
from tests.versions.future_sqlite import SqliteFuture

SCHEMA = "grown"
PLACES = [
    *(name for name in ("sqlite", "postgres") if name in STORES),
    *(f"redis-{extra}" for extra in EXTRAS if "redis" in STORES),
]
"""The stores that two programs can share, Redis with whatever may stand behind known fields."""

OWN_VERBS = [name for name in PLACES if name != "postgres"]
"""Those where a program brings its verbs. On PostgreSQL all use the newest program's."""


SERVING_STORES = ["sqlite", "postgres", "redis"]
"""The stores whose steps say which programs they serve."""
TELLING_STORES = ["sqlite", "postgres", "redis"]
"""Those that tell a program that is at work: a worker soon, who puts within seconds."""
STRICT_STORES = ["sqlite", "postgres"]
"""Those that let it do nothing more, whichever verb it calls; but to end what it has claimed."""


class Place(NamedTuple):
    """A store that a newer program has been at, and its hand in it."""

    url: str
    future: Future


@pytest.fixture(scope="session")
def grown_schema(postgres_server: PostgresServer) -> Iterator[str]:
    """A schema that a newer program has changed, for all tests of this process."""
    url = admitted(postgres_server, SCHEMA)
    future = PostgresFuture(postgres_server.url(schema=SCHEMA))
    future.arrive()
    future.close()
    yield url
    postgres_server.start()
    postgres_server.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


@pytest.fixture
def grown_url(postgres_server: PostgresServer, grown_schema: str) -> str:
    """The same with nothing in it."""
    postgres_server.thaw()
    postgres_server.start()
    return emptied(postgres_server, grown_schema)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Every store in turn, each with nothing in it."""
    name, _, extra = request.param.partition("-")
    future: Future
    if name == "sqlite":
        path = tmp_path / "jobs.db"
        url = f"sqlite:///{path}"
        _make_file(url)
        future = SqliteFuture(path)
        future.arrive()
    elif name == "postgres":
        url = request.getfixturevalue("grown_url")
        server: PostgresServer = request.getfixturevalue("postgres_server")
        future = PostgresFuture(server.url(schema=SCHEMA))
    else:
        url = request.getfixturevalue("redis_crew_url")
        future = RedisFuture(request.getfixturevalue("redis_url"), EXTRAS[extra])
        future.arrive()
    yield Place(url, future)
    future.close()


@pytest.fixture
def plain_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A store that the newer program has not been at yet; the test names which."""
    future: Future
    if request.param == "sqlite":
        path = tmp_path / "jobs.db"
        url = f"sqlite:///{path}"
        _make_file(url)
        future = SqliteFuture(path)
    elif request.param == "postgres":
        url = request.getfixturevalue("crew_url")
        server: PostgresServer = request.getfixturevalue("postgres_server")
        future = PostgresFuture(server.url(schema=Address.of(url).schema))
    else:
        url = request.getfixturevalue("redis_crew_url")
        future = RedisFuture(request.getfixturevalue("redis_url"), EXTRAS["one"])
    yield Place(url, future)
    future.take_back()
    future.close()


def _make_file(url: str) -> None:
    app = Fairlead(url)
    app.open()
    app.close()


@pytest.fixture
async def older(place: Place, clock: ManualClock) -> AsyncIterator[Program]:
    """Today's program."""
    store = store_for(place.url, clock)
    yield Program("older", store, place.future)
    assert await store.admin.audit() == []
    await store.close()


@pytest.fixture
async def newer(place: Place, clock: ManualClock) -> AsyncIterator[Newer]:
    """The program of the version to come."""
    store = store_for(place.url, clock)
    store.level = 2
    yield Newer("newer", store, place.future)
    await store.close()


@pytest.fixture(params=["the newer begins", "the older begins"])
def two(request: pytest.FixtureRequest, older: Program, newer: Newer) -> tuple[Program, Program]:
    """Both, in either order."""
    return (newer, older) if request.param == "the newer begins" else (older, newer)
