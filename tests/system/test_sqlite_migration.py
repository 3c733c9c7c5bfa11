"""The schema changes while workers of the version before run on the same file (F52, P14)."""

import signal
import sqlite3
from contextlib import closing

import pytest

from fairlead import SchemaOutdated, State
from fairlead.stores.sqlite.migrate import newest
from tests.system.tree import ALL_POOLS, Shop, send, until


def add_step(shop: Shop, serves: int) -> None:
    """Apply the next step, as a newer program would."""
    with closing(sqlite3.connect(shop.folder / "jobs.db", timeout=20)) as raw, raw:
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("ALTER TABLE fairlead_job ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey'")
        note = "INSERT INTO fairlead_migration (version, applied_at, serves) VALUES (?, 1, ?)"
        raw.execute(note, (newest() + 1, serves))


def test_a_worker_that_is_still_served_goes_on_and_replaces_its_processes(shop: Shop) -> None:
    """A process that starts after the step opens the file like those before it."""
    tree = shop.start(*ALL_POOLS, "--lease", "2", "--processes", "2")
    jobs = [shop.put("wait", 1.0), shop.put("nap", 1.0)]
    for job in jobs:
        shop.until_started(job)
    add_step(shop, serves=1)
    first = set(tree.workers)
    victim = min(first)
    send(victim, signal.SIGKILL)
    until(lambda: len(tree.workers) == 2 and victim not in tree.workers, what="a new process")
    jobs += [*shop.put_many("quick", 20), *shop.put_many("plain", 20)]
    jobs.append(shop.put("nap", 0.1, queue="process"))
    shop.until_final(*jobs)
    assert {shop.record(job).state for job in jobs} == {State.DONE}
    assert tree.stop() == 0
    assert "schema" not in tree.log


def test_a_producer_that_is_no_longer_served_is_told(shop: Shop) -> None:
    shop.waiting.add(shop.put("quick"))
    add_step(shop, serves=2)
    with pytest.raises(SchemaOutdated, match="upgrade this program"):
        shop.put("quick")
    shop.app.close()
    with pytest.raises(SchemaOutdated, match="upgrade this program"):
        shop.put("quick")
    with closing(sqlite3.connect(shop.folder / "jobs.db")) as raw, raw:
        raw.execute("DELETE FROM fairlead_migration WHERE serves = 2")
