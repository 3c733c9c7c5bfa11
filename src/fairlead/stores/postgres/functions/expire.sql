-- Cancel waiting jobs: the caller has locked them.
CREATE OR REPLACE FUNCTION call_off(ids text[], why text, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM day WHERE first = at / 86400000000 * 86400000000) THEN
        PERFORM open_day(at);
    END IF;
    WITH gone AS MATERIALIZED (
        SELECT * FROM mended WHERE id = ANY (ids)
    ), removed AS (
        DELETE FROM job WHERE id = ANY (ids)
    )
    INSERT INTO finished
        (id, queue, task, version, state, run_at, order_at, expires_at, enqueued_at, payload,
         options, attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, result,
         put_by, level, attached, entries)
    SELECT sound_id(id), sound_name(queue), sound_name(task), version, 'cancelled', run_at, order_at,
           expires_at, enqueued_at, payload, options, attempt, crashes, instant(fence), worker,
           claimed_at, errors, at, why, NULL, put_by, level, attached,
           CASE WHEN attached & 1 <> 0 THEN pack_entries(id) END
    FROM gone;
END $$;

CREATE OR REPLACE FUNCTION expire(at bigint, most integer, own integer) RETURNS integer LANGUAGE plpgsql
AS $$
DECLARE
    ids text[] := ARRAY(
        SELECT id FROM job
        WHERE expires_at BETWEEN 0 AND at AND lease_until = 0 AND may_touch(own, level)
        ORDER BY expires_at LIMIT most FOR UPDATE SKIP LOCKED
    );
BEGIN
    IF cardinality(ids) > 0 THEN
        PERFORM call_off(ids, 'expired', at);
    END IF;
    RETURN cardinality(ids);
END $$;
