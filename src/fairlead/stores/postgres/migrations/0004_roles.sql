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

-- Give a role what a producer, a worker or an operator needs: SELECT fairlead.allow('web', 'producer').
-- A tester may also say what time it is, for programs that are tested with a clock of their own.
CREATE FUNCTION allow(who name, kind text) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    here  name := current_schema();
    verb  text;
    verbs text[] := CASE kind
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
            'repair(text)'
        ]
    END;
BEGIN
    IF verbs IS NULL THEN
        RAISE 'a role is a producer, a worker, an operator or a tester, not %', quote_nullable(kind)
            USING ERRCODE = 'JQ001';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', here, who);
    EXECUTE format('GRANT SELECT ON migration TO %I', who);
    FOREACH verb IN ARRAY verbs LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', verb, who);
    END LOOP;
    IF kind = 'operator' THEN
        EXECUTE format(
            'GRANT SELECT ON job, finished, attempt, dead, worker, paused, audit, queue, day, '
            'retention, kept, job_record, finished_record, dead_record, attempt_record TO %I', who
        );
        EXECUTE format('GRANT EXECUTE ON FUNCTION tags_of(text), last_of(text[]), stamp() TO %I', who);
    END IF;
END $$;
DO $$
BEGIN
    EXECUTE format(
        'ALTER FUNCTION allow(name, text) SET search_path = %I, pg_temp', current_schema()
    );
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', current_schema());
END $$;
