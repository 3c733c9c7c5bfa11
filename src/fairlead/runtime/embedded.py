"""A worker inside another program: the same stations, without a supervisor."""

import asyncio
import os
import threading
from contextlib import suppress
from typing import Self

from fairlead.core.errors import ConfigError, SchemaOutdated, StoreGone
from fairlead.core.events import LoopBlocked, Trouble
from fairlead.runtime.board import Board
from fairlead.runtime.contact import no_longer_served
from fairlead.runtime.keeper import Keeper, News
from fairlead.runtime.names import worker_name
from fairlead.runtime.stacks import line_of
from fairlead.runtime.worker import Worker
from fairlead.runtime.workshop import Workshop

_LOOK_SECONDS = 1.0
"""How often it looks whether the store is still there."""


class EmbeddedWorker:
    """Runs jobs as long as its `async with` block lasts."""

    def __init__(self, workshop: Workshop, target: str | None) -> None:
        if target is None and any(pool.runner == "process" for pool in workshop.pools):
            raise ConfigError(
                "a pool with runner='process' needs an app that other processes can import: "
                "make it a global of a module, not of a script or a function"
            )
        self._workshop = workshop
        self._target = target
        self.name = worker_name()
        self._board = Board.private(workshop.places)
        self._worker: Worker | None = None
        self._working: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper_loop: asyncio.AbstractEventLoop | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._left = False
        self._thread_id = 0
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        """Announce the worker, and begin."""
        await self._workshop.store.open()
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        boards = {self.name: self._board}
        keeper = Keeper(self._workshop, self.name, lambda: boards, self._tell, self._tell_blocked)
        await keeper.begin()
        self._worker = Worker(
            *(self._workshop, self.name, self._board, self._target),
            tell_outdated=self._tell_outdated,
        )
        self._working = asyncio.create_task(self._work(self._worker))
        self._working.add_done_callback(self._on_end)
        self._keeper_loop = keeper_loop = asyncio.new_event_loop()
        # Not in this loop: a handler that blocks it must not cost the others their leases.
        self._thread = threading.Thread(
            target=self._keep, args=(keeper, keeper_loop), name="fairlead-keeper", daemon=True
        )
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let running jobs finish within the grace time, and give the rest back.

        Raises `SchemaOutdated` if the worker had to end because the store's schema is too new.
        """
        assert self._worker is not None
        assert self._working is not None
        assert self._thread is not None
        self._worker.stop(self._workshop.terms.grace)
        try:
            await self._working
        finally:
            await asyncio.to_thread(self._thread.join)

    async def _work(self, worker: Worker) -> None:
        """Let the stations work until they are stopped, or until the store is gone for good."""
        working = asyncio.ensure_future(worker.run())
        try:
            while not working.done():
                self._workshop.store.check_there()
                await asyncio.wait([working], timeout=_LOOK_SECONDS)
        except BaseException:
            working.cancel()
            raise
        await working
        if self._workshop.served.problem is not None:
            raise self._workshop.served.problem

    def _on_end(self, working: asyncio.Task[None]) -> None:
        """When the stations end, by order or by a fault, renew leases no more."""
        problem = None if working.cancelled() else working.exception()
        if problem is not None and not isinstance(problem, SchemaOutdated):
            told = f"{problem!r}; its jobs run again when their leases pass"
            if isinstance(problem, StoreGone):
                told = str(problem)
            self._workshop.events.emit(Trouble(self.name, f"the worker has ended: {told}"))
        with suppress(RuntimeError):  # The keeper has ended already.
            if self._keeper_loop is not None:
                self._keeper_loop.call_soon_threadsafe(self._stop_keeping)

    def _tell(self, _worker: str, news: News) -> None:
        assert self._loop is not None
        assert self._worker is not None
        with suppress(RuntimeError):  # The program's loop is closed: nobody is left to tell.
            self._loop.call_soon_threadsafe(self._worker.lost, news.lost)
            self._loop.call_soon_threadsafe(self._worker.cancel, news.cancelled)

    def _tell_outdated(self, problem: SchemaOutdated) -> None:
        self._workshop.events.emit(Trouble(self.name, no_longer_served(problem)))

    def _tell_blocked(self, _worker: str, returned: int) -> None:
        """Tell who blocks the program's loop; called in the keeper's thread."""
        seconds = self._board.still
        where = line_of(self._thread_id) if seconds else None
        told = LoopBlocked(self.name, os.getpid(), seconds, where, returned)
        self._workshop.events.emit(told)

    def _keep(self, keeper: Keeper, loop: asyncio.AbstractEventLoop) -> None:
        async def keep() -> None:
            self._keeping = asyncio.current_task()
            with suppress(asyncio.CancelledError):
                if not self._left:  # The thread may come to life only when all is over.
                    await keeper.run()
            await keeper.leave()

        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(keep())

    def _stop_keeping(self) -> None:
        self._left = True
        if self._keeping is not None:
            self._keeping.cancel()
