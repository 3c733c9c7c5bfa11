-- Aside and back. parked says why a job is not in the order, and park_key for what it waits: 1 until it is due, which
-- needs no key; 2 for a worker that knows its task and version. A new reason is a new number, and no column; programs
-- that do not know it leave its jobs alone.

-- Where a job waits that comes back into the line: until it is due, or out of turn.
CREATE OR REPLACE FUNCTION parked_again(run_at bigint, at bigint) RETURNS smallint LANGUAGE sql IMMUTABLE
AS $$ SELECT (CASE WHEN run_at > at THEN 1 ELSE 3 END)::smallint $$;

-- The key under which jobs wait for a worker that knows them. Those of one task stand together, by version.
CREATE OR REPLACE FUNCTION kind_key(task text, version integer) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT task || ' ' || lpad(greatest(version, 0)::text, 10, '0') $$;

-- The one way aside: take jobs, which the caller has locked, out of the order, for a reason and each for its key. A
-- lost run keeps its passed lease, and is claimed as lost when it comes back.
CREATE OR REPLACE FUNCTION park(places tid[], reason integer, keys text[]) RETURNS void LANGUAGE sql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
    UPDATE job SET parked = reason, park_key = each.key
    FROM unnest(places, keys) AS each(place, key) WHERE job.ctid = each.place
$$;

-- The one way back: put jobs, which the caller has locked, into the order again, out of turn; their place is kept.
-- Returns the queue of each.
CREATE OR REPLACE FUNCTION bring_back(places tid[]) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    moved text[];
BEGIN
    WITH moving AS (
        UPDATE job SET parked = 3, park_key = NULL WHERE ctid = ANY (places) RETURNING queue
    )
    SELECT coalesce(array_agg(queue), '{}') INTO moved FROM moving;
    RETURN moved;
END $$;

-- Bring back jobs whose time has come. A damaged one may not fit into the index of the order.
CREATE OR REPLACE FUNCTION bring_back_due(at bigint, most integer) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    places  tid[];
    damaged text[];
    moved   text[];
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
    moved := bring_back(places);
    IF cardinality(damaged) > 0 THEN
        PERFORM bury(damaged, at);
    END IF;
    RETURN moved;
END $$;

-- Bring back jobs whose task is known again. known maps tasks to versions, null is all.
-- Goes along what is known, which is as much as workers say, not along what is parked, which may be
-- anything that a producer thinks of.
CREATE OR REPLACE FUNCTION bring_back_known(known jsonb, most integer) RETURNS text[] LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    places tid[];
BEGIN
    IF known IS NULL THEN
        places := ARRAY(
            SELECT ctid FROM job
            WHERE parked = 2 AND park_key IS NOT NULL
              AND is_sound(id, queue, task, version, run_at, order_at, expires_at, enqueued_at,
                           attempt, crashes, fence, lease_until, worker, claimed_at)
            LIMIT most FOR UPDATE SKIP LOCKED
        );
    ELSE
        places := ARRAY(
            SELECT back.ctid FROM jsonb_each_text(known_tasks(known)) AS k(task, version)
            CROSS JOIN LATERAL (
                SELECT ctid FROM job
                WHERE parked = 2 AND job.task = k.task
                  AND park_key BETWEEN kind_key(k.task, 0) AND kind_key(k.task, k.version::integer)
                  AND is_sound(id, queue, job.task, job.version, run_at, order_at, expires_at,
                               enqueued_at, attempt, crashes, fence, lease_until, worker, claimed_at)
                LIMIT most FOR UPDATE SKIP LOCKED
            ) AS back
            LIMIT most
        );
    END IF;
    RETURN bring_back(places);
END $$;

-- Park jobs whose task no live worker knows, unless one that does has come and taken them meanwhile. Returns for
-- each task, version and queue one of its jobs, and how many they are. Long options are not told: a thousand of them
-- would fill the answer.
CREATE OR REPLACE FUNCTION park_unknown(ids text[], at bigint) RETURNS jsonb LANGUAGE plpgsql
AS $$
DECLARE
    places tid[];
    keys   text[];
    told   jsonb;
BEGIN
    IF cardinality(ids) = 0 THEN
        RETURN '[]';
    END IF;
    WITH found AS MATERIALIZED (
        SELECT ctid AS place, id, task, version, queue,
               CASE WHEN octet_length(options) <= 4096 THEN options END AS options
        FROM job WHERE id = ANY (ids) AND parked IN (0, 3) AND lease_until <= at
        FOR UPDATE SKIP LOCKED
    ), kind AS (
        SELECT DISTINCT ON (queue, task, version)
               id, task, version, queue, options, count(*) OVER (PARTITION BY queue, task, version) AS jobs
        FROM found ORDER BY queue, task, version, id
    )
    SELECT (SELECT array_agg(place) FROM found), (SELECT array_agg(kind_key(task, version)) FROM found),
           jsonb_agg(jsonb_build_array(id, task, version, queue, options, jobs) ORDER BY id)
    INTO places, keys, told FROM kind;
    PERFORM park(places, 2, keys);
    RETURN coalesce(told, '[]');
END $$;
