"""The Redis and the cluster that tests get: theirs alone, and gone with them."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from fairlead.bench.servers import programs
from fairlead.bench.servers.programs import MissingProgram
from fairlead.bench.servers.server import HOST, ServerFailed
from tests.servers.redis import RedisCluster, RedisServer
from tests.system.tree import alive, until

ROOT = Path(__file__).parent.parent.parent
OWNER = """
import time
from tests.servers.redis import RedisServer

server = RedisServer()
server.start()
print(server.pid, server.folder, flush=True)
time.sleep(60)
"""
CLERK = "clerk on >p@ss/w?rd ~till:* &till:* +@all"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One that is ours to break."""
    with RedisServer(acl=[CLERK]) as server:
        yield server


# One server


def test_each_test_has_a_prefix_of_its_own(redis_server: RedisServer, redis_url: str) -> None:
    assert "?prefix=t_" in redis_url
    assert redis_server.execute("DBSIZE") == 0


def test_tests_get_a_server_that_the_last_one_left_dead(
    redis_server: RedisServer, request: pytest.FixtureRequest
) -> None:
    redis_server.kill()
    request.getfixturevalue("redis_url")
    assert redis_server.execute("PING") == "PONG"


def test_it_is_set_up_to_keep_jobs(server: RedisServer) -> None:
    wanted = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction"}
    assert server.execute("CONFIG", "GET", *wanted) == wanted


def test_what_it_was_told_is_there_after_a_restart(server: RedisServer) -> None:
    port = server.port
    server.execute("SET", "kept", "1")
    server.restart()
    assert server.execute("GET", "kept") == "1"
    assert server.port == port


def test_what_it_was_told_is_there_after_a_kill(server: RedisServer) -> None:
    server.execute("SET", "kept", "2")
    pid = server.pid
    server.kill()
    assert not alive(pid)
    with pytest.raises(redis.ConnectionError):
        server.execute("PING")
    server.start()
    assert server.execute("GET", "kept") == "2"


def test_a_frozen_server_keeps_connections_and_answers_when_thawed(server: RedisServer) -> None:
    with socket.create_connection((HOST, server.port), 10) as client:
        server.freeze()
        client.sendall(b"PING\r\n")
        assert select.select([client], [], [], 0.2)[0] == []
        server.thaw()
        assert client.recv(100) == b"+PONG\r\n"


def test_a_frozen_server_can_be_stopped(server: RedisServer) -> None:
    server.freeze()
    server.stop()
    assert not server.running
    server.start()


@pytest.mark.parametrize("way", ["url", "socket_url"])
def test_users_log_in_with_passwords_and_do_what_they_may(server: RedisServer, way: str) -> None:
    url = getattr(server, way)
    with redis.Redis.from_url(url(3, "clerk", "p@ss/w?rd"), decode_responses=True) as client:
        client.set("till:1", "open")
        assert client.get("till:1") == "open"
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.get("safe")
    assert server.execute("GET", "till:1", database=3) == "open"
    assert server.execute("ACL", "WHOAMI", user="clerk", password="p@ss/w?rd") == "clerk"
    with pytest.raises(redis.AuthenticationError):
        server.execute("PING", user="clerk", password="guessed")


def test_the_socket_leads_to_the_same_server(server: RedisServer) -> None:
    with redis.Redis.from_url(server.socket_url(), decode_responses=True) as client:
        client.set("by", "socket")
    assert server.execute("GET", "by") == "socket"


def test_a_password_may_be_needed_and_settings_of_ones_own_win() -> None:
    settings = {"maxmemory-policy": "allkeys-lru"}
    with RedisServer(password='se"s\\me', appendonly="no", settings=settings) as server:
        assert server.execute("CONFIG", "GET", "maxmemory-policy") == settings
        with redis.Redis.from_url(server.url()) as client:
            assert client.ping()
        with pytest.raises(redis.AuthenticationError):
            server.execute("PING", password="guessed")
        folder = server.folder
    assert not folder.exists()


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    server = RedisServer(settings={"appendfsync": "perhaps"})
    with pytest.raises(ServerFailed, match="perhaps"):
        server.start()
    assert not server.folder.exists()
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with pytest.raises(ServerFailed, match="too long for a socket; name another folder"):
        RedisServer(place=deep).start()
    assert list(deep.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as somebody else")
def test_a_folder_that_no_server_may_enter_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ServerFailed, match="name another folder"):
        RedisServer(place=tmp_path).start()


def test_nothing_is_left_when_tests_are_killed() -> None:
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        os.kill(owner.pid, signal.SIGKILL)
    until(lambda: not alive(int(pid)), 10, "the end of the server")
    until(lambda: not Path(folder).exists(), 10, "the end of its folder")


def test_a_missing_program_is_told_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(programs, "ELSEWHERE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgram, match="as root: apt install redis-server$"):
        RedisServer().start()


# A cluster


def client_of(cluster: RedisCluster) -> redis.RedisCluster:
    return redis.RedisCluster(host=HOST, port=cluster.nodes[0].port, decode_responses=True)


def test_the_nodes_share_the_slots(redis_cluster: RedisCluster, cluster_url: str) -> None:
    port = redis_cluster.nodes[0].port
    assert cluster_url.startswith(f"redis+cluster://{HOST}:{port}?prefix=t_")
    assert [redis_cluster.owner(slot) for slot in (0, 8000, 16383)] == redis_cluster.nodes
    with client_of(redis_cluster) as client:
        for n in range(30):
            client.set(f"key:{n}", n)
            node = redis_cluster.owner(redis_cluster.slot_of(f"key:{n}"))
            assert node.execute("GET", f"key:{n}") == str(n)
    assert all(redis_cluster.execute("DBSIZE"))


@pytest.mark.usefixtures("cluster_url")
def test_a_slot_moves_with_its_keys_while_a_client_reads(redis_cluster: RedisCluster) -> None:
    slot = redis_cluster.slot_of("{moved}")
    source = redis_cluster.owner(slot)
    target = redis_cluster.nodes[redis_cluster.nodes.index(source) - 1]
    done = threading.Event()
    wrong: list[object] = []

    def read(client: redis.RedisCluster) -> None:
        rounds = 0
        while not done.is_set() or rounds < 2:
            rounds += 1
            some = range(0, 500, 7)
            wrong.extend(n for n in some if client.get(f"{{moved}}:{n}") != str(n))

    with client_of(redis_cluster) as client:
        for n in range(500):
            client.set(f"{{moved}}:{n}", n)
        reader = threading.Thread(target=read, args=[client])
        reader.start()
        try:
            redis_cluster.move_slot(slot, target)
        finally:
            done.set()
            reader.join()
    assert wrong == []
    assert redis_cluster.owner(slot) is target
    assert source.execute("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
    assert target.execute("CLUSTER", "COUNTKEYSINSLOT", slot) == 500
    redis_cluster.move_slot(slot, source)
    assert redis_cluster.owner(slot) is source


@pytest.mark.usefixtures("cluster_url")
def test_a_move_may_stop_midway(redis_cluster: RedisCluster) -> None:
    slot = redis_cluster.slot_of("{half}")
    source = redis_cluster.owner(slot)
    target = redis_cluster.nodes[redis_cluster.nodes.index(source) - 1]
    elsewhere = f"{slot} {HOST}:{target.port}"
    source.execute("MSET", "{half}:1", "1", "{half}:2", "2")
    redis_cluster.open_slot(slot, target)
    assert redis_cluster.move_keys(slot, target, limit=1) == 1
    with pytest.raises(redis.ResponseError, match="Multiple keys request"):
        source.execute("MGET", "{half}:1", "{half}:2")
    with pytest.raises(redis.ResponseError, match=elsewhere):
        source.execute("GET", "{half}:3")
    assert redis_cluster.owner(slot) is source
    assert redis_cluster.move_keys(slot, target) == 1
    redis_cluster.hand_over(slot, target)
    assert target.execute("MGET", "{half}:1", "{half}:2") == ["1", "2"]
    with pytest.raises(redis.ResponseError, match=elsewhere):
        source.execute("GET", "{half}:1")
    redis_cluster.move_slot(slot, source)


@pytest.mark.usefixtures("cluster_url")
def test_a_killed_node_comes_back_with_its_slots_and_keys(redis_cluster: RedisCluster) -> None:
    node = redis_cluster.nodes[1]
    slot = redis_cluster.slot_of("kept")
    redis_cluster.move_slot(slot, node)
    node.execute("SET", "kept", "1")
    node.kill()
    assert redis_cluster.owner(slot) is node
    redis_cluster.start()
    assert redis_cluster.owner(slot) is node
    with client_of(redis_cluster) as client:
        assert client.get("kept") == "1"


def test_the_others_may_go_on_without_a_node() -> None:
    with RedisCluster(
        full_coverage=False, timeout=500, acl=["clerk on nopass ~* +@all"]
    ) as cluster:
        first, second, _ = cluster.nodes
        second.kill()
        until(lambda: "fail" in first.execute("CLUSTER", "NODES"), what="that it is noticed")
        key = next(key for key in "abcdefgh" if cluster.owner(cluster.slot_of(key)) is first)
        assert first.execute("SET", key, "1", user="clerk", password="any") == "OK"
        folders = [node.folder for node in cluster.nodes]
    assert not any(folder.exists() for folder in folders)
