-- The name of a day, as its tables have it.
CREATE OR REPLACE FUNCTION day_of(opens bigint) RETURNS text LANGUAGE sql STABLE
AS $$ SELECT to_char(to_timestamp(opens / 1000000) AT TIME ZONE 'UTC', 'YYYYMMDD') $$;

CREATE OR REPLACE FUNCTION is_part(part text, whole text) RETURNS boolean LANGUAGE sql VOLATILE
AS $$
    SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass(quote_ident(part))
                                             AND inhparent = to_regclass(quote_ident(whole)))
$$;

-- The part of a table that holds these times, whatever its name is; null if there is none.
CREATE OR REPLACE FUNCTION part_for(whole text, opens bigint, closes bigint) RETURNS regclass LANGUAGE sql VOLATILE
AS $$
    SELECT inhrelid::regclass FROM pg_inherits JOIN pg_class ON oid = inhrelid
    CROSS JOIN regexp_match(
        pg_get_expr(relpartbound, oid), $r$FROM \('(-?\d+)'\) TO \('(-?\d+)'\)$r$
    ) AS bounds
    WHERE inhparent = to_regclass(quote_ident(whole))
      AND bounds[1]::bigint <= opens AND bounds[2]::bigint >= closes
$$;

-- Take from all but the owner what default privileges gave them when this was made.
CREATE OR REPLACE FUNCTION seal(made regclass) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    who text;
BEGIN
    FOR who IN
        SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
        FROM pg_class CROSS JOIN aclexplode(relacl) WHERE oid = made AND grantee <> relowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', made, who);
    END LOOP;
END $$;

-- Make one part of a table. A table that has its name already may be somebody's trap: what is in it, and
-- what it does with each row, would happen with the owner's rights. So it is one of the owner's, and plain.
CREATE OR REPLACE FUNCTION add_part(whole text, part text, opens bigint, closes bigint) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    full_name text := format('%I.%I', current_schema(), part);
    there     pg_class;
BEGIN
    SELECT * INTO there FROM pg_class WHERE oid = to_regclass(full_name);
    IF NOT FOUND THEN
        EXECUTE format('CREATE TABLE %s (LIKE %I INCLUDING ALL)', full_name, whole);
        PERFORM seal(full_name::regclass);
    ELSIF there.relkind <> 'r' OR there.relhastriggers OR there.relhasrules
          OR there.relowner <> (SELECT relowner FROM pg_class WHERE oid = to_regclass(quote_ident(whole))) THEN
        RAISE 'jobs that end on this day need the table %, and somebody has made another of that name; '
              'let its owner, %, drop or rename it', full_name, there.relowner::regrole
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    EXECUTE format(
        'ALTER TABLE %I ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)', whole, full_name, opens, closes
    );
END $$;

-- Make the tables of the day that an instant falls in. Whoever adds the day to the list makes them;
-- others wait for that. They are attached, not created in place: that locks nobody out. The list is
-- not believed: somebody may have changed it, and without its tables no job of the day could end.
CREATE OR REPLACE FUNCTION open_day(at bigint) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    opens  bigint := at / 86400000000 * 86400000000;
    closes bigint := opens + 86400000000;
    name   text;
    part   text;
BEGIN
    INSERT INTO day VALUES (opens) ON CONFLICT DO NOTHING;
    FOREACH name IN ARRAY ARRAY['finished', 'attempt'] LOOP
        part := name || '_' || day_of(opens);
        IF NOT is_part(part, name) THEN
            PERFORM FROM day WHERE first = opens FOR UPDATE;
            IF part_for(name, opens, closes) IS NULL THEN
                PERFORM add_part(name, part, opens, closes);
            END IF;
        END IF;
    END LOOP;
END $$;

-- Drop the days that ended before an instant. If somebody reads them, they are dropped another time; so is a day
-- some of whose jobs still have entries.
CREATE OR REPLACE FUNCTION close_days(before_ bigint) RETURNS void LANGUAGE plpgsql
SET lock_timeout = '50ms'
AS $$
DECLARE
    opens bigint;
BEGIN
    -- A query that is still open would keep the tables from being dropped.
    FOREACH opens IN ARRAY ARRAY(
        SELECT first FROM day
        WHERE first <= before_ - 86400000000 AND first >= 0 AND first % 86400000000 = 0
          AND NOT EXISTS (SELECT FROM finished WHERE attached & 1 <> 0
                                                 AND finished_at BETWEEN first AND first + 86400000000 - 1)
        ORDER BY first LIMIT 10
        FOR UPDATE SKIP LOCKED
    ) LOOP
        EXECUTE format(
            'DROP TABLE IF EXISTS %I, %I', 'finished_' || day_of(opens), 'attempt_' || day_of(opens)
        );
        DELETE FROM day WHERE first = opens;
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    NULL;
END $$;

-- The parts of our tables, and the times that they hold.
CREATE OR REPLACE FUNCTION parts() RETURNS TABLE (whole text, name text, opens bigint, closes bigint) LANGUAGE sql STABLE
AS $$
    SELECT inhparent::regclass::text, relname::text, bounds[1]::bigint, bounds[2]::bigint
    FROM pg_inherits JOIN pg_class ON oid = inhrelid CROSS JOIN regexp_match(
        pg_get_expr(relpartbound, oid), $r$FROM \('(-?\d+)'\) TO \('(-?\d+)'\)$r$
    ) AS bounds
    WHERE inhparent IN (to_regclass('finished'), to_regclass('attempt'))
$$;

-- The name that a part should have, if it holds a day.
CREATE OR REPLACE FUNCTION part_name(whole text, opens bigint, closes bigint) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN opens >= 0 AND opens % 86400000000 = 0 AND closes = opens + 86400000000
                THEN whole || '_' || day_of(opens) END
$$;
