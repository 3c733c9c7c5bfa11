-- Let jobs whose time has come into the order; their place is kept. Returns the queue of each. A damaged
-- one may not fit into the index there.
CREATE OR REPLACE FUNCTION promote(at bigint, most integer) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    moved   text[];
    places  tid[];
    damaged text[];
BEGIN
    SELECT array_agg(place) FILTER (WHERE sound), array_agg(id) FILTER (WHERE sound IS NOT TRUE)
    INTO places, damaged FROM (
        SELECT ctid AS place, id, is_sound(
            id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt, crashes,
            fence, lease_until, worker, claimed_at
        ) AS sound
        FROM job WHERE parked = 1 AND run_at <= at
        ORDER BY run_at LIMIT most FOR UPDATE SKIP LOCKED
    ) AS due;
    WITH moving AS (UPDATE job SET parked = 3 WHERE ctid = ANY (places) RETURNING queue)
    SELECT coalesce(array_agg(queue), '{}') INTO moved FROM moving;
    IF cardinality(damaged) > 0 THEN
        PERFORM bury(damaged, at);
    END IF;
    RETURN moved;
END $$;

-- Let jobs whose task is known again into the order. known maps tasks to versions, null is all. Returns the
-- queue of each.
-- Goes along what is known, which is as much as workers say, not along what is parked, which may be
-- anything that a producer thinks of.
CREATE OR REPLACE FUNCTION bring_back(known jsonb, most integer) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    places tid[];
    moved  text[];
BEGIN
    IF known IS NULL THEN
        places := ARRAY(
            SELECT ctid FROM job
            WHERE parked = 2
              AND is_sound(id, queue, task, version, run_at, order_at, expires_at, enqueued_at,
                           attempt, crashes, fence, lease_until, worker, claimed_at)
            LIMIT most FOR UPDATE SKIP LOCKED
        );
    ELSE
        places := ARRAY(
            SELECT back.ctid FROM jsonb_each_text(known_tasks(known)) AS k(task, version)
            CROSS JOIN LATERAL (
                SELECT ctid FROM job
                WHERE parked = 2 AND job.task = k.task AND job.version <= k.version::integer
                  AND is_sound(id, queue, job.task, job.version, run_at, order_at, expires_at,
                               enqueued_at, attempt, crashes, fence, lease_until, worker, claimed_at)
                LIMIT most FOR UPDATE SKIP LOCKED
            ) AS back
            LIMIT most
        );
    END IF;
    WITH moving AS (UPDATE job SET parked = 3 WHERE ctid = ANY (places) RETURNING queue)
    SELECT coalesce(array_agg(queue), '{}') INTO moved FROM moving;
    RETURN moved;
END $$;

-- Park jobs whose task no live worker knows, unless one that does has come and taken them meanwhile. A lost
-- run keeps its passed lease, and is claimed as lost when it comes back. Returns for each task, version and queue
-- one of its jobs, and how many they are. Long options are not told: a thousand of them would fill the answer.
CREATE OR REPLACE FUNCTION leave_out(ids text[], at bigint) RETURNS jsonb LANGUAGE plpgsql
AS $$
DECLARE
    told jsonb;
BEGIN
    IF cardinality(ids) = 0 THEN
        RETURN '[]';
    END IF;
    WITH parked AS (
        UPDATE job SET parked = 2 WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM job WHERE id = ANY (ids) AND parked IN (0, 3) AND lease_until <= at
            FOR UPDATE SKIP LOCKED
        ))
        RETURNING id, task, version, queue,
                  CASE WHEN octet_length(options) <= 4096 THEN options END AS options
    ), kind AS (
        SELECT DISTINCT ON (queue, task, version)
               id, task, version, queue, options, count(*) OVER (PARTITION BY queue, task, version) AS jobs
        FROM parked ORDER BY queue, task, version, id
    )
    SELECT jsonb_agg(jsonb_build_array(id, task, version, queue, options, jobs) ORDER BY id) INTO told
    FROM kind;
    RETURN coalesce(told, '[]');
END $$;
