"""What doctor tells of a PostgreSQL store, and what it never does."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fairlead.core.admin import Condition
from fairlead.stores import store_for
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.durability import durability_of
from fairlead.stores.postgres.migrate import migrate
from tests.servers.bouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.system.tree import COMMAND

SHOP = "from fairlead import Fairlead\napp = Fairlead()\napp.task(name='t')(lambda: None)\n"


async def condition(url: str) -> Condition:
    store = store_for(url)
    found = await store.admin.condition()
    await store.close()
    return found


def problems(found: Condition) -> str:
    return "\n".join(finding.problem for finding in found.findings)


async def test_a_server_tells_of_itself(crew_url: str) -> None:
    found = await condition(crew_url)
    assert found.facts["server"].startswith("PostgreSQL 1")
    assert found.facts["driver"].startswith("psycopg 3")
    assert found.facts["user"] == "crew"
    assert found.facts["durability"].startswith("fast: fsync is off: a power cut can destroy")
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


# Durability


@pytest.fixture(scope="module")
def durable() -> Iterator[PostgresServer]:
    with PostgresServer(durable=True, settings={"shared_buffers": "32MB"}) as server:
        yield server


async def survives(url: str) -> tuple[str, str]:
    """Return what the banner of a worker says, which must be what doctor says."""
    store = store_for(url)
    await store.open()
    told = (await store.admin.condition()).facts["durability"]
    await store.close()
    assert told == f"{store.durability}: {store.survives}"
    return store.durability, store.survives


async def test_a_server_that_writes_for_good_keeps_jobs_through_a_power_cut(
    durable: PostgresServer,
) -> None:
    url = durable.url(schema="kept")
    assert await survives(url) == ("durable", "an accepted job survives kill -9 and power cuts")
    assert "synchronous_commit" not in problems(await condition(url))


@pytest.mark.parametrize("where", ["DATABASE", "ROLE", "URL"])
async def test_no_power_cut_is_promised_where_commits_do_not_wait_for_the_disk(
    durable: PostgresServer, where: str
) -> None:
    """Whoever said so: what counts is what holds on our connections."""
    url = durable.url(schema=f"set_by_{where.lower()}")
    if where == "URL":
        kind, told = await survives(f"{url}&options=-csynchronous_commit%3Doff")
    else:
        durable.execute(f"ALTER {where} postgres SET synchronous_commit = off")
        try:
            kind, told = await survives(url)
        finally:
            durable.execute(f"ALTER {where} postgres RESET synchronous_commit")
    assert kind == "fast"
    assert told.startswith("synchronous_commit is off: a power cut or a crash of the server takes")


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes", "synchronous_commit"])
async def test_no_power_cut_is_promised_where_the_server_does_not_insist_on_the_disk(
    setting: str,
) -> None:
    settings = {setting: "off", "shared_buffers": "32MB"}
    with PostgresServer(durable=True, settings=settings) as server:
        kind, told = await survives(server.url())
        assert (kind, told.partition(": a power cut ")[0]) == ("fast", f"{setting} is off")
        assert f"{setting} is off" in problems(await condition(server.url()))


async def test_every_role_may_ask_what_the_server_keeps(
    postgres_server: PostgresServer, crew_url: str
) -> None:
    """The tests' own server has fsync off; a role without any right learns of it."""
    address = Address.of(crew_url)
    postgres_server.execute("CREATE ROLE nosy LOGIN PASSWORD 'x'")
    try:
        url = postgres_server.url(user="nosy", password="x", schema=address.schema)
        with psycopg.connect(url.partition("?")[0]) as connection:
            assert durability_of(connection).kind == "fast"
    finally:
        postgres_server.execute("DROP ROLE nosy")


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
