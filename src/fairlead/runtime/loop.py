"""Which event loop a worker's processes run on."""

import asyncio
import importlib.util
import time
from collections.abc import Callable

from fairlead.core.errors import MissingExtra


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return how to make a loop: `uvloop`, `asyncio`, or with `auto` the quicker one here."""
    here = importlib.util.find_spec("uvloop") is not None
    if name == "uvloop" and not here:
        raise MissingExtra("fast", "--loop uvloop")
    return _uvloop if here and name != "asyncio" else asyncio.new_event_loop


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop  # noqa: PLC0415 (only where it is installed and wanted)

    class Loop(uvloop.Loop):
        """Tells the time that all processes of a machine share, and fresh in every thread."""

        def time(self) -> float:
            return time.monotonic()

    return Loop()
