"""Stores on a clock that tests move, and the small words tests are written in."""

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fairlead import Fairlead
from fairlead.core.clock import ManualClock
from fairlead.core.store import Backend
from fairlead.stores import store_for
from tests.servers.bouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy

settings.register_profile(
    "fairlead",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("fairlead")

STORES = ("memory", "sqlite")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[Backend]:
    """Every store in turn. Whatever a test did, the audit must be clean after it."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    store = store_for(url, clock)
    await store.open()
    yield store
    assert await store.audit() == []
    await store.close()


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Fairlead]:
    """An app on a fresh SQLite file, with the machine's clock."""
    app = Fairlead(f"sqlite:///{tmp_path}/jobs.db")
    yield app
    assert app.bridge.run(app.store.audit()) == []
    app.close()


@pytest.fixture(params=STORES)
def any_app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fairlead]:
    """An app on every store in turn."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    app = Fairlead(url)
    yield app
    assert app.bridge.run(app.store.audit()) == []
    app.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for all tests of this process. Who changes its settings starts another."""
    with PostgresServer() as server:
        yield server


SCHEMAS = count(1)


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


OpenStore = Callable[[], Backend]
