"""A desk on each store that has transactions, and one for each library beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.face.desk import Desk, PostgresDesk, SqliteDesk
from tests.servers.postgres import PostgresServer


@pytest.fixture
def sqlite_desk(tmp_path: Path) -> Iterator[SqliteDesk]:
    with SqliteDesk(tmp_path) as desk:
        yield desk


@pytest.fixture
def postgres_desk(postgres_server: PostgresServer, crew_url: str) -> Iterator[PostgresDesk]:
    with PostgresDesk(postgres_server, crew_url) as desk:
        yield desk


@pytest.fixture
def desk(request: pytest.FixtureRequest) -> Desk:
    """The desk of a store, with a library: see `desk.with_libraries`."""
    store, library = request.param
    desk: Desk = request.getfixturevalue(f"{store}_desk")
    desk.library = library
    return desk
