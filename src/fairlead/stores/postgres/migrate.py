"""Bring the schema up to date: numbered scripts, each in its own transaction.

Safe in several processes at once, and while workers of the version before run: a
step takes a lock only for as long as it is short to get, and is tried again
otherwise. Whoever dies in the middle leaves the steps before, whole.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from msgspec.structs import replace
from psycopg import errors

from fairlead.core.admin import Migration
from fairlead.core.errors import SchemaOutdated, StoreUnavailable
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.durability import Durability, durability_of
from fairlead.stores.postgres.lane import NO_PATH, Connection, connect, finish
from fairlead.stores.postgres.owners import check_owners, guard
from fairlead.stores.postgres.problems import typed
from fairlead.stores.postgres.statements import migrations

PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.25
_MADE_BY_ANOTHER = (errors.UniqueViolation, errors.DuplicateSchema, errors.DuplicateTable)
"""What the server says of a schema or a table that somebody else made at the same moment."""
_TIMES = "SELECT number, applied_at FROM {schema}.migration WHERE number BETWEEN 1 AND 9999"
# The last step is told beside the list as well: to make again what is there would fail for ever.
_TELL = "COMMENT ON TABLE migration IS 'up to step {number}'"
_TOLD = "SELECT substring(obj_description(to_regclass(%s), 'pg_class') FROM 'step ([0-9]{1,4})$')"
_SCHEMA = "SELECT to_regnamespace(%s) IS NOT NULL"
_LOCK = "LOCK TABLE migration IN SHARE ROW EXCLUSIVE MODE"
# Who has locked something of ours, or something that we would make; the longest first.
_HOLDERS = """
SELECT DISTINCT holder.pid, holder.xact_start FROM pg_locks
JOIN pg_stat_activity AS holder ON holder.pid = pg_locks.pid
WHERE granted AND holder.pid <> pg_backend_pid() AND relation IN (
    SELECT oid FROM pg_class WHERE relnamespace = to_regnamespace(%s)
)
ORDER BY holder.xact_start LIMIT 3
"""
_CREATE = "CREATE SCHEMA {schema}"
_PATH = "SET LOCAL search_path = {schema}, pg_temp"
_TABLE = (
    "CREATE TABLE IF NOT EXISTS migration (number integer PRIMARY KEY, applied_at bigint NOT NULL)"
)
_FOUND = "SELECT to_regclass(%s) IS NOT NULL"


def newest() -> int:
    """Return the number of the schema this program works with."""
    return migrations()[-1].number


def migrate(address: Address) -> Durability:
    """Apply what is missing; returns what the server keeps of what it accepts."""
    try:
        connection = connect(address)
        try:
            times = applied_times(connection, address)
            _check_not_newer(times)
            for step in migrations():
                if step.number not in times:
                    _apply_patiently(connection, address, step)
            return durability_of(connection)
        finally:
            finish(connection)
    except psycopg.Error as problem:
        raise typed(problem, address) from problem


def applied(address: Address) -> list[Migration]:
    """Return every step of the schema, with the time it was applied, if it was; applies none."""
    try:
        connection = connect(address)
        try:
            times = applied_times(connection, address)
        finally:
            finish(connection)
    except psycopg.Error as problem:
        raise typed(problem, address) from problem
    _check_not_newer(times)
    return [
        replace(step, sql=_script(address, step), applied_at=times.get(step.number))
        for step in migrations()
    ]


def _script(address: Address, step: Migration) -> str:
    """Return a step as `psql` takes it, for those who apply schemas by other means."""
    return "\n".join(
        (
            "BEGIN;",
            f"CREATE SCHEMA IF NOT EXISTS {address.quoted_schema};",
            guard(address),
            f"{_PATH.replace('{schema}', address.quoted_schema)};",
            f"{_TABLE};",
            step.sql.strip(),
            f"INSERT INTO migration VALUES ({step.number}, stamp());",
            f"{_TELL.replace('{number}', str(step.number))};",
            "COMMIT;",
        )
    )


def applied_times(connection: Connection, address: Address) -> dict[int, int]:
    """Return when each step was applied, by its number; nothing is read that others own."""
    with connection.transaction():
        connection.execute(NO_PATH)
        check_owners(connection, address)
        return _times(connection, address)


def _times(connection: Connection, address: Address) -> dict[int, int]:
    """Return the same; of a step that somebody unlisted, 0."""
    table = f"{address.quoted_schema}.migration"
    [there] = connection.execute(_FOUND, [table]).fetchone() or (0,)
    if not there:
        return {}
    times = connection.execute(_TIMES.replace("{schema}", address.quoted_schema)).fetchall()
    [last] = connection.execute(_TOLD, [table]).fetchone() or (None,)
    return dict.fromkeys(range(1, int(last or 0) + 1), 0) | dict(times)


def _check_not_newer(times: dict[int, int]) -> None:
    if max(times, default=0) > newest():
        raise SchemaOutdated(max(times), newest())


def _apply_patiently(connection: Connection, address: Address, step: Migration) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            _make_room(connection, address)
            _apply(connection, address, step)
            return
        except errors.InsufficientPrivilege as problem:
            raise StoreUnavailable(
                address.url,
                f"the schema {address.schema} is not up to date, and this user may not change it; "
                "run `fairlead migrate up` as the owner of the database first",
            ) from problem
        except (errors.LockNotAvailable, errors.DeadlockDetected) as problem:
            if time.monotonic() > until:
                raise StoreUnavailable(
                    address.url,
                    f"migration {step.number} could not get its lock within "
                    f"{PATIENCE_SECONDS:.0f} s, because a transaction is open for long"
                    f"{_holders(connection, address)}; let it end (see pg_stat_activity), and try "
                    "again",
                ) from problem
            time.sleep(_PAUSE_SECONDS)


def _holders(connection: Connection, address: Address) -> str:
    """Say who keeps us waiting, as far as this user may know."""
    with connection.transaction():
        connection.execute(NO_PATH)
        rows = connection.execute(_HOLDERS, [address.quoted_schema]).fetchall()
    return f" (server process {', '.join(str(pid) for pid, _ in rows)})" if rows else ""


@contextmanager
def _hurried(connection: Connection) -> Iterator[None]:
    """Begin a transaction that waits for no lock for long, and calls nothing of others."""
    with connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '500ms'")
        connection.execute("SET LOCAL client_min_messages = warning")
        connection.execute(NO_PATH)
        yield


def _make_room(connection: Connection, address: Address) -> None:
    """Make the schema and the list of steps, if there are none; of several one makes them."""
    try:
        _make_room_once(connection, address)
    except _MADE_BY_ANOTHER:
        _make_room_once(connection, address)


def _make_room_once(connection: Connection, address: Address) -> None:
    schema = address.quoted_schema
    with _hurried(connection):
        # Somebody may have made it for us: to ask for it again needs rights on the database.
        [there] = connection.execute(_SCHEMA, [schema]).fetchone() or (False,)
        if not there:
            connection.execute(_CREATE.replace("{schema}", schema))
        check_owners(connection, address)
        [there] = connection.execute(_FOUND, [f"{schema}.migration"]).fetchone() or (False,)
        if not there:
            connection.execute(_PATH.replace("{schema}", schema))
            connection.execute(_TABLE)


def _apply(connection: Connection, address: Address, step: Migration) -> None:
    with _hurried(connection):
        check_owners(connection, address)
        connection.execute(_PATH.replace("{schema}", address.quoted_schema))
        # One at a time: who comes second finds the step done. Nobody but the owner can hold it.
        connection.execute(_LOCK)
        if step.number in _times(connection, address):
            return
        connection.execute(step.sql.encode())
        connection.execute("INSERT INTO migration VALUES (%s, stamp())", [step.number])
        connection.execute(_TELL.replace("{number}", str(step.number)).encode())
