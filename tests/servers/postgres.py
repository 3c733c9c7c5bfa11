"""The PostgreSQL of `fairlead bench`, with a hand for the tests."""

from typing import Any

import psycopg
from psycopg import sql

from fairlead.bench.servers import postgres


class PostgresServer(postgres.PostgresServer):
    """The same; it also takes statements."""

    def execute(self, statement: str, *values: Any, database: str = "postgres") -> list[Any]:
        """Run a statement as the superuser, on a connection of its own; returns its rows."""
        url = self.url(database, connect_timeout=10)
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def create_database(self, name: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
