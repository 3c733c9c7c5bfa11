"""Where the fuzz happens: a new place for every round, on each kind of store."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from redis import Redis

from fairlead.stores.postgres.address import Address
from tests.conftest import EMPTY, LOAD, admitted, rights
from tests.fuzz.rounds import Ground
from tests.fuzz.victim import Damage, Victim
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

ROLES = ("producer", "worker", "operator")
GroundFor = Callable[[Sequence[Damage]], Ground]
"""Gives a place with nothing in it, for a round with these damages."""


@contextmanager
def sqlite_grounds() -> Iterator[GroundFor]:
    """A file for every round."""
    from tests.fuzz.sqlite import SqliteVictim

    with TemporaryDirectory() as folder:
        numbers = count()

        def ground(_damages: Sequence[Damage]) -> Ground:
            for old in Path(folder).iterdir():
                old.unlink()
            url = f"sqlite:///{folder}/{next(numbers)}.db?durability=fast"
            return Ground(url, SqliteVictim(url))

        yield ground


@contextmanager
def postgres_grounds() -> Iterator[GroundFor]:
    """A schema, emptied for every round; another one where more than its rows may be damaged."""
    from tests.fuzz.postgres import PostgresVictim

    with PostgresServer() as server:
        yield postgres_ground(server, PostgresVictim)


@contextmanager
def postgres_role_grounds(kind: str) -> Iterator[GroundFor]:
    """The same, where somebody with the rights of this role does the damage."""
    from tests.fuzz.postgres_roles import RoleVictim, recorded

    with PostgresServer() as server:
        calls = recorded(admitted(server, "recording"))
        server.execute("CREATE ROLE mallory LOGIN PASSWORD 'rope'")
        mallory = psycopg.connect(server.url(user="mallory", password="rope"), autocommit=True)

        def victim(owner_url: str) -> RoleVictim:
            schema = Address.of(owner_url).schema
            server.execute(f"SELECT {schema}.allow('mallory', '{kind}')")
            # So that no worker may forget a job.
            server.execute(f"SELECT {schema}.retain('1 day')")
            return RoleVictim(kind, schema, mallory, calls)

        with mallory:
            yield postgres_ground(server, victim, only_rows=True)


def postgres_ground(
    server: PostgresServer, victim: Callable[[str], Victim], *, only_rows: bool = False
) -> GroundFor:
    """Return what gives a place on this server; `only_rows` says that nothing else is damaged."""
    numbers = count()
    used: list[str] = []

    def ground(damages: Sequence[Damage]) -> Ground:
        in_tables = all(damage.field.split(".")[0] in EMPTY for damage in damages)
        if used and not only_rows and not in_tables:
            _in_turn(server, f"DROP SCHEMA {used.pop()} CASCADE")
        if not used:
            used.append(f"fuzz_{next(numbers)}")
            admitted(server, used[0])
        _in_turn(server, EMPTY.replace("{schema}", used[0]))
        url = server.url(user="crew", password="rope", schema=used[0])
        return Ground(url, victim(server.url(schema=used[0])))

    return ground


def _in_turn(server: PostgresServer, statement: str) -> None:
    """Run a statement; what the round before left on its way may want the same tables."""
    for _ in range(5):
        try:
            server.execute(statement)
            return
        except psycopg.errors.DeadlockDetected:
            continue
    server.execute(statement)


@contextmanager
def redis_grounds() -> Iterator[GroundFor]:
    """A prefix for every round, on a server with nothing in it."""
    from tests.fuzz.redis import RedisVictim

    with RedisServer() as server:
        yield redis_ground(server, RedisVictim)


@contextmanager
def redis_role_grounds(kind: str) -> Iterator[GroundFor]:
    """The same, where somebody with the rights of this role does the damage."""
    from tests.fuzz.redis_roles import RoleVictim, recorded

    with RedisServer() as server:
        calls = recorded(server.url(prefix="recording"))
        allowed = rights("t_*:", "web" if kind == "producer" else kind)
        server.execute("ACL", "SETUSER", "mallory", "reset", "on", ">rope", *allowed)
        with Redis(port=server.port, username="mallory", password="rope") as mallory:
            yield redis_ground(server, lambda url: RoleVictim(kind, url, mallory, calls))


def redis_ground(server: RedisServer, victim: Callable[[str], Victim]) -> GroundFor:
    """Return what gives a place on this server."""
    server.execute("ACL", "SETUSER", "crew", "reset", "on", ">rope", *rights("t_*:"))
    server.execute(*LOAD)
    numbers = count()

    def ground(_damages: Sequence[Damage]) -> Ground:
        server.execute("FLUSHALL")
        url = server.url(prefix=f"t_{next(numbers)}")
        return Ground(url.replace("redis://", "redis://crew:rope@"), victim(url))

    return ground


GROUNDS = {
    "sqlite": sqlite_grounds,
    "postgres": postgres_grounds,
    **{f"postgres-{kind}": partial(postgres_role_grounds, kind) for kind in ROLES},
    "redis": redis_grounds,
    **{f"redis-{kind}": partial(redis_role_grounds, kind) for kind in ROLES},
}
