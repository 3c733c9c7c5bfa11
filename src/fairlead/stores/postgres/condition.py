"""How the server is: facts for people, and what in its set-up will hurt."""

from collections.abc import Iterator

import msgspec
import psycopg
from psycopg import pq
from psycopg.rows import dict_row

from fairlead.core.admin import Condition, Finding
from fairlead.core.clock import SECOND
from fairlead.stores.postgres.address import REMEDY, Address
from fairlead.stores.postgres.durability import Durability
from fairlead.stores.postgres.lane import AsyncConnection, apart
from fairlead.stores.postgres.migrate import newest
from fairlead.stores.postgres.owners import find_strangers, find_strays

_OLDEST = 130_000
_HELD_SECONDS = 600

_QUESTION = """
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::integer AS number,
       current_user::text AS user,
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('fsync') = 'on' AS fsync,
       current_setting('full_page_writes') = 'on' AS full_page_writes,
       current_setting('autovacuum') AS autovacuum,
       pg_size_pretty(pg_database_size(current_database())) AS size,
       (SELECT coalesce(max(number), 0) FROM {schema}.migration) AS schema,
       coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS tls,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
       current_setting('max_connections')::integer AS most_connections,
       (SELECT coalesce(extract(epoch FROM max(clock_timestamp() - xact_start)), 0)::integer
        FROM pg_stat_activity
        WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()) AS held_seconds,
       (date_part('epoch', clock_timestamp()) * 1000000)::bigint AS stamp
"""


class _Server(msgspec.Struct, frozen=True):
    """What the server says of itself."""

    version: str
    number: int
    user: str
    superuser: bool
    synchronous_commit: str
    fsync: bool
    full_page_writes: bool
    autovacuum: str
    size: str
    schema: int
    tls: bool
    connections: int
    most_connections: int
    held_seconds: int
    stamp: int

    @property
    def keeps(self) -> Durability:
        """What it keeps of what it accepts."""
        return Durability(self.fsync, self.full_page_writes, self.synchronous_commit)


async def condition(
    connection: AsyncConnection, address: Address, now: int, *, hears: bool
) -> Condition:
    """Look at the server, its settings, who holds it up, and who owns what we use."""
    others = [
        *await find_strangers(connection, address),
        *await find_strays(connection, address),
    ]
    async with apart(connection):
        cursor = connection.cursor(row_factory=dict_row)
        await cursor.execute(_QUESTION.replace("{schema}", address.quoted_schema))
        server = msgspec.convert(await cursor.fetchone(), _Server)
    facts = {
        "server": f"PostgreSQL {server.version}",
        "driver": f"psycopg {psycopg.__version__}, libpq {pq.version_pretty(pq.version())}",
        "user": server.user,
        "durability": f"{server.keeps.kind}: {server.keeps.survives}",
        "schema": f"{address.schema}, step {server.schema} of {newest()}",
        "size": f"{server.size}, the whole database",
        "connections": f"{server.connections} of {server.most_connections}",
        "tls": "on" if server.tls else "off",
        "news": _news(address, hears=hears),
    }
    findings = [*others, *_settings(server), *_circumstances(server, now)]
    if address.listen is not None and not hears:
        findings.append(_DEAF)
    if address.doubt:
        told = f"the connection is not protected. {address.doubt}"
        findings.append(Finding(told, REMEDY, grave=False))
    return Condition(facts, findings)


_DEAF = Finding(
    "news of jobs are not heard, so workers ask for them five times a second",
    "if there is a pooler before the server, name the server behind it with listen= in the URL",
    grave=False,
)


def _news(address: Address, *, hears: bool) -> str:
    if address.listen is None:
        return "not listened for (listen=off)"
    return "heard" if hears else "not heard"


def _settings(server: _Server) -> Iterator[Finding]:
    if server.number < _OLDEST:
        yield Finding("this server is older than PostgreSQL 13", "upgrade it")
    if not server.fsync:
        yield Finding("fsync is off: a power cut can destroy the database", "set fsync = on")
    if not server.full_page_writes:
        yield Finding(
            "full_page_writes is off: a power cut can damage the database",
            "set full_page_writes = on, unless your file system never tears a page",
        )
    if server.synchronous_commit == "off":
        yield Finding(
            "synchronous_commit is off: a crash of the server loses the last moment, and the jobs "
            "that were accepted in it",
            "set synchronous_commit = on, at least for the producers",
            grave=False,
        )
    if server.autovacuum == "off":
        yield Finding("autovacuum is off, so the tables only grow", "set autovacuum = on")
    if server.superuser:
        yield Finding(
            "the store is used as a superuser",
            "let it have a role of its own; see docs/postgresql.md",
            grave=False,
        )


def _circumstances(server: _Server, now: int) -> Iterator[Finding]:
    if server.connections > server.most_connections * 0.9:
        yield Finding(
            f"{server.connections} of {server.most_connections} connections are in use",
            "raise max_connections, or put PgBouncer in front",
        )
    if server.held_seconds > _HELD_SECONDS:
        yield Finding(
            f"a transaction has been open for {server.held_seconds:,} s; nothing that was deleted "
            "since can be cleaned up",
            "find it in pg_stat_activity and let it end; claims stay fast meanwhile",
            grave=False,
        )
    apart = abs(server.stamp - now) / SECOND
    if apart > 60:
        yield Finding(
            f"this machine's clock and the server's are {apart:,.0f} s apart; leases and due "
            "times go by the server's",
            "run a time service on both",
            grave=False,
        )
