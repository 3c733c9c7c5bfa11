"""`fairlead jobs`: what is listed, shown and waited for; cancelled, retried and deleted."""

import json
import os
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest

from fairlead.cli import which
from fairlead.cli.jobs import _more
from fairlead.core.admin import Filter
from fairlead.core.failure import described
from fairlead.core.ids import SHORT
from fairlead.core.job import NewJob, State
from fairlead.core.outcome import Crashed, Failed, Returned
from fairlead.core.queue import Queue
from fairlead.core.store import Store
from fairlead.core.text import brief
from tests.cli.shop import (
    APP,
    FAIRLEAD,
    UNKNOWN,
    Stock,
    audit_lines,
    environment,
    eventually,
    greeting,
    listed,
    many_dead,
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
from tests.words import claim, done, new_id, settled

# Looking


def test_a_list_has_a_line_per_job_state_by_state(folder: Path, stock: Stock) -> None:
    lines = told(folder, "jobs", "list", "--full").splitlines()
    assert lines[0].split() == ["ID", "STATE", "TASK", "QUEUE", "TRY", "WHEN", "WHY"]
    assert [line.split()[0] for line in lines[1:]] == listed(stock)
    shown = {line.split()[0]: line for line in lines[1:]}
    assert "  waiting  " in shown[stock.later]
    assert shown[stock.later].endswith("due in 60 min")
    assert shown[stock.running].endswith("on w1/1")
    assert shown[stock.bad].endswith("exhausted: ValueError: no such name: bad")
    assert shown[stock.cancelled].endswith("cancelled")
    assert len({line.index("greet") for line in lines[1:] if "greet" in line}) == 1


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        (["--state", "dead", "--queue", "mail"], ["bad"]),
        (["--state", "dead", "--state", "done"], ["done", "bad", "worse"]),
        (["--task", "add", "--task", "greet", "--queue", "reports"], ["worse"]),
        (["--tag", "post", "--tag", "later"], ["later"]),
        (["--error", "valueerror"], ["bad"]),
        (["--error", "such NAME", "--since", "1h", "--tag", "bad"], ["bad"]),
        (["--since", "2999-01-01"], []),
        (["--error", "☃"], []),
    ],
)
def test_filters_combine(folder: Path, stock: Stock, filters: list[str], names: list[str]) -> None:
    found = [job["id"] for job in objects(folder, "jobs", "list", *filters)]
    assert found == [each for each in listed(stock) if each in {getattr(stock, n) for n in names}]


def test_a_filter_that_matches_nothing_says_so(folder: Path, stock: Stock) -> None:
    assert told(folder, "jobs", "list", "--queue", "nothing") == "no job matches\n"


def test_a_list_tells_when_there_is_more(folder: Path, stock: Stock) -> None:
    lines = told(folder, "jobs", "list", "--limit", "4").splitlines()
    assert len(lines) == 6
    assert lines[-1] == "there are more; --limit 8 shows them"
    assert len(objects(folder, "jobs", "list", "--limit", "4")) == 4
    with_store(folder, lambda store: many_dead(store, 1_000))
    assert told(folder, "jobs", "list", "--limit", "600").endswith("--limit 1000 shows them\n")
    *lines, last = told(folder, "jobs", "list", "--limit", "1000", "--full").splitlines()
    assert last.startswith("there are more; go on with --after sqlite.")
    rest = told(folder, "jobs", "list", "--full", "--after", last.split()[-1]).splitlines()
    ids = [line.split()[0] for line in (*lines[1:], *rest[1:])]
    assert len(ids) == len(set(ids)) == 1_000 + len(stock)
    said = run(folder, "jobs", "list", "--json", "--limit", "4", FAIRLEAD_APP="shop:app")
    assert len(said.stdout.splitlines()) == 4
    assert said.stderr.startswith("there are more; go on with --after sqlite.")


def test_a_cursor_of_another_list_is_refused(folder: Path, stock: Stock) -> None:
    said = run(folder, "jobs", "list", "--json", "--limit", "4", FAIRLEAD_APP="shop:app")
    cursor = said.stderr.split()[-1]
    problem = refused(folder, "jobs", "list", "shop:app", "--queue", "mail", "--after", cursor)
    assert "leads nowhere here: it was made for a list with other filters" in problem
    problem = refused(folder, "jobs", "list", "shop:app", "--after", "nonsense")
    assert "leads nowhere here: it is none that a store made; begin the list anew" in problem


def test_a_list_stops_when_it_has_looked_long_enough_and_says_so(
    folder: Path, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_store(folder, lambda store: many_dead(store, 1_000))
    monkeypatch.setattr(which, "_MOST_LOOKED", 100)
    rare = Filter(states=(State.DEAD,), tags=("rare",))
    found = with_store(folder, lambda store: which.first_jobs(store, rare, 20))
    assert (found.jobs, found.looked) == ([], 200)
    [told_of] = _more(found, 20)
    assert told_of == f"looked at 200 jobs; go on with --after {found.cursor}"
    monkeypatch.undo()
    rest = with_store(folder, lambda store: which.first_jobs(store, rare, 20, found.cursor))
    assert (rest.jobs, rest.cursor) == ([], None)


@pytest.mark.parametrize("since", [" 1.5 h", "99999999999999d", "0001-01-02"])
def test_any_time_can_be_asked_for(folder: Path, stock: Stock, since: str) -> None:
    text = told(folder, "jobs", "delete", "--since", since, "--state", "done", "--yes")
    assert text == "deleted 1 job\n"


@pytest.mark.parametrize("since", ["yesterday", "", "0001-01-01", "9" * 400 + "w"])
def test_what_is_no_time_is_refused(folder: Path, since: str) -> None:
    problem = refused(folder, "jobs", "list", "--since", since)
    assert f"{brief(since)} is no time; write a span such as 30s, 15m, 2h, 7d" in problem


def test_json_has_instants_as_text_and_stored_json_as_it_is(folder: Path, stock: Stock) -> None:
    [job] = objects(folder, "jobs", "list", "--state", "done")
    assert job["payload"] == {"name": "done"}
    assert job["result"] == "hello done"
    assert job["options"] == {"tags": ["done", "post"]}
    assert job["enqueued_at"].endswith("Z")
    assert job["finished_at"] > job["claimed_at"] >= job["enqueued_at"]
    [shown] = objects(folder, "jobs", "show", stock.bad)
    assert [line["outcome"] for line in shown["attempts"]] == ["failed"]
    assert shown["attempts"][0]["finished_at"] == shown["errors"][0]["finished_at"]


def test_a_page_tells_everything_about_a_job(folder: Path, stock: Stock) -> None:
    page = told(folder, "jobs", "show", stock.bad)
    for line in (
        f"job {stock.bad}: dead (exhausted: ValueError: no such name: bad)\n",
        "  task         greet (version 1)\n",
        "  queue        mail\n",
        "  attempt      1\n",
        "  worker       w1/1\n",
        "  tags         bad, post\n",
        '  arguments\n    {\n      "name": "bad"\n    }\n',
        "Last failure\n  ValueError: no such name: bad\n",
    ):
        assert line in page
    assert "OUTCOME" in page
    assert '  result\n    "hello done"\n' in told(folder, "jobs", "show", stock.done)


def test_crashes_are_no_tries_and_are_counted_apart(folder: Path) -> None:
    job = greeting("poison")

    async def crash(store: Store) -> None:
        await store.put([job])
        for outcome in (Returned(), Crashed("SIGKILL"), Crashed("SIGKILL"), Crashed("SIGKILL")):
            [claimed] = await claim(store, Queue("mail"))
            await store.settle([settled(claimed, outcome)])

    with_store(folder, crash)
    page = told(folder, "jobs", "show", job.id)
    assert f"job {job.id}: dead (poison: Crashed: SIGKILL, crash 3 of 3)\n" in page
    assert "  attempt      none; 3 crashes, which count apart\n" in page
    rows = page.partition("OUTCOME")[2].partition("Last failure")[0].splitlines()[1:5]
    assert [row.split()[:2] for row in rows] == [["-", "given"], *[["-", "crashed"]] * 3]


def test_a_job_that_crashed_alone_tells_which_crash_of_how_many_it_was(folder: Path) -> None:
    job = greeting("poison")

    async def crash(store: Store) -> None:
        await store.put([job])
        for outcome in (Crashed("SIGSEGV"), Crashed("SIGKILL")):
            [claimed] = await claim(store, Queue("mail"))
            await store.settle([settled(claimed, outcome)])

    with_store(folder, crash)
    runs = "alone, because a process died while it ran there alone (SIGKILL, crash 2 of 3)"
    assert f"  runs         {runs}\n" in told(folder, "jobs", "show", job.id)
    assert f"  runs       {runs}\n" in told(folder, "explain", job.id)


def test_a_due_job_in_a_paused_queue_says_so(folder: Path, stock: Stock) -> None:
    told(folder, "queues", "pause", "mail")
    lines = told(folder, "jobs", "list", "--state", "waiting", "--full").splitlines()
    why = {line.split()[0]: line.rpartition("ago")[2].strip() for line in lines[1:]}
    assert why[stock.waiting] == "queue paused"
    assert why[stock.later].startswith("due in")


def test_what_would_steer_a_terminal_is_shown_escaped(folder: Path) -> None:
    nasty = NewJob(
        new_id(),
        "greet",
        "mail",
        '{"name":"\\u001b[31mred\\u0007 漢字"}',
        options='{"tags":["\\u001b]0;title\\u0007"]}',
    )
    with_store(folder, lambda store: store.put([nasty]))
    page = told(folder, "jobs", "show", nasty.id)
    assert "\x1b" not in page
    assert "\x07" not in page
    assert "漢字" in page


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("dead", "options = '{broken'"),
        ("dead", "errors = '[1]'"),
        ("dead", "payload = '{broken'"),
        ("dead", "payload = cast(x'ff00fe' AS text)"),
        ("finished", "result = '{broken'"),
        ("finished", "state = 'odd'"),
        ("job", "parked = 7"),
        ("job", "run_at = 9223372036854775807, order_at = 9223372036854775807"),
        ("job", "enqueued_at = -9223372036854775807"),
    ],
)
def test_a_damaged_job_is_shown_or_named_but_stops_nobody(
    folder: Path, stock: Stock, table: str, change: str
) -> None:
    damaged = {"dead": stock.bad, "finished": stock.done, "job": stock.later}[table]
    damage(folder, f"UPDATE fairlead_{table} SET {change} WHERE id = '{damaged}'")
    arguments = ["show", damaged] if table == "dead" else ["list", "--queue", "mail"]
    answer = run(folder, "jobs", *arguments, **APP)
    assert "Traceback (most" not in answer.stderr
    assert answer.returncode in (0, 1)
    told = answer.stderr if answer.returncode else answer.stdout
    assert damaged[:SHORT] in told or "decode" in told


def damage(folder: Path, statement: str) -> None:
    raw = sqlite3.connect(folder / "jobs.db")
    with raw:
        raw.execute(statement)
    raw.close()


def test_a_job_at_the_end_of_time_is_shown_in_every_time_zone(folder: Path) -> None:
    last = greeting("last", run_at=253_402_300_800_000_000 - 1)
    with_store(folder, lambda store: store.put([last]))
    for zone in ("Asia/Tokyo", "America/Lima"):
        assert "9999-12-31" in told(folder, "jobs", "show", last.id, TZ=zone)


def test_output_that_nobody_reads_to_its_end_is_no_error(folder: Path) -> None:
    with_store(folder, lambda store: many_dead(store, 900))
    for arguments in (["--limit", "900"], ["--limit", "900", "--watch", "--every", "0.1"]):
        process = subprocess.Popen(
            [FAIRLEAD, "jobs", "list", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=environment(**APP),
        )
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        assert process.wait(20) == 1


# Waiting


def test_a_wait_ends_with_the_job_and_prints_its_result(folder: Path, stock: Stock) -> None:
    assert told(folder, "jobs", "wait", stock.done) == '"hello done"\n'
    assert objects(folder, "jobs", "wait", stock.done)[0]["result"] == "hello done"
    with started(folder, "jobs", "wait", stock.running) as process:

        async def settle(store: Store) -> None:
            [job] = await store.held("w1/1")
            await store.settle([done(job, "[1,2]")])

        with_store(folder, settle)
        assert read_until(process, "\n") == "[1,2]\n"
        assert process.wait(20) == 0


def test_a_wait_for_what_failed_says_why(folder: Path, stock: Stock) -> None:
    assert refused(folder, "jobs", "wait", stock.bad, code=4, **APP) == (
        f"job {stock.bad} is dead (exhausted: ValueError: no such name: bad)"
    )
    assert refused(folder, "jobs", "wait", stock.cancelled, code=4, **APP) == (
        f"job {stock.cancelled} is cancelled (cancelled)"
    )
    [job] = objects(folder, "jobs", "wait", stock.bad, code=4)
    assert job["state"] == "dead"


def test_a_wait_has_an_end(folder: Path, stock: Stock) -> None:
    assert refused(folder, "jobs", "wait", stock.later, "--timeout", "0.1", code=5, **APP) == (
        f"job {stock.later} has not ended after 0.1 s; `fairlead explain {stock.later}` says why"
    )


def test_ctrl_c_ends_a_wait_and_not_the_job(folder: Path, stock: Stock) -> None:
    with terminal(folder, "jobs", "wait", stock.later) as screen:
        eventually(lambda: (folder / "jobs.db-wal").exists())
        # Not before the command has taken the signal for its own.
        eventually(lambda: handles(screen.process.pid, signal.SIGINT))
        screen.type("\x03")
        code = screen.end()
    assert f"Error: stopped waiting; job {stock.later} goes on" in screen.text
    assert "Traceback" not in screen.text
    assert code == 1
    assert state_of(folder, stock.later) == "waiting"


def reads_keys(pid: int) -> bool:
    """Say whether a process waits in a system call on its handle 0."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[1:2] == ["0x0"]


def handles(pid: int, number: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


# What is wrong


@pytest.mark.parametrize(
    "arguments",
    [
        ["jobs", "show"],
        ["jobs", "wait"],
        ["jobs", "cancel", "--yes"],
        ["dead", "show"],
        ["explain"],
    ],
)
def test_an_id_that_does_not_exist_is_named(
    folder: Path, stock: Stock, arguments: list[str]
) -> None:
    problem = refused(folder, *arguments, UNKNOWN, code=3, **APP)
    assert problem.startswith(f"no job has the id {UNKNOWN}, made on 2025-09-12 at ")
    assert audit_lines(folder) == []


def test_the_app_may_stand_before_or_behind_options(folder: Path, stock: Stock) -> None:
    for arguments in (
        ["jobs", "list", "shop:app", "--state", "done"],
        ["jobs", "list", "--state", "done", "shop:app"],
        ["jobs", "show", "--json", "shop:app", stock.done],
        ["jobs", "show", "shop:app", "--json", stock.done],
    ):
        answer = run(folder, *arguments)
        assert answer.returncode == 0, answer.stderr
        assert stock.done[:SHORT] in answer.stdout
    problem = refused(folder, "jobs", "show", "shop:app")
    assert problem == "Missing argument 'ID'."
    # A value of an option may look like an app.
    assert run(folder, "jobs", "list", "--tag", "shop:app", "shop:app").stdout == "no job matches\n"


# Acting


def test_a_script_must_say_yes(folder: Path, stock: Stock) -> None:
    problem = refused(folder, "jobs", "cancel", "--state", "waiting", **APP)
    assert problem == (
        "this would cancel 2 jobs (mail 2); nobody is here to ask, so add --yes, or look first "
        "with --dry-run"
    )
    problem = refused(folder, "jobs", "delete", stock.done, **APP)
    assert problem.startswith("this would delete 1 job; nobody is here to ask")
    assert state_of(folder, stock.waiting) == "waiting"
    assert state_of(folder, stock.done) == "done"
    assert audit_lines(folder) == []


def test_a_dry_run_shows_and_does_nothing(folder: Path, stock: Stock) -> None:
    text = told(folder, "jobs", "delete", "--all", "--dry-run")
    assert text.startswith("would delete 4 jobs:\nID ")
    assert all(job_id[:SHORT] in text for job_id in stock[:4])
    assert objects(folder, "jobs", "delete", "--all", "--dry-run") == [
        {"verb": "delete", "matched": 4, "count": 0, "dry_run": True}
    ]
    text = told(folder, "jobs", "cancel", stock.waiting, "--dry-run")
    assert text.startswith("would cancel 1 job:\nID ")
    assert told(folder, "jobs", "retry", "--queue", "x", "--dry-run") == "no job matches\n"
    assert with_store(folder, lambda store: store.admin.count()) == {
        "mail": {"waiting": 2, "running": 1, "done": 1, "cancelled": 1, "dead": 1},
        "reports": {"dead": 1},
    }
    assert audit_lines(folder) == []


def test_jobs_are_cancelled_by_id_and_by_filter(folder: Path, stock: Stock) -> None:
    answer = run(folder, "jobs", "cancel", stock.done, stock.later, "--yes", **APP)
    assert answer.returncode == 0
    assert answer.stderr == f"job {stock.done} is done: not cancelled\n"
    assert answer.stdout == "cancelled 1 job\n"
    assert told(folder, "jobs", "cancel", "--queue", "mail", "--yes") == (
        "cancelled 2 jobs; a running one ends when its handler notices\n"
    )
    assert [state_of(folder, stock[at]) for at in (4, 5, 6)] == [
        "running",
        "cancelled",
        "cancelled",
    ]
    [running] = objects(folder, "jobs", "list", "--state", "running")
    assert running["cancel_requested"]
    assert "cancel asked for" in told(folder, "jobs", "list", "--state", "running")
    assert audit_lines(folder) == [
        ("cancel", "--queue mail --state running --state waiting", 2),
        ("cancel", f"{stock.done} {stock.later}", 1),
    ]


def test_jobs_run_again_or_sooner(folder: Path, stock: Stock) -> None:
    assert told(folder, "jobs", "retry", stock.later, stock.done) == "retried 2 jobs\n"
    assert [state_of(folder, job_id) for job_id in (stock.later, stock.done)] == ["waiting"] * 2
    [job] = objects(folder, "jobs", "show", stock.later)
    assert job["gate"] is None
    assert told(folder, "jobs", "retry", "--all", "--yes") == (
        "retried 2 jobs of 5 that were found; the others are due already, or changed meanwhile\n"
    )
    assert with_store(folder, lambda store: store.admin.count()) == {
        "mail": {"waiting": 4, "running": 1, "cancelled": 1},
        "reports": {"waiting": 1},
    }
    answer = run(folder, "jobs", "retry", stock.running, **APP)
    assert answer.returncode == 4
    assert answer.stderr == (
        f"job {stock.running} is running: not retried\nError: nothing was done\n"
    )


def test_only_ended_jobs_are_deleted(folder: Path, stock: Stock) -> None:
    answer = run(folder, "jobs", "delete", stock.waiting, stock.cancelled, "--yes", **APP)
    assert answer.stderr == (
        f"job {stock.waiting} is waiting: not deleted; cancel it first: fairlead jobs cancel\n"
    )
    assert answer.stdout == "deleted 1 job\n"
    assert objects(folder, "jobs", "delete", "--state", "done", "--yes") == [
        {"verb": "delete", "matched": 1, "count": 1, "dry_run": False}
    ]
    assert state_of(folder, stock.done) is None
    assert state_of(folder, stock.bad) == "dead"
    assert refused(folder, "jobs", "delete", "--state", "waiting", "--yes", **APP) == (
        "a waiting job cannot be deleted; cancel it first: fairlead jobs cancel"
    )
    assert refused(folder, "jobs", "retry", "--state", "running", **APP) == (
        "a running job cannot be retried"
    )


@pytest.mark.parametrize("arguments", [[], [UNKNOWN, "--queue", "mail"]])
def test_either_ids_or_a_filter_or_all(folder: Path, stock: Stock, arguments: list[str]) -> None:
    assert refused(folder, "jobs", "delete", *arguments, **APP) == (
        "which jobs? Name them by ids, or by a filter such as --queue, or all of them by --all"
    )


def test_a_filter_that_matches_nothing_does_nothing(folder: Path, stock: Stock) -> None:
    assert told(folder, "jobs", "delete", "--queue", "nothing") == "no job matches\n"
    assert audit_lines(folder) == []


def test_thousands_are_one_line_of_the_audit_log(folder: Path) -> None:
    with_store(folder, lambda store: many_dead(store, 5_000))
    text = told(folder, "jobs", "delete", "--error", "it broke", "--tag", "many", "--dry-run")
    assert text.startswith("would delete 5,000 jobs:\n")
    assert text.endswith("… and 4,990 more\n")
    deleted = told(folder, "jobs", "delete", "--error", "it broke", "--tag", "many", "--yes")
    assert deleted == "deleted 5,000 jobs\n"
    assert with_store(folder, lambda store: store.admin.count()) == {}
    states = "--state cancelled --state dead --state done"
    assert audit_lines(folder) == [("delete", f"{states} --tag many --error 'it broke'", 5_000)]


def test_jobs_that_stay_what_they_are_are_gone_through_once(folder: Path) -> None:
    """More than a batch of jobs that are due already: they still match after each look."""
    with_store(folder, lambda store: store.put([greeting("due") for _ in range(1_100)]))
    assert told(folder, "jobs", "retry", "--state", "waiting", "--yes") == (
        "retried 0 jobs of 1,100 that were found; the others are due already, or changed "
        "meanwhile\n"
    )
    assert audit_lines(folder) == [("retry", "--state waiting", 0)]


def test_the_audit_log_names_who_did_what(folder: Path, stock: Stock) -> None:
    told(folder, "jobs", "retry", stock.later)
    told(folder, "jobs", "cancel", stock.waiting, "--yes", FAIRLEAD_WHO="Ada <ada@example.org>")
    lines = told(folder, "audit", "list").splitlines()
    assert lines[0].split() == ["WHEN", "WHO", "WHAT", "COUNT", "TO"]
    assert "Ada <ada@example.org>" in lines[1]
    assert lines[1].endswith(f"cancel      1  {stock.waiting}")
    newest, oldest, _ = objects(folder, "audit", "list")
    assert newest["verb"] == "cancel"
    assert newest["done_at"] > oldest["done_at"]
    assert newest["done_at"].endswith("Z")
    assert oldest["who"].count("@") == 1
    assert len(objects(folder, "audit", "list", "--limit", "1")) == 1
    page = told(folder, "jobs", "show", stock.waiting)
    assert "By people\n" in page
    assert "cancel by Ada <ada@example.org>\n" in page


def test_an_audit_log_may_be_empty(folder: Path) -> None:
    with_store(folder, lambda store: store.put([greeting("due")]))
    assert told(folder, "audit", "list") == "nobody has done anything by hand\n"


# The question


def test_a_person_is_asked_and_may_say_yes(folder: Path, stock: Stock) -> None:
    with terminal(folder, "jobs", "delete", "--state", "done") as screen:
        screen.until("delete 1 job (mail 1)? [y/N]: ")
        assert state_of(folder, stock.done) == "done"
        screen.type("y\r")
        assert screen.end() == 0
    assert "deleted 1 job\r\n" in screen.text
    assert state_of(folder, stock.done) is None


@pytest.mark.parametrize("keys", ["n\r", "\x03", "\x04"])
def test_a_person_is_asked_and_may_say_no(folder: Path, stock: Stock, keys: str) -> None:
    with terminal(folder, "jobs", "cancel", stock.waiting) as screen:
        screen.until("cancel 1 job? [y/N]: ")
        eventually(lambda: reads_keys(screen.process.pid))
        screen.type(keys)
        assert screen.end() == 4
    assert screen.text.endswith("Error: nothing was done\r\n")
    assert "Traceback" not in screen.text
    assert state_of(folder, stock.waiting) == "waiting"
    assert audit_lines(folder) == []


def test_what_changes_while_a_person_thinks_is_left_alone(folder: Path, stock: Stock) -> None:
    """The job was dead when the question came up, and runs again when the answer comes."""
    with terminal(folder, "dead", "delete", stock.bad) as screen:
        screen.until("delete 1 dead letter? [y/N]: ")
        told(folder, "dead", "replay", stock.bad)
        screen.type("y\r")
        assert screen.end() == 0
    assert (
        "deleted 0 dead letters of 1 that were found; the others changed meanwhile" in screen.text
    )
    assert state_of(folder, stock.bad) == "waiting"
    with_store(folder, lambda store: claim(store, Queue("mail")))
    assert json.loads(told(folder, "jobs", "show", stock.bad, "--json"))["state"] == "running"


def test_what_a_handler_said_cannot_steer_the_terminal_of_who_waits(folder: Path) -> None:
    job = greeting("you")

    async def fail(store: Store) -> None:
        await store.put([job])
        [claimed] = await claim(store, Queue("mail"))
        evil = described("Oops", "\x1b]0;owned\x07\x1b[2J\x9b31m\u202etxt")
        await store.settle([settled(claimed, Failed(evil, transient=False))])

    with_store(folder, fail)
    answers = [
        run(folder, "jobs", "wait", "shop:app", job.id),
        run(folder, "jobs", "wait", "shop:app", job.id, "--json"),
        run(folder, "dead", "show", "shop:app", job.id),
        run(folder, "dead", "list", "shop:app", "--by-error"),
        run(folder, "explain", "shop:app", job.id, "--json"),
    ]
    for answer in answers:
        assert "owned" in answer.stdout + answer.stderr
        assert not set("\x1b\x07\x9b\u202e") & set(answer.stdout + answer.stderr)
