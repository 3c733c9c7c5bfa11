"""A counter aggregator: many tiny events, each a job, folded into sums.

A job is delivered at least once, so `total += n` counts some events twice, and
a sum kept in memory is lost with its process. Here the sums are rows in the file
that holds the jobs, and one transaction writes both the sum and the id of the
job that was added. A job that comes again finds its id there and adds nothing.

To show it, one event in ten fails just after its commit, so it is run again.

Once the engine has batch handlers, one transaction folds a whole batch.
"""

import asyncio
import logging
import random
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing

from fairlead import Fairlead, Queue, Retry, current_job, fixed

EVENTS = 600
FAILS_EVERY = 10
PAGES = ("home", "docs", "pricing", "blog")
TABLES = """
CREATE TABLE sums (page TEXT PRIMARY KEY, views INTEGER NOT NULL);
CREATE TABLE folded (job_id TEXT PRIMARY KEY) WITHOUT ROWID;
"""

Event = tuple[str, int, int]
"""A page, how often it was seen, and the event's number."""

FOLDER = tempfile.TemporaryDirectory(prefix="fairlead-")
FILE = f"{FOLDER.name}/jobs.db"
app = Fairlead(f"sqlite:///{FILE}", queues=[Queue("views")])


@app.task(queue="views", retry=Retry(backoff=fixed(0.1)))
def add(page: str, views: int, number: int) -> None:
    """Add one event to the sum of its page, once, however often the job is run."""
    fold(current_job().id, page, views)
    if number % FAILS_EVERY == 0 and current_job().attempt == 1:
        raise ConnectionError("lost the line, after the commit")


def fold(job_id: str, page: str, views: int) -> None:
    """Write the sum and the job's id in one transaction, unless the id is there already."""
    with closing(sqlite3.connect(FILE, timeout=30)) as database, database:
        seen = "INSERT INTO folded VALUES (?) ON CONFLICT DO NOTHING"
        if database.execute(seen, (job_id,)).rowcount:
            database.execute(
                "INSERT INTO sums VALUES (?, ?) ON CONFLICT (page) DO UPDATE SET views = views + ?",
                (page, views, views),
            )


def read_sums() -> Counter[str]:
    """Return the sums as they stand in the file."""
    with closing(sqlite3.connect(FILE)) as database:
        return Counter(dict(database.execute("SELECT page, views FROM sums")))


async def main() -> None:
    """Enqueue the events, let them be folded, and compare."""
    events = [(random.choice(PAGES), random.randint(1, 5), n) for n in range(EVENTS)]
    begun = time.perf_counter()
    async with app:
        with closing(sqlite3.connect(FILE)) as database:
            database.executescript(TABLES)
        calls = [add.call(*event) for event in events]
        await app.aenqueue_many(calls)
        async with app.worker(slots=4):
            attempts = [await attempts_of(call.id) for call in calls]
    report(events, attempts, time.perf_counter() - begun)


async def attempts_of(job_id: str) -> int:
    """Wait for a job to be done, and say how often it was run."""
    job = app.job(job_id)
    await job.aresult(timeout=30)
    return (await job.arecord()).attempt


def report(events: list[Event], attempts: list[int], seconds: float) -> None:
    """Print the sums, and refuse to call them right if they are not."""
    sums, truth, naive = read_sums(), Counter[str](), Counter[str]()
    for (page, views, _), runs in zip(events, attempts, strict=True):
        truth[page] += views
        naive[page] += views * runs
    again = sum(attempts) - EVENTS
    print(f"{EVENTS} events folded in {seconds:.1f} s, {EVENTS / seconds:,.0f} a second")
    print(f"{again} of them were run twice")
    for page in PAGES:
        print(f"  {page:8}{sums[page]:4} views; `total += n` would say {naive[page]}")
    if again != EVENTS // FAILS_EVERY:
        sys.exit(f"WRONG: {EVENTS // FAILS_EVERY} events should have been run twice")
    if sums != truth:
        sys.exit(f"WRONG: the sums should be {dict(truth)}")
    print(f"Right: {sums.total():,} views, no event lost and none counted twice.")


if __name__ == "__main__":
    logging.getLogger("fairlead").setLevel(logging.ERROR)  # The retries are on purpose.
    with FOLDER:
        asyncio.run(main())
