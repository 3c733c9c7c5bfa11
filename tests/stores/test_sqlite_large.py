"""A claim brings a bounded number of bytes, and reads no more than it brings (F82)."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.core.job import NewJob
from fairlead.core.queue import Queue
from fairlead.core.selection import MOST_BYTES
from fairlead.stores import store_for
from fairlead.stores.sqlite.store import SqliteStore
from tests import deeds
from tests.words import claim, new_id, plan

LARGE = '"' + "x" * 99_998 + '"'

CLAIMING = """
import asyncio, re, sys
from fairlead.stores import store_for
from tests.words import plan

def most():
    status = open("/proc/self/status").read()
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", status).group(1)) // 1024

async def main():
    store = store_for(sys.argv[1])
    await store.open()
    before = most()
    claimed = await store.claim(plan(slots=1_000))
    print(len(claimed.jobs), claimed.cut, most() - before)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A file with a thousand jobs of 100 kB each."""
    url = f"sqlite:///{tmp_path}/jobs.db?durability=fast"
    store = store_for(url)
    for _ in range(10):
        await store.put([NewJob(new_id(), "t", "mail", LARGE) for _ in range(100)])
    await store.close()
    return url


async def test_a_claim_ends_with_the_job_that_fills_it(url: str) -> None:
    store = store_for(url)
    whole = [job.id for job in await deeds.jobs(store)]
    came: list[str] = []
    while True:
        claimed = await store.claim(plan(slots=1_000))
        if not claimed.jobs:
            break
        sizes = [len(job.payload) for job in claimed.jobs]
        assert sum(sizes[:-1]) < MOST_BYTES
        assert claimed.cut == (sum(sizes) >= MOST_BYTES)
        assert {job.payload for job in claimed.jobs} == {LARGE}
        came += [job.id for job in claimed.jobs]
    assert came == whole
    await store.close()


def test_a_claim_of_large_jobs_takes_little_memory(url: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CLAIMING, url], capture_output=True, text=True, check=True
    )
    jobs, cut, megabytes = run.stdout.split()
    assert (jobs, cut) == ("42", "True")
    assert int(megabytes) < 40


async def test_the_large_payload_of_a_damaged_job_is_met_by_its_claim(
    tmp_path: Path,
) -> None:
    """It is read after the choice, when the others are chosen already."""
    store = store_for(f"sqlite:///{tmp_path}/jobs.db?durability=fast")
    jobs = [NewJob(new_id(), "t", "mail", LARGE) for _ in range(5)]
    await store.put(jobs)
    raw = sqlite3.connect(tmp_path / "jobs.db")
    raw.execute(
        "UPDATE fairlead_job SET payload = CAST(x'ff41' AS TEXT) WHERE id = ?", [jobs[2].id]
    )
    raw.execute("UPDATE fairlead_job SET payload = x'ff41' WHERE id = ?", [jobs[3].id])
    raw.execute("UPDATE fairlead_job SET shared_deaths = 2 WHERE id = ?", [jobs[4].id])
    raw.commit()
    claimed = await claim(store)
    assert [job.id for job in claimed] == [jobs[0].id, jobs[1].id, jobs[4].id]
    assert [job.shared_deaths for job in claimed] == [0, 0, 2]
    dead = raw.execute("SELECT id FROM fairlead_dead WHERE reason = 'unreadable'").fetchall()
    assert dead == [(jobs[2].id,), (jobs[3].id,)]
    raw.close()
    assert await store.admin.audit() == []
    await store.close()


async def test_small_jobs_are_claimed_with_as_many_statements_as_ever(tmp_path: Path) -> None:
    store = store_for(f"sqlite:///{tmp_path}/jobs.db?durability=fast")
    assert isinstance(store, SqliteStore)
    await store.put([NewJob(new_id(), "t", "mail", "{}") for _ in range(500)])
    # After statements were compiled, it is asked once whether the schema serves (served.py).
    assert len(await claim(store, Queue("mail"), slots=50)) == 50
    said: list[str] = []
    writer = (await store._opened()).writer
    assert writer._connection is not None
    writer._connection.set_trace_callback(said.append)
    assert len(await claim(store, Queue("mail"), slots=400)) == 400
    writer._connection.set_trace_callback(None)
    assert len(said) == 5, said  # Begin, what to look after, the jobs, their leases, commit.
    await store.close()
