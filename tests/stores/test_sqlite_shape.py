"""What somebody does to the tables, indexes and views of the file is told, and mended if it can be."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.core.store import Store
from fairlead.stores import store_for
from tests.words import by, claim, new_job

REPAIR = "fairlead doctor --repair"
BACKUP = "restore a backup, for its rows are lost"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = store_for(f"sqlite:///{tmp_path}/jobs.db")
    await store.put([new_job()])
    yield store
    await store.close()


def do(tmp_path: Path, script: str) -> None:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.executescript(script)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("DROP INDEX fairlead_job_order", "the index fairlead_job_order is missing"),
        (
            "DROP INDEX fairlead_job_order;"
            "CREATE INDEX fairlead_job_order ON fairlead_job (queue, order_at, id)",
            "the index fairlead_job_order is not as it was made",
        ),
        ("DROP VIEW fairlead_dead_record", "the view fairlead_dead_record is missing"),
        (
            "DROP VIEW fairlead_job_record; CREATE VIEW fairlead_job_record AS SELECT 1 AS id",
            "the view fairlead_job_record is not as it was made",
        ),
    ],
)
async def test_an_index_or_a_view_is_made_again(
    store: Store, tmp_path: Path, script: str, told: str
) -> None:
    """Without the index of the order no queue was served, and nobody could tell why."""
    do(tmp_path, script)
    assert [(each.problem, each.remedy) for each in await store.admin.audit()] == [(told, REPAIR)]
    (mended,) = await store.admin.repair(by("repair"))
    assert mended.endswith("is made again")
    assert await store.admin.audit() == []
    assert await store.admin.repair(by("repair")) == []
    assert len(await claim(store)) == 1


@pytest.mark.parametrize(
    ("script", "told", "remedy"),
    [
        ("DROP TABLE fairlead_job", "the table fairlead_job is missing", BACKUP),
        ("DROP TABLE fairlead_attempt", "the table fairlead_attempt is missing", BACKUP),
        (
            "DROP TABLE fairlead_worker; CREATE VIEW fairlead_worker AS SELECT 1 AS id",
            "a view stands in place of the table fairlead_worker",
            f'look at it, and DROP VIEW "fairlead_worker"; {BACKUP}',
        ),
        (
            'DROP VIEW fairlead_dead_record; CREATE TABLE "fairlead_dead_record" (id)',
            "a table stands in place of the view fairlead_dead_record",
            f'look at it, and DROP TABLE "fairlead_dead_record"; then {REPAIR}',
        ),
        (
            "ALTER TABLE fairlead_job ADD COLUMN odd CHECK (odd > 0)",
            "the table fairlead_job was changed, and may refuse what is written to it",
            "compare it with that of a new file",
        ),
        (
            'CREATE TRIGGER "a""b" BEFORE INSERT ON fairlead_finished '
            "BEGIN SELECT RAISE(IGNORE); END",
            'the trigger a"b on fairlead_finished is not ours, and can change or refuse what is '
            "written there",
            'look at it, and unless you need it: DROP TRIGGER "a""b"',
        ),
        (
            "CREATE UNIQUE INDEX one ON fairlead_job (queue)",
            "the index one on fairlead_job is not ours, and can change or refuse what is written "
            "there",
            'look at it, and unless you need it: DROP INDEX "one"',
        ),
    ],
)
async def test_what_a_person_must_decide_is_told_and_left_alone(
    store: Store, tmp_path: Path, script: str, told: str, remedy: str
) -> None:
    """A trigger that ignores what is written made done jobs vanish, and a view was no damage."""
    do(tmp_path, script)
    assert [(each.problem, each.remedy) for each in await store.admin.audit()] == [(told, remedy)]
    assert await store.admin.repair(by("repair")) == []
    assert [each.problem for each in await store.admin.audit()] == [told]


async def test_rows_are_looked_at_beside_a_table_that_is_missing(
    store: Store, tmp_path: Path
) -> None:
    do(tmp_path, "DROP TABLE fairlead_attempt; UPDATE fairlead_job SET size = -1")
    missing, *damaged = await store.admin.audit()
    assert (missing.problem, missing.remedy) == ("the table fairlead_attempt is missing", BACKUP)
    assert any("is of another size than it says" in each.problem for each in damaged)


async def test_what_an_application_adds_for_itself_is_its_own(store: Store, tmp_path: Path) -> None:
    do(
        tmp_path,
        """
        CREATE TABLE orders (id UNIQUE);
        CREATE TRIGGER counted AFTER INSERT ON orders BEGIN SELECT 1; END;
        CREATE INDEX faster ON fairlead_job (task);
        """,
    )
    assert await store.admin.audit() == []
