"""What docs/postgresql.md shows is true."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fairlead import Fairlead
from fairlead.stores.postgres.address import Address
from tests.servers.postgres import PostgresServer
from tests.system.tree import COMMAND

TEXT = (Path(__file__).parent.parent.parent / "docs" / "postgresql.md").read_text()
PYTHON, SQL, CONSOLE = (
    re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL) for kind in ("python", "sql", "console")
)
[POOLED] = re.findall(r"^postgresql://\S+$", TEXT, re.MULTILINE)
SHOWN = "postgresql://shop_web:secret@db.example/shop"
RUN = """
import asyncio

async def main() -> None:
    async with app.worker():
        await (await pay.aenqueue(7)).aresult(timeout=20)

asyncio.run(main())
app.close()
"""


@pytest.fixture
def server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A database named shop, migrated and with roles as shown."""
    postgres_server.create_database("shop")
    [command] = CONSOLE
    _, _, words = command.strip().removeprefix("$ ").partition(" fairlead ")
    environment = os.environ | {"FAIRLEAD_URL": postgres_server.url("shop")}
    subprocess.run(
        [sys.executable, "-c", COMMAND, *words.split()], env=environment, check=True, timeout=60
    )
    [roles] = SQL
    postgres_server.execute(roles, database="shop")
    yield postgres_server
    postgres_server.execute("DROP DATABASE shop WITH (FORCE)")
    postgres_server.execute("DROP ROLE shop_web")


def test_the_code_runs_as_printed(server: PostgresServer, tmp_path: Path) -> None:
    rights = "CREATE TABLE {0} (id int); GRANT INSERT ON {0} TO shop_web"
    for table in ("users", "payments"):
        server.execute(rights.format(table), database="shop")
    code = "\n".join(PYTHON).replace(SHOWN, server.url("shop", "shop_web", "secret"))
    (tmp_path / "program.py").write_text(code)
    (tmp_path / "worker.py").write_text(code.replace("VALUES (1)", "VALUES (2)") + RUN)
    first = _run(tmp_path, "program.py")
    assert first.stderr == ""
    assert first.stdout.split("\n")[:-1] == re.findall(r"print\(.*\)  # (.*)", code)
    server.execute("SELECT fairlead.allow('shop_web', 'worker')", database="shop")
    assert _run(tmp_path, "worker.py").returncode == 0
    assert server.execute("SELECT id FROM users ORDER BY id", database="shop") == [(1,), (2,)]
    assert server.execute("SELECT id FROM payments", database="shop") == [(7,)]


def _run(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, name], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_url_past_a_pooler_means_what_it_says() -> None:
    address = Address.of(POOLED)
    assert address.listen is not None
    assert (address.parameters["host"], address.listen["host"]) == ("bouncer", "db.example")
    assert address.listen["sslmode"] == address.parameters["sslmode"] == "verify-full"


def test_a_program_has_as_many_connections_as_it_says(crew_url: str) -> None:
    def count() -> int:
        with psycopg.connect(crew_url.partition("?")[0]) as connection:
            [number] = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
            ).fetchone() or (-1,)
        return int(number)

    app = Fairlead(f"{crew_url}&application_name=counted")
    job = app.task(name="t")(lambda: None).enqueue()
    counts = [count()]
    job.status()
    counts.append(count())
    with pytest.raises(TimeoutError):
        job.result(timeout=0.01)
    counts.append(count())
    app.close()
    assert counts == [1, 2, 3]
