"""A PDF service: someone waits for `pdf-sync`, nobody waits for `pdf-batch`.

The same flood of batch documents comes twice, and while it lasts, some people ask
for one document each. First everything shares one queue, and the people stand in
line behind the flood. Then the same slots are split into two pools, so that one
of them is always there for people. No code differs, only queues and pools.

What a document costs is a `sleep` here, as if another program were called. To
render in processes that can be killed, give the pools `runner="process"`, make
the app a global of a module, and run it with `fairlead worker`.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from fairlead import BoundTask, Call, Fairlead, Pool, Queue, current_job

FLOOD = 150
PEOPLE = 8
RENDER_SECONDS = 0.05
PAUSE_SECONDS = 0.1  # Between one person and the next.


def render(document: str) -> float:
    """Make a PDF, and return how long the job had waited for its start."""
    waited = datetime.now(UTC) - current_job().enqueued_at
    time.sleep(RENDER_SECONDS)
    return waited.total_seconds()


def with_one_queue(folder: str) -> tuple[Fairlead, str, str]:
    """Return an app of 4 slots that all documents share, and the queues to use."""
    pools = [Pool("pdf", queues=["pdf"], slots=4)]
    app = Fairlead(f"sqlite:///{folder}/shared.db", queues=[Queue("pdf")], pools=pools)
    return app, "pdf", "pdf"


def with_two_pools(folder: str) -> tuple[Fairlead, str, str]:
    """Return an app of 4 slots, one of them kept for people, and the queues to use."""
    queues = [Queue("pdf-sync"), Queue("pdf-batch")]
    pools = [
        Pool("pdf-sync", queues=["pdf-sync"], slots=1),
        Pool("pdf-batch", queues=["pdf-batch"], slots=3),
    ]
    app = Fairlead(f"sqlite:///{folder}/split.db", queues=queues, pools=pools)
    return app, "pdf-sync", "pdf-batch"


@dataclass
class Waits:
    """How long the people waited for a start, and the flood until its end, in seconds."""

    people: list[float]
    flood: float

    def __str__(self) -> str:
        """Tell it in a line."""
        return (
            f"people waited {statistics.median(self.people) * 1000:5.0f} ms at the median, "
            f"{max(self.people) * 1000:5.0f} at most; the flood took {self.flood:.1f} s"
        )


async def serve(app: Fairlead, for_people: str, for_flood: str) -> Waits:
    """Let the flood and the people come, and serve both to the end."""
    task = app.task(name="render", queue=for_people)(render)
    batch = [task.using(queue=for_flood).call(f"invoice-{n}") for n in range(FLOOD)]
    async with app, app.worker():
        begun = time.perf_counter()
        await app.aenqueue_many(batch)
        people = await asyncio.gather(*(ask(task, n) for n in range(PEOPLE)))
        await finished(app, batch)
        return Waits(people, time.perf_counter() - begun)


async def ask(task: BoundTask[[str], float], number: int) -> float:
    """Be a person: come at your time, ask for a document, wait for it."""
    await asyncio.sleep(number * PAUSE_SECONDS)
    job = await task.aenqueue(f"letter-{number}")
    return await job.aresult(timeout=30)


async def finished(app: Fairlead, calls: list[Call[float]]) -> None:
    """Wait until every document is there."""
    for call in calls:
        await app.job(call.id).aresult(timeout=30)


async def main() -> None:
    """Serve the same documents in both ways, and compare."""
    print(f"{FLOOD} batch documents at once, then {PEOPLE} people; 4 slots")
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        shared = await serve(*with_one_queue(folder))
        print(f"  one queue: {shared}")
        split = await serve(*with_two_pools(folder))
        print(f"  two pools: {split}")
    ratio = statistics.median(shared.people) / statistics.median(split.people)
    print(f"with two pools people wait {ratio:.0f} times less")
    if ratio < 4 or max(split.people) >= max(shared.people):
        sys.exit("WRONG: with a pool of their own, people should wait much less")
    print("Right: the flood does not delay those who wait, and was done all the same.")


if __name__ == "__main__":
    asyncio.run(main())
