"""An app that other processes can import, with tasks that behave well and badly."""

import asyncio
import os
import signal
import threading
from pathlib import Path

from fairlead import Fairlead, Permanent, Pool, Queue, Retry, current_job
from fairlead.core.retry import fixed

app = Fairlead(
    "memory://",
    queues=[Queue("heavy")],
    pools=[Pool("heavy", queues=["heavy"], slots=2, runner="process"), Pool("light")],
)
ONCE = Retry(attempts=1, backoff=fixed(0, jitter=0))


@app.task(name="pid", queue="heavy")
def pid() -> int:
    return os.getpid()


@app.task(name="async-pid", queue="heavy")
async def async_pid() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@app.task(name="refuse", queue="heavy", retry=ONCE)
def refuse() -> None:
    raise Permanent("no")


@app.task(name="die", queue="heavy", retry=ONCE, crash_limit=1)
def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task(name="wait-for", queue="heavy", retry=ONCE)
def wait_for(file: str) -> int:
    """Say that we run, and wait until the other file is there."""
    Path(f"{file}.started").write_text(str(os.getpid()))
    while not Path(file).exists():
        threading.Event().wait(0.005)
    return os.getpid()


@app.task(name="block-hard", queue="heavy", retry=ONCE, timeout=0.3)
def block_hard() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait(60)


@app.task(name="who", queue="heavy")
def who() -> list[str]:
    job = current_job()
    return [job.id, job.task, job.queue, str(job.attempt)]


@app.task(name="light-pid")
async def light_pid() -> int:
    return os.getpid()


@app.task(name="fork-and-die", queue="heavy", retry=ONCE)
def fork_and_die() -> None:
    """Leave something behind that holds whatever this process had open."""
    if os.fork() == 0:
        threading.Event().wait(30)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
