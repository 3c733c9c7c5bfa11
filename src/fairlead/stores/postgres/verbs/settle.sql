-- Write what became of running jobs, each under its fence, with its line of the attempt log.
-- Runs that ended alike are told together. kinds: [state, outcome, counts, crashed, shared_deaths,
-- reason, pool, fingerprint, error, message, traceback, runs], and runs: [id, fence, started_at, run_at,
-- result, ord]. With "ruled", those that a person wants cancelled are written as they are told.
--
-- Returns null if all was written. Else what was; which jobs a person wants cancelled, and why, for
-- core/outcome.py to rule on; and those that somebody has locked just now. It waits for those only
-- if it is told to be patient, as in a user's transaction, where it is the last statement.
CREATE OR REPLACE FUNCTION settle(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    doc     jsonb   := document(batch);
    at      bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    ruled   boolean := doc ? 'ruled';
    own     integer := own_level(doc);
    ended   record;
BEGIN
    IF doc ? 'patient' THEN
        PERFORM FROM jsonb_array_elements(doc->'kinds') AS kind
        CROSS JOIN jsonb_array_elements(kind->11) AS run
        CROSS JOIN LATERAL (SELECT FROM job WHERE id = run->>0 FOR UPDATE) AS held;
    END IF;
    ended := leave(doc, true, ruled, own, at);
    IF doc ? 'tell' THEN
        PERFORM pg_notify(current_schema(), concat(doc->>'tell', ' ', ended.place));
    END IF;
    IF cardinality(ended.written) = (doc->>'count')::integer THEN
        RETURN NULL;
    END IF;
    RETURN unwritten(doc, ended.written, ruled, own);
END $$;
