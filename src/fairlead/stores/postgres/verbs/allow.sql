-- Who may do what. Nobody but the owner touches a table: the verbs run with the owner's rights, and a
-- role is given verbs. Their search path is fixed, so that nobody can slip a table of his own in.

-- The verbs of a kind of role; null if there is no such kind.
CREATE OR REPLACE FUNCTION verbs_of(kind text) RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE kind
        WHEN 'producer' THEN ARRAY[
            'put(text)', 'find(text)', 'attempts(text)', 'due(text)'
        ]
        WHEN 'worker' THEN ARRAY[
            'put(text)', 'find(text)', 'attempts(text)', 'due(text)',
            'live_workers(text)', 'claim(text)', 'extend(text)', 'settle(text)', 'held(text)', 'announce(text)',
            'upkeep(text)', 'read_entries(text)', 'write_entries(text)'
        ]
        WHEN 'tester' THEN ARRAY['moment(bigint)']
        WHEN 'operator' THEN ARRAY[
            'served(text)', 'find(text)', 'attempts(text)', 'due(text)', 'live_workers(text)', 'act(text)',
            'noted(text)', 'upkeep(text)', 'retain(interval, text)', 'flaws(text)',
            'repair(text)', 'strays(text)', 'read_entries(text)', 'write_entries(text)', 'used(text)', 'tags_of(text)',
            'last_of(text[])', 'stamp()', 'limit_named(smallint)'
        ]
    END
$$;

-- What an operator reads.
CREATE OR REPLACE FUNCTION read_tables() RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT ARRAY[
        'job', 'finished', 'attempt', 'dead', 'worker', 'paused', 'audit', 'queue', 'day', 'retention', 'kept',
        'entry', 'job_record', 'finished_record', 'dead_record', 'attempt_record'
    ]
$$;

-- Give a role what a producer, a worker or an operator needs: SELECT fairlead.allow('web', 'producer').
-- A tester may also say what time it is, for programs that are tested with a clock of their own.
CREATE OR REPLACE FUNCTION allow(who name, kind text) RETURNS void LANGUAGE plpgsql
SET search_path = {schema}, pg_temp
AS $$
DECLARE
    here  name := current_schema();
    each  text;
    given text[] := verbs_of(kind);
BEGIN
    LOCK TABLE verbs IN SHARE ROW EXCLUSIVE MODE;  -- Who brings the verbs up to date grants them as well.
    IF given IS NULL THEN
        RAISE 'a role is a producer, a worker, an operator or a tester, not %', quote_nullable(kind)
            USING ERRCODE = 'JQ001';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', here, who);
    EXECUTE format('GRANT SELECT ON migration, verbs TO %I', who);
    FOREACH each IN ARRAY given LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', each, who);
    END LOOP;
    IF kind = 'operator' THEN
        FOREACH each IN ARRAY read_tables() LOOP
            EXECUTE format('GRANT SELECT ON %I TO %I', each, who);
        END LOOP;
    END IF;
END $$;
