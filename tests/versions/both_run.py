"""The app that programs of two versions run. It uses nothing that only one of them has.

As that of tests/system/shop.py it tells of its runs in a file of its own. As a program it enqueues
tasks, each so many times and with so many seconds, and prints the ids: `python shop.py
'{"wait": [10, 0.5]}'`.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from fairlead import Fairlead, Pool, Queue, Retry, current_job, fixed

HERE = Path(__file__).parent

app = Fairlead(
    os.environ.get("SHOP_URL") or f"sqlite:///{HERE}/jobs.db",
    queues=[Queue("loop"), Queue("thread")],
    pools=[
        Pool("loop", ["loop"], slots=5, runner="async"),
        Pool("thread", ["thread"], slots=4, runner="thread"),
    ],
)
SOON = Retry(attempts=5, backoff=fixed(0.1, jitter=0))
_file = os.open(HERE / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def tell(what: str) -> None:
    job = current_job()
    line = f"{what} {job.id} {job.fence} {job.attempt} {os.getpid()} {time.monotonic():.6f} -\n"
    os.write(_file, line.encode())


@app.task(name="wait", queue="loop", retry=SOON)
async def wait(seconds: float) -> str:
    tell("start")
    await asyncio.sleep(seconds)
    tell("end")
    return "waited"


@app.task(name="plain", queue="thread", retry=SOON)
def plain(seconds: float) -> str:
    tell("start")
    time.sleep(seconds)
    tell("end")
    return "waited"


@app.task(name="second_time", queue="loop", retry=SOON)
async def second_time(seconds: float) -> int:
    tell("start")
    if current_job().attempt == 1:
        raise ValueError("not yet")
    tell("end")
    return current_job().attempt


@app.task(name="charge", queue="loop", retry=SOON, effects="external")
async def charge(seconds: float) -> str:
    """Do what must not be done twice."""
    tell("start")
    await asyncio.sleep(seconds)
    tell("end")
    return "charged"


if __name__ == "__main__":
    tasks = {"wait": wait, "plain": plain, "second_time": second_time, "charge": charge}
    told = {}
    for name, (number, seconds) in json.loads(sys.argv[1]).items():
        calls = [tasks[name].call(seconds) for _ in range(number)]
        app.enqueue_many(calls)
        told[name] = [call.id for call in calls]
    print(json.dumps(told))
    app.close()
