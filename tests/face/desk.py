"""Applications with rows of their own beside their jobs, on each store that has transactions."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import pytest

from fairlead import Fairlead, Retry, current_job, fixed
from fairlead.producer import BoundTask, Call
from fairlead.stores.postgres.address import Address
from tests.servers.libraries import ASYNC, FILE_LIBRARIES, LIBRARIES, Library, Mine, go
from tests.servers.postgres import PostgresServer

Value = TypeVar("Value")
AT_ONCE = Retry(attempts=3, backoff=fixed(0, jitter=0))


class Desk(ABC):
    """An app, the table of its application beside the jobs, and what is in both.

    The application uses `library`, to which it gives the `address` of the database.
    """

    libraries: ClassVar[Mapping[str, Library]]
    library: str
    jobs_table: str
    rows_table: str

    def __init__(self, store: str, address: str) -> None:
        self.store = store
        self.address = address
        self.app = Fairlead(store)
        self.task: BoundTask[..., Any] = self.app.task(name="t")(lambda n: n)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.app.bridge.run(self.app.store.admin.audit()) == []
        self.app.close()

    @abstractmethod
    def execute(self, statement: str) -> list[Any]:
        """Run a statement as the owner of the database."""

    def jobs(self) -> list[str]:
        return [id_ for (id_,) in self.execute(f"SELECT id FROM {self.jobs_table}")]

    def rows(self) -> list[str]:
        return [note for (note,) in self.execute(f"SELECT note FROM {self.rows_table}")]

    def insert(self, note: str) -> str:
        return f"INSERT INTO {self.rows_table} VALUES ('{note}')"

    # With its library

    def connection(self, address: str | None = None) -> AbstractAsyncContextManager[Mine]:
        """Open a connection to the database, or to another one."""
        return self.libraries[self.library](address or self.address)

    def go(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run what was written for every library."""
        return go(self.library, work)

    async def enqueue(self, mine: Mine, number: int = 1) -> str:
        """Enqueue a job; returns its id."""
        task = self.task.using(connection=mine.connection)
        return (await task.aenqueue(number) if mine.is_async else task.enqueue(number)).id

    async def order(self, mine: Mine) -> str:
        """Enqueue a job and write a row about it; returns the id."""
        job_id = await self.enqueue(mine)
        await mine.execute(self.insert(job_id))
        return job_id

    async def enqueue_many(self, mine: Mine, calls: Sequence[Call[Any]]) -> int:
        if mine.is_async:
            return await self.app.aenqueue_many(calls, connection=mine.connection)
        return self.app.enqueue_many(calls, connection=mine.connection)

    def handler(self, work: Callable[[], Awaitable[Any]]) -> BoundTask[..., Any]:
        """Make a task of what was written for every library, on a loop or in a thread."""

        async def coroutine() -> int:
            await work()
            return 0

        def plain() -> int:
            self.go(coroutine())
            return 0

        function = coroutine if self.library in ASYNC else plain
        return self.app.task(name="book", retry=AT_ONCE)(function)

    async def block(
        self, mine: Mine, note: str, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """Write a row and enqueue a job in a block of the run; `meanwhile` comes before both."""
        job, later = current_job(), self.task.using(delay=1000)
        if mine.is_async:
            async with job.commit(mine.connection) as conn:
                assert conn is mine.connection
                meanwhile()
                await mine.execute(self.insert(note))
                await later.aenqueue(1)
        else:
            with job.commit(mine.connection) as conn:
                assert conn is mine.connection
                meanwhile()
                await mine.execute(self.insert(note))
                later.enqueue(1)


class SqliteDesk(Desk):
    libraries = FILE_LIBRARIES
    library = "sqlite3"
    jobs_table, rows_table = "fairlead_job", "orders"

    def __init__(self, folder: Path) -> None:
        path = str(folder / "jobs.db")
        super().__init__(f"sqlite:///{path}", path)
        self.app.open()
        self.execute("CREATE TABLE orders (note TEXT)")

    def execute(self, statement: str) -> list[Any]:
        connection = sqlite3.connect(self.address)
        try:
            with connection:
                return connection.execute(statement).fetchall()
        finally:
            connection.close()


class PostgresDesk(Desk):
    libraries = LIBRARIES
    library = "asyncpg"

    def __init__(self, server: PostgresServer, store: str) -> None:
        self.server = server
        schema = Address.of(store).schema
        self.jobs_table, self.rows_table = f"{schema}.job", f"{schema}.orders"
        super().__init__(store, server.url(user="crew", password="rope"))
        self.execute(f"CREATE TABLE {self.rows_table} (note text)")
        self.execute(f"GRANT ALL ON {self.rows_table} TO crew")

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)
        self.execute(f"SET lock_timeout = '5s'; DROP TABLE {self.rows_table}")

    def execute(self, statement: str) -> list[Any]:
        return self.server.execute(statement)


DESKS: dict[str, type[Desk]] = {"sqlite": SqliteDesk, "postgres": PostgresDesk}


def with_libraries(*stores: str, only: Collection[str] | None = None) -> pytest.MarkDecorator:
    """Have a test run with a desk for each library of these stores, or for some of them."""
    cases = [
        pytest.param((store, library), id=f"{store}-{library}")
        for store in stores
        for library in DESKS[store].libraries
        if only is None or library in only
    ]
    return pytest.mark.parametrize("desk", cases, indirect=True)
