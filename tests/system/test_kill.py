"""Acknowledged jobs survive whatever kills the process (P1, F1, F2)."""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead import Fairlead
from fairlead.core.job import State
from fairlead.stores import store_for

PRODUCER = """
import asyncio, os, sys, threading
from fairlead import Fairlead

app = Fairlead(f"sqlite:///{sys.argv[1]}")
task = app.task(name="t")(lambda n: n)
app.open()

def acknowledged(job):
    os.write(1, f"{job.id}\\n".encode())

def one_by_one():
    while True:
        acknowledged(task.enqueue(1))

async def together():
    async def caller():
        while True:
            acknowledged(await task.aenqueue(1))
    await asyncio.gather(*(caller() for _ in range(20)))

threading.Thread(target=one_by_one, daemon=True).start()
asyncio.run(together())
"""

CONSUMER = """
import asyncio, os, sys
from fairlead import Fairlead
from fairlead.core.outcome import Done, Policy, decide
from fairlead.core.selection import ClaimPlan

app = Fairlead(f"sqlite:///{sys.argv[1]}")

async def consume():
    plan = ClaimPlan(f"w{os.getpid()}", tuple(app.queues.values()), 7, 300_000)
    while True:
        jobs = (await app.store.claim(plan)).jobs
        written = await app.store.settle([decide(job, Done('"x"'), Policy(), 0) for job in jobs])
        for job_id in written:
            os.write(1, f"{job_id}\\n".encode())

asyncio.run(consume())
"""


def start(script: str, path: Path, out: Path) -> subprocess.Popen[bytes]:
    with out.open("ab") as file:
        return subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=file)


def whole_lines(path: Path) -> list[str]:
    text = path.read_text()
    return text[: text.rfind("\n") + 1].split()


@pytest.mark.parametrize("seed", range(3))
def test_no_acknowledged_job_is_lost_and_none_is_settled_twice(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    path, acks, ends = tmp_path / "jobs.db", tmp_path / "acks", tmp_path / "ends"
    acks.touch()
    ends.touch()
    for _ in range(4):
        crew = [start(PRODUCER, path, acks), start(CONSUMER, path, ends)]
        before = len(whole_lines(acks))
        goal = before + choose.randrange(20, 200)
        deadline = time.monotonic() + 30
        while len(whole_lines(acks)) < goal or not whole_lines(ends):
            assert time.monotonic() < deadline, "producer or consumer make no progress"
            time.sleep(0.005)
        choose.shuffle(crew)
        for process in crew:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    store = store_for(f"sqlite:///{path}")
    acked, ended = whole_lines(acks), whole_lines(ends)

    async def look() -> tuple[list[object], dict[str, object]]:
        found = {job_id: await store.admin.find(job_id) for job_id in acked}  # type: ignore[arg-type]
        audit = await store.admin.audit()
        await store.close()
        return audit, found  # type: ignore[return-value]

    audit, found = asyncio.run(look())
    assert audit == []
    assert [job_id for job_id, record in found.items() if record is None] == []
    assert len(ended) == len(set(ended)), "a job was settled twice"
    states = {job_id: record.state for job_id, record in found.items()}  # type: ignore[attr-defined]
    assert all(states[job_id] is State.DONE for job_id in ended if job_id in states)


def test_a_writer_killed_inside_its_transaction_leaves_no_trace(tmp_path: Path) -> None:
    """Killed while it holds the write lock: the next one goes on at once (F29)."""
    path = tmp_path / "jobs.db"
    script = (
        "import os, signal, sys; from fairlead import Fairlead\n"
        "app = Fairlead(f'sqlite:///{sys.argv[1]}'); app.open()\n"
        "writer = app.store._session.writer\n"
        "writer._lock.begin(writer._connection)\n"
        "app.store._line.put(writer._connection, [app.task(name='t')(lambda: None).call().job])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == -9
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT count(*) FROM fairlead_job").fetchone() == (0,)
    raw.close()
    store = store_for(f"sqlite:///{path}?timeout=5")

    async def look() -> None:
        from tests.words import are_new, new_job

        assert are_new(await store.put([new_job()])) == [True]
        assert await store.admin.audit() == []
        await store.close()

    asyncio.run(look())


@pytest.mark.parametrize(
    "visitor",
    [
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
        "c.execute('SELECT count(*) FROM fairlead_job').fetchall(); c.close()",
        "import sys; from fairlead import Fairlead; app = Fairlead('sqlite:///' + sys.argv[1]); "
        "app.task(name='t')(lambda: None).enqueue(); app.close()",
    ],
    ids=["a look with sqlite3", "another app"],
)
def test_a_visitor_that_closes_the_file_takes_nothing_along(tmp_path: Path, visitor: str) -> None:
    """SQLite's last close removes the log; our lock must tell it that we are still here."""
    path = tmp_path / "jobs.db"
    app = Fairlead(f"sqlite:///{path}")
    task = app.task(name="t")(lambda: None)
    task.enqueue()
    app.bridge.run(app.store.admin.count())
    subprocess.run([sys.executable, "-c", visitor, str(path)], check=True)
    for _ in range(10):
        task.enqueue()
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
        "print(*c.execute('SELECT count(*) FROM fairlead_job').fetchone())"
    )
    seen = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert int(seen) == (12 if "enqueue" in visitor else 11)
    app.close()


def test_an_interrupt_stops_its_own_thread_only(tmp_path: Path) -> None:
    """Ctrl-C hits the thread that commits for all; the others must go on."""
    script = """
import os, signal, sys, threading, time
from fairlead import Fairlead

app = Fairlead(f"sqlite:///{sys.argv[1]}")
task = app.task(name="t")(lambda: None)
task.enqueue()
counts = [0] * 3

def work(index):
    while True:
        task.enqueue()
        counts[index] += 1

for n in range(3):
    threading.Thread(target=work, args=(n,), daemon=True).start()

enough = threading.Event()

def interrupt():
    while not enough.wait(0.003):
        os.kill(os.getpid(), signal.SIGINT)

interrupter = threading.Thread(target=interrupt, daemon=True)
interrupter.start()
caught = 0
while not enough.is_set():
    try:
        while caught < 100:
            task.enqueue()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        enough.set()
    except KeyboardInterrupt:
        caught += 1
before = list(counts)
deadline = time.monotonic() + 20
while any(new <= old for old, new in zip(before, counts)) and time.monotonic() < deadline:
    time.sleep(0.01)
print(all(new > old for old, new in zip(before, counts)), flush=True)
os._exit(0)
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "jobs.db")],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert run.stdout == "True\n", run.stderr
