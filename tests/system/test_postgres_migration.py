"""The schema changes while workers of the version before run (F52, P14)."""

import signal
import subprocess
import sys
import threading
import time

import psycopg
import pytest

from fairlead import State
from fairlead.core.admin import Migration
from fairlead.core.errors import StoreUnavailable
from fairlead.stores.postgres import catalog
from fairlead.stores.postgres import migrate as migrating
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.line import put_text
from fairlead.stores.postgres.migrate import migrate
from fairlead.stores.postgres.statements import migrations
from tests.system.faults import PostgresShop, Producer, transaction
from tests.system.tree import until
from tests.words import new_job

NEXT = len(migrations()) + 1
STEP = """
ALTER TABLE job ADD COLUMN colour text NOT NULL DEFAULT 'red';
CREATE OR REPLACE FUNCTION stamp() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;
"""
SLOW = """
import sys
from msgspec.structs import replace
from fairlead.stores.postgres import migrate as migrating
from fairlead.stores.postgres.address import Address

steps, script = migrating.migrations(), migrating.script
if sys.argv[2] == "tables":
    steps = [replace(steps[0], sql="SELECT pg_sleep(2);" + steps[0].sql)]
    migrating.migrations = lambda: steps
else:
    migrating.script = lambda *told, **named: "SELECT pg_sleep(2);" + script(*told, **named)
migrating.migrate(Address.of(sys.argv[1]))
"""


@pytest.fixture
def next_version(pg_shop: PostgresShop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this program, and no other, be of the next version; the shop is of this one."""
    steps = [*migrations(), Migration(NEXT, "colour", STEP)]
    monkeypatch.setattr(migrating, "migrations", lambda: steps)


def applied(shop: PostgresShop) -> list[int]:
    return [number for (number,) in shop.sql("SELECT number FROM migration ORDER BY number")]


@pytest.mark.usefixtures("next_version")
def test_workers_of_the_version_before_go_on(pg_shop: PostgresShop) -> None:
    """The table gets a column, a function is replaced, and nobody notices."""
    tree = pg_shop.start("--lease", "2", "--processes", "2")
    with Producer(pg_shop) as producer, Producer(pg_shop, "plain"):
        pg_shop.until_up(processes=2)
        long = pg_shop.put("wait", 1.5)
        pg_shop.until_started(long)
        migrate(Address.of(pg_shop.owner_url))
        assert applied(pg_shop) == list(range(1, NEXT + 1))
        producer.until_more(20)
        pg_shop.put_many("second_time", 10)
        pg_shop.check_back(processes=2)
    pg_shop.until_final()
    for job in pg_shop.accepted:
        assert (pg_shop.record(job).state, pg_shop.outcomes(job)[-1]) == (State.DONE, "done")
    assert len(pg_shop.starts(long)) == 1
    assert "cannot be used" not in tree.log


@pytest.mark.usefixtures("next_version")
def test_several_who_migrate_at_once_do_it_once(pg_shop: PostgresShop) -> None:
    """As when many machines start with new code at the same moment."""
    pg_shop.server.execute(f"DROP SCHEMA {pg_shop.schema} CASCADE")
    problems: list[Exception] = []

    def run() -> None:
        try:
            migrate(Address.of(pg_shop.owner_url))
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert problems == []
    assert applied(pg_shop) == list(range(1, NEXT + 1))
    pg_shop.admit("crew")
    pg_shop.waiting.add(pg_shop.put("quick"))


@pytest.mark.parametrize("step", ["tables", "functions"])
def test_a_migration_that_was_killed_is_taken_up_again(pg_shop: PostgresShop, step: str) -> None:
    """The steps before stay, the one it was in leaves no trace."""
    pg_shop.server.execute(f"DROP SCHEMA {pg_shop.schema} CASCADE")
    process = subprocess.Popen([sys.executable, "-c", SLOW, pg_shop.owner_url, step])
    until(lambda: pg_shop.sessions("query LIKE 'SELECT pg_sleep%'"), 20, "the slow step")
    process.send_signal(signal.SIGKILL)
    process.wait()
    migrate(Address.of(pg_shop.owner_url))
    assert applied(pg_shop) == list(range(1, NEXT))
    pg_shop.admit("crew")
    pg_shop.waiting.add(pg_shop.put("quick"))


@pytest.mark.usefixtures("next_version")
def test_a_migration_that_cannot_get_its_lock_keeps_nobody_waiting(
    pg_shop: PostgresShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's report reads our table for hours; whoever waits for him lets others pass."""
    monkeypatch.setattr(migrating, "PATIENCE_SECONDS", 8.0)
    pg_shop.start("--lease", "2")
    pg_shop.until_up()
    report = f"SELECT count(*) FROM {pg_shop.schema}.job"
    with Producer(pg_shop) as producer:
        with transaction(pg_shop.server.url(), report):
            refused: list[Exception] = []
            waiting = threading.Thread(target=_refused, args=(pg_shop, refused))
            waiting.start()
            while waiting.is_alive():
                producer.until_more(1)
                running = pg_shop.put("quick")
                pg_shop.until_final(running, seconds=6)
            assert "could not get its lock" in str(refused[0])
            assert applied(pg_shop) == list(range(1, NEXT))
        migrate(Address.of(pg_shop.owner_url))
        assert applied(pg_shop) == list(range(1, NEXT + 1))
        pg_shop.check_back()
    assert not producer.repeated
    pg_shop.until_final()


def _refused(shop: PostgresShop, problems: list[Exception]) -> None:
    began = time.monotonic()
    try:
        migrate(Address.of(shop.owner_url))
    except StoreUnavailable as problem:
        problems.append(problem)
    assert time.monotonic() - began >= 8.0


# Functions and views


def another(monkeypatch: pytest.MonkeyPatch, revision: int = catalog.REVISION) -> None:
    """Let this program have other functions than the shop's: one more, and all with a new text."""
    names = (*catalog.ORDER, "functions/colour")
    texts = {name: f"-- Another text.\n{catalog.text_of(name)}" for name in catalog.ORDER}
    texts["functions/colour"] = COLOUR
    monkeypatch.setattr(catalog, "ORDER", names)
    monkeypatch.setattr(catalog, "text_of", texts.__getitem__)
    for module in (catalog, migrating):
        monkeypatch.setattr(module, "REVISION", revision)


COLOUR = """
CREATE OR REPLACE FUNCTION colour(batch text) RETURNS text LANGUAGE sql AS $$ SELECT batch $$;
"""


def test_functions_are_replaced_while_workers_call_them(
    pg_shop: PostgresShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again and again, under a worker and producers of the version before, and nobody notices."""
    tree = pg_shop.start("--lease", "2", "--processes", "2")
    with Producer(pg_shop) as producer, Producer(pg_shop, "plain"):
        pg_shop.until_up(processes=2)
        long = pg_shop.put("wait", 1.5)
        pg_shop.until_started(long)
        for _ in range(10):
            with monkeypatch.context() as patch:
                another(patch)
                migrate(Address.of(pg_shop.owner_url))
            migrate(Address.of(pg_shop.owner_url))
        producer.until_more(20)
        pg_shop.check_back(processes=2)
    assert not producer.repeated
    pg_shop.until_final()
    for job in pg_shop.accepted:
        assert (pg_shop.record(job).state, pg_shop.outcomes(job)) == (State.DONE, ["done"])
    assert "cannot be used" not in tree.log


def test_functions_wait_for_no_transaction_of_an_application(
    pg_shop: PostgresShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has put, and stays open for hours."""
    monkeypatch.setattr(migrating, "PATIENCE_SECONDS", 0.0)
    pg_shop.waiting.add(pg_shop.put("quick"))
    views = catalog.views_digest()
    another(monkeypatch)
    monkeypatch.setattr(migrating, "views_digest", lambda: views)
    monkeypatch.setattr(catalog, "views_digest", lambda: views)
    with psycopg.connect(pg_shop.owner_url.partition("?")[0]) as connection:
        text = put_text([new_job("quick", queue="default")], None, None)
        connection.execute(f"SELECT {pg_shop.schema}.put(%s)", [text])
        connection.execute(f"SELECT FROM {pg_shop.schema}.mended, {pg_shop.schema}.job_record")
        migrate(Address.of(pg_shop.owner_url))
        connection.rollback()
    assert pg_shop.sql("SELECT colour('x')") == [("x",)]
