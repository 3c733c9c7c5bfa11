-- Who may do what. Nobody but the owner touches a table: the verbs run with the owner's rights, and a
-- role is given verbs. Their search path is fixed, so that nobody can slip a table of his own in.
DO $$
DECLARE
    verb text;
BEGIN
    FOREACH verb IN ARRAY ARRAY[
        'put(text)', 'find(text)', 'attempts(text)', 'live_workers(bigint)', 'due(bigint)', 'claim(text)',
        'extend(text)', 'settle(text)', 'held(text)', 'announce(text)',
        'upkeep(text)', 'act(text)', 'noted(text)', 'retain(interval, text)'
    ] LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', verb, current_schema()
        );
    END LOOP;
    -- An operator's questions call these, whatever is on the search path.
    ALTER FUNCTION tags_of(text) SET search_path = pg_catalog, pg_temp;
    ALTER FUNCTION last_of(text[]) SET search_path = pg_catalog, pg_temp;
END $$;

-- The verbs of a kind of role; null if there is no such kind.
CREATE FUNCTION verbs_of(kind text) RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE kind
        WHEN 'producer' THEN ARRAY[
            'put(text)', 'find(text)', 'attempts(text)', 'due(bigint)'
        ]
        WHEN 'worker' THEN ARRAY[
            'put(text)', 'find(text)', 'attempts(text)', 'due(bigint)',
            'live_workers(bigint)', 'claim(text)', 'extend(text)', 'settle(text)', 'held(text)', 'announce(text)',
            'upkeep(text)'
        ]
        WHEN 'tester' THEN ARRAY['moment(bigint)']
        WHEN 'operator' THEN ARRAY[
            'find(text)', 'attempts(text)', 'due(bigint)', 'live_workers(bigint)', 'act(text)',
            'noted(text)', 'upkeep(text)', 'retain(interval, text)', 'flaws(bigint, integer)',
            'repair(text)', 'strays()', 'tags_of(text)', 'last_of(text[])', 'stamp()'
        ]
    END
$$;

-- What an operator reads.
CREATE FUNCTION read_tables() RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT ARRAY[
        'job', 'finished', 'attempt', 'dead', 'worker', 'paused', 'audit', 'queue', 'day', 'retention', 'kept',
        'job_record', 'finished_record', 'dead_record', 'attempt_record'
    ]
$$;

-- Give a role what a producer, a worker or an operator needs: SELECT fairlead.allow('web', 'producer').
-- A tester may also say what time it is, for programs that are tested with a clock of their own.
CREATE FUNCTION allow(who name, kind text) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    here  name := current_schema();
    each  text;
    verbs text[] := verbs_of(kind);
BEGIN
    IF verbs IS NULL THEN
        RAISE 'a role is a producer, a worker, an operator or a tester, not %', quote_nullable(kind)
            USING ERRCODE = 'JQ001';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', here, who);
    EXECUTE format('GRANT SELECT ON migration TO %I', who);
    FOREACH each IN ARRAY verbs LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', each, who);
    END LOOP;
    IF kind = 'operator' THEN
        FOREACH each IN ARRAY read_tables() LOOP
            EXECUTE format('GRANT SELECT ON %I TO %I', each, who);
        END LOOP;
    END IF;
END $$;
DO $$
BEGIN
    EXECUTE format(
        'ALTER FUNCTION allow(name, text) SET search_path = %I, pg_temp', current_schema()
    );
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', current_schema());
END $$;

-- Who was given what allow gives nobody, by hand or by default privileges; and whose code runs when a row
-- is written. A part of a table is named by itself. The names are quoted where they must be.
CREATE FUNCTION strays() RETURNS TABLE (kind text, name text, who text, rights text) LANGUAGE sql STABLE
AS $$
    WITH here AS (
        SELECT oid FROM pg_namespace WHERE nspname = current_schema()
    ), operator AS (
        SELECT grantee FROM pg_proc CROSS JOIN aclexplode(proacl) WHERE pg_proc.oid = to_regprocedure('act(text)')
    ), verb AS (
        SELECT to_regprocedure(unnest(verbs_of(kind))) AS oid
        FROM unnest(ARRAY['producer', 'worker', 'operator', 'tester']) AS kind
    ), given AS (
        SELECT 'TABLE' AS kind, c.oid::regclass::text AS name, c.relowner AS owner, a.*,
               privilege_type = 'SELECT' AND (relname = 'migration' OR relname = ANY (read_tables())
                   AND a.grantee IN (SELECT grantee FROM operator)) AS ours
        FROM here JOIN pg_class AS c ON relnamespace = here.oid CROSS JOIN aclexplode(relacl) AS a
        WHERE relkind IN ('r', 'p', 'v', 'S')
        UNION ALL
        SELECT 'FUNCTION', p.oid::regprocedure::text, proowner, a.*,
               a.grantee <> 0 AND p.oid IN (SELECT oid FROM verb)
        FROM here JOIN pg_proc AS p ON pronamespace = here.oid
        CROSS JOIN aclexplode(coalesce(proacl, acldefault('f', proowner))) AS a
    )
    SELECT given.kind, given.name, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
           string_agg(privilege_type, ', ' ORDER BY privilege_type)
    FROM given LEFT JOIN pg_roles ON pg_roles.oid = grantee
    WHERE NOT (ours AND NOT is_grantable) AND grantee <> owner AND rolsuper IS NOT TRUE
    GROUP BY 1, 2, 3
    UNION ALL
    SELECT 'TRIGGER', format('%I ON %s', tgname, tgrelid::regclass), proowner::regrole::text, NULL
    FROM here JOIN pg_class ON relnamespace = here.oid JOIN pg_trigger ON tgrelid = pg_class.oid
    JOIN pg_proc ON pg_proc.oid = tgfoid
    WHERE NOT tgisinternal
    UNION ALL
    SELECT 'RULE', format('%I ON %s', rulename, ev_class::regclass), relowner::regrole::text, NULL
    FROM here JOIN pg_class ON relnamespace = here.oid JOIN pg_rewrite ON ev_class = pg_class.oid
    WHERE rulename <> '_RETURN'
    ORDER BY 1, 2, 3
$$;
