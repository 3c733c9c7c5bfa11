"""The proxy fails exactly as told, and otherwise is not noticed."""

import select
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest
import redis
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn
from redis.backoff import NoBackoff
from redis.retry import Retry

from fairlead.bench.servers.server import HOST
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import RESET, TO_CLIENT, TO_SERVER, Proxy
from tests.servers.redis import RedisServer
from tests.servers.talk import PostgresTalk, RedisTalk, Turns
from tests.system.tree import until


class Echo(socketserver.ThreadingTCPServer):
    """A server that says everything twice, and notes how its connections ended."""

    def __init__(self) -> None:
        super().__init__((HOST, 0), Saying)
        self.port = self.server_address[1]
        self.met = 0
        self.heard: list[bytes] = []
        self.ends: list[str] = []


class Saying(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Echo)
        self.server.met += 1
        try:
            while data := self.request.recv(65536):
                self.server.heard.append(data)
                self.request.sendall(data * 2)
            self.server.ends.append("closed")
        except ConnectionResetError:
            self.server.ends.append("reset")


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as echo:
        thread = threading.Thread(target=echo.serve_forever, args=[0.01])
        thread.start()
        yield echo
        echo.shutdown()
        thread.join()


@pytest.fixture
def way(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port, Turns) as proxy:
        yield proxy


def connect(way: Proxy) -> socket.socket:
    client = socket.create_connection((HOST, way.port), 10)
    assert ask(client, b"hello") == b"hellohello"
    return client


def ask(client: socket.socket, words: bytes) -> bytes:
    client.sendall(words)
    return listen(client, 2 * len(words))


def listen(client: socket.socket, size: int) -> bytes:
    answer = b""
    while len(answer) < size and (data := client.recv(65536)):
        answer += data
    return answer


def silent(client: socket.socket) -> bool:
    return not select.select([client], [], [], 0.1)[0]


# Any protocol


def test_everything_passes_and_connections_are_counted(echo: Echo, way: Proxy) -> None:
    with connect(way) as one, connect(way) as two:
        assert ask(one, b"x" * 300_000) == b"x" * 600_000
        assert ask(two, b"y") == b"yy"
        assert (way.accepted, way.alive) == (2, 2)
    until(lambda: echo.ends == ["closed", "closed"])
    until(lambda: way.alive == 0)
    assert way.accepted == 2


def test_a_side_that_says_no_more_still_hears(way: Proxy) -> None:
    with connect(way) as client:
        client.sendall(b"last")
        client.shutdown(socket.SHUT_WR)
        assert listen(client, 100) == b"lastlast"


def test_a_cut_resets_both_sides_and_new_connections_are_carried(echo: Echo, way: Proxy) -> None:
    with connect(way) as one, connect(way) as two:
        assert way.cut() == 2
        assert way.alive == 0
        for client in (one, two):
            with pytest.raises(ConnectionResetError):
                client.recv(1)
    until(lambda: echo.ends == ["reset", "reset"])
    connect(way).close()


def test_a_connection_that_was_never_made_can_be_cut(echo: Echo, way: Proxy) -> None:
    way.drop()
    with socket.create_connection((HOST, way.port), 10) as client:
        assert silent(client)
        assert (echo.met, way.alive) == (0, 1)
        assert way.cut() == 1
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_reset_is_passed_on(echo: Echo, way: Proxy) -> None:
    with connect(way) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    until(lambda: echo.ends == ["reset"])


def test_a_dead_server_is_a_reset() -> None:
    with socket.create_server((HOST, 0)) as gone:
        port = gone.getsockname()[1]
    with Proxy(port) as way:
        # A client may hear of it while it connects, or when it listens.
        with pytest.raises(ConnectionResetError), socket.socket() as client:
            client.connect((HOST, way.port))
            client.recv(1)
        assert way.accepted == 1


def test_what_was_dropped_arrives_when_it_heals(echo: Echo, way: Proxy) -> None:
    with connect(way) as client:
        way.drop()
        client.sendall(b"one")
        assert silent(client)
        assert echo.heard == [b"hello"]
        way.heal()
        assert listen(client, 6) == b"oneone"


def test_one_way_may_be_dropped_alone(echo: Echo, way: Proxy) -> None:
    with connect(way) as client:
        way.drop(TO_CLIENT)
        client.sendall(b"one")
        assert silent(client)
        assert echo.heard == [b"hello", b"one"]
        way.heal(TO_CLIENT)
        assert listen(client, 6) == b"oneone"
        way.drop(TO_SERVER)
        client.sendall(b"two")
        assert silent(client)
        assert echo.heard == [b"hello", b"one"]


@pytest.mark.parametrize("reset", [False, True])
def test_an_end_is_not_heard_of_while_all_is_dropped(echo: Echo, way: Proxy, reset: bool) -> None:
    with connect(way) as client, connect(way) as other:
        way.drop()
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        client.close()
        assert silent(other)
        assert (echo.ends, way.alive) == ([], 2)
        way.heal()
        until(lambda: echo.ends == ["reset" if reset else "closed"])


def test_a_delay_counts_each_way(way: Proxy) -> None:
    with connect(way) as client:
        way.delay(0.05)
        began = time.monotonic()
        assert ask(client, b"slow") == b"slowslow"
        assert time.monotonic() - began >= 0.1


def test_a_lost_reply_was_done_by_the_server(echo: Echo, way: Proxy) -> None:
    fault = way.lose_reply(b"commit", nth=2)
    with connect(way) as one, connect(way) as two:
        assert ask(one, b"commit 1") == b"commit 1" * 2
        two.sendall(b"commit 2")
        with pytest.raises(ConnectionResetError):
            two.recv(1)
        assert fault.happened.wait(10)
        assert echo.heard[-1] == b"commit 2"
        assert ask(one, b"commit 3") == b"commit 3" * 2


def test_a_reply_is_cut_after_so_many_bytes(way: Proxy) -> None:
    way.cut_within(lambda asked: asked.startswith(b"a"), 5)
    with connect(way) as client:
        assert ask(client, b"bab") == b"babbab"
        client.sendall(b"abc")
        assert client.recv(5) == b"abcab"
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_marker_that_fails_is_told_at_the_end(echo: Echo) -> None:
    way = Proxy(echo.port, Turns)
    way.start()
    way.lose_reply(lambda asked: bool(1 / 0))
    with (
        socket.create_connection((HOST, way.port), 10) as client,
        pytest.raises(ConnectionResetError),
    ):
        ask(client, b"x")
    with pytest.raises(ExceptionGroup, match="unhandled"):
        way.close()


# PostgreSQL's


@pytest.fixture
def table(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    postgres_server.execute("CREATE TABLE noted (n int)")
    yield postgres_server
    postgres_server.execute("DROP TABLE noted")


def noted(server: PostgresServer) -> list[int]:
    return [n for (n,) in server.execute("SELECT n FROM noted ORDER BY n")]


def test_a_commit_whose_reply_is_lost_is_a_commit(table: PostgresServer, proxy: Proxy) -> None:
    fault = proxy.lose_reply(b"COMMIT")
    with psycopg.connect(proxy.through(table.url())) as connection:
        connection.execute("INSERT INTO noted VALUES (1)")
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
        assert connection.broken
    assert fault.happened.wait(10)
    assert noted(table) == [1]


def test_a_prepared_statement_is_known_by_its_text(table: PostgresServer, proxy: Proxy) -> None:
    fault = proxy.lose_reply(b"INSERT INTO noted", nth=4)
    url = proxy.through(table.url())
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        for n in range(3):
            connection.execute("INSERT INTO noted VALUES (%s)", [n])
        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO noted VALUES (%s)", [3])
    assert fault.happened.wait(10)
    assert noted(table) == [0, 1, 2, 3]


def test_only_the_replies_before_it_pass_in_a_pipeline(table: PostgresServer, proxy: Proxy) -> None:
    proxy.lose_reply(b"SELECT 'marked'")
    with psycopg.connect(proxy.through(table.url()), autocommit=True) as connection:
        with pytest.raises(psycopg.OperationalError), connection.pipeline() as pipeline:
            first = connection.execute("INSERT INTO noted VALUES (1) RETURNING n")
            pipeline.sync()
            connection.execute("SELECT 'marked' FROM generate_series(1, 10000)")
            pipeline.sync()
        assert first.fetchone() == (1,)


def test_a_server_has_done_all_though_it_began_to_answer_before(
    table: PostgresServer, proxy: Proxy
) -> None:
    many = "SELECT generate_series(1, 20000)"
    statement = f"{many}; SELECT pg_sleep(0.1); {many}; INSERT INTO noted VALUES (1)"
    proxy.cut_within(b"INSERT", 1000)
    connection = psycopg.connect(proxy.through(table.url()), autocommit=True)
    with connection, pytest.raises(psycopg.OperationalError):
        connection.execute(statement)
    assert noted(table) == [1]


def results(raw: PGconn) -> None:
    """Wait for all results without libpq's own wait, in which no other thread of ours runs."""
    raw.flush()
    while True:
        while raw.is_busy():
            assert select.select([raw.socket], [], [], 10)[0]
            raw.consume_input()
        result = raw.get_result()
        if result is None or result.status == ExecStatus.COPY_IN:
            return


@pytest.mark.parametrize("extended", [False, True])
def test_replies_are_counted_right_after_rows_were_copied(
    table: PostgresServer, proxy: Proxy, extended: bool
) -> None:
    with psycopg.connect(proxy.through(table.url()), autocommit=True) as connection:
        raw = connection.pgconn
        for _ in range(2):
            statement = b"COPY noted FROM STDIN"
            raw.send_query_params(statement, None) if extended else raw.send_query(statement)
            results(raw)
            raw.put_copy_data(b"1\n")
            raw.put_copy_end()
            results(raw)
        proxy.lose_reply(b"SELECT 2")
        assert connection.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 2")
    assert noted(table) == [1, 1]


async def test_asyncpg_is_understood_too(table: PostgresServer, proxy: Proxy) -> None:
    connection = await asyncpg.connect(proxy.through(table.url()))
    await connection.copy_records_to_table("noted", records=[(1,), (2,)])
    fault = proxy.lose_reply(b"INSERT INTO noted", nth=2)
    await connection.execute("INSERT INTO noted VALUES ($1)", 3)
    with pytest.raises((asyncpg.ConnectionDoesNotExistError, ConnectionResetError)):
        await connection.execute("INSERT INTO noted VALUES ($1)", 4)
    assert fault.happened.wait(10)
    connection.terminate()
    assert noted(table) == [1, 2, 3, 4]


def test_messages_are_understood_however_they_are_cut() -> None:
    """What a client says, byte by byte: encryption refused, a start, and two requests."""
    said = (8).to_bytes(4) + (80877103).to_bytes(4) + (9).to_bytes(4) + (196608).to_bytes(4) + b"\0"
    said += b"P" + (11).to_bytes(4) + b"s\0GO\0\0\0" + b"B" + (8).to_bytes(4) + b"\0s\0\0"
    said += b"S" + (4).to_bytes(4) + b"Q" + (7).to_bytes(4) + b"HI\0"
    ready = b"Z" + (5).to_bytes(4) + b"I"
    talk = PostgresTalk()
    assert [asked for n in range(len(said)) for asked in talk.asked(said[n : n + 1])] == [
        (1, b"GO\0\0s\0\0"),
        (2, b"HI\0"),
    ]
    answered = b"N" + ready + ready[:3]
    assert list(talk.answered(answered)) == [7]
    assert list(talk.answered(ready[3:] + ready)) == [3, 9]


# Redis'


def redis_client(proxy: Proxy) -> redis.Redis:
    never = Retry(NoBackoff(), 0)
    return redis.Redis(host=HOST, port=proxy.port, retry=never, socket_timeout=0.2)


def test_a_command_whose_reply_is_lost_was_done(
    redis_server: RedisServer, redis_url: str, redis_proxy: Proxy
) -> None:
    fault = redis_proxy.lose_reply(b"INCRBY n", nth=2)
    with redis_client(redis_proxy) as client:
        assert client.incr("n") == 1
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert fault.happened.wait(10)
        assert redis_server.execute("GET", "n") == "2"
        assert client.incr("n") == 3


@pytest.mark.parametrize("protocol", [2, 3])
def test_only_the_replies_before_it_pass_in_a_pipeline_of_redis(
    redis_server: RedisServer, redis_url: str, redis_proxy: Proxy, protocol: int
) -> None:
    redis_server.execute("HSET", "h", "a", "1", "b", "2")
    fault = redis_proxy.lose_reply(b"BLPOP")
    asked = b"HELLO %d\r\nHGETALL h\r\nCOMMAND DOCS get\r\nPING\r\nBLPOP none 0.1\r\nSET last 1\r\n"
    with socket.create_connection((HOST, redis_proxy.port), 10) as client:
        client.sendall(asked % protocol)
        said = b""
        with pytest.raises(ConnectionResetError):
            while data := client.recv(65536):
                said += data
    assert said.endswith(b"+PONG\r\n")
    assert fault.happened.wait(10)
    assert redis_server.execute("GET", "last") == "1"


@pytest.mark.parametrize("protocol", [2, 3])
def test_news_of_redis_are_not_taken_for_replies(
    redis_server: RedisServer, redis_url: str, redis_proxy: Proxy, protocol: int
) -> None:
    fault = redis_proxy.lose_reply(b"PING marked")
    with socket.create_connection((HOST, redis_proxy.port), 10) as client:
        client.sendall(b"HELLO %d\r\nSUBSCRIBE news\r\n" % protocol)
        hear(client, b"subscribe\r\n")
        redis_server.execute("PUBLISH", "news", "one")
        hear(client, b"one\r\n")
        client.sendall(b"PING seen\r\n")
        hear(client, b"seen\r\n")
        client.sendall(b"PING marked\r\n")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    assert fault.happened.wait(10)


def hear(client: socket.socket, words: bytes) -> None:
    said = b""
    while words not in said:
        said += client.recv(65536)


def test_a_redis_that_says_nothing_is_waited_for_no_longer_than_wanted(
    redis_url: str, redis_proxy: Proxy
) -> None:
    with redis_client(redis_proxy) as client:
        assert client.ping()
        redis_proxy.drop()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        redis_proxy.heal()
        assert client.ping()


def test_commands_of_redis_are_understood_however_they_are_cut() -> None:
    said = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\nPING\r\n"
    talk = RedisTalk()
    assert [asked for n in range(len(said)) for asked in talk.asked(said[n : n + 1])] == [
        (0, b"GET a\r\nb"),
        (1, b"PING"),
    ]
    values = [
        *(b"+OK\r\n", b"-ERR\r\n", b":1\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n", b"(1\r\n"),
        *(b"$-1\r\n", b"*-1\r\n", b"*0\r\n", b"$0\r\n\r\n", b"=5\r\ntxt:a\r\n", b"!3\r\nERR\r\n"),
        *(b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n", b"%1\r\n+k\r\n*1\r\n_\r\n", b"~1\r\n:1\r\n"),
        b"|1\r\n+k\r\n+v\r\n:1\r\n",
    ]
    news = b">2\r\n+message\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n"
    answer = news + b"".join(values)
    ends = [n for n in range(len(answer)) for _ in talk.answered(answer[n : n + 1])]
    starts = [0, *(end + 1 - len(news) for end in ends)]
    assert starts == [sum(map(len, values[:n])) for n in range(len(values) + 1)]
