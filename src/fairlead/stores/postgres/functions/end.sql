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

-- Write them: each leaves the line, or goes back into it, and has its line of the attempt log. Returns which
-- were written, and the first place of those. What somebody has locked is left, and so is what a person wants
-- cancelled, unless that is ruled on.
CREATE OR REPLACE FUNCTION write_ends(
    doc jsonb, ruled boolean, own integer, at bigint, OUT written text[], OUT place bigint
) LANGUAGE plpgsql
AS $$
BEGIN
    WITH given AS MATERIALIZED (
        SELECT * FROM told_ends(doc)
    ), ended AS MATERIALIZED (
        SELECT job.id, job.queue, job.task, job.version, job.run_at, job.order_at,
               job.expires_at, job.enqueued_at, job.payload, job.options, job.attempt, job.crashes,
               job.fence, job.worker, job.claimed_at, job.put_by, job.level,
               job.attached, given.ord, given.state,
               given.outcome, given.counts,
               given.crashed, given.shared_deaths, given.again_at, given.result, given.reason,
               given.started_at, given.pool, given.fingerprint,
               CASE WHEN given.error IS NULL THEN job.errors
                    ELSE with_error(job.errors, json_build_object(
                        'attempt', job.attempt, 'outcome', given.outcome, 'worker', job.worker,
                        'claimed_at', job.claimed_at, 'started_at', given.started_at,
                        'finished_at', at, 'error', given.error, 'message', given.message,
                        'traceback', given.traceback, 'fingerprint', given.fingerprint
                    )::text) END AS errors
        FROM given CROSS JOIN LATERAL (
            SELECT * FROM mended
            WHERE id = given.id AND fence = given.fence AND lease_until > 0
              AND (cancel IS NULL OR ruled) AND may_touch(own, level)
            FOR UPDATE SKIP LOCKED
        ) AS job
    ), logged AS (
        INSERT INTO attempt
            (job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
             finished_at, outcome, fingerprint)
        SELECT id, fence, attempt, task, queue, pool, worker, greatest(run_at, enqueued_at),
               coalesce(claimed_at, at), started_at, at, outcome, fingerprint
        FROM ended ORDER BY ord
    ), kept AS (
        INSERT INTO finished
            (id, queue, task, version, state, run_at, order_at, expires_at, enqueued_at, payload,
             options, attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason,
             result, put_by, level, attached, entries)
        SELECT id, queue, task, version, state, run_at, order_at, expires_at, enqueued_at,
               payload, options, greatest(attempt - (NOT counts)::integer, 0),
               crashes + crashed::integer, fence, worker, claimed_at, errors, at, reason, result,
               put_by, level, attached, CASE WHEN attached & 1 <> 0 THEN pack_entries(id) END
        FROM ended WHERE state IN ('done', 'cancelled')
    ), buried AS (
        INSERT INTO dead
            (id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
             attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, put_by, level,
             attached, entries)
        SELECT letter_id(id), queue, task, version, run_at, order_at, expires_at, enqueued_at,
               payload, options, greatest(attempt - (NOT counts)::integer, 0),
               crashes + crashed::integer, fence, worker, claimed_at, errors, at, reason, put_by,
               level, attached, CASE WHEN attached & 1 <> 0 THEN pack_entries(id) END
        FROM ended WHERE state = 'dead'
    ), removed AS (
        DELETE FROM job WHERE id = ANY (ARRAY(SELECT id FROM ended WHERE state <> 'waiting'))
    ), returned AS (
        UPDATE job SET
            queue = sound_name(job.queue),
            attempt = greatest(ended.attempt - (NOT ended.counts)::integer, 0),
            crashes = ended.crashes + ended.crashed::integer,
            shared_deaths = ended.shared_deaths,
            order_at = ended.order_at - ended.run_at + coalesce(ended.again_at, ended.run_at),
            run_at = coalesce(ended.again_at, ended.run_at),
            parked = CASE WHEN coalesce(ended.again_at, ended.run_at) > at THEN 1 ELSE 3 END,
            errors = ended.errors,
            lease_until = 0, lost = false, worker = NULL, claimed_at = NULL
        FROM ended
        WHERE job.id = ANY (ARRAY(SELECT id FROM ended WHERE state = 'waiting'))
          AND job.id = ended.id
    )
    SELECT array_agg(id), min(order_at - run_at + coalesce(again_at, run_at))
    INTO written, place FROM ended;
END $$;

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
