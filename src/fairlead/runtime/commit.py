"""A handler's transaction: its own rows, its job's end and the jobs that follow, or nothing at all.

The job's end is the last statement of the block, under the job's fence: a run
that came too late takes its rows with it. Inside the block the app's enqueues
join the transaction; whatever else would ask the store is refused, for it would
see another state than the block does, or wait for it in vain.
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from enum import Enum
from types import TracebackType
from typing import Any

from fairlead.core.errors import Cancel, ConfigError, LeaseLost
from fairlead.core.job import State
from fairlead.core.outcome import Settlement
from fairlead.core.store import Store

ONCE = (
    "a run has one block of job.commit(), for it ends the job; put everything that belongs "
    "together into that block, or enqueue a job for the rest"
)


class Fate(Enum):
    """What is known here of the transaction."""

    NOTHING_WRITTEN = "nothing written"
    WRITTEN = "written"
    COMMITTED = "committed"


class Commit:
    """One block of `job.commit()`: use it with `with`, or `async with`.

    `fate` is `WRITTEN` from the moment the job's end is in the transaction; it
    stays so if the transaction is the caller's, or if its commit was not
    answered, and then only the store can tell.
    """

    def __init__(self, store: Store, settlement: Settlement, connection: Any) -> None:  # noqa: ANN401
        self.store = store
        self.settlement = settlement
        self.fate = Fate.NOTHING_WRITTEN
        self.connection: Any = None
        """The one to use now; None outside the block."""
        self._given = connection
        self._block: Any = None

    def __enter__(self) -> Any:  # noqa: ANN401 (whatever the store's driver has)
        """Begin, from a plain function; returns the connection."""
        self._begin(self._blocking())
        return self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the job's end, and commit if the connection is our own."""
        self._block.__exit__(kind, error, trace)

    async def __aenter__(self) -> Any:  # noqa: ANN401 (whatever the store's driver has)
        """Begin, from a coroutine; returns the connection."""
        self._begin(self._async())
        return await self._block.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write the job's end, and commit if the connection is our own."""
        await self._block.__aexit__(kind, error, trace)

    def _begin(self, block: object) -> None:
        if self._block is not None:
            raise ConfigError(ONCE)
        self._block = block

    @contextmanager
    def _blocking(self) -> Iterator[Any]:
        if self._given is None:
            _refuse_on_a_loop()
            transaction: AbstractContextManager[Any] = self.store.transaction()
        else:
            self.store.put_within(self._given, []).run()
            transaction = nullcontext(self._given)
        with transaction as connection:
            with self._joined(connection):
                yield connection
            self._heed(self.store.complete_within(connection, self.settlement).run())
        self._left()

    @asynccontextmanager
    async def _async(self) -> AsyncIterator[Any]:
        if self._given is None:
            transaction: AbstractAsyncContextManager[Any] = self.store.atransaction()
        else:
            await self.store.put_within(self._given, []).arun()
            transaction = nullcontext(self._given)
        async with transaction as connection:
            with self._joined(connection):
                yield connection
            self._heed(await self.store.complete_within(connection, self.settlement).arun())
        self._left()

    @contextmanager
    def _joined(self, connection: Any) -> Iterator[None]:  # noqa: ANN401
        # Tasks that outlive the block keep the variable; then `connection` is None again.
        self.connection = connection
        _inside.set(self)
        try:
            yield
        finally:
            self.connection = None

    def _heed(self, ruled: Settlement | None) -> None:
        if ruled is None:
            raise LeaseLost(self.settlement.id)
        if ruled.state is not State.DONE:
            raise Cancel(ruled.reason or "cancelled")
        self.fate = Fate.WRITTEN

    def _left(self) -> None:
        if self._given is None:
            self.fate = Fate.COMMITTED


_inside: contextvars.ContextVar[Commit | None] = contextvars.ContextVar(
    "fairlead_commit", default=None
)


def joined(store: Store) -> Any:  # noqa: ANN401 (whatever the store's driver has)
    """Return the connection of the block this code is in, if its transaction is this store's."""
    commit = _inside.get()
    return commit.connection if commit is not None and commit.store is store else None


def apart(store: Store) -> Store:
    """Return the store for a call of its own; raise inside a block of `job.commit()`."""
    if joined(store) is not None:
        raise ConfigError(
            "inside a block of job.commit() only enqueues take part in its transaction; this call "
            "would see another state of the store, or wait for the block itself; make it before "
            "the block or after it"
        )
    return store


def _refuse_on_a_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        "`with job.commit()` would freeze the event loop while it waits for the store; "
        "write `async with job.commit() as conn:`"
    )
