-- Who was given what allow gives nobody, by hand or by default privileges; and whose code runs when a row
-- is written: [kind, name, who, rights] of each. A part of a table is named by itself. The names are quoted
-- where they must be.
CREATE OR REPLACE FUNCTION strays(batch text) RETURNS SETOF text LANGUAGE sql STABLE
SECURITY DEFINER SET search_path = {schema}, pg_temp
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
               privilege_type = 'SELECT' AND (relname IN ('migration', 'verbs') OR relname = ANY (read_tables())
                   AND a.grantee IN (SELECT grantee FROM operator)) AS ours
        FROM here JOIN pg_class AS c ON relnamespace = here.oid CROSS JOIN aclexplode(relacl) AS a
        WHERE relkind IN ('r', 'p', 'v', 'S')
        UNION ALL
        SELECT 'FUNCTION', p.oid::regprocedure::text, proowner, a.*,
               a.grantee <> 0 AND p.oid IN (SELECT oid FROM verb)
        FROM here JOIN pg_proc AS p ON pronamespace = here.oid
        CROSS JOIN aclexplode(coalesce(proacl, acldefault('f', proowner))) AS a
    ), stray (kind, name, who, rights) AS (
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
    )
    SELECT json_build_array(kind, name, who, rights)::text FROM stray ORDER BY kind, name, who
$$;
