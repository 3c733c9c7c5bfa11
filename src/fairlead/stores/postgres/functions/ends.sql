-- A job in a state that there is not would be nowhere.
CREATE OR REPLACE FUNCTION no_state(state text) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RAISE 'a run ends as done, waiting, dead or cancelled, not as %', quote_nullable(left(state, 100))
        USING ERRCODE = 'invalid_parameter_value';
END $$;

-- The runs that a settle tells of, each with what it has in common with others.
CREATE OR REPLACE FUNCTION told_ends(doc jsonb) RETURNS TABLE (
    state text, outcome text, counts boolean, crashed boolean, shared_deaths integer, reason text,
    pool text, fingerprint text, error text, message text, traceback text, id text, fence bigint,
    started_at bigint, again_at bigint, result text, ord integer
) LANGUAGE sql STABLE ROWS 100
AS $$
    WITH kind AS MATERIALIZED (
        SELECT CASE WHEN kind->>0 IN ('done', 'waiting', 'dead', 'cancelled') THEN kind->>0
                    ELSE no_state(kind->>0) END AS state,
               kind->>1 AS outcome, (kind->>2)::boolean AS counts, (kind->>3)::boolean AS crashed,
               (kind->>4)::integer AS shared_deaths, kind->>5 AS reason, kind->>6 AS pool,
               kind->>7 AS fingerprint, kind->>8 AS error, kind->>9 AS message,
               kind->>10 AS traceback, kind->11 AS runs
        FROM jsonb_array_elements(doc->'kinds') AS kind
    )
    -- Without the runs themselves, of which each row would have a copy.
    SELECT state, outcome, counts, crashed, shared_deaths, reason, pool, fingerprint, error,
           message, traceback, run->>0 AS id, (run->>1)::bigint AS fence, (run->>2)::bigint AS started_at,
           (run->>3)::bigint AS again_at, run->>4 AS result, (run->>5)::integer AS ord
    FROM kind CROSS JOIN jsonb_array_elements(runs) AS run
$$;

-- What a settle tells of runs that were not written: [what was, the jobs that a person wants cancelled and why,
-- those that somebody has locked just now].
CREATE OR REPLACE FUNCTION unwritten(doc jsonb, written text[], ruled boolean, own integer)
RETURNS text LANGUAGE plpgsql
AS $$
DECLARE
    asked jsonb;
    busy  jsonb;
BEGIN
    SELECT jsonb_object_agg(job.id, job.cancel) FILTER (WHERE job.cancel IS NOT NULL AND NOT ruled),
           jsonb_agg(job.id) FILTER (WHERE job.cancel IS NULL OR ruled)
    INTO asked, busy
    FROM jsonb_array_elements(doc->'kinds') AS kind CROSS JOIN jsonb_array_elements(kind->11) AS run
    CROSS JOIN LATERAL (
        SELECT id, cancel FROM job
        WHERE id = run->>0 AND fence = (run->>1)::bigint AND lease_until > 0 AND may_touch(own, level)
        OFFSET 0
    ) AS job;
    RETURN jsonb_build_array(
        coalesce(to_jsonb(written), '[]'), coalesce(asked, '{}'), coalesce(busy, '[]')
    )::text;
END $$;
