"""The app whose jobs the benchmark's workers run; in processes of their own, so by import."""

import asyncio
import os
import time

from fairlead.app import Fairlead
from fairlead.core.queue import Pool, Queue

RUNNER = os.environ.get("FAIRLEAD_BENCH_RUNNER", "async")
QUEUES = int(os.environ.get("FAIRLEAD_BENCH_QUEUES", "0"))
"""How many queues there are beside the default one."""

app = Fairlead(
    pools=[Pool("default", runner=RUNNER)],
    queues=[Queue(f"q{number}") for number in range(QUEUES)],
)


async def _on_the_loop(user_id: int, address: str, subject: str) -> None:
    """Do nothing, as a coroutine."""


def _in_a_thread(user_id: int, address: str, subject: str) -> None:
    """Do nothing, as a plain function."""


notify = app.task(name="notify")(_on_the_loop if RUNNER == "async" else _in_a_thread)

if RUNNER == "async":

    @app.task(name="stamp")
    async def stamp() -> int:
        """Tell when the handler runs, in nanoseconds."""
        return time.time_ns()

    @app.task(name="block")
    async def block(seconds: float) -> int:
        """Keep the event loop from turning; tell when that began, in nanoseconds."""
        began = time.time_ns()
        time.sleep(seconds)  # noqa: ASYNC251 (that is what is measured)
        return began

    @app.task(name="linger")
    async def linger(seconds: float) -> int:
        """Run for a while; tell when that began, in nanoseconds."""
        began = time.time_ns()
        await asyncio.sleep(seconds)
        return began
