-- A leased job as claims and held tell it: [version, attempt, fence, run_at, order_at, enqueued_at, parked,
-- length of the id, of the task, of the queue, more], a line break, and then id, task, queue and payload,
-- one right behind the other. "more" says by name what few jobs have. To write what may be any text as it is
-- takes half the time of JSON, and there are thousands of these a second.
CREATE OR REPLACE FUNCTION leased(
    id text, task text, queue text, payload text, version integer, attempt integer, fence bigint,
    run_at bigint, order_at bigint, enqueued_at bigint, parked smallint, more json
) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT concat('[', concat_ws(
        ',', version, attempt, fence, run_at, order_at, enqueued_at, parked, char_length(id),
        char_length(task), char_length(queue), more
    ), E']\n', id, task, queue, payload)
$$;

-- Lock so many jobs of each queue as were chosen: those that were locked on the way, and the next ones that
-- may start, in the order and out of turn. Waits for nobody.
CREATE OR REPLACE FUNCTION candidates(
    asked stretch[], at bigint, spare boolean, able jsonb, own integer
) RETURNS tid[] LANGUAGE plpgsql
AS $$
DECLARE
    found tid[] := ARRAY(SELECT unnest(places) FROM unnest(asked));
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(asked) WHERE places IS NULL AND had > 0) THEN
        RETURN found;
    END IF;
    RETURN found || ARRAY(
        SELECT chosen.ctid FROM unnest(asked) AS l
        CROSS JOIN LATERAL (
            SELECT ctid FROM job
            -- Whatever the walk went over before the first of them need not be gone over again.
            WHERE parked = 0 AND queue = l.name
              AND (order_at, id) > (greatest(l.first_at, l.from_at),
                                    CASE WHEN l.first_at > l.from_at THEN '' ELSE l.from_id END)
              AND order_at <= l.upto_at AND lease_until <= at
              AND gate(id, queue, task, version, run_at, order_at, expires_at, enqueued_at,
                       attempt, crashes, fence, lease_until, worker, claimed_at, level, at, spare,
                       able, own) IS NULL
            ORDER BY order_at, id
            LIMIT CASE WHEN l.places IS NULL THEN l.had - l.beside ELSE 0 END FOR UPDATE SKIP LOCKED
        ) AS chosen
    ) || ARRAY(
        SELECT chosen.ctid FROM unnest(asked) AS l
        CROSS JOIN LATERAL (
            SELECT ctid FROM job
            WHERE parked = 3 AND queue = l.name AND order_at <= l.upto_at AND lease_until <= at
              AND (NOT l.resumed OR (order_at, id) > (l.from_at, l.from_id))
              AND gate(id, queue, task, version, run_at, order_at, expires_at, enqueued_at,
                       attempt, crashes, fence, lease_until, worker, claimed_at, level, at, spare,
                       able, own) IS NULL
            ORDER BY order_at, id LIMIT l.beside FOR UPDATE SKIP LOCKED
        ) AS chosen
    );
END $$;

-- Lease jobs that are locked. Returns each as leased tells it.
CREATE OR REPLACE FUNCTION lease(jobs tid[], at bigint, term bigint, who text) RETURNS SETOF text
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN QUERY
    UPDATE job SET
        fence = greatest(job.fence + 1, at),
        attempt = job.attempt + (job.lease_until = 0)::integer,
        worker = CASE WHEN job.lease_until = 0 THEN who ELSE job.worker END,
        claimed_at = CASE WHEN job.lease_until = 0 THEN at ELSE job.claimed_at END,
        lost = job.lease_until > 0,
        lease_until = at + term
    WHERE ctid = ANY (jobs)
    RETURNING leased(
        id, task, queue, payload, version, attempt, fence, run_at, order_at, enqueued_at, parked,
        -- What hardly any job has is asked for first: to make nothing of it costs a tenth of the claim.
        CASE WHEN options IS NULL AND expires_at IS NULL AND crashes = 0 AND shared_deaths = 0 AND NOT lost
        THEN NULL
        WHEN lost THEN json_build_object(
            'options', options, 'expires_at', expires_at, 'crashes', crashes,
            'shared_deaths', deaths(shared_deaths), 'lost', lost, 'worker', worker,
            'claimed_at', claimed_at
        ) ELSE json_build_object(
            'options', options, 'expires_at', expires_at, 'crashes', crashes,
            'shared_deaths', deaths(shared_deaths)
        ) END
    );
END $$;
