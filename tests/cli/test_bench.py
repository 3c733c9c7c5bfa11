"""The command line, through its real entry point."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fairlead.bench.work import prepared
from fairlead.stores.redis.floor import Floor
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

FAIRLEAD = str(Path(sys.executable).parent / "fairlead")
GLANCE = ("--rounds", "1", "--scale", "0.001")


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FAIRLEAD, *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a server may enter which root does not run itself."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_help_names_the_commands_and_version_the_version() -> None:
    assert "bench" in run("--help").stdout
    assert run("--version").stdout.startswith("fairlead 0.1.0")


def test_bench_help_has_an_example() -> None:
    assert "Example: fairlead bench" in run("bench", "--help").stdout


def test_bench_help_names_what_can_be_measured() -> None:
    told = run("bench", "--help").stdout
    for word in ("[sqlite|postgres|redis]", "--url", "--scale", "--flat"):
        assert word in told


def test_a_wrong_store_is_refused_with_the_choice() -> None:
    answer = run("bench", "--store", "oracle")
    assert answer.returncode == 2
    assert "'sqlite', 'postgres', 'redis'" in answer.stderr


@pytest.mark.parametrize("options", [[], ["--store", "postgres", "--flat"]])
def test_a_server_is_named_only_where_one_is_measured(options: list[str]) -> None:
    answer = run("bench", "--url", "postgresql://localhost/jobs", *options)
    assert answer.returncode == 2
    assert "--url goes with --store postgres or redis" in answer.stderr


@pytest.mark.parametrize(
    ("store", "url"),
    [("postgres", "postgresql://localhost:1/jobs"), ("redis", "redis://localhost:1")],
)
def test_a_server_that_is_not_there_is_told_in_one_sentence(store: str, url: str) -> None:
    answer = run("bench", "--store", store, "--url", url)
    assert answer.returncode == 1
    assert "is the server running" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_one_redis_is_measured_not_a_cluster() -> None:
    answer = run("bench", "--store", "redis", "--url", "redis+cluster://localhost:1")
    assert answer.returncode == 2
    assert "one server is measured, not a cluster" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as somebody else")
@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_a_folder_that_no_server_may_enter_is_told(store: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    answer = run("bench", "--store", store, "--folder", str(tmp_path))
    assert answer.returncode == 1
    assert "name another folder" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(240)
def test_bench_measures_and_cleans_up(tmp_path: Path) -> None:
    """A glance, to see that every figure is made; what it says is not judged here."""
    answer = run("bench", *GLANCE, "--folder", str(tmp_path))
    assert answer.stderr == ""
    assert answer.returncode == 0
    for line in (
        "bulk put",
        "claim + settle",
        "aenqueue callers",
        "8 writers: p99 wait",
        "worker, 2 processes",
        "idle latency, p99",
    ):
        assert line in answer.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.chaos
@pytest.mark.timeout(240)
def test_bench_measures_a_server_and_leaves_no_schema(postgres_server: PostgresServer) -> None:
    answer = run("bench", "--store", "postgres", "--url", postgres_server.url(), *GLANCE)
    assert answer.stderr == ""
    assert answer.returncode == 0
    assert "fsync off, synchronous_commit on" in answer.stdout
    for line in (
        "bulk put",
        "64 aenqueue callers",
        "enqueue one by one",
        "worker, 2 processes",
        "idle latency, p99",
    ):
        assert line in answer.stdout
    left = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'fairlead_bench%'"
    assert postgres_server.execute(left) == []


@pytest.mark.timeout(240)
def test_bench_starts_a_server_of_its_own_and_cleans_up(open_folder: Path) -> None:
    """As people call it, from where they are."""
    answer = run("bench", "--flat", "--quick", "--scale", "0.01", cwd=open_folder)
    assert answer.stderr == ""
    assert answer.returncode == 0
    assert "fsync on, synchronous_commit on" in answer.stdout
    for line in (
        "drain, 10,000 waiting",
        "drain, 5,000 finished",
        "drain, old snapshot",
        "head start",
        "given back",
    ):
        assert line in answer.stdout
    assert list(open_folder.iterdir()) == []


REDIS_ROWS = (
    "bulk put",
    "64 aenqueue callers",
    "enqueue one by one",
    "a waiting job, bytes",
    "worker, 1 process",
    "worker, 2 processes",
    "idle latency, p50",
    "idle latency, p99",
    "claim + settle, so many waiting",
)


def test_the_raw_engine_of_redis_takes_jobs_to_their_end(redis_url: str) -> None:
    """The scripts beside which ours are measured have the layout of the day, too."""
    with closing(Floor(redis_url)) as floor:
        floor.put(prepared(150), batch=100)
        assert floor.drain(150, processes=1) > 0


@pytest.mark.chaos
@pytest.mark.timeout(240)
def test_bench_measures_a_redis_and_leaves_no_key(redis_server: RedisServer) -> None:
    redis_server.execute("FLUSHALL")
    redis_server.execute("SET", "fairlead_bench", "of somebody else")
    answer = run("bench", "--store", "redis", "--url", redis_server.url(), *GLANCE)
    assert answer.stderr == ""
    assert answer.returncode == 0
    for line in REDIS_ROWS:
        assert line in answer.stdout
    assert "no AOF" not in answer.stdout
    assert redis_server.execute("KEYS", "*") == ["fairlead_bench"]


@pytest.mark.chaos
@pytest.mark.timeout(240)
def test_bench_starts_a_redis_of_its_own_and_cleans_up(open_folder: Path) -> None:
    """As people call it, from where they are."""
    answer = run("bench", "--store", "redis", *GLANCE, cwd=open_folder)
    assert answer.stderr == ""
    assert answer.returncode == 0
    assert "with AOF, appendfsync everysec" in answer.stdout
    for line in (*REDIS_ROWS, "put + claim + settle, everysec", "put + claim + settle, always"):
        assert line in answer.stdout
    assert list(open_folder.iterdir()) == []
