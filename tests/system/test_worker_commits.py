"""Rows of the handlers' own and the ends of their jobs agree, whoever is killed when (P2, I7)."""

import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fairlead import State
from tests.system.tree import Shop, Tree, until


@pytest.fixture
def rows(shop: Shop) -> Iterator[sqlite3.Connection]:
    """The application's own connection, and a table in which nothing keeps an effect single."""
    connection = sqlite3.connect(shop.folder / "jobs.db", timeout=0.02)
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
    job = shop.put("book", 0.0, 0.0, "kill", queue=queue)
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
    hog = shop.put("abook", 0.0, 2.5)
    shop.until_final(*waiting, hog)
    assert [shop.outcomes(job) for job in waiting] == [["done"]] * 8
    assert effects(rows) == [hog]


def freeze(tree: Tree, rows: sqlite3.Connection) -> None:
    """Stop a tree for longer than its leases last, at a moment when others can write without it."""
    for _ in range(200):
        tree.signal_all(signal.SIGSTOP)
        time.sleep(0.02)
        with suppress(sqlite3.OperationalError):
            rows.execute("BEGIN IMMEDIATE")
            rows.rollback()
            time.sleep(2.5)
            break
        tree.signal_all(signal.SIGCONT)
        time.sleep(0.01)
    tree.signal_all(signal.SIGCONT)


def strike(shop: Shop, rows: sqlite3.Connection, trees: list[Tree], choose: random.Random) -> None:
    """Kill a tree and start another, or freeze one."""
    at = choose.randrange(len(trees))
    if choose.random() < 0.5:
        trees[at].kill()
        trees[at] = shop.start("--lease", "1")
    else:
        freeze(trees[at], rows)


@pytest.mark.parametrize("seed", range(2))
def test_every_effect_happens_exactly_once_while_trees_are_killed_and_frozen(
    shop: Shop, rows: sqlite3.Connection, seed: int
) -> None:
    """I7: whoever dies or comes back too late, when, the rows are those of one run."""
    choose = random.Random(seed)
    jobs = [
        *shop.put_many("abook", 80, 0.3, 0.005),
        *shop.put_many("book", 40, 0.1, 0.005),
        *shop.put_many("book", 20, 0.1, 0.005, queue="process"),
    ]
    shop.doubled.update(jobs)
    trees = [shop.start("--lease", "1") for _ in range(2)]
    for _ in range(6):
        goal = len(shop.starts()) + choose.randrange(10, 30)
        until(lambda: len(shop.starts()) >= goal or len(effects(rows)) >= len(jobs))
        strike(shop, rows, trees, choose)
    shop.until_final()
    runs = len([line for line in shop.starts() if line.job in jobs])
    assert runs > len(jobs), "nothing was struck"
    assert Counter(effects(rows)) == dict.fromkeys(jobs, 1)
    assert {shop.record(job).state for job in jobs} == {State.DONE}
    assert shop.states() == {State.DONE: 2 * len(jobs)}
