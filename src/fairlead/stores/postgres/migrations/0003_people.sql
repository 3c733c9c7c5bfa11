-- Jobs by one shape: those in the line, those that ended well or were cancelled, the dead letters.
CREATE VIEW job_record AS
SELECT id, task, version, queue, CASE WHEN lease_until > 0 THEN 'running' ELSE 'waiting' END AS state,
       payload, options, run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at,
       CASE WHEN parked IN (1, 2) THEN parked ELSE 0::smallint END AS parked,
       worker, claimed_at, nullif(lease_until, 0) AS lease_until,
       cancel IS NOT NULL AS cancel_requested, NULL::bigint AS finished_at, NULL::text AS result,
       NULL::text AS reason, errors
FROM job;

CREATE VIEW finished_record AS
SELECT id, task, version, queue, CASE state WHEN 'done' THEN state ELSE 'cancelled' END AS state,
       payload, options, run_at, order_at, attempt, crashes, fence,
       enqueued_at, expires_at, 0::smallint AS parked, worker, claimed_at,
       NULL::bigint AS lease_until, false AS cancel_requested, finished_at, result, reason, errors
FROM finished WHERE finished_at >= (SELECT before FROM retention);

CREATE VIEW dead_record AS
SELECT id, task, version, queue, 'dead' AS state, payload, options, run_at, order_at, attempt,
       crashes, fence, enqueued_at, expires_at, 0::smallint AS parked, worker, claimed_at,
       NULL::bigint AS lease_until, false AS cancel_requested, finished_at, NULL::text AS result,
       reason, errors
FROM dead;

CREATE VIEW attempt_record AS
SELECT seq, job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
       finished_at, outcome, fingerprint
FROM attempt WHERE finished_at >= (SELECT before FROM retention);

-- One job in whatever state; one statement sees one state, so a job that is just moving is seen once.
CREATE FUNCTION find(wanted text) RETURNS SETOF job_record LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN QUERY
    SELECT * FROM job_record WHERE id = wanted
    UNION ALL
    SELECT * FROM finished_record WHERE id = wanted
    UNION ALL
    SELECT * FROM dead_record WHERE id = wanted;
END $$;

CREATE FUNCTION attempts(wanted text) RETURNS SETOF attempt_record LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN QUERY SELECT * FROM attempt_record WHERE job_id = wanted ORDER BY finished_at, seq;
END $$;

CREATE FUNCTION live_workers(at bigint) RETURNS SETOF worker LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN QUERY SELECT id, known_tasks(capable), pools, processes, started_at, live_until
                 FROM worker WHERE live_until > coalesce(at, stamp()) ORDER BY id;
END $$;

-- The tags of a job; what cannot be read has none.
CREATE FUNCTION tags_of(options text) RETURNS text[] LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN ARRAY(SELECT json_array_elements_text(options::json->'tags'));
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN '{}';
END $$;

-- The last failure of a job; what cannot be read is none.
CREATE FUNCTION last_of(errors text[]) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN errors[cardinality(errors)]::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;

-- What people do. Each call is one step, with its line of the audit log. by: [id, who, verb, target].
CREATE FUNCTION note(
    by_ jsonb, count_ integer, job_ids text[], before_ text, at bigint
) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    one text := CASE WHEN cardinality(job_ids) = 1 THEN job_ids[1] END;
BEGIN
    IF jsonb_typeof(by_) = 'array' THEN
        INSERT INTO audit (id, done_at, who, verb, target, count, job_id, before)
        VALUES (by_->>0, at, by_->>1, by_->>2, by_->>3, count_, one, before_)
        ON CONFLICT (id) DO UPDATE SET count = audit.count + excluded.count, job_id = NULL;
    END IF;
END $$;

CREATE FUNCTION act(batch text) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    doc     jsonb  := batch;
    at      bigint := coalesce((doc->>'at')::bigint, stamp());
    ids     text[] := ARRAY(SELECT jsonb_array_elements_text(doc->'ids'));
    states  text[] := ARRAY(SELECT jsonb_array_elements_text(doc->'states'));
    touched text[] := '{}';
BEGIN
    -- In the order of their ids, so that two people who act on the same jobs wait for one another.
    PERFORM FROM job WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    touched := CASE doc->>'verb'
        WHEN 'cancel' THEN cancel(ids, states, doc->>'reason', at)
        WHEN 'revive' THEN revive(ids, states, at)
        WHEN 'delete' THEN forget(ids, states)
        WHEN 'edit' THEN edit(ids, doc->>'was', doc->>'payload', (doc->>'version')::integer)
        WHEN 'pause' THEN pause(doc->>'queue')
        WHEN 'resume' THEN resume(doc->>'queue')
    END;
    -- What changed nothing is noted all the same, but for an edit.
    IF doc->>'verb' <> 'edit' OR cardinality(touched) > 0 THEN
        PERFORM note(doc->'by', cardinality(touched), ids, doc->>'was', at);
    END IF;
    IF doc ? 'tell' THEN
        PERFORM pg_notify(current_schema(), concat(doc->>'tell', ' ', 0));
    END IF;
    RETURN touched;
END $$;

CREATE FUNCTION cancel(ids text[], states text[], why text, at bigint) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    marked  text[] := '{}';
    waiting text[] := '{}';
BEGIN
    IF 'running' = ANY (states) THEN
        WITH asked AS (
            UPDATE job SET cancel = why
            WHERE id = ANY (ids) AND lease_until > 0 AND job.cancel IS NULL RETURNING id
        )
        SELECT coalesce(array_agg(id), '{}') INTO marked FROM asked;
    END IF;
    IF 'waiting' = ANY (states) THEN
        waiting := ARRAY(SELECT id FROM job WHERE id = ANY (ids) AND lease_until = 0);
        PERFORM call_off(waiting, why, at);
    END IF;
    RETURN marked || waiting;
END $$;

CREATE FUNCTION revive(ids text[], states text[], at bigint) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    hastened text[] := '{}';
    lifted   text[];
BEGIN
    IF 'waiting' = ANY (states) THEN
        WITH sooner AS (
            UPDATE job SET
                order_at = at - head_start(run_at, order_at), run_at = at,
                expires_at = CASE WHEN expires_at > at THEN expires_at END,
                parked = CASE WHEN parked = 1 THEN 3 ELSE parked END,
                suspect = suspect OR crashes > 0, attempt = 0, crashes = 0
            WHERE id = ANY (ids) AND lease_until = 0 AND run_at > at
            RETURNING id
        )
        SELECT coalesce(array_agg(id), '{}') INTO hastened FROM sooner;
    END IF;
    WITH ended AS (
        SELECT id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
               fence, crashes, errors
        FROM dead WHERE 'dead' = ANY (states) AND id = ANY (ids)
        UNION ALL
        SELECT id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
               fence, crashes, errors
        FROM finished_record WHERE state = ANY (states) AND id = ANY (ids)
    ), back AS (
        INSERT INTO job
            (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, payload,
             options, fence, suspect, errors)
        SELECT id, sound_name(queue), sound_name(task), greatest(version, 0), 3, at, at - head_start(run_at, order_at),
               CASE WHEN expires_at > at THEN instant(expires_at) END, instant(enqueued_at), payload,
               options, instant(fence), crashes > 0, errors
        FROM ended
        ON CONFLICT (id) DO NOTHING
        RETURNING id
    )
    SELECT coalesce(array_agg(id), '{}') INTO lifted FROM back;
    PERFORM forget(lifted, states);
    RETURN hastened || lifted;
END $$;

CREATE FUNCTION forget(ids text[], states text[]) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    gone text[];
BEGIN
    WITH buried AS (
        DELETE FROM dead WHERE 'dead' = ANY (states) AND id = ANY (ids) RETURNING id
    ), kept AS (
        DELETE FROM finished
        WHERE state = ANY (states) AND id = ANY (ids)
          AND finished_at >= (SELECT before FROM retention)
        RETURNING id
    )
    SELECT coalesce(array_agg(id), '{}') INTO gone
    FROM (SELECT id FROM kept UNION ALL SELECT id FROM buried) AS each;
    RETURN gone;
END $$;

CREATE FUNCTION edit(ids text[], was text, payload_ text, version_ integer)
RETURNS text[] LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE dead SET payload = payload_, version = version_ WHERE id = ids[1] AND payload = was;
    RETURN CASE WHEN FOUND THEN ids ELSE '{}' END;
END $$;

CREATE FUNCTION pause(name text) RETURNS text[] LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO paused VALUES (name) ON CONFLICT DO NOTHING;
    RETURN CASE WHEN FOUND THEN ARRAY[name] ELSE '{}' END;
END $$;

CREATE FUNCTION resume(name text) RETURNS text[] LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM paused WHERE queue = name;
    RETURN CASE WHEN FOUND THEN ARRAY[name] ELSE '{}' END;
END $$;

CREATE FUNCTION noted(batch text) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    doc jsonb := batch;
BEGIN
    PERFORM note(
        doc->'by', (doc->>'count')::integer, ARRAY(SELECT jsonb_array_elements_text(doc->'ids')),
        NULL, coalesce((doc->>'at')::bigint, stamp())
    );
END $$;
