"""Stores on a clock that tests move, and the small words tests are written in."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from fairlead import Fairlead
from fairlead.core.clock import ManualClock
from fairlead.core.store import Backend
from fairlead.stores import store_for

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


OpenStore = Callable[[], Backend]
