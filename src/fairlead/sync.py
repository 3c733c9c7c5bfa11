"""Blocking calls from synchronous code, over one background event loop.

Enqueueing does not come this way: a put runs on a synchronous connection in the
caller's thread. What waits or looks (results, status, cancel) is written once,
async, and bridged here.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from fairlead.core.errors import ConfigError, StoreError

Value = TypeVar("Value")


class Bridge:
    """A loop in a thread of its own, started at first use and again in a forked child."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        _bridges.add(self)

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Run a coroutine there and wait for its value here."""
        # Under the lock, so that close() either sees this work or comes before it.
        with self._starting:
            future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except CancelledError:
            raise StoreError("the app was closed while this call waited; open it again") from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and its thread; whoever still waits is told so."""
        with self._starting:
            loop, self._loop = self._loop, None
            if loop is not None and self._thread is not None:
                loop.call_soon_threadsafe(loop.stop)
                self._thread.join()

    def forget_after_fork(self) -> None:
        """In a forked child: the loop's thread did not come along."""
        self._loop = None
        self._starting = threading.Lock()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_serve, args=(self._loop,), name="fairlead-sync", daemon=True
            )
            self._thread.start()
        return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def refuse_to_block(instead: str) -> None:
    """Raise if this thread runs an event loop, which a blocking wait would freeze."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigError(
        f"this call waits, and would freeze the event loop of this thread; use `{instead}`"
    )


_bridges: weakref.WeakSet[Bridge] = weakref.WeakSet()


def _forget_all() -> None:
    for bridge in list(_bridges):
        bridge.forget_after_fork()


os.register_at_fork(after_in_child=_forget_all)
