"""What an app tells in events, as a list one can wait on."""

import asyncio
from contextlib import suppress
from typing import Any, TypeVar

from fairlead import Fairlead, JobFailed
from fairlead.core.events import Event, JobEvent
from fairlead.core.job import JobRecord
from fairlead.producer import JobHandle, found

Kind = TypeVar("Kind", bound=Event)


class Heard:
    """Listens to everything from now on."""

    def __init__(self, app: Fairlead) -> None:
        self.events: list[Event] = []
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()
        app.events.subscribe(self._hear)

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._bell.set)

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.events if isinstance(event, kind)]

    def story(self, job: JobHandle[Any]) -> list[str]:
        """The names of the events of one job, in order."""
        return [
            type(event).__name__
            for event in self.events
            if isinstance(event, JobEvent) and event.job_id == job.id
        ]

    async def until(self, kind: type[Kind], times: int = 1, seconds: float = 10) -> Kind:
        """Wait for the nth event of a kind."""
        async with asyncio.timeout(seconds):
            while len(self.of(kind)) < times:
                self._bell.clear()
                await self._bell.wait()
        return self.of(kind)[times - 1]


async def ended(job: JobHandle[Any], seconds: float = 10) -> JobRecord:
    """Wait for a job to end, however it does; returns its record."""
    with suppress(JobFailed):
        await job.aresult(timeout=seconds)
    return await found(job._producer.store, job.id)
