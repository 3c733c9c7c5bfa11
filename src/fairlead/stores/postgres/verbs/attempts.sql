-- The runs of a job. An operator may have deleted a job of the same id before, which another put: a
-- producer sees the runs since its own put.
CREATE OR REPLACE FUNCTION attempts(batch text) RETURNS SETOF text LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
DECLARE
    doc    jsonb   := document(batch);
    own    integer := told_level(doc);
    wanted text    := doc->>'id';
    since  bigint  := 0;
BEGIN
    IF NOT sees_all() THEN
        SELECT max((mine::json->>'enqueued_at')::bigint) INTO since FROM find(batch) AS mine;
    END IF;
    RETURN QUERY
    SELECT json_build_array(
        job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at, finished_at,
        outcome, fingerprint
    )::text
    FROM attempt_record WHERE job_id = wanted AND finished_at >= since ORDER BY finished_at, seq;
END $$;
