"""Rows of the handlers' own and the ends of their jobs agree, whoever is killed when (P2, I7)."""

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from fairlead import State
from tests.system.tree import Shop, until


@pytest.fixture
def rows(shop: Shop) -> Iterator[sqlite3.Connection]:
    """The application's own connection, and a table in which nothing keeps an effect single."""
    connection = sqlite3.connect(shop.folder / "jobs.db", timeout=30)
    connection.execute("CREATE TABLE effect (job TEXT)")
    connection.commit()
    yield connection
    connection.close()


def effects(rows: sqlite3.Connection) -> list[str]:
    return [job for (job,) in rows.execute("SELECT job FROM effect")]


@pytest.mark.parametrize(
    ("task", "queue"),
    [("abook", "loop"), ("book", "thread"), ("abook", "process"), ("book", "process")],
)
def test_a_job_commits_with_its_rows_in_every_runner(
    shop: Shop, rows: sqlite3.Connection, task: str, queue: str
) -> None:
    job = shop.put(task, queue=queue)
    shop.start()
    shop.until_final()
    record = shop.record(job)
    assert (record.state, record.result, record.attempt) == (State.DONE, "1", 1)
    [line] = shop.attempts(job)
    assert line.pool == queue
    assert line.started_at is not None
    assert line.claimed_at <= line.started_at <= line.finished_at
    assert effects(rows) == [job]
    assert shop.states()[State.DONE] == 2, "the job that was enqueued inside ran too"
    tree = shop.trees[0]
    tree.stop()
    assert "refused" not in tree.log


@pytest.mark.parametrize("queue", ["thread", "process"])
def test_a_process_that_dies_after_the_commit_costs_nothing(
    shop: Shop, rows: sqlite3.Connection, queue: str
) -> None:
    job = shop.put("book", 0.0, "kill", queue=queue)
    shop.start()
    shop.until_final()
    assert shop.record(job).state is State.DONE
    assert shop.outcomes(job) == ["done"]
    assert effects(rows) == [job]


def test_a_long_block_costs_no_job_of_another_worker_its_lease(
    shop: Shop, rows: sqlite3.Connection
) -> None:
    """Nobody can renew a lease while it lasts; when it is over, all are back at once."""
    waiting = [shop.put("wait", 6.0) for _ in range(8)]
    for _ in range(2):
        shop.start("--lease", "1")
    for job in waiting:
        shop.until_started(job)
    hog = shop.put("abook", 2.5)
    shop.until_final(*waiting, hog)
    assert [shop.outcomes(job) for job in waiting] == [["done"]] * 8
    assert effects(rows) == [hog]


@pytest.mark.parametrize("seed", range(2))
def test_every_effect_happens_exactly_once_while_trees_are_killed(
    shop: Shop, rows: sqlite3.Connection, seed: int
) -> None:
    """I7: short leases, trees killed at random moments, nothing but the fence in between."""
    choose = random.Random(seed)
    began = time.monotonic()
    jobs = [
        *shop.put_many("abook", 60, 0.01),
        *shop.put_many("book", 40, 0.01),
        *shop.put_many("book", 30, 0.01, queue="process"),
    ]
    trees = [shop.start("--lease", "1") for _ in range(2)]
    kills = 0
    while kills < 6 and shop.states()[State.DONE] < 2 * len(jobs):
        goal = len(shop.starts()) + choose.randrange(5, 25)
        until(lambda: len(shop.starts()) >= goal or shop.states()[State.DONE] == 2 * len(jobs))
        time.sleep(choose.uniform(0.0, 0.05))
        victim = choose.randrange(2)
        trees[victim].kill()
        trees[victim] = shop.start("--lease", "1")
        kills += 1
    shop.until_final()
    print(f"{len(jobs)} jobs, {kills} kills, {time.monotonic() - began:.1f} s")
    assert Counter(effects(rows)) == dict.fromkeys(jobs, 1)
    assert {shop.record(job).state for job in jobs} == {State.DONE}
    assert shop.states() == {State.DONE: 2 * len(jobs)}
