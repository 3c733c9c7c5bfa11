"""`fairlead migrate`: the schema is looked at, planned and applied; and files that are none."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.cli.command import Problem
from fairlead.cli.desk import Desk
from fairlead.core.admin import VERBS, Migration
from fairlead.stores.postgres.address import Address
from fairlead.stores.sqlite.admin import SqliteAdmin
from fairlead.stores.sqlite.statements import migrations
from tests.cli.shop import APP, audit_lines, objects, refused, run, started, told, with_store
from tests.servers.postgres import PostgresServer

STEPS = migrations()


NEXT = """
from fairlead.core.admin import Migration
from fairlead.stores.sqlite.statements import migrations

SQL = "ALTER TABLE fairlead_job ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey';"
migrations().append(Migration(migrations()[-1].number + 1, "colour", SQL, serves=1))
"""


def behind(folder: Path) -> None:
    """Make a file of this version, and a program of the next, whose schema has a step more."""
    told(folder, "migrate", "up")
    (folder / "shop.py").write_text(NEXT + (folder / "shop.py").read_text())


def test_what_is_missing_is_told_planned_and_applied(folder: Path) -> None:
    lines = told(folder, "migrate", "status", code=4).splitlines()
    assert lines[0].split() == ["STEP", "NAME", "APPLIED"]
    assert [line.split() for line in lines[1:]] == [
        [str(step.number), step.name, "missing"] for step in STEPS
    ]
    whole = told(folder, "migrate", "sql")
    assert told(folder, "migrate", "plan") == whole
    assert all(f"-- {step.number} {step.name}\n" in whole for step in STEPS)
    assert not (folder / "jobs.db").exists(), "looking makes no file"

    applied = [f"applied {step.number} {step.name}" for step in STEPS]
    done = "sqlite:///jobs.db is up to date"
    assert told(folder, "migrate", "up").splitlines() == [*applied, done]
    assert audit_lines(folder) == [("migrate", "sqlite:///jobs.db", len(STEPS))]
    assert told(folder, "migrate", "up") == f"{done}\n"
    assert len(audit_lines(folder)) == 1
    assert told(folder, "migrate", "plan") == ""
    assert told(folder, "migrate", "sql") == whole
    assert "missing" not in told(folder, "migrate", "status")
    assert all(step["applied_at"].endswith("Z") for step in objects(folder, "migrate", "status"))


def test_the_sql_is_the_schema(folder: Path) -> None:
    """Who applies it by other means gets the same tables."""
    script = told(folder, "migrate", "sql")
    by_hand = sqlite3.connect(":memory:")
    by_hand.executescript(script)
    told(folder, "migrate", "up")
    ours = sqlite3.connect(folder / "jobs.db")
    names = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE '%migration%' ORDER BY name"
    try:
        assert by_hand.execute(names).fetchall() == ours.execute(names).fetchall()
    finally:
        by_hand.close()
        ours.close()


def test_looking_never_brings_a_schema_up_to_date(folder: Path) -> None:
    behind(folder)
    found, needed = STEPS[-1].number, STEPS[-1].number + 1
    for arguments in (["jobs", "list"], ["dead", "replay", "--all"]):
        assert refused(folder, *arguments, code=1, **APP) == (
            f"the schema of sqlite:///jobs.db is version {found}, this program needs {needed}; "
            "run `fairlead migrate up`"
        )
    assert "1 step of the schema is missing" in told(folder, "doctor", code=4)
    assert told(folder, "migrate", "plan").startswith(f"-- {needed} colour\n")
    assert told(folder, "migrate", "status", code=4).splitlines()[-1].endswith("missing")
    assert told(folder, "migrate", "up").startswith(f"applied {needed} colour\n")
    assert told(folder, "jobs", "list") == "no job matches\n"


def test_functions_of_another_program_are_told_apart_from_tables(
    folder: Path, postgres_server: PostgresServer, postgres_url: str
) -> None:
    address = Address.of(postgres_url)
    told(folder, "migrate", "up", "--url", postgres_url)
    postgres_server.execute(f"UPDATE {address.quoted_schema}.verbs SET functions = 'older'")
    assert refused(folder, "jobs", "list", "--url", postgres_url, code=1) == (
        f"the functions in {address.url} are not those of this program; run `fairlead migrate up`"
    )


def test_the_number_of_a_schema_is_that_of_its_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = [Migration(1, "tables", "", 5), Migration(2, "more", ""), Migration(9, VERBS, "")]

    async def migrations_of(_: object) -> list[Migration]:
        return steps

    monkeypatch.setattr(SqliteAdmin, "migrations", migrations_of)
    desk = Desk(None, f"sqlite:///{tmp_path}/jobs.db")
    with pytest.raises(Problem, match="is version 1, this program needs 2; run `fairlead migr"):
        desk.run(lambda store: store.admin.count())


def test_a_newer_schema_that_serves_this_program_is_no_matter(folder: Path) -> None:
    """The one that made it ran beside this one, and may be gone again."""
    older = (folder / "shop.py").read_text()
    behind(folder)
    told(folder, "migrate", "up")
    (folder / "shop.py").write_text(older)
    told(folder, "enqueue", "alarm")
    assert told(folder, "jobs", "list").count("waiting") == 1
    assert "missing" not in told(folder, "migrate", "status")
    newest = STEPS[-1].number
    assert f"{newest + 1}, of which we know {newest}" in run(folder, "doctor", **APP).stdout
    assert told(folder, "migrate", "up") == "sqlite:///jobs.db is up to date\n"


def test_a_newer_schema_wants_a_newer_program(folder: Path) -> None:
    told(folder, "migrate", "up")
    raw = sqlite3.connect(folder / "jobs.db")
    with raw:
        raw.execute("INSERT INTO fairlead_migration VALUES (999, 1, 2)")
    raw.close()
    for arguments in (["jobs", "list"], ["doctor"], ["migrate", "up"]):
        assert refused(folder, *arguments, code=1, **APP) == (
            f"the store's schema is version 999, this program needs {STEPS[-1].number}; "
            "upgrade this program"
        )


def test_a_store_without_a_schema_holds_no_jobs_yet(folder: Path) -> None:
    """A file that is not where it was looked for is the most common reason."""
    told = f"sqlite:///jobs.db, from {folder}, holds no jobs yet: enqueue one, or run `fairlead mi"
    assert refused(folder, "jobs", "list", code=1, **APP).startswith(told)
    (folder / "jobs.db").touch()
    assert refused(folder, "jobs", "list", code=1, **APP).startswith(told)
    assert refused(folder, "jobs", "list") == (
        "no app is named: write it first, as in `fairlead jobs list shop:app`, or set "
        "$FAIRLEAD_APP, or `app` under [tool.fairlead] in pyproject.toml; or give --url"
    )
    assert not (folder / "fairlead.db").exists()


# Files that are none


def a_text(folder: Path) -> None:
    (folder / "jobs.db").write_text("only a text, and not a short one " * 50)


def a_folder(folder: Path) -> None:
    (folder / "jobs.db").mkdir()


def unreadable(folder: Path) -> None:
    behind(folder)
    (folder / "jobs.db").chmod(0)


def unwritable(folder: Path) -> None:
    with_store(folder, lambda store: store.admin.count())
    (folder / "jobs.db").chmod(0o400)
    folder.chmod(0o500)


def locked_out(folder: Path) -> None:
    with_store(folder, lambda store: store.admin.count())
    (folder / "jobs.db-turn").chmod(0)


def as_anybody() -> tuple[str, ...]:
    """Return what makes root obey the modes of files, as everybody else does."""
    return () if os.getuid() else ("setpriv", "--bounding-set=-all", "--inh-caps=-all")


@pytest.mark.parametrize(
    ("make", "problem", "remedy"),
    [
        (a_text, "file is not a database", "name another file, this one belongs to something else"),
        (a_folder, "jobs.db is a folder; name a file in it, as in sqlite:////", "/jobs.db/jobs.db"),
        (unreadable, "may not read and write ", "jobs.db; let it (chown or chmod "),
        (unwritable, "may not write in folder ", "; let it (chown or chmod "),
        (locked_out, "may not read and write ", "jobs.db-turn; let it (chown or chmod "),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_the_next_step(
    folder: Path, make: Callable[[Path], None], problem: str, remedy: str
) -> None:
    make(folder)
    try:
        answer = run(folder, "jobs", "list", prefix=as_anybody(), **APP)
        assert answer.returncode == 1, answer.stdout
        assert answer.stderr.startswith("Error: sqlite:///jobs.db: ")
        assert answer.stderr.count("\n") == 1
        assert problem in answer.stderr
        assert remedy in answer.stderr
    finally:
        folder.chmod(0o700)


def test_a_missing_folder_is_named(folder: Path) -> None:
    problem = refused(folder, "migrate", "up", "--url", "sqlite:///no/such/jobs.db", code=1)
    assert problem == (
        f"sqlite:///no/such/jobs.db: there is no folder {folder}/no/such; make it (mkdir -p "
        f"{folder}/no/such), or name another in the store's URL"
    )


@pytest.mark.parametrize(
    "words", ["jobs list APP", "doctor APP", "enqueue APP greet", "worker APP"]
)
def test_every_command_names_a_missing_folder(folder: Path, words: str) -> None:
    """None says to enqueue a job first, which would not help."""
    (folder / "far.py").write_text(FAR)
    problem = refused(folder, *words.replace("APP", "far:app").split(), code=1)
    assert f"there is no folder {folder}/no/such; make it (mkdir -p " in problem


FAR = """
from fairlead import Fairlead

app = Fairlead("sqlite:///no/such/jobs.db")
app.task(name="greet")(lambda: None)
"""


def test_a_folder_that_is_a_file_is_named(folder: Path) -> None:
    (folder / "no").write_text("a file")
    problem = refused(folder, "migrate", "up", "--url", "sqlite:///no/such/jobs.db", code=1)
    assert f"{folder}/no is not a folder; name another in the store's URL" in problem


def test_a_folder_that_nobody_may_look_into_is_named(folder: Path) -> None:
    (folder / "shut" / "inner").mkdir(parents=True)
    (folder / "shut").chmod(0)
    try:
        url = "sqlite:///shut/inner/jobs.db"
        answer = run(folder, "migrate", "up", "--url", url, prefix=as_anybody())
    finally:
        (folder / "shut").chmod(0o700)
    assert answer.returncode == 1
    assert f"may not look into folder {folder}/shut; let it (chown or chmod " in answer.stderr


def test_a_file_locked_by_another_is_not_waited_for_without_end(folder: Path) -> None:
    told(folder, "migrate", "up")
    other = sqlite3.connect(folder / "jobs.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        url = "sqlite:///jobs.db?timeout=0.2"
        (folder / "hasty.py").write_text(
            (folder / "shop.py").read_text().replace("sqlite:///jobs.db", url)
        )
        problem = refused(folder, "enqueue", "hasty:app", "alarm", code=1)
        assert problem.startswith(
            "sqlite:///jobs.db: another connection has held the write lock for 0.2 s; look for a "
            "long transaction in your own code"
        )
        assert run(folder, "jobs", "list", "--url", url).stdout == "no job matches\n"
        assert run(folder, "migrate", "up", "--url", url).returncode == 0
    finally:
        other.close()
    assert refused(folder, "jobs", "list", "--url", "sqlite:///jobs.db?timeout=no") == (
        "timeout='no' is not a number of seconds; write timeout=30"
    )


def test_two_programs_may_migrate_at_once(folder: Path) -> None:
    with started(folder, "migrate", "up") as first, started(folder, "migrate", "up") as second:
        texts = [first.communicate()[0], second.communicate()[0]]
        assert (first.returncode, second.returncode) == (0, 0), texts
    assert all(text.endswith("sqlite:///jobs.db is up to date\n") for text in texts)
    assert "missing" not in told(folder, "migrate", "status")
