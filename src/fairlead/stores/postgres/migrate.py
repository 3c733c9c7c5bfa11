"""Bring the schema up to date: numbered steps for the tables, then the functions and views.

Each step is a transaction, and so are all functions and views together, see `catalog`. Safe in
several processes at once, and while workers of the version before run: what needs a lock has it
only for as long as it is short to get, and is tried again otherwise. Whoever dies in the middle
leaves what was done before, whole.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psycopg
from msgspec.structs import replace
from psycopg import errors

from fairlead.core.admin import VERBS, Migration
from fairlead.core.errors import StoreUnavailable
from fairlead.core.job import HIGHEST, LEVEL
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.catalog import (
    REVISION,
    functions_digest,
    script,
    serve,
    views_digest,
)
from fairlead.stores.postgres.durability import Durability, durability_of
from fairlead.stores.postgres.lane import NO_PATH, Connection, connect, finish
from fairlead.stores.postgres.owners import check_owners, guard
from fairlead.stores.postgres.problems import typed
from fairlead.stores.postgres.statements import migrations
from fairlead.stores.steps import check_served

PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.25
_MADE_BY_ANOTHER = (errors.UniqueViolation, errors.DuplicateSchema, errors.DuplicateTable)
"""What the server says of a schema or a table that somebody else made at the same moment."""
_STEPS = """
SELECT number, applied_at, CASE WHEN serves > 0 THEN serves ELSE 1000 END
FROM {schema}.migration WHERE number BETWEEN 1 AND 9999
"""
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
    "CREATE TABLE IF NOT EXISTS migration (number integer PRIMARY KEY, applied_at bigint NOT NULL, "
    "serves integer NOT NULL DEFAULT 1)"
)
_FOUND = "SELECT to_regclass(%s) IS NOT NULL"
_ADD = (
    "INSERT INTO migration VALUES ({number}, "
    "(date_part('epoch', clock_timestamp()) * 1000000)::bigint, {serves})"
)
_LOCK_VERBS = "LOCK TABLE verbs IN SHARE ROW EXCLUSIVE MODE"
_VERBS = """
SELECT revision, functions, views, applied_at, EXISTS (
    SELECT FROM unnest(made) AS each WHERE split_part(each, '(', 1) NOT IN (
        SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace(%(schema)s)
        UNION ALL
        SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s)
    )
), pg_has_role(relowner, 'USAGE')
FROM {schema}.verbs CROSS JOIN pg_class
WHERE pg_class.oid = to_regclass(%(table)s) AND revision BETWEEN 1 AND 1000000
ORDER BY revision DESC LIMIT 1
"""
_AT_ONCE = "tuple concurrently"
"""What the server says to who changes a function that somebody else is changing, by GRANT say."""


class Applied(NamedTuple):
    """The functions and views that are there, and whether this user may replace them."""

    revision: int = 0
    functions: str = ""
    views: str = ""
    applied_at: int = 0
    is_broken: bool = False
    is_owner: bool = True

    @property
    def suffices(self) -> bool:
        """Whether this program can work with them."""
        return self.revision >= REVISION

    @property
    def is_ours(self) -> bool:
        """Whether there is nothing to apply: they are just these, or those of a newer program."""
        if self.revision != REVISION:
            return self.revision > REVISION
        return not self.is_broken and self.functions == functions_digest() and self.has_views

    @property
    def has_views(self) -> bool:
        """Whether the views need not be replaced."""
        return not self.is_broken and self.views == views_digest()


class _Note(NamedTuple):
    """When a step was applied, and the least level that it still serves."""

    applied_at: int
    serves: int


def newest() -> int:
    """Return the number of the schema this program works with."""
    return migrations()[-1].number


def migrate(address: Address, level: int = LEVEL) -> Durability:
    """Apply what is missing; returns what the server keeps of what it accepts.

    What newer programs applied is left to them, as long as it serves this level.
    """
    try:
        connection = connect(address)
        try:
            noted, verbs = _look(connection, address)
            _check_served(noted, level)
            for step in migrations():
                if step.number not in noted:
                    _apply_step(connection, address, step)
            if not verbs.is_ours:
                _apply_verbs(connection, address, verbs)
            return durability_of(connection)
        finally:
            finish(connection)
    except psycopg.Error as problem:
        raise typed(problem, address) from problem


def applied(address: Address, level: int = LEVEL) -> list[Migration]:
    """Return every step of the schema, with the time it was applied, if it was; applies none."""
    try:
        connection = connect(address)
        try:
            noted, verbs = _look(connection, address)
        finally:
            finish(connection)
    except psycopg.Error as problem:
        raise typed(problem, address) from problem
    _check_served(noted, level)
    steps = [
        replace(step, sql=_step_script(address, step), applied_at=_when(noted, step))
        for step in migrations()
    ]
    there = verbs.is_ours or (verbs.suffices and not verbs.is_owner)
    applied_at = verbs.applied_at if there else None
    return [*steps, Migration(REVISION, VERBS, _verbs_script(address), applied_at)]


def _step_script(address: Address, step: Migration) -> str:
    """Return a step as `psql` takes it, for those who apply schemas by other means."""
    notes = (f"{each};" for each in _notes(address, step))
    return _for_psql(address, f"{_TABLE};", step.sql.strip(), *notes)


def _notes(address: Address, step: Migration) -> list[str]:
    """Return what writes down that a step was applied, and whom it serves."""
    told = (each.replace("{number}", str(step.number)) for each in (_ADD, _TELL))
    noted = [each.replace("{serves}", str(step.serves)) for each in told]
    return [*noted, serve(address, [step.serves]).rstrip(";")]


def _verbs_script(address: Address) -> str:
    return _for_psql(address, f"{_LOCK_VERBS};", script(address))


def _for_psql(address: Address, *parts: str) -> str:
    return "\n".join(
        (
            "BEGIN;",
            f"CREATE SCHEMA IF NOT EXISTS {address.quoted_schema};",
            guard(address),
            f"{_PATH.replace('{schema}', address.quoted_schema)};",
            *parts,
            "COMMIT;",
        )
    )


def _look(connection: Connection, address: Address) -> tuple[dict[int, _Note], Applied]:
    """Return when each step was applied, and which functions; nothing is read that others own."""
    with connection.transaction():
        connection.execute(NO_PATH)
        check_owners(connection, address)
        return _noted(connection, address), _verbs(connection, address)


def _noted(connection: Connection, address: Address) -> dict[int, _Note]:
    """Return what is noted of each step, by its number; of one that somebody unlisted, nothing."""
    table = f"{address.quoted_schema}.migration"
    [there] = connection.execute(_FOUND, [table]).fetchone() or (0,)
    if not there:
        return {}
    rows = connection.execute(_STEPS.replace("{schema}", address.quoted_schema)).fetchall()
    [last] = connection.execute(_TOLD, [table]).fetchone() or (None,)
    # What a step that nobody lists does to older programs is not known.
    unlisted = dict.fromkeys(range(1, int(last or 0) + 1), _Note(0, HIGHEST))
    return unlisted | {number: _Note(applied_at, serves) for number, applied_at, serves in rows}


def _verbs(connection: Connection, address: Address) -> Applied:
    schema = address.quoted_schema
    table = f"{schema}.verbs"
    [there] = connection.execute(_FOUND, [table]).fetchone() or (False,)
    if not there:
        return Applied()
    named = {"schema": schema, "table": table}
    row = connection.execute(_VERBS.replace("{schema}", schema), named).fetchone()
    return Applied(*row) if row else Applied()


def _check_served(noted: dict[int, _Note], level: int) -> None:
    check_served(((number, note.serves) for number, note in noted.items()), newest(), level)


def _when(noted: dict[int, _Note], step: Migration) -> int | None:
    note = noted.get(step.number)
    return note.applied_at if note is not None else None


def _apply_step(connection: Connection, address: Address, step: Migration) -> None:
    def apply() -> None:
        _make_room(connection, address)
        _apply(connection, address, step)

    try:
        _patiently(connection, address, f"migration {step.number}", apply)
    except errors.InsufficientPrivilege as problem:
        raise _outdated(address) from problem


def _apply_verbs(connection: Connection, address: Address, there: Applied) -> None:
    """Replace functions and views; who may not goes on with those of a program as new as this."""
    try:
        _patiently(
            connection, address, "the schema's functions", lambda: _replace(connection, address)
        )
    except errors.InsufficientPrivilege as problem:
        if not there.suffices:
            raise _outdated(address) from problem


def _outdated(address: Address) -> StoreUnavailable:
    return StoreUnavailable(
        address.url,
        f"the schema {address.schema} is not up to date, and this user may not change it; "
        "run `fairlead migrate up` as the owner of the database first",
    )


def _patiently(
    connection: Connection, address: Address, what: str, apply: Callable[[], None]
) -> None:
    """Apply something; again, while others are in the way."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            apply()
            return
        except errors.InternalError_ as problem:
            if _AT_ONCE not in str(problem) or time.monotonic() > until:
                raise
        except (errors.LockNotAvailable, errors.DeadlockDetected) as problem:
            if time.monotonic() > until:
                raise StoreUnavailable(
                    address.url,
                    f"{what} could not get its lock within {PATIENCE_SECONDS:.0f} s, because a "
                    f"transaction is open for long{_holders(connection, address)}; let it end (see "
                    "pg_stat_activity), and try again",
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
        if step.number in _noted(connection, address):
            return
        connection.execute(step.sql.encode())
        for told in _notes(address, step):
            connection.execute(told.encode())


def _replace(connection: Connection, address: Address) -> None:
    with _hurried(connection):
        check_owners(connection, address)
        connection.execute(_PATH.replace("{schema}", address.quoted_schema))
        connection.execute(_LOCK_VERBS)  # Nobody but the owner can hold it.
        there = _verbs(connection, address)
        if not there.is_ours:
            connection.execute(script(address, views=not there.has_views).encode())
