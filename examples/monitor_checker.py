"""A monitor checker: a few thousand tiny checks a minute, one consumer, one queue.

At every tick the program enqueues one check per service, and a worker with a
single slot does them one after the other. As no two checks ever run at the same
time, what was last seen is a plain dict: no lock, no table. A check that is
delivered twice compares twice and alerts once.

The checks are real, if small: a service says "ok" or "failing" in a file of its
own. While the program runs, `billing` fails and recovers, and `search` fails.

Once the engine has cron, the loop in `main` becomes a schedule.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from fairlead import Fairlead, Queue, current_job

ROUNDS = 8
TICK = 0.4  # Seconds; a minute in earnest.
SERVICES = ["billing", "search", *(f"shop-{n}" for n in range(38))]
OUTAGES = {"billing": range(2, 5), "search": range(4, ROUNDS)}
EXPECTED = ["round 2: billing is failing", "round 4: search is failing", "round 5: billing is ok"]


class Run(NamedTuple):
    """One check that was done, in seconds."""

    begun: float
    ended: float
    waited: float


FOLDER = tempfile.TemporaryDirectory(prefix="fairlead-")
app = Fairlead(f"sqlite:///{FOLDER.name}/jobs.db", queues=[Queue("checks")])

last_seen: dict[str, str] = dict.fromkeys(SERVICES, "ok")
alerts: list[str] = []
runs: list[Run] = []


@app.task(queue="checks")
def check(service: str, number: int) -> str:
    """Look at one service, and alert if its state has changed."""
    begun = time.perf_counter()
    waited = datetime.now(UTC) - current_job().enqueued_at
    state = Path(FOLDER.name, service).read_text()
    if state != last_seen[service]:
        alert(f"round {number}: {service} is {state}")
    last_seen[service] = state
    runs.append(Run(begun, time.perf_counter(), waited.total_seconds()))
    return state


def alert(text: str) -> None:
    """Tell a person; here, print it."""
    alerts.append(text)
    print(f"  ALERT {text}")


def let_the_world_turn(number: int) -> None:
    """Play the services: each writes down how it is in this round."""
    for service in SERVICES:
        failing = number in OUTAGES.get(service, ())
        Path(FOLDER.name, service).write_text("failing" if failing else "ok")


async def do_round(number: int) -> None:
    """Enqueue one check per service, in one batch, and see them done."""
    calls = [check.call(service, number) for service in SERVICES]
    await app.aenqueue_many(calls)
    for call in calls:
        await app.job(call.id).aresult(timeout=30)


async def main() -> None:
    """Do a round per tick, then report."""
    print(f"{len(SERVICES)} services, {ROUNDS} rounds, one consumer")
    late = 0
    begun = time.perf_counter()
    async with app, app.worker(slots=1):
        for number in range(ROUNDS):
            let_the_world_turn(number)
            await do_round(number)
            left = begun + (number + 1) * TICK - time.perf_counter()
            late += left < 0
            await asyncio.sleep(max(0.0, left))
    report(time.perf_counter() - begun, late)


def report(seconds: float, late: int) -> None:
    """Print what happened, and refuse to call it right if it is not."""
    took = statistics.median(run.ended - run.begun for run in runs)
    waits = [run.waited for run in runs]
    print(
        f"{len(runs)} checks in {seconds:.1f} s, that is {len(runs) / seconds * 60:,.0f} a minute"
    )
    print(f"a check took {took * 1000:.2f} ms at the median")
    print(f"it waited {statistics.median(waits) * 1000:.0f} ms, {max(waits) * 1000:.0f} at most")
    print(f"{late} of {ROUNDS} rounds were late, {len(alerts)} alerts")
    if len(runs) != ROUNDS * len(SERVICES):
        sys.exit(f"WRONG: {ROUNDS * len(SERVICES)} checks should have run")
    if any(later.begun < earlier.ended for earlier, later in pairwise(sorted(runs))):
        sys.exit("WRONG: two checks ran at the same time")
    if alerts != EXPECTED:
        sys.exit(f"WRONG: the alerts should have been {EXPECTED}")
    print("Right: every check ran once, one at a time, and each change was told once.")


if __name__ == "__main__":
    with FOLDER:
        asyncio.run(main())
