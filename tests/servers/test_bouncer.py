"""The PgBouncer that tests get: connections belong to a transaction, not to a client."""

import psycopg
import pytest

from tests.servers.bouncer import PgBouncer
from tests.servers.postgres import PostgresServer


def test_two_clients_share_one_connection_in_turns(postgres_server: PostgresServer) -> None:
    with PgBouncer(postgres_server.port, settings={"default_pool_size": "1"}) as bouncer:
        url = bouncer.url()
        with psycopg.connect(url) as one, psycopg.connect(url) as two:
            seen = set()
            for connection in (one, two, one):
                seen.add(connection.execute("SELECT pg_backend_pid()").fetchone())
                connection.commit()
        assert len(seen) == 1


def test_roles_log_in_with_their_passwords(postgres_server: PostgresServer) -> None:
    postgres_server.execute("CREATE ROLE porter LOGIN PASSWORD 'se\"same'")
    with PgBouncer(postgres_server.port, roles={"porter": 'se"same'}) as bouncer:
        with psycopg.connect(bouncer.url(user="porter", password='se"same')) as connection:
            assert connection.execute("SELECT current_user").fetchone() == ("porter",)
        with pytest.raises(psycopg.OperationalError, match="authentication"):
            psycopg.connect(bouncer.url(user="porter", password="guessed"))
    postgres_server.execute("DROP ROLE porter")


def test_it_comes_back_at_the_same_place(bouncer: PgBouncer) -> None:
    url = bouncer.url()
    bouncer.restart()
    bouncer.kill()
    bouncer.start()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
