"""The PostgreSQL that tests get: theirs alone, and gone with them."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fairlead.bench.servers import family, programs
from fairlead.bench.servers.programs import MissingProgram
from fairlead.bench.servers.server import ServerFailed
from tests.servers import ensure
from tests.servers.postgres import PostgresServer
from tests.system.tree import alive, until

ROOT = Path(__file__).parent.parent.parent
OWNER = """
import os, sys, time
from tests.servers.postgres import PostgresServer

PostgresServer().start()
if not os.fork():
    sys.exit()
os.wait()
server = PostgresServer()
server.start()
print(server.pid, server.folder, flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that is ours to break."""
    with PostgresServer() as server:
        server.execute("CREATE TABLE kept (n int)")
        yield server


def test_each_test_has_a_schema_of_its_own(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    assert "?schema=t_" in postgres_url
    schema = postgres_url.rpartition("=")[2]
    postgres_server.execute(f"CREATE SCHEMA {schema}")
    assert postgres_server.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", schema)


def test_tests_get_a_server_that_the_last_one_left_dead(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> None:
    postgres_server.stop("immediate")
    request.getfixturevalue("postgres_url")
    assert postgres_server.execute("SELECT 1") == [(1,)]


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_what_was_committed_is_there_after_a_restart(server: PostgresServer, mode: str) -> None:
    port = server.port
    before = server.execute("INSERT INTO kept VALUES (1) RETURNING (SELECT count(*) FROM kept)")
    server.restart(mode)
    assert server.execute("SELECT count(*) - 1 FROM kept") == before
    assert server.port == port


def test_what_was_committed_is_there_after_a_kill(server: PostgresServer) -> None:
    with psycopg.connect(server.url()) as connection:
        connection.execute("INSERT INTO kept VALUES (7)")
        connection.commit()
        family_of_it = [server.pid, *family.descendants(server.pid)]
        server.kill()
        assert [pid for pid in family_of_it if alive(pid)] == []
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert not server.running
    server.start()
    assert server.execute("SELECT n FROM kept WHERE n = 7") == [(7,)]


def test_a_frozen_server_keeps_connections_and_answers_when_thawed(server: PostgresServer) -> None:
    with psycopg.connect(server.url()) as connection:
        connection.execute("SELECT 1")
        server.freeze()
        connection.pgconn.send_query(b"SELECT 2")
        assert select.select([connection], [], [], 0.2)[0] == []
        server.thaw()
        result = connection.pgconn.get_result()
        assert result is not None
        assert result.get_value(0, 0) == b"2"
        assert connection.pgconn.get_result() is None


def test_a_frozen_server_can_be_stopped(server: PostgresServer) -> None:
    server.freeze()
    server.stop()
    assert not server.running
    server.start()


def test_roles_log_in_with_passwords_and_databases_are_made(server: PostgresServer) -> None:
    server.execute("CREATE ROLE clerk LOGIN PASSWORD 'p@ss/w?rd'")
    server.create_database("Till 1")
    with psycopg.connect(server.url("Till 1", "clerk", "p@ss/w?rd")) as connection:
        found = connection.execute("SELECT current_user, current_database()").fetchone()
    assert found == ("clerk", "Till 1")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(server.url(user="clerk", password="guessed"))


def test_own_rules_of_who_may_log_in_come_first() -> None:
    with PostgresServer(hba=["host all guest 127.0.0.1/32 trust"], durable=True) as server:
        server.execute("CREATE ROLE guest LOGIN")
        psycopg.connect(server.url(user="guest")).close()
        assert server.execute("SHOW fsync") == [("on",)]
        folder = server.folder
    assert not folder.exists()


def test_a_server_that_cannot_start_says_why_and_leaves_nothing() -> None:
    server = PostgresServer(settings={"shared_buffers": "none"})
    with pytest.raises(ServerFailed, match="shared_buffers"):
        server.start()
    assert not server.folder.exists()


def test_nothing_is_left_when_tests_are_killed() -> None:
    """Nor does a fork that ends in order take anything of ours with it."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        everybody = [int(pid), *family.descendants(int(pid))]
        assert len(everybody) > 3
        family.freeze(int(pid))
        os.kill(owner.pid, signal.SIGKILL)
    until(lambda: not any(map(alive, everybody)), 10, "the end of the server")
    until(lambda: not Path(folder).exists(), 10, "the end of its folder")


def test_a_missing_program_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "BINARIES", tmp_path)
    monkeypatch.setattr(programs, "ELSEWHERE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgram, match="as root: apt install postgresql$"):
        PostgresServer().start()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(ensure, "IN_CI", True)
    with pytest.raises(SystemExit, match="apt install pgbouncer postgresql redis-server$"):
        ensure.main()
    monkeypatch.setattr(ensure, "IN_CI", False)
    ensure.main()
    assert "are skipped: this needs postgres" in capsys.readouterr().out


def test_the_newest_version_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version in ("9.6", "15", "16"):
        path = tmp_path / version / "bin" / "postgres"
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    monkeypatch.setattr(programs, "BINARIES", tmp_path)
    assert programs.program("postgres") == str(path)
