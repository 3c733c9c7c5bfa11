"""What doctor tells of a PostgreSQL store, and what it never does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fairlead.core.admin import Condition
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.migrate import migrate
from tests.servers.bouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.system.tree import COMMAND

SHOP = "from fairlead import Fairlead\napp = Fairlead()\napp.task(name='t')(lambda: None)\n"


async def condition(url: str) -> Condition:
    store = store_for(url)
    found = await store.condition()
    await store.close()
    return found


def problems(found: Condition) -> str:
    return "\n".join(finding.problem for finding in found.findings)


async def test_a_server_tells_of_itself(crew_url: str) -> None:
    found = await condition(crew_url)
    assert found.facts["server"].startswith("PostgreSQL 1")
    assert found.facts["driver"].startswith("psycopg 3")
    assert found.facts["user"] == "crew"
    assert found.facts["durability"] == "synchronous_commit on, fsync off"
    assert found.facts["schema"].startswith(f"{Address.of(crew_url).schema}, step ")
    assert found.facts["news"] == "heard"
    assert "fsync is off" in problems(found), "the server of the tests forgets at a power cut"
    assert "superuser" not in problems(found)
    assert "not heard" not in problems(found)


async def test_a_superuser_is_told_to_be_less(postgres_url: str) -> None:
    assert "the store is used as a superuser" in problems(await condition(postgres_url))


async def test_news_that_a_pooler_keeps_are_missed_and_those_not_asked_for_are_not(
    postgres_url: str, bouncer: PgBouncer
) -> None:
    migrate(Address.of(postgres_url))
    url = bouncer.url(schema=Address.of(postgres_url).schema)
    found = await condition(url)
    assert found.facts["news"] == "not heard"
    assert "news of jobs are not heard" in problems(found)
    found = await condition(f"{url}&listen=off")
    assert found.facts["news"] == "not listened for (listen=off)"
    assert "news of jobs" not in problems(found)


@pytest.mark.parametrize(
    "words", ["doctor shop:app", "jobs list shop:app", "enqueue shop:app t []"]
)
@pytest.mark.parametrize("way", ["right", "wrong", "nobody there"])
def test_no_command_says_the_password(
    postgres_server: PostgresServer, crew_url: str, tmp_path: Path, way: str, words: str
) -> None:
    postgres_server.execute("ALTER ROLE crew PASSWORD 'c4n4ry'")
    try:
        url = {
            "right": crew_url.replace(":rope@", ":c4n4ry@"),
            "wrong": crew_url.replace(":rope@", ":c4n4ry1@"),
            "nobody there": "postgresql://crew:c4n4ry@127.0.0.1:1/postgres",
        }[way]
        (tmp_path / "shop.py").write_text(SHOP)
        run = subprocess.run(
            [sys.executable, "-c", COMMAND, *words.split()],
            cwd=tmp_path,
            env=os.environ | {"FAIRLEAD_URL": url, "FAIRLEAD_LOG_LEVEL": "debug"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        postgres_server.execute("ALTER ROLE crew PASSWORD 'rope'")
    assert "c4n4ry" not in run.stdout + run.stderr
    expected = {
        "right": "",
        "wrong": "check user and password in the store's URL",
        "nobody there": "is the server running, and reachable from here?",
    }[way]
    assert expected in run.stderr, run.stdout + run.stderr
    assert (run.returncode == 1) == (way != "right")
