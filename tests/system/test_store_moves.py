"""A store that moves to another address is found again by its name (F20, P6)."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.needs import without
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

ADDRESSES = ("127.0.0.1", "127.0.0.2")
PRODUCER = """
import asyncio, sys
from fairlead import Fairlead, StoreError

app = Fairlead(sys.argv[1])
task = app.task(name="t")(lambda: None)
for line in sys.stdin:
    for enqueue in (task.enqueue, lambda: app.bridge.run(task.aenqueue())):
        try:
            enqueue()
        except StoreError as error:
            print("refused", error, flush=True)
        else:
            print("accepted", flush=True)
"""


class Producer:
    """A program for which names lead where its own list of hosts says."""

    def __init__(self, folder: Path, url: str) -> None:
        self._hosts = folder / "hosts"
        self.move("127.0.0.1")
        inside = 'mount --bind "$1" /etc/hosts && exec "$2" -c "$3" "$4"'
        words = [str(self._hosts), sys.executable, PRODUCER, url]
        self._process = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", inside, "sh", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def move(self, address: str) -> None:
        """Let the name lead there; without an address, nowhere."""
        self._hosts.write_text(f"{address} jobs.test\n" if address else "")

    def enqueue(self) -> list[str]:
        """Enqueue from plain and from async code; returns what came of each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return [self._process.stdout.readline().strip() for _ in range(2)]

    def close(self) -> None:
        self._process.communicate(timeout=20)


@contextmanager
def producer(folder: Path, url: str) -> Iterator[Producer]:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        without("a list of hosts of one's own needs a mount namespace")
    program = Producer(folder, url.replace("127.0.0.1", "jobs.test"))
    try:
        yield program
    finally:
        program.close()


def check_moves(program: Producer, server: PostgresServer | RedisServer) -> None:
    """It works at one address, fails without any, and works at the other, without a restart."""
    assert program.enqueue() == ["accepted"] * 2
    program.move("")
    cut_off(server)
    assert [said.partition(" ")[0] for said in program.enqueue()] == ["refused"] * 2
    program.move("127.0.0.2")
    assert program.enqueue() == ["accepted"] * 2


def cut_off(server: PostgresServer | RedisServer) -> None:
    if isinstance(server, RedisServer):
        server.execute("CLIENT", "KILL", "TYPE", "normal")
        server.execute("CLIENT", "KILL", "TYPE", "pubsub")
    else:
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'fairlead'"
        )


def test_a_redis_that_moved_is_found_by_its_name(tmp_path: Path) -> None:
    with (
        RedisServer(settings={"bind": " ".join(ADDRESSES)}) as server,
        producer(tmp_path, server.url()) as program,
    ):
        check_moves(program, server)
        clients = server.execute("CLIENT", "LIST", "TYPE", "normal").splitlines()
        assert any(f"laddr=127.0.0.2:{server.port}" in client for client in clients)


def test_a_postgresql_that_moved_is_found_by_its_name(tmp_path: Path) -> None:
    with (
        PostgresServer(settings={"listen_addresses": ",".join(ADDRESSES)}) as server,
        producer(tmp_path, server.url(sslmode="disable")) as program,
    ):
        check_moves(program, server)
