-- name: serve
-- The least level of the programs that the schema serves, as a function without a question to a table: verbs ask for it
-- in each call, and it is a part of their plans, which are made anew when it is replaced. A step replaces it when it is
-- applied, so that from its commit on no verb does anything for a program that it does not serve. It never sinks.
DO $serve$
DECLARE
    least integer := current_setting('fairlead.least');
    whose text;
BEGIN
    IF to_regprocedure('least_level()') IS NOT NULL THEN
        EXECUTE 'SELECT greatest($1, least_level())' INTO least USING least;
    END IF;
    EXECUTE format(
        'CREATE OR REPLACE FUNCTION least_level() RETURNS integer LANGUAGE sql STABLE AS %L',
        format('SELECT %s', least)
    );
    FOR whose IN
        SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
        FROM pg_proc CROSS JOIN aclexplode(coalesce(proacl, acldefault('f', proowner)))
        WHERE pg_proc.oid = to_regprocedure('least_level()') AND grantee <> proowner
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION least_level() FROM %s CASCADE', whose);
    END LOOP;
END $serve$;

-- name: before_verbs
-- What is done before functions and views are replaced: remember what there was, and who was allowed what. A
-- role counts as one of a kind if it may call all the verbs of that kind that there are.
DO $before$
BEGIN
    IF EXISTS (
        SELECT FROM verbs WHERE revision > current_setting('fairlead.revision')::integer
                            AND revision <= 1000000
    ) THEN
        RAISE 'the functions of schema % are those of a newer program', current_schema();
    END IF;
    PERFORM set_config('fairlead.before', ARRAY(
        SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
        UNION ALL
        SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace
    )::text, true);
    PERFORM set_config('fairlead.written', ARRAY(
        SELECT format('%s %s', oid, xmin) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace
    )::text, true);
    PERFORM set_config('fairlead.allowed', '[]', true);
    IF to_regprocedure('verbs_of(text)') IS NOT NULL THEN
        PERFORM set_config('fairlead.allowed', coalesce(jsonb_agg(jsonb_build_array(grantee, kind)), '[]')::text, true)
        FROM (
            SELECT kind, grantee FROM (
                SELECT kind, oid, proacl, proowner, count(*) OVER (PARTITION BY kind) AS number
                FROM unnest(ARRAY['producer', 'worker', 'operator', 'tester']) AS kind
                CROSS JOIN unnest(verbs_of(kind)) AS verb
                JOIN pg_proc ON pg_proc.oid = to_regprocedure(verb)
            ) AS each CROSS JOIN aclexplode(proacl)
            WHERE privilege_type = 'EXECUTE' AND grantee NOT IN (0, proowner)
            GROUP BY kind, number, grantee HAVING count(DISTINCT oid) = number
        ) AS allowed;
    END IF;
END $before$;

-- name: after_verbs
-- What is done after it: nobody has a right to what is new but by allow, whatever default privileges say, and
-- nobody to a function because he is anybody; those who were allowed a kind may call its new verbs; and what the
-- functions before the last had besides is dropped. A function that was written meanwhile has a row of another
-- transaction, or of another part of this one: some programs make a part of each statement.
DO $after$
DECLARE
    here   CONSTANT oid := current_schema()::regnamespace;
    before CONSTANT oid[] := current_setting('fairlead.before');
    written CONSTANT text[] := current_setting('fairlead.written');
    made_  CONSTANT text[] := ARRAY(
        SELECT oid::regprocedure::text FROM pg_proc
        WHERE pronamespace = here AND format('%s %s', oid, xmin) <> ALL (written)
    ) || string_to_array(current_setting('fairlead.views'), ' ');
    each   record;
BEGIN
    IF 'put(text)' <> ALL (made_) THEN
        RAISE 'the functions of schema % were not replaced: run the whole script, in one session', here::regnamespace;
    END IF;
    FOR each IN
        SELECT p.oid::regprocedure AS made,
               CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS who
        FROM pg_proc AS p CROSS JOIN aclexplode(coalesce(proacl, acldefault('f', proowner)))
        WHERE pronamespace = here AND format('%s %s', p.oid, p.xmin) <> ALL (written)
          AND (grantee = 0 OR grantee <> proowner AND p.oid <> ALL (before))
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %s CASCADE', each.made, each.who);
    END LOOP;
    PERFORM seal(oid::regclass) FROM pg_class
    WHERE relnamespace = here AND relkind = 'v' AND oid <> ALL (before);
    FOR each IN
        SELECT p.oid::regprocedure AS function FROM pg_proc AS p CROSS JOIN verbs
        WHERE pronamespace = here AND p.oid::regprocedure::text = ANY (left_over)
          AND p.oid::regprocedure::text <> ALL (made_)
    LOOP
        EXECUTE format('DROP FUNCTION %s', each.function);
    END LOOP;
    INSERT INTO verbs (revision, functions, views, applied_at, made, left_over) VALUES (
        current_setting('fairlead.revision')::integer, current_setting('fairlead.functions'),
        current_setting('fairlead.views_digest'), stamp(), made_, '{}'
    ) ON CONFLICT ((true)) DO UPDATE SET
        revision = excluded.revision, functions = excluded.functions, views = excluded.views,
        applied_at = excluded.applied_at, made = excluded.made, left_over = ARRAY(
            SELECT was FROM unnest(verbs.made) AS was
            WHERE was LIKE '%(%' EXCEPT SELECT unnest(excluded.made)
        );
    FOR each IN
        SELECT rolname, told->>1 AS kind FROM jsonb_array_elements(current_setting('fairlead.allowed')::jsonb) AS told
        JOIN pg_roles ON pg_roles.oid = (told->>0)::oid
    LOOP
        PERFORM allow(each.rolname, each.kind);
    END LOOP;
END $after$;
