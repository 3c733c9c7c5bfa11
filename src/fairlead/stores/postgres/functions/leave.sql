-- Add to what is kept of a job's failures; a list that is none begins anew.
CREATE OR REPLACE FUNCTION with_error(errors text[], error text) RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN array_ndims(errors) > 1 THEN ARRAY[error] ELSE array_append(errors, error) END
$$;

-- The id of a new dead letter: that of its job, or another if there is such a letter already, with the job's
-- entries. None is ever written over. It is volatile, and so sees what the statement that asks has written already.
CREATE OR REPLACE FUNCTION letter_id(job_id text) RETURNS text LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    own     text := sound_id(job_id);
    another text := gen_random_uuid();
BEGIN
    IF NOT EXISTS (SELECT FROM dead WHERE id = own) THEN
        RETURN own;
    END IF;
    UPDATE entry SET owner = another WHERE owner = job_id AND owner <> '';
    RETURN another;
END $$;

-- The one way out of the line: each job goes to the finished ones or to the dead letters. Its entries stay. Jobs are
-- told as settle tells them. Those that ran leave under their fence, and each has its line of the attempt log; what
-- is to wait again goes back into the line by the same statement, because most settlements are of both kinds. Others,
-- which do not run or are damaged, leave whatever their fence is. Returns who was written, and the first place of
-- those. What somebody has locked is left, and so is what a person wants cancelled, unless that is ruled on.
CREATE OR REPLACE FUNCTION leave(
    doc jsonb, ran boolean, ruled boolean, own integer, at bigint, OUT written text[], OUT place bigint
) LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM day WHERE first = at / 86400000000 * 86400000000) THEN
        PERFORM open_day(at);
    END IF;
    WITH given AS MATERIALIZED (
        SELECT * FROM told_ends(doc)
    ), ended AS MATERIALIZED (
        SELECT job.id, job.queue, job.task, job.version, job.run_at, job.order_at,
               job.expires_at, job.enqueued_at, job.payload, job.options,
               greatest(job.attempt - (NOT given.counts)::integer, 0) AS attempts, job.attempt,
               job.crashes + given.crashed::integer AS crashes,
               job.fence, job.worker, job.claimed_at, job.put_by, job.level,
               job.attached, given.ord, given.state, given.outcome,
               given.shared_deaths, coalesce(given.again_at, job.run_at) AS again_at, given.result,
               given.reason, given.started_at, given.pool, given.fingerprint,
               CASE WHEN given.error IS NULL THEN job.errors
                    ELSE with_error(job.errors, json_build_object(
                        'attempt', job.attempt, 'outcome', given.outcome, 'worker', job.worker,
                        'claimed_at', job.claimed_at, 'started_at', given.started_at,
                        'finished_at', at, 'error', given.error, 'message', given.message,
                        'traceback', given.traceback, 'fingerprint', given.fingerprint
                    )::text) END AS errors
        FROM given CROSS JOIN LATERAL (
            SELECT * FROM mended
            WHERE id = given.id AND (fence = given.fence AND lease_until > 0 OR NOT ran)
              AND (cancel IS NULL OR ruled) AND may_touch(own, level)
            FOR UPDATE SKIP LOCKED
        ) AS job
    ), logged AS (
        INSERT INTO attempt
            (job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
             finished_at, outcome, fingerprint)
        SELECT id, fence, attempt, task, queue, pool, worker, greatest(run_at, enqueued_at),
               coalesce(claimed_at, at), started_at, at, outcome, fingerprint
        FROM ended WHERE ran ORDER BY ord
    ), kept AS (
        INSERT INTO finished
            (id, queue, task, version, state, run_at, order_at, expires_at, enqueued_at, payload,
             options, attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason,
             result, put_by, level, attached)
        SELECT CASE WHEN ran THEN id ELSE sound_id(id) END, queue, task, version, state, run_at, order_at, expires_at, enqueued_at,
               payload, options, attempts, crashes, instant(fence), worker, claimed_at, errors, at,
               reason, result, put_by, level, attached
        FROM ended WHERE state IN ('done', 'cancelled')
    ), buried AS (
        INSERT INTO dead
            (id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
             attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, put_by, level,
             attached)
        SELECT letter_id(id), queue, task, version, run_at, order_at, expires_at, enqueued_at,
               payload, options, attempts, crashes, instant(fence), worker, claimed_at, errors, at,
               reason, put_by, level, attached
        FROM ended WHERE state = 'dead'
    ), removed AS (
        DELETE FROM job WHERE id = ANY (ARRAY(SELECT id FROM ended WHERE state <> 'waiting'))
    ), returned AS (
        UPDATE job SET
            queue = ended.queue, attempt = ended.attempts, crashes = ended.crashes,
            shared_deaths = ended.shared_deaths, errors = ended.errors,
            order_at = ended.order_at - ended.run_at + ended.again_at, run_at = ended.again_at,
            parked = parked_again(ended.again_at, at), park_key = NULL,
            lease_until = 0, lost = false, worker = NULL, claimed_at = NULL
        FROM ended
        WHERE job.id = ANY (ARRAY(SELECT id FROM ended WHERE state = 'waiting'))
          AND job.id = ended.id
    )
    SELECT array_agg(id), min(order_at - run_at + again_at) INTO written, place FROM ended;
END $$;

-- Let jobs that do not run, which the caller has locked, leave by this end: one of settle's kinds without its runs.
-- The plan that a session makes for it is settle's as well, so it is made under the same settings.
CREATE OR REPLACE FUNCTION leave_as(kind jsonb, ids text[], at bigint) RETURNS text[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
    runs jsonb := (SELECT coalesce(jsonb_agg(jsonb_build_array(id)), '[]') FROM unnest(ids) AS id);
BEGIN
    RETURN coalesce(written, '{}') FROM leave(
        jsonb_build_object('kinds', jsonb_build_array(kind || jsonb_build_array(runs))),
        false, true, 1000, at
    );
END $$;

-- Cancel waiting jobs.
CREATE OR REPLACE FUNCTION call_off(ids text[], why text, at bigint) RETURNS void LANGUAGE sql
AS $$
    SELECT leave_as(
        jsonb_build_array('cancelled', NULL, true, false, 0, why, NULL, NULL, NULL, NULL, NULL), ids, at
    )
$$;

-- The first jobs that have expired, running ones and those of newer programs among them: what these step over is bounded.
CREATE OR REPLACE FUNCTION overdue(at bigint, steps integer)
RETURNS TABLE (place tid, lease_until bigint, level smallint) LANGUAGE sql STABLE ROWS 1000
AS $$
    SELECT ctid, lease_until, level FROM job WHERE expires_at BETWEEN 0 AND at ORDER BY expires_at LIMIT steps
$$;

CREATE OR REPLACE FUNCTION expire(at bigint, most integer, own integer, steps integer) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    ids text[] := ARRAY(
        SELECT id FROM job WHERE ctid = ANY (ARRAY(SELECT place FROM overdue(at, steps)))
                             AND expires_at <= at AND lease_until = 0 AND may_touch(own, level)
        ORDER BY expires_at LIMIT most FOR UPDATE SKIP LOCKED
    );
BEGIN
    IF cardinality(ids) > 0 THEN
        PERFORM call_off(ids, 'expired', at);
    END IF;
    RETURN cardinality(ids);
END $$;

-- Make a dead letter of a damaged job, with as much of it as can be kept, and say why.
CREATE OR REPLACE FUNCTION entomb(whose text, why text, at bigint) RETURNS void LANGUAGE sql
AS $$
    SELECT leave_as(jsonb_build_array(
        'dead', 'failed', true, false, 0, 'unreadable', NULL, '89e45653b9f8c718', 'Unreadable',
        'the stored row is damaged: ' || why || '; `fairlead dead replay` lets it run again', NULL
    ), ARRAY[whose], at)
$$;

-- Do that with those of these jobs that are damaged. One that somebody has locked is left for another time. Two
-- may have the same id, if somebody dropped the primary key: they leave together.
CREATE OR REPLACE FUNCTION bury(ids text[], at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM entomb(id, min(why), at) FROM (
        SELECT id, format(
            'id of %s characters, version %s, run_at %s, order_at %s, expires_at %s, '
            'enqueued_at %s, attempt %s, crashes %s, fence %s, lease_until %s, worker %s, '
            'claimed_at %s',
            char_length(id), version, run_at, order_at, expires_at, enqueued_at, attempt, crashes,
            fence, lease_until, left(worker, 100), claimed_at
        ) AS why
        FROM job
        WHERE id = ANY (ids)
          AND is_sound(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                       crashes, fence, lease_until, worker, claimed_at) IS NOT TRUE
        FOR UPDATE SKIP LOCKED
    ) AS damaged GROUP BY id;
END $$;

-- Remove jobs that ended in one of these states, for good. Their entries are for the caller to see to.
CREATE OR REPLACE FUNCTION forget(ids text[], states text[], own integer) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    gone text[];
BEGIN
    WITH buried AS (
        DELETE FROM dead
        WHERE 'dead' = ANY (states) AND id = ANY (ids) AND may_touch(own, level) RETURNING id
    ), ended AS (
        DELETE FROM finished
        WHERE state = ANY (states) AND id = ANY (ids) AND may_touch(own, level)
          AND finished_at >= (SELECT since FROM kept)
        RETURNING id
    )
    SELECT coalesce(array_agg(id), '{}') INTO gone
    FROM (SELECT id FROM ended UNION ALL SELECT id FROM buried) AS each;
    RETURN gone;
END $$;
