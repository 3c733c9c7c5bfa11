"""`fairlead queues` and `fairlead workers`: what waits where, and who serves it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fairlead import Call, Unanswered
from fairlead.cli.command import AppCommand
from tests import deeds
from tests.cli.shop import (
    APP,
    SHOP,
    Stock,
    audit_lines,
    eventually,
    objects,
    read_until,
    refused,
    run,
    started,
    state_of,
    terminal,
    told,
    with_store,
)
from tests.words import by, new_job

CALL: Call[None] = Call(new_job())
HOLD = """

@app.task(name="hold", queue="mail")
async def hold() -> str:
    import asyncio, pathlib
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.02)
    return "held"
"""


@pytest.fixture
def live(folder: Path) -> Iterator[str]:
    """A worker with one slot per pool; returns its name."""
    (folder / "shop.py").write_text(SHOP + HOLD)
    with started(folder, "worker", "--slots", "1", "--grace", "0") as process:
        text = read_until(process, "is ready")
        yield text.split()[2]
        process.terminate()
        process.communicate()


def test_queues_are_listed_with_what_is_in_them(folder: Path, stock: Stock) -> None:
    lines = [line.split() for line in told(folder, "queues", "list").splitlines()]
    titles = (
        "QUEUE STATE WEIGHT DUE OLDEST DELAYED RETRYING PARKED RUNNING DEAD WAIT P50 P99 DONE/S"
    )
    assert lines[0] == titles.split()
    rows = {line[0]: " ".join(line) for line in lines[1:]}
    assert list(rows) == ["alarms", "default", "mail", "reports"]
    assert rows["alarms"] == "alarms no worker critical 0 0 0 0 0 0"
    assert re.match(r"mail no worker 4 1 \S+ m?s 1 0 0 1 1 ", rows["mail"])
    views = {view["name"]: view for view in objects(folder, "queues", "list")}
    assert views["mail"]["counts"] == {"running": 1, "dead": 1}
    waiting = views["mail"]["waiting"]
    assert (waiting["due"], waiting["delayed"], waiting["retrying"]) == (1, 1, 0)
    assert views["mail"]["figures"]["runs"] == 2
    assert (views["mail"]["weight"], views["mail"]["served_by"]) == (4, [])
    assert views["alarms"]["figures"] is None


def test_a_store_alone_knows_the_queues_that_have_jobs(folder: Path, stock: Stock) -> None:
    views = run(folder, "queues", "list", "--url", "sqlite:///jobs.db", "--json").stdout
    assert [json.loads(line)["name"] for line in views.splitlines()] == ["mail", "reports"]


def test_a_page_about_a_queue(folder: Path, stock: Stock) -> None:
    page = told(folder, "queues", "show", "mail")
    assert page.startswith(
        "queue mail: no worker\n  weight      4\n  due         1\n  delayed     1\n"
    )
    assert "  success     50.0% of 2 runs in the last ten minutes\n" in page
    alone = told(folder, "queues", "show", "reports")
    assert "  success     0.0% of 1 run in the last ten minutes\n" in alone
    assert page.endswith("  served by   no live worker\n")
    assert "  oldest due  nothing is due\n" in told(folder, "queues", "show", "alarms")
    [view] = objects(folder, "queues", "show", "mail")
    assert view["counts"] == {"running": 1, "done": 1, "dead": 1, "cancelled": 1}


def test_a_queue_is_paused_and_resumed_once(folder: Path, stock: Stock) -> None:
    hint = "2 jobs wait in it; `fairlead queues resume mail` lets jobs run\n"
    assert told(folder, "queues", "pause", "mail") == f"paused queue mail\n{hint}"
    assert told(folder, "queues", "pause", "mail") == f"queue mail was paused already\n{hint}"
    assert told(folder, "queues", "show", "mail").startswith("queue mail: paused\n")
    assert with_store(folder, lambda store: deeds.paused(store)) == {"mail"}
    assert told(folder, "queues", "resume", "mail") == "resumed queue mail\n"
    assert told(folder, "queues", "resume", "mail") == "queue mail was not paused\n"
    assert with_store(folder, lambda store: deeds.paused(store)) == set()
    assert [(verb, count) for verb, _, count in reversed(audit_lines(folder))] == [
        ("pause", 1),
        ("pause", 0),
        ("resume", 1),
        ("resume", 0),
    ]


@pytest.mark.parametrize("verb", ["show", "pause", "resume"])
def test_a_queue_that_does_not_exist_is_named(folder: Path, stock: Stock, verb: str) -> None:
    assert refused(folder, "queues", verb, "mial", code=3, **APP) == (
        "there is no queue 'mial' (did you mean 'mail'?); there is alarms, default, mail, reports"
    )
    assert audit_lines(folder) == []


def test_a_store_without_any_queue_asks_for_the_app(folder: Path) -> None:
    with_store(folder, lambda store: store.admin.count())
    url = ("--url", "sqlite:///jobs.db")
    assert refused(folder, "queues", "pause", "mail", *url, code=3) == (
        "there is no queue 'mail'; name your app if it declares it"
    )


# Workers


def test_no_worker_is_live(folder: Path, stock: Stock) -> None:
    assert told(folder, "workers", "list") == (
        "no worker is live; start one with: fairlead worker MODULE:APP\n"
    )
    assert objects(folder, "workers", "list") == []


def test_a_live_worker_is_listed_with_what_it_does(folder: Path, live: str) -> None:
    job_id = told(folder, "enqueue", "hold").strip()
    eventually(lambda: state_of(folder, job_id) == "running")
    [titles, line] = told(folder, "workers", "list").splitlines()
    assert titles.split() == [
        "WORKER",
        "STARTED",
        "PROCESSES",
        "SLOTS",
        "RUNNING",
        "TASKS",
        "QUEUES",
        "RUNS",
        "NOW",
    ]
    assert line.split()[0] == live
    assert re.search(r" ago +1 +2 +1 +4  mail, reports, alarms, default  hold for \S+ m?s$", line)
    [worker] = objects(folder, "workers", "list")
    assert (worker["id"], worker["processes"]) == (live, 1)
    [runs] = worker["running"]
    assert (runs["task"], runs["queue"], runs["count"]) == ("hold", "mail", 1)
    assert runs["claimed_at"].endswith("Z")
    assert [pool["name"] for pool in worker["pools"]] == ["post", "rest"]
    assert sorted(worker["capable"]) == ["add", "alarm", "greet", "hold"]
    page = told(folder, "queues", "show", "mail")
    assert page.startswith("queue mail: served\n")
    assert page.endswith(f"  served by   {live}: pool post\n")
    with terminal(folder, "workers", "list", "--watch", "--every", "0.1") as screen:
        screen.until(live, times=2)
        screen.type("\x03")
        assert screen.end() == 0


def test_a_waiting_job_is_explained_by_its_live_worker(folder: Path, live: str) -> None:
    """Its pool has one slot, and another job has that."""
    holding = told(folder, "enqueue", "hold").strip()
    eventually(lambda: state_of(folder, holding) == "running")
    first = told(folder, "enqueue", "greet", '["you"]').strip()
    second = told(folder, "enqueue", "greet", '["me"]').strip()

    text = told(folder, "explain", second)
    why = "the slots are taken, or others come first"
    assert text.startswith(f"job {second} of task greet on queue mail: waiting, {why}\n  open  ")
    assert text.count("  open  ") == 5
    assert (
        "  closed     the slots are taken, or others come first\n"
        "             opens with the end of a running job; or more slots: fairlead worker --slots"
    ) in text
    assert "  before it  1 due job of its queue\n" in text
    assert "  start      unknown: no job of this queue has ended in the last 10 minutes" in text
    assert f"it runs on {live}/" in told(folder, "explain", holding)

    (folder / "go").touch()
    assert told(folder, "jobs", "wait", holding, "--timeout", "20") == '"held"\n'
    assert told(folder, "jobs", "wait", second, "--timeout", "20") == '"hello me"\n'
    (folder / "go").unlink()
    assert "it was done " in told(folder, "explain", first)

    holding = told(folder, "enqueue", "hold").strip()
    eventually(lambda: state_of(folder, holding) == "running")
    [told_again] = objects(folder, "explain", told(folder, "enqueue", "greet", '["x"]').strip())
    assert (told_again["gate"], told_again["ahead"]) == ("no_slot", 0)
    assert told_again["starts_at"].endswith("Z")
    assert re.fullmatch(
        r"in the last \d+ s, jobs of this queue that started: 3; before it: 0",
        told_again["basis"],
    )
    (folder / "go").touch()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            Unanswered("redis://here", "is it running?", action=by("pause")),
            "is it running? It may have been done all the same. Run the command again: it finds what is left",
        ),
        (
            Unanswered("redis://here", "no answer within 5 s", calls=(CALL,)),
            f"no answer within 5 s. Job {CALL.id} may exist all the same: `fairlead jobs show {CALL.id}` tells",
        ),
    ],
)
def test_a_command_without_an_answer_says_how_to_make_sure(error: Unanswered, told: str) -> None:
    """F80: in the words of the command line; a program would repeat the call."""

    @click.command(cls=AppCommand)
    def act() -> None:
        raise error

    answer = CliRunner().invoke(act, [])
    assert answer.exit_code == 1
    assert answer.output == f"Error: redis://here: {told}\n"
