"""`fairlead explain`: what it says of a job in every state. The rule has its own tests."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.core.admin import PoolShare, Worker
from fairlead.core.job import Gate, NewJob
from fairlead.core.queue import Queue
from fairlead.core.selection import GATES
from tests.cli.shop import Stock, objects, told, with_store
from tests.words import new_id, new_job


def test_the_gates_of_a_waiting_job_are_told_in_order(folder: Path, stock: Stock) -> None:
    text = told(folder, "explain", stock.waiting)
    assert text == (
        f"job {stock.waiting} of task greet on queue mail: waiting, no live worker can run it\n"
        "  open       its queue is not paused\n"
        "  open       it has not expired\n"
        "  open       it is due\n"
        "  open       no lost run has to be waited for\n"
        "  closed     no live worker can run it\n"
        "             opens with a worker that serves queue 'mail': fairlead worker MODULE:APP\n"
        "  later      a slot is looked for when the gates above are open\n"
        "  before it  0 due jobs of its queue\n"
        "  start      unknown: not before what is closed opens\n"
    )
    [explained] = objects(folder, "explain", stock.waiting)
    assert [gate["gate"] for gate in explained["gates"]] == [*GATES, Gate.NO_SLOT]
    assert [gate["gate"] for gate in explained["gates"] if gate["closed"]] == ["no_capable_worker"]
    assert (explained["gate"], explained["starts_at"]) == ("no_capable_worker", None)
    assert explained["job"]["id"] == stock.waiting


def test_every_closed_gate_says_what_opens_it(folder: Path, stock: Stock) -> None:
    told(folder, "queues", "pause", "mail")
    lines = told(folder, "explain", stock.later).splitlines()
    closed = [at for at, line in enumerate(lines) if line.startswith("  closed")]
    assert [lines[at].split("closed     ")[1] for at in closed] == [
        "its queue is paused",
        "it is not due yet (in 60 min)",
        "no live worker can run it",
    ]
    assert [lines[at + 1].split("opens with ")[1] for at in closed] == [
        "fairlead queues resume mail",
        f"its time, or now: fairlead jobs retry {stock.later}",
        "a worker that serves queue 'mail': fairlead worker MODULE:APP",
    ]
    assert lines[-2] == "  before it  1 due job of its queue"


def test_what_it_says_opens_a_gate_does(folder: Path, stock: Stock) -> None:
    told(folder, "queues", "pause", "mail")
    [explained] = objects(folder, "explain", stock.later)
    for gate in ("paused", "not_due"):
        [opens] = [each["opens"] for each in explained["gates"] if each["gate"] == gate]
        told(folder, *opens.rpartition("fairlead ")[2].split())
    [explained] = objects(folder, "explain", stock.later)
    assert explained["gate"] == "no_capable_worker"


def test_jobs_before_it_are_counted(folder: Path, stock: Stock) -> None:
    early = [NewJob(new_id(), "greet", "mail", "{}", priority=60) for _ in range(7)]
    late = NewJob(new_id(), "greet", "mail", "{}", priority=-60)
    with_store(folder, lambda store: store.put([*early, late]))
    assert [
        objects(folder, "explain", job_id)[0]["ahead"]
        for job_id in (stock.waiting, late.id, early[2].id)
    ] == [7, 8, 2]


def test_a_job_that_does_not_wait_is_explained_too(folder: Path, stock: Stock) -> None:
    ending = {
        stock.done: f"ago; fairlead jobs show {stock.done} has its result\n",
        stock.bad: f"(exhausted: ValueError: no such name: bad); fairlead dead show {stock.bad}\n",
        stock.cancelled: "ago (cancelled)\n",
        stock.running: "), unless its worker renews it\n",
    }
    for job_id, words in ending.items():
        text = told(folder, "explain", job_id)
        assert text.count("\n") == 2
        assert text.endswith(words)
    assert "it runs on w1/1, claimed " in told(folder, "explain", stock.running)
    [explained] = objects(folder, "explain", stock.bad)
    assert (explained["gate"], explained["gates"]) == (None, [])


def test_a_job_whose_lease_has_passed_waits_for_a_worker(folder: Path, stock: Stock) -> None:
    raw = sqlite3.connect(folder / "jobs.db")
    with raw:
        raw.execute("UPDATE fairlead_job SET lease_until = 1 WHERE lease_until > 0")
    raw.close()
    text = told(folder, "explain", stock.running)
    assert "  closed     no live worker can run it\n" in text


def test_names_that_would_steer_a_terminal_are_escaped(folder: Path) -> None:
    odd = NewJob(new_id(), "greet\x1b[31m", "mail\x1b]0;x\x07", "{}")
    with_store(folder, lambda store: store.put([odd]))
    text = told(folder, "explain", odd.id) + told(folder, "queues", "show", odd.queue)
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_damaged_job_is_sent_to_the_doctor(folder: Path) -> None:
    with_store(folder, lambda store: store.put([job := new_job(task="greet"), job]))
    with closing(sqlite3.connect(folder / "jobs.db")) as raw, raw:
        raw.execute("UPDATE fairlead_job SET version = 'x'")
        [(job_id,)] = raw.execute("SELECT id FROM fairlead_job").fetchall()
    worker = Worker("w1", {"greet": 1}, (PoolShare("p", 5, (Queue("mail").share,)),))
    with_store(folder, lambda store: store.announce(worker, 3_600_000_000))
    text = told(folder, "explain", job_id)
    assert text == (
        f"job {job_id} of task greet on queue mail: waiting, but its row is damaged\n"
        "  no claim can start it as it is; fairlead doctor names what is wrong\n"
    )
    [explained] = objects(folder, "explain", job_id)
    assert explained["damaged"] is True


@pytest.mark.parametrize(
    ("counts", "runs"),
    [
        ("shared_deaths = 0", None),
        (
            "shared_deaths = 1",
            "in a process of their own, with those that ran beside it when theirs died",
        ),
        (
            "shared_deaths = 2",
            "in a small group, because two processes died while it ran there with others",
        ),
        ("shared_deaths = 3", "alone, because 3 processes died while it ran there with others"),
        ("crashes = 1", "alone, because a process died while it ran there alone"),
    ],
)
def test_who_may_have_killed_a_process_is_told_where_it_runs(
    folder: Path, stock: Stock, counts: str, runs: str | None
) -> None:
    with closing(sqlite3.connect(folder / "jobs.db")) as raw, raw:
        raw.execute(f"UPDATE fairlead_job SET {counts} WHERE id = ?", [stock.waiting])
    for command in (["explain"], ["jobs", "show"]):
        lines = told(folder, *command, stock.waiting).splitlines()
        found = [line.split(maxsplit=1)[1] for line in lines if line.startswith("  runs ")]
        assert found == ([runs] if runs else [])
