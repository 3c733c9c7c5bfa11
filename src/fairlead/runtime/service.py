"""What runs beside the line: services, each a step that is done again and again.

A step returns the seconds until the next one. Each service has a task of its own, so none delays
another, and none delays the heartbeat. A step that raises is told, and tried again after pauses
that grow; so is one that is over its time, after it was cancelled. An outage of the store is not
told here: the heartbeat tells it.

The heartbeat and the revocations of `keeper.py` are no services. They may never pause: leases
depend on the one, and the other measures time by how often it is called.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from fairlead.runtime.contact import Troubles, is_outage, said
from fairlead.runtime.workshop import Workshop

SHORTEST_SECONDS, LONGEST_SECONDS = 0.05, 3600.0
"""Between two steps, whatever a step says: none fills its process, and none sleeps for ever."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
"""Between tries of a step that fails."""
_HEED_SECONDS = 1.0
"""What a step that was cancelled gets to come to its end."""


class Service(msgspec.Struct, frozen=True):
    """Something to do beside the line, again and again.

    `duty` says what, as in "it could not …". A step that takes longer than `limit` seconds is
    cancelled. A worker that drains runs only services with `in_drain`.
    """

    duty: str
    step: Callable[[], Awaitable[float]]
    limit: float = 60.0
    in_drain: bool = False


class Services:
    """Runs the services of one worker."""

    def __init__(self, workshop: Workshop, worker: str, services: Sequence[Service]) -> None:
        self._random = workshop.random
        self._served = workshop.served
        self._services = [each for each in services if each.in_drain or not workshop.terms.drain]
        self._troubles = Troubles(worker, workshop.events)

    async def run(self) -> None:
        """Do the steps of all, for ever. Who is cancelled returns when no step runs any more."""
        async with asyncio.TaskGroup() as serving:
            for service in self._services:
                serving.create_task(self._serve(service))
            await asyncio.Event().wait()  # Also with no service at all.

    async def _serve(self, service: Service) -> None:
        failures = 0
        while True:
            try:
                pause = _pause(await self._step(service))
                failures = 0
            except Exception as problem:  # noqa: BLE001 (around a service's step)
                if not self._served.note(problem) and not is_outage(problem):
                    told = f"it could not {service.duty}: {said(problem)}"
                    self._troubles.tell(f"{told}; it goes on trying")
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**failures)
                pause *= self._random.uniform(0.5, 1.0)
                failures = min(failures + 1, 16)
            await asyncio.sleep(pause)

    async def _step(self, service: Service) -> float:
        """Do one step, in a task of its own: however that ends, the service goes on."""
        step = asyncio.ensure_future(service.step())
        try:
            await asyncio.wait([step], timeout=service.limit)
            if not step.done():
                await self._end(service, step)
                raise TimeoutError(f"it took more than {service.limit:g} s")
        except asyncio.CancelledError:
            await _cancelled(step)
            raise
        if step.cancelled():
            raise RuntimeError("it was cancelled, and not by us")
        return step.result()

    async def _end(self, service: Service, step: asyncio.Future[float]) -> None:
        """Cancel a step, and wait for its end, however long: two of a service never run at once."""
        if not await _cancelled(step):
            told = f"it took more than {service.limit:g} s to {service.duty}"
            self._troubles.tell(f"{told}, and that does not heed its end; the other services go on")
            await asyncio.wait([step])


async def _cancelled(step: asyncio.Future[float]) -> bool:
    """Cancel a step, and say whether it ended soon; how it did does not matter any more."""
    step.add_done_callback(lambda done: done.cancelled() or done.exception())
    step.cancel()
    await asyncio.wait([step], timeout=_HEED_SECONDS)
    return step.done()


def _pause(answer: float) -> float:
    """Return the seconds until the next step, within bounds; raises if that is no such number."""
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not answer >= 0:
        raise ValueError(f"its step returned {answer!r:.100}, not the seconds until the next")
    return min(max(answer, SHORTEST_SECONDS), LONGEST_SECONDS)
