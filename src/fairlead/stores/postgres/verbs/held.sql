-- The running jobs that a worker claimed, each as leased tells it. An index on the worker would slow every claim, and to read
-- ten million waiting jobs would take too long for a heartbeat. So it goes along the order of each
-- queue, and ends where it has met so many jobs in a row that nobody ever claimed: a worker may have claimed behind
-- jobs of tasks that it does not know.
CREATE OR REPLACE FUNCTION held(batch text) RETURNS SETOF text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    doc   jsonb   := document(batch);
    who   text    := doc->>'worker';
    line  queue;
    low   bigint;
    seen  record;
    fresh integer;
    ids   text[] := ARRAY(
        SELECT id FROM job WHERE parked = 3 AND worker = who AND lease_until > 0
        UNION ALL
        SELECT id FROM job WHERE park_key IS NOT NULL AND worker = who AND lease_until > 0
    );
BEGIN
    FOR line IN SELECT * FROM queue LOOP
        fresh := 0;
        low := CASE WHEN line.mark <= stamp() THEN line.mark ELSE -9223372036854775808 END;
        FOR seen IN
            SELECT id, worker, fence FROM job
            WHERE parked = 0 AND queue = line.name
              AND (order_at, id) > (low, '')
            ORDER BY order_at, id
        LOOP
            fresh := CASE WHEN seen.fence = 0 THEN fresh + 1 ELSE 0 END;
            EXIT WHEN fresh = 100000;
            IF seen.worker = who THEN
                ids := ids || seen.id;
            END IF;
        END LOOP;
    END LOOP;
    RETURN QUERY
    SELECT leased(
        id, task, queue, payload, version, attempt, fence, run_at, order_at, enqueued_at, parked,
        json_build_object(
            'options', options, 'expires_at', expires_at, 'crashes', crashes,
            'shared_deaths', shared_deaths, 'claimed_at', coalesce(claimed_at, enqueued_at),
            'lease_until', lease_until
        )
    )
    FROM mended WHERE id = ANY (ids) AND worker = who AND lease_until > 0;
END $$;
