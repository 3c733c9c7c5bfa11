"""A PostgreSQL store by the server's own clock, and the owner of its schema beside it."""

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from fairlead.core.store import Store
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address


@pytest.fixture
async def shop(fresh_url: str) -> AsyncIterator[Store]:
    """A store by the server's own clock."""
    store = store_for(fresh_url)
    await store.open()
    yield store
    assert await store.admin.audit() == []
    await store.close()


@pytest.fixture
def owner(postgres_url: str) -> Iterator[psycopg.Connection]:
    """The owner of the schema, with its tables in sight."""
    address = Address.of(postgres_url)
    with psycopg.connect(**address.parameters, autocommit=True) as connection:
        connection.execute(f"SET search_path = {address.quoted_schema}")
        yield connection
