"""`fairlead doctor`: what is wrong, what to do about it, and an exit code for scripts."""

import sqlite3
from pathlib import Path

import pytest

from fairlead.core.clock import SystemClock
from tests import deeds
from tests.cli.shop import SHOP, Stock, objects, read_until, started, told, with_store
from tests.servers.postgres import PostgresServer
from tests.words import by, new_job


def findings(folder: Path, code: int = 4) -> dict[str, str]:
    """Return the problems with their remedies, but for that of an old SQLite."""
    [checkup] = objects(folder, "doctor", code=code)
    found = {each["problem"]: each["remedy"] for each in checkup["findings"]}
    return {problem: found[problem] for problem in found if "3.51.3" not in problem}


def change(folder: Path, statement: str) -> None:
    raw = sqlite3.connect(folder / "jobs.db")
    with raw:
        raw.execute(statement)
    raw.close()


def test_a_sound_store_is_told_with_its_facts(folder: Path) -> None:
    with_store(folder, lambda store: store.admin.count())
    text = told(folder, "doctor")
    facts = dict(line.split(maxsplit=1) for line in text.split("\n\n")[0].splitlines()[:7])
    assert facts["store"] == "sqlite:///jobs.db"
    assert facts["file"] == str(folder / "jobs.db")
    assert facts["durability"] == "durable"
    assert facts["sqlite"] == sqlite3.sqlite_version
    for name in ("fairlead", "python", "click", "msgspec", "uvloop", "watchfiles", "room"):
        assert f"\n{name} " in text
    assert findings(folder, code=0) == {}


def test_what_is_well_is_said(folder: Path) -> None:
    """SQLite of this machine may have a known bug, which is told beside it."""
    with_store(folder, lambda store: store.admin.count())
    text = told(folder, "doctor")
    fixed = sqlite3.sqlite_version_info >= (3, 51, 3)
    assert ("all is well" in text) == fixed
    assert ("can damage a file when two connections checkpoint at once" in text) != fixed


def test_jobs_that_nobody_works_on_are_told(folder: Path, stock: Stock) -> None:
    text = told(folder, "doctor", code=4)
    assert "wrong  no worker is live, and 1 job waits\n  fix  fairlead worker MODULE:APP\n" in text
    assert (
        "note   2 dead letters wait for a person\n  fix  fairlead dead list --by-error\n"
    ) in text
    told(folder, "queues", "pause", "mail")
    assert findings(folder) == {
        "no worker is live, and 1 job waits": "fairlead worker MODULE:APP",
        "queue 'mail' is paused, and 2 jobs wait in it": "fairlead queues resume mail",
        "2 dead letters wait for a person": "fairlead dead list --by-error",
    }


def test_notes_alone_are_no_failure(folder: Path, stock: Stock) -> None:
    told(folder, "jobs", "cancel", "--state", "waiting", "--yes")
    assert findings(folder, code=0) == {
        "2 dead letters wait for a person": "fairlead dead list --by-error"
    }


def test_a_queue_that_no_live_worker_serves_is_told(folder: Path) -> None:
    told(folder, "enqueue", "add", "[1, 2]", "--queue", "reports")
    with started(folder, "worker", "--queue", "mail") as worker:
        read_until(worker, "is ready")
        assert findings(folder) == {
            "no live worker serves queue 'reports', and 1 job waits in it": (
                "start a worker that does: fairlead worker MODULE:APP --queue reports"
            )
        }
        worker.terminate()
        worker.communicate()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE fairlead_job SET parked = 7 WHERE id = '{later}'", "job {later} is parked for no"),
        (
            "UPDATE fairlead_finished SET state = 'odd' WHERE id = '{done}'",
            "finished job {done} is",
        ),
        ("UPDATE fairlead_dead SET id = '{done}' WHERE id = '{bad}'", "job {done} is finished and"),
        ("UPDATE fairlead_dead SET reason = NULL WHERE id = '{bad}'", "dead letter {bad} has no"),
        (
            "UPDATE fairlead_job SET worker = NULL WHERE id = '{running}'",
            "job {running} does not agree with itself about running",
        ),
        (
            "INSERT INTO fairlead_worker (id, capable, live_until) VALUES ('w9', '{{', 1 << 60)",
            "worker w9 cannot be read",
        ),
    ],
)
def test_damage_is_found_and_not_stumbled_over(
    folder: Path, stock: Stock, statement: str, problem: str
) -> None:
    change(folder, statement.format(**stock._asdict()))
    found = findings(folder)
    [told_of] = [each for each in found if each.startswith(problem.format(**stock._asdict()))]
    assert found[told_of] == "fairlead doctor --repair"


def test_what_sqlite_itself_finds_is_told(folder: Path, stock: Stock) -> None:
    """An index that lacks entries, because it is for other rows than it was made for."""
    raw = sqlite3.connect(folder / "jobs.db")
    with raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute(
            "UPDATE sqlite_master SET sql = replace(sql, 'parked = 1', 'parked = 0') "
            "WHERE name = 'fairlead_job_due'"
        )
    raw.close()
    found = findings(folder)
    assert [remedy for problem, remedy in found.items() if problem.startswith("SQLite: ")]


def test_a_file_that_others_can_read_is_told(folder: Path) -> None:
    with_store(folder, lambda store: store.admin.count())
    (folder / "jobs.db").chmod(0o644)
    assert findings(folder, code=0) == {
        "every user of this machine can read the file, and with it all arguments": (
            f"chmod o-rwx {folder / 'jobs.db'}*"
        )
    }


def test_settings_that_will_hurt_are_told(folder: Path) -> None:
    with_store(folder, lambda store: store.admin.count())
    (folder / "shop.py").write_text(
        SHOP.replace('tasks=["alarm"]', 'tasks=["alarm", "alrm"]')
        + '\n@app.task(name="pay", effects="external")\ndef pay() -> None: ...\n'
    )
    assert findings(folder) == {
        "the critical queue 'alarms' is kept for task 'alrm', which the app does not have": (
            "mend the name in the queue's `tasks`"
        ),
        "task 'pay' has outside effects and no way to find out about them, so a run that is cut "
        "off becomes a dead letter": (
            "give it a `reconcile`, or mark it idempotent=True if repeating does no harm"
        ),
    }
    (folder / "bare.py").write_text(
        "from fairlead import Fairlead\napp = Fairlead('sqlite:///jobs.db')\n"
    )
    text = told(folder, "doctor", "bare:app", code=4)
    assert "wrong  the app has no tasks\n  fix  import the modules that define them" in text


def test_a_store_without_a_schema_is_not_given_one(folder: Path) -> None:
    assert findings(folder) == {
        "there is no Fairlead schema in it yet": "fairlead migrate up, or enqueue a job"
    }
    assert not (folder / "jobs.db").exists()


# Much that is wrong, and what cannot be mended


def test_of_what_is_alike_some_is_told_and_counted(folder: Path) -> None:
    """100,000 damaged rows were a million lines."""
    jobs = [new_job(queue=f"q{n}", task=f"t{n}") for n in range(300)]
    with_store(folder, lambda store: store.put(jobs))
    change(
        folder,
        "UPDATE fairlead_job SET parked = 2, park_key = task || ' 0000000001', "
        "shared_deaths = -7 WHERE seq % 2",
    )
    change(folder, "INSERT INTO fairlead_paused SELECT DISTINCT queue FROM fairlead_job")
    change(
        folder,
        "INSERT INTO fairlead_worker (id, capable, live_until) "
        f"VALUES ('w1', '{{}}', {SystemClock().now() + 3_600_000_000})",
    )
    text = told(folder, "doctor", code=4)
    assert len(text.splitlines()) < 100
    assert text.count("cannot be read") == 10
    assert "\n       and 140 more like this\n  fix  fairlead doctor --repair\n" in text
    assert text.count("  fix  fairlead doctor --repair\n") == 1
    assert text.count("no live worker serves queue") == 10
    assert text.count("and none is live") == 10
    assert text.count("is paused") == 10
    [checkup] = objects(folder, "doctor", code=4)
    more = [each["more"] for each in checkup["findings"] if each["more"]]
    assert sorted(more) == [140, 140, 290, 290]
    assert len(checkup["findings"]) < 60


def test_a_repair_tells_the_first_it_did_and_counts_all(folder: Path) -> None:
    with_store(folder, lambda store: store.put([new_job() for _ in range(50)]))
    change(folder, "UPDATE fairlead_job SET version = 'x'")
    text = told(folder, "doctor", "--repair")
    assert text.count("\nmended") == 9
    assert "\n        and 40 more like these\n50 repairs\n\n" in text
    assert told(folder, "doctor", "--repair").startswith("nothing was damaged\n\n")


def test_what_a_repair_could_not_mend_is_told_and_is_a_failure(folder: Path) -> None:
    """It said that nothing was damaged, above the damage."""
    with_store(folder, lambda store: store.put([new_job() for _ in range(20)]))
    change(folder, "UPDATE fairlead_job SET version = 'x'")
    change(
        folder,
        "CREATE TRIGGER keep BEFORE DELETE ON fairlead_job WHEN OLD.seq > 1 "
        "BEGIN SELECT RAISE(ABORT, 'not this one'); END",
    )
    text = told(folder, "doctor", "--repair", code=4)
    assert text.startswith("mended  job ")
    assert text.count("\nleft    could not mend this: job ") == 10
    assert "\n        and 9 more like these\n1 repair; 19 could not be made\n\n" in text
    assert "  fix  the repair could not; stop what writes there and repair again" in text
    assert "fix  fairlead doctor --repair" not in text
    [checkup] = objects(folder, "doctor", "--repair", code=4)
    assert (checkup["repaired_count"], checkup["not_mended_count"]) == (0, 19)
    assert len(checkup["not_mended"]) == 10


def test_a_name_in_a_remedy_can_be_pasted(folder: Path) -> None:
    with_store(folder, lambda store: deeds.pause(store, "mail; reboot", by()))
    assert findings(folder, code=0) == {
        "queue 'mail; reboot' is paused, and 0 jobs wait in it": (
            "fairlead queues resume 'mail; reboot'"
        )
    }


def test_a_schema_that_a_stranger_made_is_a_finding(
    folder: Path, postgres_server: PostgresServer
) -> None:
    """It was an error in the arguments, with no JSON at all."""
    postgres_server.execute("CREATE ROLE mallory")
    postgres_server.execute("CREATE SCHEMA trap AUTHORIZATION mallory")
    try:
        url = postgres_server.url(schema="trap")
        [checkup] = objects(folder, "doctor", "--url", url, code=4, FAIRLEAD_APP="")
    finally:
        postgres_server.execute("DROP SCHEMA trap")
        postgres_server.execute("DROP ROLE mallory")
    [finding] = checkup["findings"]
    assert finding["problem"] == (
        "schema trap belongs to mallory, whose code would run with our rights"
    )
    assert finding["grave"]
    assert finding["remedy"]
