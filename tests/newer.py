"""A store that looks as a newer program left it: with a step of the schema that nobody here knows.

It serves nobody who is of a version now. For steps that serve some, see tests/versions.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import redis

from fairlead.stores.postgres.address import Address as PostgresAddress
from fairlead.stores.redis.address import Address as RedisAddress
from fairlead.stores.redis.served import VERSION

_STEP = 999


@contextmanager
def newer_than_this_program(url: str) -> Iterator[None]:
    """Make the schema of a store too new for this program, as long as the block lasts.

    The URL is that of somebody who may do so.
    """
    _note(url)
    try:
        yield
    finally:
        _forget(url)


def _note(url: str) -> None:
    if url.startswith("redis"):
        steps = range(1, VERSION + 2)  # What stands after a gap would be taken for damage.
        _redis(url, "HSET", *(word for step in steps for word in (str(step), "0 1000")))
    else:
        _sql(url, "INSERT INTO {table} VALUES ({step}, 0, 1000)")


def _forget(url: str) -> None:
    if url.startswith("redis"):
        _redis(url, "HDEL", str(VERSION + 1))
    else:
        _sql(url, "DELETE FROM {table} WHERE {number} = {step}")


def _sql(url: str, statement: str) -> None:
    if url.startswith("sqlite:///"):
        text = statement.format(table="fairlead_migration", number="version", step=_STEP)
        path = url.removeprefix("sqlite:///").partition("?")[0]
        with closing(sqlite3.connect(path, timeout=20)) as file, file:
            file.execute(text)
        return
    schema = PostgresAddress.of(url).quoted_schema
    text = statement.format(table=f"{schema}.migration", number="number", step=_STEP)
    with psycopg.connect(url.partition("?")[0]) as connection:
        connection.execute(text.encode())


def _redis(url: str, verb: str, *args: str) -> None:
    with closing(redis.Redis.from_url(url.partition("?")[0])) as client:
        client.execute_command(verb, f"{RedisAddress.of(url).prefix}:schema", *args)
