"""A webhook forwarder: one event goes to many endpoints, some of them slow or dead.

`publish` enqueues one delivery per endpoint and a summary, in one transaction
with a row that says so; an event that is sent twice goes out once. Each delivery
retries on its own: "503, come back in a second" is heeded, "410 gone" is a dead
letter at once, a refused connection after four attempts. Who is well does not
wait for them. The summary snoozes until every delivery has ended, either way.

A delivery may reach an endpoint twice, so it carries its job's id.

Once the engine has joins, the summary waits by itself, without a look every 200 ms.
"""

import asyncio
import logging
import socket
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar
from urllib.request import ProxyHandler, Request, build_opener

from fairlead import (
    Fairlead,
    JobDetails,
    Permanent,
    Queue,
    Retry,
    Snooze,
    State,
    current_job,
    exponential,
)

EVENTS = ["order-1", "order-2", "order-3", "order-2"]  # One of them is sent twice.
FAST = ("fast-1", "fast-2", "fast-3")
HEALTHY = (*FAST, "slow", "busy")
BROKEN = ("gone", "dead")
SLOW_SECONDS = 2.0

FOLDER = tempfile.TemporaryDirectory(prefix="fairlead-")
FILE = f"{FOLDER.name}/jobs.db"
app = Fairlead(f"sqlite:///{FILE}", queues=[Queue("events", weight=4), Queue("deliveries")])
http = build_opener(ProxyHandler({}))  # The endpoints are on this machine.


@dataclass
class Fate:
    """How one delivery ended."""

    state: State
    reason: str | None
    attempts: int
    seconds: float
    error: str | None


Summary = dict[str, Fate]
"""What became of an event, by endpoint."""


@app.task(queue="events")
def publish(event: str, endpoints: dict[str, str]) -> str:
    """Fan an event out, once; returns the id of its summary."""
    with closing(sqlite3.connect(FILE, timeout=30)) as database, database:
        database.execute("BEGIN IMMEDIATE")
        known = database.execute("SELECT summary FROM events WHERE name = ?", (event,)).fetchone()
        if known is not None:
            return str(known[0])
        calls = {name: deliver.call(event, url) for name, url in endpoints.items()}
        app.enqueue_many(calls.values(), connection=database)
        ids = {name: str(call.id) for name, call in calls.items()}
        summary = summarise.using(connection=database).enqueue(event, ids)
        database.execute("INSERT INTO events VALUES (?, ?)", (event, summary.id))
        return summary.id


@app.task(
    queue="deliveries",
    retry=Retry(attempts=4, backoff=exponential(base=0.3)),
    effects="external",
    idempotent=True,  # The receiver knows a repeated delivery by its id.
)
def deliver(event: str, url: str) -> None:
    """Send an event to one endpoint; the status in what is raised says whether to try again."""
    if not url.startswith(("http://", "https://")):
        raise Permanent("urllib would open files, too")
    headers = {"Webhook-Id": current_job().id}
    request = Request(url, data=event.encode(), headers=headers)  # noqa: S310 (looked at above)
    with http.open(request, timeout=10):
        pass


@app.task(queue="events")
async def summarise(event: str, deliveries: dict[str, str]) -> Summary:
    """Say how every delivery has ended; until then, come back later and keep no slot."""
    records = {name: await app.job(job_id).arecord() for name, job_id in deliveries.items()}
    if not all(record.state.final for record in records.values()):
        raise Snooze(0.2)
    return {name: fate_of(record) for name, record in records.items()}


def fate_of(record: JobDetails) -> Fate:
    """Read what the store knows of a delivery."""
    ended_at = record.finished_at or record.enqueued_at
    seconds = (ended_at - record.enqueued_at).total_seconds()
    error = record.errors[-1].message if record.errors else None
    return Fate(record.state, record.reason, record.attempt, seconds, error)


class Endpoints(BaseHTTPRequestHandler):
    """Plays the receivers: the path says which one it is."""

    tries: ClassVar[Counter[str]] = Counter()
    received: ClassVar[set[tuple[str, str, str]]] = set()

    def do_POST(self) -> None:
        """Answer as the endpoint of this path would."""
        name, job_id = self.path.strip("/"), self.headers["Webhook-Id"]
        event = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.tries[job_id] += 1
        if name == "gone":
            self.send_response(410)
        elif name == "busy" and self.tries[job_id] == 1:
            self.send_response(503)
            self.send_header("Retry-After", "1")
        else:
            time.sleep(SLOW_SECONDS if name == "slow" else 0)
            self.received.add((name, event, job_id))  # Twice the same is once.
            self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing; the program reports."""


class Server(ThreadingHTTPServer):
    """A server for many at once: who is not accepted into the line comes again after a second."""

    request_queue_size = 100


@contextmanager
def receivers() -> Iterator[dict[str, str]]:
    """Serve all endpoints on this machine; yields their addresses."""
    with Server(("127.0.0.1", 0), Endpoints) as server, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # A port that is taken, and on which nobody listens.
        Thread(target=server.serve_forever, daemon=True).start()
        ports = dict.fromkeys((*HEALTHY, *BROKEN), server.server_port)
        ports["dead"] = nobody.getsockname()[1]
        yield {name: f"http://127.0.0.1:{port}/{name}" for name, port in ports.items()}
        server.shutdown()


async def main() -> None:
    """Forward a few events, and report from their summaries."""
    async with app:
        with closing(sqlite3.connect(FILE)) as database:
            database.execute("CREATE TABLE events (name TEXT PRIMARY KEY, summary TEXT NOT NULL)")
        with receivers() as endpoints:
            async with app.worker(slots=12):
                jobs = [await publish.aenqueue(event, endpoints) for event in EVENTS]
                ids = {await job.aresult(timeout=30) for job in jobs}
                summaries = [await app.job(each).aresult(timeout=30) for each in ids]
    report(summaries)


def report(summaries: list[Summary]) -> None:
    """Print how each endpoint fared, and refuse to call it right if it is not."""
    print(f"{len(EVENTS)} calls of publish made {len(summaries)} events; what became of them:")
    for name in (*HEALTHY, *BROKEN):
        print(f"  {name:7} {told([summary[name] for summary in summaries])}")
    for summary in summaries:
        check(summary)
    quick = max(summary[name].seconds for summary in summaries for name in FAST)
    if quick >= min(summary["slow"].seconds for summary in summaries):
        sys.exit("WRONG: a slow endpoint has held the fast ones up")
    received = Counter((name, event) for name, event, _ in Endpoints.received)
    if received != {(name, event): 1 for name in HEALTHY for event in set(EVENTS)}:
        sys.exit(f"WRONG: every healthy endpoint should have each event once, not {received}")
    if len(summaries) != len(set(EVENTS)):
        sys.exit("WRONG: every event should have one summary, however often it is sent")
    print("Right: the living got every event once, the rest are dead letters with a reason.")


def told(fates: list[Fate]) -> str:
    """Say in a line what became of the deliveries to one endpoint."""
    done = sum(fate.state is State.DONE for fate in fates)
    last = max(fates, key=lambda fate: fate.seconds)
    why = f" ({last.error})" if last.error else ""
    dead = len(fates) - done
    return f"{done} delivered, {dead} dead, attempts: {last.attempts}, {last.seconds:.2f} s{why}"


def check(summary: Summary) -> None:
    """Compare what became of one event with what should have."""
    if any(summary[name].state is not State.DONE for name in HEALTHY):
        sys.exit(f"WRONG: every healthy endpoint should have been served: {summary}")
    ends = {name: (summary[name].state, summary[name].reason) for name in BROKEN}
    if ends != {"gone": (State.DEAD, "permanent"), "dead": (State.DEAD, "exhausted")}:
        sys.exit(f"WRONG: the broken endpoints ended as {ends}")
    if summary["busy"].seconds < 1:
        sys.exit("WRONG: the busy endpoint had asked for a pause of a second")


if __name__ == "__main__":
    logging.getLogger("fairlead").setLevel(logging.CRITICAL)  # The report tells of all failures.
    with FOLDER:
        asyncio.run(main())
