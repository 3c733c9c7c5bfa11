"""Enqueue inside the caller's own SQLite transaction (P2, I2)."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead import ConfigError, Fairlead, SchemaOutdated, State
from fairlead.stores.sqlite.connection import Place


@pytest.fixture
def rows(app: Fairlead, tmp_path: Path) -> sqlite3.Connection:
    """The application's own connection to the file, with a table of its own."""
    app.open()
    connection = sqlite3.connect(tmp_path / "jobs.db")
    connection.execute("CREATE TABLE orders (job_id TEXT)")
    connection.commit()
    return connection


def count(app: Fairlead) -> int:
    return app.bridge.run(app.store.admin.count()).get("default", {}).get(State.WAITING, 0)


def test_the_job_commits_with_the_callers_rows(app: Fairlead, rows: sqlite3.Connection) -> None:
    task = app.task(name="t")(lambda n: n)
    with rows:
        job = task.using(connection=rows).enqueue(1)
        rows.execute("INSERT INTO orders VALUES (?)", (job.id,))
        assert count(app) == 0, "nobody sees it before the commit"
    assert job.status() is State.WAITING


def test_the_job_rolls_back_with_the_callers_rows(app: Fairlead, rows: sqlite3.Connection) -> None:
    task = app.task(name="t")(lambda n: n)
    with pytest.raises(RuntimeError, match="no stock"), rows:
        rows.execute("INSERT INTO orders VALUES ('x')")
        task.using(connection=rows).enqueue(1)
        app.enqueue_many([task.call(n) for n in range(300)], connection=rows)
        raise RuntimeError("no stock")
    assert count(app) == 0
    assert rows.execute("SELECT count(*) FROM orders").fetchone() == (0,)


async def test_it_works_from_async_code_too(app: Fairlead, rows: sqlite3.Connection) -> None:
    task = app.task(name="t")(lambda n: n)
    job = await task.using(connection=rows).aenqueue(1)
    rows.commit()
    assert await job.astatus() is State.WAITING


def test_a_repeated_put_does_not_break_the_transaction(
    app: Fairlead, rows: sqlite3.Connection
) -> None:
    call = app.task(name="t")(lambda: None).call()
    app.enqueue_many([call])
    with rows:
        rows.execute("INSERT INTO orders VALUES ('kept')")
        app.enqueue_many([call], connection=rows)
    assert count(app) == 1
    assert rows.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_a_connection_to_another_file_is_refused(app: Fairlead, tmp_path: Path) -> None:
    task = app.task(name="t")(lambda: None)
    task.enqueue()
    for other in (sqlite3.connect(tmp_path / "other.db"), sqlite3.connect(":memory:")):
        with pytest.raises(ConfigError, match="one transaction cannot span both"):
            task.using(connection=other).enqueue()
        other.close()
    with pytest.raises(
        ConfigError, match=r"to the same SQLite file, not builtins\.str; pass a sqlite3 connection"
    ):
        task.using(connection="jobs.db").enqueue()
    assert count(app) == 1


def test_memory_says_that_it_cannot(tmp_path: Path) -> None:
    task = Fairlead("memory://").task(name="t")(lambda: None)
    with pytest.raises(ConfigError, match=r"memory:// has no transactions to share"):
        task.using(connection=sqlite3.connect(tmp_path / "x.db")).enqueue()


def test_a_call_through_using_connection_says_where_the_connection_belongs(
    app: Fairlead, rows: sqlite3.Connection
) -> None:
    task = app.task(name="t")(lambda: None)
    with pytest.raises(ConfigError, match="pass connection= to enqueue_many itself"):
        task.using(connection=rows).call()


def test_a_first_use_inside_a_transaction_cannot_migrate_and_says_so(tmp_path: Path) -> None:
    """The migration would wait for the very lock that the caller holds."""
    connection = sqlite3.connect(tmp_path / "jobs.db")
    connection.execute("CREATE TABLE orders (x)")
    connection.execute("INSERT INTO orders VALUES (1)")
    app = Fairlead(f"sqlite:///{tmp_path}/jobs.db")
    task = app.task(name="t")(lambda: None)
    with pytest.raises(SchemaOutdated, match=r"call app\.open\(\) once, before"):
        task.using(connection=connection).enqueue()
    connection.commit()
    app.open()
    task.using(connection=connection).enqueue()
    connection.commit()
    assert count(app) == 1
    app.close()


WRITER = """
import random, sqlite3, sys
from fairlead import Fairlead

path, seed = sys.argv[1:]
choose = random.Random(int(seed))
app = Fairlead(f"sqlite:///{path}")
task = app.task(name="t")(lambda n: n)
app.open()
rows = sqlite3.connect(path, timeout=30)
print("ready", flush=True)
while True:
    rows.execute("BEGIN IMMEDIATE" if choose.random() < 0.5 else "BEGIN")
    for _ in range(choose.randrange(1, 4)):
        job = task.using(connection=rows).enqueue(1)
        rows.execute("INSERT INTO orders VALUES (?)", (job.id,))
    rows.commit() if choose.random() < 0.6 else rows.rollback()
"""


@pytest.mark.parametrize("seed", range(4))
def test_rows_and_jobs_agree_after_random_aborts_and_kills(
    app: Fairlead, rows: sqlite3.Connection, tmp_path: Path, seed: int
) -> None:
    """Two writers roll back at random and are killed at random; what is there agrees."""
    choose = random.Random(seed)
    for round_ in range(3):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path / "jobs.db"), str(seed * 10 + n)],
                stdout=subprocess.PIPE,
            )
            for n in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
        before = rows.execute("SELECT count(*) FROM orders").fetchone()[0]
        deadline = time.monotonic() + 20
        target = before + choose.randrange(5, 40)
        while rows.execute("SELECT count(*) FROM orders").fetchone()[0] < target:
            assert time.monotonic() < deadline, "the writers make no progress"
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
        ordered = {row[0] for row in rows.execute("SELECT job_id FROM orders")}
        jobs = {row[0] for row in rows.execute("SELECT id FROM fairlead_job")}
        assert ordered == jobs, f"round {round_}"
        assert len(jobs) >= target


def test_the_callers_connection_is_left_as_it_was(app: Fairlead, rows: sqlite3.Connection) -> None:
    """We never commit, and change no setting of a connection that is not ours."""
    task = app.task(name="t")(lambda n: n)
    before = [rows.execute(f"PRAGMA {name}").fetchone() for name in ("synchronous", "busy_timeout")]
    task.using(connection=rows).enqueue(1)
    assert rows.in_transaction
    rows.rollback()
    after = [rows.execute(f"PRAGMA {name}").fetchone() for name in ("synchronous", "busy_timeout")]
    assert before == after
    assert Place(Path("x")).durability == "durable"


def test_the_callers_factories_do_not_matter(app: Fairlead, tmp_path: Path) -> None:
    app.open()
    task = app.task(name="t")(lambda n: n)
    connection = sqlite3.connect(tmp_path / "jobs.db")
    connection.row_factory = lambda cursor, row: {"odd": row}
    connection.text_factory = bytes
    known = task.call(0)
    app.enqueue_many([known])
    with connection:
        app.enqueue_many([known, task.call(1), task.call(2)], connection=connection)
    connection.close()
    assert count(app) == 3


def test_a_closed_connection_is_refused_with_a_next_step(
    app: Fairlead, rows: sqlite3.Connection
) -> None:
    rows.close()
    with pytest.raises(ConfigError, match="closed database. Pass an open connection"):
        app.task(name="t")(lambda: None).using(connection=rows).enqueue()
    assert count(app) == 0
