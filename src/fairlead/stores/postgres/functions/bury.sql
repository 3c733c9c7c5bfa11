-- Add to what is kept of a job's failures; a list that is none begins anew.
CREATE OR REPLACE FUNCTION with_error(errors text[], error text) RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN array_ndims(errors) > 1 THEN ARRAY[error] ELSE array_append(errors, error) END
$$;

-- The id of a new dead letter: that of its job, or another if there is such a letter already. None is
-- ever written over. It is volatile, and so sees what the statement that asks has written already.
CREATE OR REPLACE FUNCTION letter_id(job_id text) RETURNS text LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    own text := sound_id(job_id);
BEGIN
    RETURN CASE WHEN EXISTS (SELECT FROM dead WHERE id = own) THEN gen_random_uuid()::text ELSE own END;
END $$;

-- Make dead letters of those of these jobs that are damaged, with as much of them as can be kept.
-- One that somebody has locked is left for another time. Two may have the same id, if somebody dropped
-- the primary key.
CREATE OR REPLACE FUNCTION bury(ids text[], at bigint) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    buried text[];
BEGIN
    WITH bad AS MATERIALIZED (
        SELECT ctid AS place, format(
            'the stored row is damaged: id of %s characters, version %s, run_at %s, order_at %s, '
            'expires_at %s, enqueued_at %s, attempt %s, crashes %s, fence %s, lease_until %s, '
            'worker %s, claimed_at %s; `fairlead dead replay` lets it run again',
            char_length(id), version, run_at, order_at, expires_at, enqueued_at, attempt, crashes,
            fence, lease_until, left(worker, 100), claimed_at
        ) AS why
        FROM job
        WHERE id = ANY (ids)
          AND is_sound(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                       crashes, fence, lease_until, worker, claimed_at) IS NOT TRUE
        FOR UPDATE SKIP LOCKED
    ), moved AS (
        INSERT INTO dead
            (id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
             attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, put_by, level,
             attached, entries)
        SELECT letter_id(id), sound_name(queue), sound_name(task), version, run_at, order_at,
               expires_at, enqueued_at, payload, options, attempt, crashes, instant(fence), worker,
               claimed_at, with_error(errors, json_build_object(
                   'attempt', attempt, 'outcome', 'failed', 'worker', worker,
                   'claimed_at', claimed_at, 'started_at', NULL, 'finished_at', at,
                   'error', 'Unreadable', 'message', why, 'fingerprint', '89e45653b9f8c718'
               )::text), at, 'unreadable', put_by, level, attached,
               CASE WHEN attached & 1 <> 0 THEN pack_entries(id) END
        FROM bad CROSS JOIN LATERAL (SELECT * FROM mended WHERE place = bad.place OFFSET 0) AS job
    ), gone AS (
        DELETE FROM job WHERE ctid = ANY (ARRAY(SELECT place FROM bad)) RETURNING id
    )
    SELECT coalesce(array_agg(id), '{}') INTO buried FROM gone;
    RETURN buried;
END $$;
