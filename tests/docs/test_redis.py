"""What docs/redis.md shows is true."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from fairlead import Fairlead
from fairlead.stores.redis.address import SCHEMES, Address
from tests.servers.redis import RedisServer

TEXT = (Path(__file__).parent.parent.parent / "docs" / "redis.md").read_text()
PYTHON, CONSOLE = (
    re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL) for kind in ("python", "console")
)
USERS = re.findall(r"^ACL (SETUSER .*)$", TEXT, re.MULTILINE)
SHOWN = "redis://shop_web:secret@redis.example:6379/0"
RUN = """
import asyncio

def add(a, b):
    return a + b

crew = Fairlead(URL.replace("shop_web", "shop_worker"))
crew.task(name="add")(add)
job = app.task(name="add")(add).enqueue(1, 2)


async def main() -> None:
    async with crew.worker():
        print(await job.aresult(timeout=20))

asyncio.run(main())
crew.close()
app.close()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server as it comes, set up as shown."""
    with RedisServer(appendonly="no", appendfsync="always") as server:
        settings, migrate = CONSOLE
        for line in settings.strip().splitlines():
            words = line.removeprefix("$ redis-cli ").split()
            if words != ["CONFIG", "REWRITE"]:
                server.execute(*words)
        for user in USERS:
            server.execute("ACL", *user.split())
        admin = migrate.strip().replace("redis://admin:secret@redis.example:6379/0", server.url())
        command = [sys.executable, "-m", *admin.removeprefix("$ ").split()]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert "applied 2 functions" in told
        while "rewrite_in_progress:1" in (told := server.execute("INFO")) or "scheduled:1" in told:
            time.sleep(0.01)  # It cannot be stopped before its first file is written.
        yield server


def test_the_code_runs_as_printed_for_the_users_that_are_shown(
    server: RedisServer, tmp_path: Path
) -> None:
    url = server.url(user="shop_web", password="secret")
    code = "\n".join(PYTHON).replace(SHOWN, url)
    (tmp_path / "program.py").write_text(code + RUN.replace("URL", repr(url)))
    run = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.stdout, run.stderr) == ("3\n", "")


@pytest.mark.parametrize(
    "command",
    [
        "EVAL return(1) 0",
        "FLUSHALL",
        "CONFIG SET maxmemory 1",
        "KEYS *",
        "HGET other:key x",
        "SHUTDOWN NOW",
    ],
)
def test_that_user_may_do_nothing_else(server: RedisServer, command: str) -> None:
    with pytest.raises(ResponseError, match="(?i)no permissions|NOPERM"):
        server.execute(*command.split(), user="shop_web", password="secret")


def test_every_kind_of_url_is_shown_and_can_be_read() -> None:
    shown = set(re.findall(r"^\| `([a-z+]+)://", TEXT, re.MULTILINE))
    assert shown == set(SCHEMES)
    for url in re.findall(r"^\| `(\S+://\S+[^…])`", TEXT, re.MULTILINE):
        assert "password" not in Address.of(url).url


def test_every_option_is_shown() -> None:
    for option in ("prefix=", "timeout=", "durability=", "ssl_ca_certs=", "ssl_keyfile="):
        assert f"`{option}" in TEXT


def test_a_program_has_as_many_connections_as_it_says(
    redis_server: RedisServer, redis_url: str
) -> None:
    def count() -> int:
        clients = redis_server.execute("CLIENT", "LIST")
        return sum("name=fairlead " in line for line in clients.splitlines())

    app = Fairlead(redis_url)
    before = count()
    job = app.task(name="t")(lambda: None).enqueue()
    counts = [count() - before]
    job.status()
    counts.append(count() - before)
    with pytest.raises(TimeoutError):
        job.result(timeout=0.01)
    counts.append(count() - before)
    app.close()
    assert counts == [1, 2, 3]
