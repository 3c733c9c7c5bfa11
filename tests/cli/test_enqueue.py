"""`fairlead enqueue` and `fairlead tasks`: a job from a shell, checked as one from code is."""

import asyncio
import json
from pathlib import Path

import pytest

from fairlead.core.admin import Filter
from fairlead.stores import store_for
from tests import deeds
from tests.cli.shop import APP, audit_lines, objects, refused, run, told, with_store
from tests.stores.test_postgres_roles import Yard, yard  # noqa: F401 (a fixture)
from tests.words import new_job


def stored(folder: Path) -> list[tuple[str, str, str]]:
    jobs = with_store(folder, lambda store: deeds.jobs(store, Filter()))
    return [(job.task, job.queue, job.payload) for job in jobs]


@pytest.mark.parametrize(
    ("arguments", "payload"),
    [
        (["greet", '{"name": "Zoë"}'], '{"name":"Zoë"}'),
        (["greet", '["Zoë"]'], '{"name":"Zoë"}'),
        (["alarm"], "{}"),
        (["shop:app", "alarm"], "{}"),
    ],
)
def test_a_job_is_enqueued_and_its_id_printed(
    folder: Path, arguments: list[str], payload: str
) -> None:
    job_id = told(folder, "enqueue", *arguments).strip()
    [job] = with_store(folder, lambda store: deeds.jobs(store, Filter()))
    assert (job.id, job.payload, job.state) == (job_id, payload, "waiting")
    assert audit_lines(folder) == [("enqueue", job.task, 1)]


def test_arguments_may_come_from_stdin(folder: Path) -> None:
    answer = run(folder, "enqueue", "add", "-", stdin='{"a": 1,\n "b": 2}\n', **APP)
    assert answer.returncode == 0, answer.stderr
    assert stored(folder) == [("add", "default", '{"a":1,"b":2}')]


def test_options_are_those_of_using(folder: Path) -> None:
    [job] = objects(
        folder,
        *("enqueue", "greet", '["x"]', "--queue", "reports", "--delay", "60", "--priority", "30"),
        *("--expires", "3600", "--tag", "a b", "--tag", "漢字"),
    )
    assert (job["queue"], job["priority"], job["gate"]) == ("reports", 30, "not_due")
    assert job["options"] == {"tags": ["a b", "漢字"]}
    assert job["run_at"] > job["enqueued_at"]
    assert job["expires_at"] > job["run_at"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["gret", "{}"], "the app has no task 'gret' (did you mean 'greet'?); `fairlead tasks"),
        (["greet"], "call of task 'greet': object missing required field `name`; it takes (name"),
        (["greet", "['x']"], "call of task 'greet': this is not JSON: invalid character (byte 1)"),
        (["greet", '["x", 2]'], "call of task 'greet': 2 arguments are too many"),
        (["add", '{"a": 1, "b": "2"}'], "argument 'b' of task 'add': expected `int`, got `str`"),
        (["greet", '["x"]', "--queue", "mial"], "no queue is declared as 'mial' (did you mean 'm"),
        (["greet", '["x"]', "--queue", "alarms"], "task 'greet' may not use the critical queue"),
        (["greet", '["x"]', "--priority", "99999999"], "--priority is a head start in whole seco"),
        (["greet", '["x"]', "--tag", "x" * 5_000], "--tag takes texts of at most "),
        (
            ["greet", '["x"]', "--delay", "2h", "--expires", "1h"],
            "the job would never start: it is due in 7,200 s, and expires in 3,600 s; start it "
            "earlier, or let it expire later",
        ),
        (
            ["greet", '["x"]', "--delay", "nan"],
            "Invalid value for '--delay': 'nan' is no span; write 90, 30s, 15m",
        ),
        (
            ["greet", '["x"]', "--delay", "-1"],
            "Invalid value for '--delay': '-1' is no span; write 90, 30s, 15m",
        ),
        ([], "Missing argument 'TASK'."),
    ],
)
def test_a_call_that_cannot_become_a_job_is_refused(
    folder: Path, arguments: list[str], problem: str
) -> None:
    assert refused(folder, "enqueue", *arguments, **APP).startswith(problem)
    assert not (folder / "jobs.db").exists()


def test_a_payload_has_its_limit(folder: Path) -> None:
    answer = run(folder, "enqueue", "greet", "-", stdin=json.dumps(["x" * 300_000]), **APP)
    assert answer.returncode == 2
    assert answer.stderr.startswith("Error: the arguments of task 'greet' take 300,")
    assert answer.stderr.endswith("(a file, a row, a bucket) and pass its name\n")


# Which app


def test_an_app_is_named_first_or_by_a_variable_or_by_the_project(folder: Path) -> None:
    assert refused(folder, "enqueue", "alarm") == (
        "an enqueue needs your app: name it first, as in `shop:app`, or set $FAIRLEAD_APP, or "
        "`app` under [tool.fairlead] in pyproject.toml"
    )
    (folder / "pyproject.toml").write_text('[tool.fairlead]\napp = "shop:app"\n')
    assert run(folder, "enqueue", "alarm").returncode == 0
    assert "shpo" in refused(folder, "enqueue", "alarm", FAIRLEAD_APP="shpo:app")
    assert run(folder, "enqueue", "shop:app", "alarm", FAIRLEAD_APP="shpo:app").returncode == 0
    assert len(stored(folder)) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[tool.fairlead\n", "pyproject.toml is not valid TOML: "),
        ("[tool.fairlead]\napp = 3\n", "pyproject.toml: Expected `str | null`, got `int`"),
        ("[tool.fairlead]\nap = 'x'\n", "pyproject.toml: Object contains unknown field `ap`"),
        ("[tool.fairlead-extra]\nap = 'x'\n", "an enqueue needs your app"),
        ("# [tool.fairlead] is not here\n", "an enqueue needs your app"),
        ("[project]\nname = 'shop'\n", "an enqueue needs your app"),
    ],
)
def test_a_project_file_is_read_as_it_is_meant(folder: Path, text: str, problem: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    assert refused(folder, "enqueue", "alarm").startswith(problem)


@pytest.mark.parametrize(
    ("arguments", "environ", "problem"),
    [
        (["shop:app", "--url", "sqlite:///jobs.db"], {}, "name an app or give --url, not both"),
        (["--url", ""], {}, "the URL is empty; leave it out for $FAIRLEAD_URL or sqlite:///fair"),
        (["--url", "memory://"], {}, "memory:// lives in one program, so nothing outside of it c"),
        (["--url", "sqlite:///jobs.db?tmeout=1"], {}, "sqlite:/// knows no option 'tmeout' (did"),
        ([], {"FAIRLEAD_URL": "mysql://me:s3cret@host/0"}, "no store is known for a URL of "),
        ([], {"FAIRLEAD_URL": "postgres://me:s3[cret@host/db"}, "the store's URL cannot be read"),
        (["--url", "sqlite://me:s3cret@host/jobs.db"], {}, "sqlite takes three slashes; write s"),
        (["--url", "me:s3cret@host"], {}, "no store is known for a URL of scheme 'me'"),
    ],
)
def test_a_store_that_cannot_be_is_named_without_its_password(
    folder: Path, arguments: list[str], environ: dict[str, str], problem: str
) -> None:
    told = refused(folder, "jobs", "list", *arguments, **environ)
    assert told.startswith(problem)
    assert "s3" not in told


# Tasks


def test_tasks_are_listed_with_what_they_take(folder: Path) -> None:
    lines = told(folder, "tasks", "list").splitlines()
    assert [line.split() for line in lines] == [
        ["TASK", "QUEUE", "RUNS", "LIMIT", "TRIES", "ARGUMENTS"],
        ["add", "default", "in", "a", "thread", "300", "s", "5", "(a:", "int,", "b:", "int)"],
        ["alarm", "alarms", "in", "a", "thread", "300", "s", "5", "()"],
        ["greet", "mail", "on", "the", "loop", "300", "s", "5", "(name:", "str)"],
    ]
    tasks = objects(folder, "tasks", "list")
    assert [task["name"] for task in tasks] == ["add", "alarm", "greet"]
    assert tasks[2] == {
        "name": "greet",
        "aliases": [],
        "queue": "mail",
        "async": True,
        "timeout": 300.0,
        "attempts": 5,
        "priority": 0,
        "version": 1,
        "effects": "none",
        "idempotent": False,
        "arguments": "(name: str)",
    }
    assert refused(folder, "tasks", "list").startswith("the list of tasks needs your app")


def test_an_app_without_tasks_says_what_is_missing(folder: Path) -> None:
    (folder / "bare.py").write_text("from fairlead import Fairlead\napp = Fairlead()\n")
    assert told(folder, "tasks", "list", "bare") == (
        "the app has no tasks; is the module that defines them imported?\n"
    )


def test_the_audit_log_shows_the_user_of_the_database(folder: Path, crew_url: str) -> None:
    store = store_for(crew_url)
    store.put_blocking([new_job()])
    asyncio.run(store.close())
    told(folder, "queues", "pause", "mail", "--url", crew_url, FAIRLEAD_WHO="ada")
    lines = told(folder, "audit", "list", "--url", crew_url).splitlines()
    assert lines[0].split() == ["WHEN", "WHO", "USER", "WHAT", "COUNT", "TO"]
    assert lines[1].split()[-5:] == ["ada", "crew", "pause", "1", "mail"]
    assert objects(folder, "audit", "list", "--url", crew_url)[0]["user"] == "crew"


STALL = """
from fairlead import Fairlead

app = Fairlead()


@app.task(name="alarm")
def alarm() -> None: ...
"""


@pytest.mark.parametrize("kind", ["producer", "worker"])
def test_who_is_no_operator_enqueues_and_sees_its_job(
    yard: Yard,  # noqa: F811
    folder: Path,
    kind: str,
) -> None:
    """And is not told to become one: the job is there, and the program needs no such right."""
    (folder / "stall.py").write_text(STALL)
    url = yard.url(kind)
    ended = run(folder, "enqueue", "stall:app", "alarm", FAIRLEAD_URL=url)
    assert ended.returncode == 0
    assert ended.stderr == "enqueued; only what operators do is in the audit log\n"
    job_id = ended.stdout.strip()
    assert f"job {job_id}: waiting" in told(folder, "jobs", "show", job_id, "--url", url)
    for words in (["workers", "list"], ["explain", job_id], ["jobs", "list"]):
        problem = refused(folder, *words, "--url", url, code=1)
        assert "this is for operators: use the URL of one (--url, $FAIRLEAD_URL)" in problem
