"""Who owns the schema and what is in it: whatever runs there runs with our rights.

A view, or a function that is not a verb, runs with the rights of whoever uses it. So
nothing of a schema is used before all of it is known to belong to somebody who is
trusted: this user, a superuser, the owner of the database, or the role that owner= in
the URL names. A superuser trusts superusers only, for any other role would gain by it.
"""

from collections.abc import Sequence

import msgspec
from psycopg import errors

from fairlead.core.admin import Finding
from fairlead.core.errors import ConfigError
from fairlead.stores.postgres.address import Address
from fairlead.stores.postgres.lane import NO_PATH, AsyncConnection, Connection, apart
from fairlead.stores.postgres.replies import Stray, stray_of

_STRANGERS = """
WITH me AS (
    SELECT oid, rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user
), ours AS (
    SELECT oid, nspowner FROM pg_catalog.pg_namespace WHERE nspname = %(schema)s
), thing AS (
    SELECT 0 AS rank, 'schema' AS kind, %(schema)s::text AS name, nspowner AS owner FROM ours
    UNION ALL
    SELECT 1, CASE relkind WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE 'table' END,
           relname, relowner
    FROM pg_catalog.pg_class JOIN ours ON relnamespace = ours.oid
    WHERE relkind NOT IN ('i', 'I', 'c')
    UNION ALL
    SELECT 2, 'function', proname, proowner
    FROM pg_catalog.pg_proc JOIN ours ON pronamespace = ours.oid
    UNION ALL
    SELECT 3, 'operator', oprname, oprowner
    FROM pg_catalog.pg_operator JOIN ours ON oprnamespace = ours.oid
    UNION ALL
    SELECT 4, 'type', typname, typowner
    FROM pg_catalog.pg_type JOIN ours ON typnamespace = ours.oid WHERE typcategory <> 'A'
)
SELECT kind, name, coalesce(owner.rolname, 'nobody') AS owner, me.rolsuper
FROM thing CROSS JOIN me LEFT JOIN pg_catalog.pg_roles AS owner ON owner.oid = thing.owner
WHERE thing.owner <> me.oid AND owner.rolsuper IS DISTINCT FROM true
  AND (me.rolsuper OR owner.rolname IS DISTINCT FROM %(owner)s
       AND owner.rolname IS DISTINCT FROM 'pg_database_owner'
       AND thing.owner NOT IN (
           SELECT datdba FROM pg_catalog.pg_database
           WHERE datname = pg_catalog.current_database()
       ))
ORDER BY rank, name LIMIT 1
"""
# Whether the user of a connection that is not ours can call a verb: the same, of the schema and of
# all functions with the verb's name. Nothing is set there, so whatever is named has its schema.
_CALLED = """
WITH me AS (
    SELECT oid, rolsuper FROM pg_catalog.pg_roles
    WHERE rolname OPERATOR(pg_catalog.=) current_user
), ours AS (
    SELECT oid, nspname, nspowner FROM pg_catalog.pg_namespace
    WHERE nspname OPERATOR(pg_catalog.=) {schema}::pg_catalog.name
), thing AS (
    SELECT 'schema'::pg_catalog.text AS kind, nspname AS name, nspowner AS owner FROM ours
    UNION ALL
    SELECT 'function'::pg_catalog.text, proname, proowner FROM pg_catalog.pg_proc JOIN ours
    ON pronamespace OPERATOR(pg_catalog.=) ours.oid
    WHERE proname OPERATOR(pg_catalog.=) {verb}::pg_catalog.name
)
SELECT CAST(pg_catalog.json_build_array(kind, name, owner.rolname, me.rolsuper) AS pg_catalog.text)
FROM thing CROSS JOIN me LEFT JOIN pg_catalog.pg_roles AS owner
ON owner.oid OPERATOR(pg_catalog.=) thing.owner
WHERE thing.owner OPERATOR(pg_catalog.<>) me.oid AND owner.rolsuper IS NOT TRUE
  AND (me.rolsuper OR NOT (
      COALESCE(CAST(owner.rolname AS pg_catalog.text) OPERATOR(pg_catalog.=) ANY (
          ARRAY[CAST(%s AS pg_catalog.text), 'pg_database_owner'::pg_catalog.text]
      ), false)
      OR EXISTS (
          SELECT 1 FROM pg_catalog.pg_database
          WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
            AND datdba OPERATOR(pg_catalog.=) thing.owner
      )
  ))
LIMIT 1
"""
_STRAYS = "SELECT {schema}.strays('{}')"
_GUARD = f"""{NO_PATH};
DO $guard$
DECLARE
    strange record;
BEGIN
    FOR strange IN {{strangers}} LOOP
        RAISE '% % belongs to %, whose code would run with your rights',
            strange.kind, strange.name, strange.owner;
    END LOOP;
END $guard$;"""
_MAKERS = """
SELECT coalesce(role.rolname, 'everybody') FROM pg_catalog.pg_namespace AS ours
CROSS JOIN LATERAL pg_catalog.aclexplode(ours.nspacl) AS granted
LEFT JOIN pg_catalog.pg_roles AS role ON role.oid = granted.grantee
WHERE ours.nspname = %(schema)s AND granted.privilege_type = 'CREATE'
  AND granted.grantee <> ours.nspowner AND role.rolsuper IS DISTINCT FROM true
  AND role.rolname IS DISTINCT FROM current_user
ORDER BY 1
"""


def check_owners(connection: Connection, address: Address) -> None:
    """Raise if something in the schema belongs to somebody who is not trusted."""
    with connection.transaction():
        connection.execute(NO_PATH)
        row = connection.execute(_STRANGERS, _asked(address)).fetchone()
    if row is not None:
        finding = _finding(row, address)
        raise ConfigError(f"{finding.problem}; {finding.remedy}")


def guard(address: Address) -> str:
    """Return statements that fail if something in the schema belongs to a stranger, for `psql`."""
    owner = "NULL" if address.owner is None else _literal(address.owner)
    strangers = _STRANGERS.replace("%(schema)s", _literal(address.schema))
    return _GUARD.replace("{strangers}", strangers.replace("%(owner)s", f"{owner}::text").strip())


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def question_of(verb: str, address: Address) -> str:
    """Return what is asked on a connection that is not ours before a verb is called there.

    Not in one statement with the call: the server may run parts of a function while it still
    plans how to run the statement, whatever the statement asks first.
    """
    named = _CALLED.replace("{schema}", _literal(address.schema))
    return named.replace("{verb}", _literal(verb))


def check_called(answer: str | None, address: Address) -> None:
    """Raise if the user of that connection would run what somebody wrote whom he cannot trust."""
    if answer is not None:
        finding = _finding(msgspec.json.decode(answer), address)
        raise ConfigError(f"{finding.problem}; {finding.remedy}")


async def find_strangers(connection: AsyncConnection, address: Address) -> list[Finding]:
    """Return what belongs to somebody who is not trusted, and who else could add to the schema."""
    async with apart(connection):
        rows = await (await connection.execute(_STRANGERS, _asked(address))).fetchall()
        makers = await (await connection.execute(_MAKERS, _asked(address))).fetchall()
    return [
        *(_finding(row, address) for row in rows),
        *(_may_create(who, address) for (who,) in makers),
    ]


async def find_strays(connection: AsyncConnection, address: Address) -> list[Finding]:
    """Return what was given to somebody, though not by `allow`, and what runs beside us."""
    try:
        async with apart(connection):
            cursor = await connection.execute(_STRAYS.replace("{schema}", address.quoted_schema))
            return [_told(address, stray_of(text)) for (text,) in await cursor.fetchall()]
    except errors.UndefinedFunction:
        return []  # The audit says that it is missing.


def _told(address: Address, stray: Stray) -> Finding:
    kind, name, who, rights = stray.kind, stray.name, stray.who, stray.rights
    schema = address.quoted_schema
    if rights is None:
        return Finding(
            f"{kind.lower()} {name} of schema {address.schema} runs code of {who} whenever "
            "something is written there, with the rights of the schema's owner",
            f"let the owner drop it if nobody needs it: SET search_path = {schema}; "
            f"DROP {kind} {name}",
        )
    return Finding(
        f"{who} was given {rights} on {kind.lower()} {name} of schema {address.schema}, which no "
        "kind of role needs",
        f"let its owner run REVOKE {rights} ON {kind} {schema}.{name} FROM {who}, and look into "
        "the default privileges (psql: \\ddp)",
    )


def _asked(address: Address) -> dict[str, str | None]:
    return {"schema": address.schema, "owner": address.owner}


def _finding(row: Sequence[object], address: Address) -> Finding:
    kind, name, owner, is_superuser = row
    what = f"schema {name}" if kind == "schema" else f"{kind} {name} of schema {address.schema}"
    refuse = "drop it as the owner of the database, or name another schema with schema="
    trust = (
        f"connect as {owner} or as a role that it allows, never as a superuser"
        if is_superuser
        else f"add owner={owner} to the store's URL"
    )
    remedy = f"unless you trust {owner}, {refuse}; if you do, {trust}"
    return Finding(f"{what} belongs to {owner}, whose code would run with our rights", remedy)


def _may_create(who: str, address: Address) -> Finding:
    role = "PUBLIC" if who == "everybody" else who
    return Finding(
        f"{who} may create tables and functions in schema {address.schema}, which would run with "
        "the rights of who uses the store",
        f"let its owner run REVOKE CREATE ON SCHEMA {address.schema} FROM {role}",
    )
