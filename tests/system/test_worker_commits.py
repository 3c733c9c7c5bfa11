"""Rows of the handlers' own and the ends of their jobs agree, whoever is killed when (P2, I7)."""

import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead import State
from fairlead.stores.postgres.address import Address
from tests.servers.postgres import PostgresServer
from tests.system.tree import ALL_POOLS, LIGHT, Shop, Tree, until


@pytest.fixture(params=["sqlite", "postgres"])
def shop(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    """A shop on every store that has transactions."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    if request.param == "postgres":
        url = request.getfixturevalue("crew_url")
        # So that handlers can name their table alike.
        url = f"{url}&options=-csearch_path%3D{Address.of(url).schema}"
    monkeypatch.setenv("SHOP_URL", url)
    with Shop(tmp_path, url) as shop:
        yield shop


class Rows:
    """The application's own table; nothing in it keeps an effect single."""

    def __init__(self, execute: Callable[[str], Iterable[Any]], table: str = "effect") -> None:
        self._execute = execute
        self._table = table
        execute(f"CREATE TABLE {table} (job TEXT)")

    def all(self) -> list[str]:
        return [job for (job,) in self._execute(f"SELECT job FROM {self._table}")]


@pytest.fixture
def rows(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Rows]:
    if shop.url.startswith("sqlite"):
        connection = sqlite3.connect(shop.folder / "jobs.db", timeout=0.02, isolation_level=None)
        yield Rows(connection.execute)
        connection.close()
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    table = f"{Address.of(shop.url).schema}.effect"
    rows = Rows(server.execute, table)
    server.execute(f"GRANT ALL ON {table} TO crew")
    yield rows


@pytest.mark.parametrize(
    ("task", "queue"),
    [("abook", "loop"), ("book", "thread"), ("abook", "process"), ("book", "process")],
)
def test_a_job_commits_with_its_rows_in_every_runner(
    shop: Shop, rows: Rows, task: str, queue: str
) -> None:
    job = shop.put(task, queue=queue)
    shop.start(*LIGHT, "--pool", queue)
    shop.until_final()
    record = shop.record(job)
    assert (record.state, record.result, record.attempt) == (State.DONE, "1", 1)
    [line] = shop.attempts(job)
    assert line.pool == queue
    assert line.started_at is not None
    assert line.claimed_at <= line.started_at <= line.finished_at
    assert rows.all() == [job]
    assert shop.states()[State.DONE] == 2, "the job that was enqueued inside ran too"
    tree = shop.trees[0]
    tree.stop()
    assert "refused" not in tree.log


@pytest.mark.parametrize("queue", ["thread", "process"])
def test_a_process_that_dies_after_the_commit_costs_nothing(
    shop: Shop, rows: Rows, queue: str
) -> None:
    job = shop.put("book", 0.0, 0.0, "kill", queue=queue)
    shop.start(*LIGHT, "--pool", queue)
    shop.until_final()
    assert shop.record(job).state is State.DONE
    assert shop.outcomes(job) == ["done"]
    assert rows.all() == [job]


def test_a_long_block_costs_no_job_of_another_worker_its_lease(shop: Shop, rows: Rows) -> None:
    """Nobody can renew a lease while it lasts; when it is over, all are back at once."""
    waiting = [shop.put("wait", 6.0) for _ in range(8)]
    for _ in range(2):
        shop.start("--lease", "1")
    for job in waiting:
        shop.until_started(job)
    hog = shop.put("abook", 0.0, 2.5)
    shop.until_final(*waiting, hog)
    assert [shop.outcomes(job) for job in waiting] == [["done"]] * 8
    assert rows.all() == [hog]


def strike(shop: Shop, trees: list[Tree], choose: random.Random) -> None:
    """Kill a tree and start another, or freeze one."""
    at = choose.randrange(len(trees))
    if choose.random() < 0.5:
        trees[at].kill()
        trees[at] = shop.start(*ALL_POOLS, "--lease", "1")
    else:
        shop.freeze(trees[at])
        time.sleep(2.5)  # longer than its leases last
        trees[at].signal_all(signal.SIGCONT)


@pytest.mark.parametrize(
    ("seed", "strikes"), [(2, 4), *(pytest.param(n, 6, marks=pytest.mark.chaos) for n in range(4))]
)
def test_every_effect_happens_exactly_once_while_trees_are_killed_and_frozen(
    shop: Shop, rows: Rows, seed: int, strikes: int
) -> None:
    """I7: whoever dies or comes back too late, when, the rows are those of one run."""
    choose = random.Random(seed)
    jobs = [
        *shop.put_many("abook", 80, 0.3, 0.005),
        *shop.put_many("book", 40, 0.1, 0.005),
        *shop.put_many("book", 20, 0.1, 0.005, queue="process"),
    ]
    shop.doubled.update(jobs)
    trees = [shop.start(*ALL_POOLS, "--lease", "1") for _ in range(2)]
    for _ in range(strikes):
        goal = len(shop.starts()) + choose.randrange(10, 30)
        until(lambda: len(shop.starts()) >= goal or len(rows.all()) >= len(jobs))
        strike(shop, trees, choose)
    shop.until_final()
    runs = len([line for line in shop.starts() if line.job in jobs])
    assert runs > len(jobs), "nothing was struck"
    assert Counter(rows.all()) == dict.fromkeys(jobs, 1)
    assert {shop.record(job).state for job in jobs} == {State.DONE}
    assert shop.states() == {State.DONE: 2 * len(jobs)}
