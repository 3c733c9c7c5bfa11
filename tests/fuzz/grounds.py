"""Where the fuzz happens: a new place for every round, on each kind of store."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.conftest import EMPTY, admitted, rights
from tests.fuzz.rounds import Ground
from tests.fuzz.victim import Damage
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

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


def postgres_ground(server: PostgresServer, victim: Callable[[str], object]) -> GroundFor:
    """Return what gives a place on this server."""
    numbers = count()
    used: list[str] = []

    def ground(damages: Sequence[Damage]) -> Ground:
        if used and not all(damage.field.split(".")[0] in EMPTY for damage in damages):
            server.execute(f"DROP SCHEMA {used.pop()} CASCADE")
        if not used:
            used.append(f"fuzz_{next(numbers)}")
            admitted(server, used[0])
        server.execute(EMPTY.replace("{schema}", used[0]))
        url = server.url(user="crew", password="rope", schema=used[0])
        return Ground(url, victim(server.url(schema=used[0])))  # type: ignore[arg-type]

    return ground


@contextmanager
def redis_grounds() -> Iterator[GroundFor]:
    """A prefix for every round, on a server with nothing in it."""
    from tests.fuzz.redis import RedisVictim

    with RedisServer() as server:
        server.execute("ACL", "SETUSER", "crew", "reset", "on", ">rope", *rights("t_"))
        numbers = count()

        def ground(_damages: Sequence[Damage]) -> Ground:
            server.execute("FLUSHALL")
            url = server.url(prefix=f"t_{next(numbers)}")
            return Ground(url.replace("redis://", "redis://crew:rope@"), RedisVictim(url))

        yield ground


GROUNDS = {"sqlite": sqlite_grounds, "postgres": postgres_grounds, "redis": redis_grounds}
