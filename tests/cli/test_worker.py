"""`fairlead worker`: what it says when something is wrong, and what it does when nothing is."""

import json
import re
import sqlite3
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from fairlead import Fairlead
from tests.cli import shop


def run(folder: Path, *arguments: str, **environ: str) -> CompletedProcess[str]:
    return shop.run(folder, "worker", *arguments, **environ)


def refused(folder: Path, *arguments: str, code: int = 2) -> str:
    return shop.refused(folder, "worker", *arguments, code=code)


def test_help_says_what_it_does_and_how_to_stop_it(folder: Path) -> None:
    text = run(folder, "--help").stdout
    assert "Usage: fairlead worker [OPTIONS] [MODULE:APP]" in text
    assert (
        "Example: fairlead worker shop:app --processes 2 --queue mail=4 --queue reports\n" in text
    )
    for word in ("Ctrl-C", "SIGTERM", "SIGHUP", "--drain", "--grace", "--slots", "[default: all]"):
        assert word in text


# What is wrong


def test_a_module_that_does_not_exist(folder: Path) -> None:
    told = refused(folder, "shpo:app")
    assert told.startswith("there is no module 'shpo' to import, from ")
    assert told.endswith("run this where your code is, or install it")


def test_a_package_that_lacks_the_module(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").touch()
    assert refused(folder, "pack.shop:app").startswith("there is no module 'pack.shop' to import")


def test_a_module_without_an_app(folder: Path) -> None:
    (folder / "empty.py").touch()
    assert refused(folder, "empty:app") == (
        "module 'empty' has no app 'app'; make one with app = Fairlead()"
    )


def test_a_misspelt_app_is_named(folder: Path) -> None:
    assert refused(folder, "shop:ap") == (
        "module 'shop' has no app 'ap' (did you mean 'app'?); it has app"
    )


def test_something_that_is_no_app(folder: Path) -> None:
    assert refused(folder, "shop:number") == (
        "shop:number is of type int, not a Fairlead app; did you mean shop:app?"
    )


def test_a_file_instead_of_a_module(folder: Path) -> None:
    assert refused(folder, "shop.py") == (
        "'shop.py' does not name an app; write module:app, for example shop:app"
    )
    assert refused(folder, "./src/shop.py:app").endswith("for example src.shop:app")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import nothing_like_it\n", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def f(:\n", "SyntaxError: invalid syntax (broken.py, line 1)"),
        (
            "from fairlead import Fairlead\napp = Fairlead('memory://')\n"
            "@app.task(queue='mial')\ndef f(): ...\n",
            "UnknownQueue: no queue is declared as 'mial'",
        ),
    ],
)
def test_an_error_in_the_users_own_module_is_named_with_its_line(
    folder: Path, code: str, told: str
) -> None:
    (folder / "broken.py").write_text(code)
    answer = refused(folder, "broken:app")
    assert answer.startswith(f"module 'broken' cannot be imported: {told}")
    assert "broken.py, line " in answer


def test_a_store_in_memory_is_refused(folder: Path) -> None:
    (folder / "mem.py").write_text("from fairlead import Fairlead\napp = Fairlead('memory://')\n")
    assert "memory:// lives in one program" in refused(folder, "mem:app")


def test_a_store_in_a_folder_that_is_missing(folder: Path) -> None:
    (folder / "far.py").write_text(
        "from fairlead import Fairlead\napp = Fairlead('sqlite:///no/such/jobs.db')\n"
    )
    assert "no/such" in refused(folder, "far:app", code=1)


def test_a_store_that_is_no_database(folder: Path) -> None:
    (folder / "jobs.db").write_bytes(b"this is not a database, only a text " * 40)
    assert "jobs.db" in refused(folder, "shop:app", code=1)


def test_a_schema_newer_than_the_program(folder: Path) -> None:
    app = Fairlead(f"sqlite:///{folder}/jobs.db")
    app.open()
    app.close()
    with sqlite3.connect(folder / "jobs.db") as raw:
        raw.execute("INSERT INTO fairlead_migration VALUES (999, 1, 2)")
    raw.close()
    told = refused(folder, "shop:app", code=1)
    assert "schema is version 999" in told
    assert told.endswith("upgrade this program")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--queue", "mial"], "the app has no queue 'mial' (did you mean 'mail'?)"),
        (["--pool", "pots"], "the app has no pool 'pots' (did you mean 'post'?)"),
        (["--pool", "post", "--queue", "reports"], "the worker would serve nothing"),
        (["--queue", "mail=0"], "a weight is a whole number from 1, as in mail=4"),
        (["--queue", "mail=x"], "a weight is a whole number from 1, as in mail=4"),
        (["--queue", "mail=\u00b2"], "a weight is a whole number from 1, as in mail=4"),
        (["--queue", "mail=1e3"], "a weight is a whole number from 1, as in mail=4"),
        (["--queue", "mail=9999999"], "the weight of queue 'mail'"),
        (["--slots", "0"], "0 is not in the range"),
        (["--lease", "0.1"], "0.1 is not in the range"),
        (["--log-level", "loud"], "'loud' is not one of"),
    ],
)
def test_a_choice_that_cannot_be(folder: Path, arguments: list[str], told: str) -> None:
    assert told in refused(folder, "shop:app", *arguments)


def test_no_app_at_all(folder: Path) -> None:
    assert refused(folder).startswith("a worker needs your app: name it first, as in `shop:app`")


# What is right


def test_a_worker_drains_what_is_due_and_says_what_it_is(folder: Path) -> None:
    with Fairlead(f"sqlite:///{folder}/jobs.db") as app:
        greet = app.task(name="greet")(lambda name: "")
        add = app.task(name="add")(lambda a, b: 0)
        jobs = [greet.enqueue(name="you"), add.enqueue(1, 2)]
        later = add.using(delay=3600).enqueue(3, 4)
        answer = run(folder, "--drain", "--slots", "3", FAIRLEAD_APP="shop:app")
        assert answer.returncode == 0, answer.stderr
        assert [job.record().result for job in jobs] == ["hello you", 3]
        assert later.status() == "waiting"
    banner = answer.stderr
    assert banner.startswith("fairlead worker ")
    for line in (
        "  app    shop:app",
        "jobs.db (durable: an accepted job survives kill -9 and power cuts)",
        "  tasks  add, alarm, greet",
        "  pool   post: 3 slots on the loop; queues mail (4)",
        "  pool   rest: 3 + 1 reserved slots on the loop and in threads; queues reports (1), alarms (critical), default (1)",
        "  stop   Ctrl-C; running jobs then get 25 s to finish",
    ):
        assert line in banner


def failing(folder: Path, *arguments: str) -> list[str]:
    """Let a worker run a job that is done and one that fails; returns the lines of its log."""
    (folder / "shaky.py").write_text(SHAKY)
    with Fairlead(f"sqlite:///{folder}/jobs.db") as app:
        pay = app.task(name="pay")(lambda card: None)
        pay.enqueue(card="4000")
        pay.enqueue(card="4111")
    answer = run(folder, "shaky:app", "--drain", *arguments)
    assert answer.returncode == 0, answer.stderr
    return [line for line in answer.stderr.splitlines() if " job=" in line or '"job_id"' in line]


SHAKY = """
from fairlead import Fairlead, Retry

app = Fairlead("sqlite:///jobs.db")

@app.task(name="pay", retry=Retry(attempts=1))
async def pay(card: str) -> None:
    if card == "4111":
        raise ValueError(f"no such card: {card}")
"""


def test_a_worker_tells_of_each_run_that_ends(folder: Path) -> None:
    done, dead = sorted(failing(folder), key=lambda line: "dead" in line)
    assert re.search(r" INFO    done in \d\.\d{3} s, waited \d+\.\d{3} s  job=.* task=pay", done)
    assert " ERROR   dead: exhausted, ValueError: no such card: 4111 (" in dead
    assert "shaky.py:9 in pay)" in dead


def test_a_quiet_worker_tells_only_of_what_fails(folder: Path) -> None:
    [dead] = failing(folder, "--quiet")
    assert "dead: exhausted, ValueError" in dead


@pytest.mark.parametrize("style", ["plain", "json"])
def test_a_worker_can_keep_to_itself_what_failures_say(folder: Path, style: str) -> None:
    told = failing(folder, "--no-log-messages", "--log-format", style)
    assert len(told) == 2
    assert "4111" not in "".join(told)
    assert "ValueError (" in "".join(told)


def test_json_logs_have_no_banner_between_them(folder: Path) -> None:
    answer = run(folder, "shop:app", "--drain", "--log-format", "json", "--log-level", "debug")
    assert answer.returncode == 0, answer.stderr
    lines = [json.loads(line) for line in answer.stderr.splitlines()]
    assert {"ProcessStarted", "WorkerStopped"} <= {line["event"] for line in lines}
