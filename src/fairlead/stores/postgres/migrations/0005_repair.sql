-- What is damaged, by one definition for those who look and those who mend. A damaged row harms
-- nobody but itself: the verbs of the line step over it, or write what they can of it elsewhere.

-- Whether a text is what is kept of a failed run; it may be no JSON, or nested beyond all measure.
CREATE FUNCTION is_error(error text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
DECLARE
    past jsonb;
BEGIN
    past := error;
    RETURN coalesce(
        jsonb_typeof(past) = 'object' AND jsonb_typeof(past->'attempt') = 'number'
        AND jsonb_typeof(past->'outcome') = 'string' AND jsonb_typeof(past->'finished_at') = 'number'
        AND jsonb_typeof(past->'worker') IN ('string', 'null')
        AND jsonb_typeof(past->'claimed_at') IN ('number', 'null')
        AND jsonb_typeof(past->'started_at') IN ('number', 'null')
        AND coalesce(jsonb_typeof(past->'error'), 'null') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'message'), 'null') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'traceback'), 'null') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'fingerprint'), 'null') IN ('string', 'null'),
        false
    );
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END $$;

-- Those of a job's failures that can be read, in one list; null if there are none.
CREATE FUNCTION sound_errors(errors text[]) RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT array_agg(error ORDER BY place) FROM unnest(errors) WITH ORDINALITY AS e(error, place)
    WHERE is_error(error)
$$;

CREATE FUNCTION is_pools(pools text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN json_typeof(pools::json) = 'array' AND NOT EXISTS (
        SELECT FROM json_array_elements(pools::json) AS pool WHERE json_typeof(pool) <> 'object'
    );
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END $$;

-- Whether a worker can have announced itself so.
CREATE FUNCTION is_worker(
    id text, capable jsonb, pools text, processes integer, started_at bigint, live_until bigint,
    at bigint
) RETURNS boolean LANGUAGE sql STABLE
AS $$
    SELECT capable = known_tasks(capable) AND is_pools(pools)
       AND octet_length(id) BETWEEN 1 AND 1000 AND processes BETWEEN 0 AND 1000000
       AND started_at BETWEEN 0 AND 1152921504606846976
       AND live_until BETWEEN 0 AND at + 366 * 86400000000
$$;

-- The instant at which the day of a table begins, by its name.
CREATE FUNCTION first_of(part text) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$
    SELECT date_part('epoch', to_date(right(part, 8), 'YYYYMMDD')::timestamp)::bigint * 1000000
$$;

-- Every damage there is, up to so many of each kind: what it is, and whose. One call sees one state. A
-- clock that went back makes jobs look early, so it is allowed an hour.
CREATE FUNCTION flaws(at_ bigint, most integer) RETURNS TABLE (what text, whose text)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    at    bigint := coalesce(at_, stamp());
    a_day CONSTANT bigint := 86400000000;
    last_ CONSTANT bigint := 1152921504606846976;
BEGIN
    -- Where a job is.
    RETURN QUERY SELECT 'live and finished', id FROM job JOIN finished_record USING (id) LIMIT most;
    RETURN QUERY SELECT 'live and dead', id FROM job JOIN dead USING (id) LIMIT most;
    RETURN QUERY SELECT 'finished and dead', id FROM finished_record JOIN dead USING (id) LIMIT most;
    RETURN QUERY SELECT 'finished twice', id FROM finished_record GROUP BY id HAVING count(*) > 1
                 LIMIT most;
    -- The line.
    RETURN QUERY SELECT 'unsound', id FROM job
        WHERE is_sound(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                       crashes, fence, lease_until, worker, claimed_at) IS NOT TRUE LIMIT most;
    RETURN QUERY SELECT 'half running', id FROM job
        WHERE lease_until = 0 AND (worker IS NOT NULL OR claimed_at IS NOT NULL OR lost) LIMIT most;
    RETURN QUERY SELECT 'running and parked', id FROM job
        WHERE parked = 1 AND lease_until > 0 LIMIT most;
    RETURN QUERY SELECT 'no fence', id FROM job WHERE lease_until > 0 AND fence = 0 LIMIT most;
    RETURN QUERY SELECT 'long lease', id FROM job
        WHERE lease_until > at + 366 * a_day AND lease_until <= last_ LIMIT most;
    RETURN QUERY SELECT 'no place', id FROM job WHERE parked NOT IN (0, 1, 2, 3) LIMIT most;
    RETURN QUERY SELECT 'early', id FROM job
        WHERE parked IN (0, 3) AND lease_until = 0 AND run_at > at + 3600000000 LIMIT most;
    RETURN QUERY SELECT 'head start', id FROM job
        WHERE abs(run_at::numeric - order_at) > a_day LIMIT most;
    RETURN QUERY SELECT 'errors', id FROM job
        WHERE cardinality(errors) > 0 AND errors IS DISTINCT FROM sound_errors(errors) LIMIT most;
    -- What ended.
    RETURN QUERY SELECT 'unsound dead', id FROM dead
        WHERE in_bounds(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                        crashes, fence, claimed_at) IS NOT TRUE
           OR finished_at NOT BETWEEN 0 AND last_ LIMIT most;
    RETURN QUERY SELECT 'no reason', id FROM dead WHERE reason IS NULL LIMIT most;
    RETURN QUERY SELECT 'dead errors', id FROM dead
        WHERE cardinality(errors) > 0 AND errors IS DISTINCT FROM sound_errors(errors) LIMIT most;
    RETURN QUERY SELECT 'unsound finished', id FROM finished
        WHERE finished_at >= (SELECT since FROM kept)
          AND in_bounds(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                        crashes, fence, claimed_at) IS NOT TRUE LIMIT most;
    RETURN QUERY SELECT 'not final', id FROM finished
        WHERE finished_at >= (SELECT since FROM kept) AND state NOT IN ('done', 'cancelled')
        LIMIT most;
    RETURN QUERY SELECT 'finished errors', id FROM finished_record
        WHERE cardinality(errors) > 0 AND errors IS DISTINCT FROM sound_errors(errors) LIMIT most;
    RETURN QUERY SELECT 'one fence twice', job_id FROM attempt_record
        GROUP BY job_id, fence HAVING count(*) > 1 LIMIT most;
    RETURN QUERY SELECT 'unsound attempt', job_id FROM attempt_record
        WHERE in_bounds(job_id, queue, task, 0, ready_at, 0, started_at, 0, attempt, 0, fence,
                        claimed_at) IS NOT TRUE LIMIT most;
    -- What is not a job.
    RETURN QUERY SELECT 'mark', name FROM queue
        WHERE mark NOT BETWEEN -last_ AND last_ OR next_look NOT BETWEEN 0 AND at + a_day
           OR octet_length(name) NOT BETWEEN 1 AND 255 LIMIT most;
    RETURN QUERY SELECT 'worker', id FROM worker
        WHERE NOT is_worker(id, capable, pools, processes, started_at, live_until, at) LIMIT most;
    RETURN QUERY SELECT 'paused', queue FROM paused
        WHERE octet_length(queue) NOT BETWEEN 1 AND 255 LIMIT most;
    RETURN QUERY SELECT 'audit', id FROM audit
        WHERE done_at NOT BETWEEN 0 AND last_ OR count NOT BETWEEN 0 AND 1000000000
        LIMIT most;
    RETURN QUERY SELECT 'day', first::text FROM day
        WHERE CASE WHEN first BETWEEN 0 AND last_ AND first % a_day = 0
                   THEN NOT (is_part('finished_' || day_of(first), 'finished')
                             AND is_part('attempt_' || day_of(first), 'attempt'))
                   ELSE true END LIMIT most;
    RETURN QUERY SELECT 'no day', relname::text FROM pg_inherits JOIN pg_class ON oid = inhrelid
        WHERE inhparent IN ('finished'::regclass, 'attempt'::regclass) AND relname ~ '_[0-9]{8,8}$'
          AND NOT EXISTS (SELECT FROM day WHERE first = first_of(relname)) LIMIT most;
    RETURN QUERY SELECT 'retention', '' WHERE NOT EXISTS (
        SELECT FROM retention
        WHERE before BETWEEN 0 AND at + a_day AND coalesce(keep, 0) BETWEEN 0 AND last_
    );
    RETURN QUERY SELECT 'step', number::text FROM migration
        WHERE number NOT BETWEEN 1 AND 9999 OR applied_at NOT BETWEEN 0 AND last_ LIMIT most;
    RETURN QUERY SELECT 'no step', n::text FROM generate_series(
            1, (SELECT greatest(5, max(number)) FROM migration WHERE number <= 9999)
        ) AS n
        WHERE NOT EXISTS (SELECT FROM migration WHERE number = n);
END $$;

-- Put one of them right, or move it out, if it is still so. A number that
-- follows from others is written anew, and a job that cannot stay where it is becomes a dead letter.
-- What is removed: the earlier of two ends of one job, a second line about one run, and what cannot be
-- read of a history, a worker or a pause.
CREATE FUNCTION mend(what text, whose text, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    CASE what
    WHEN 'live and finished' THEN
        WITH gone AS (SELECT * FROM mended WHERE id = whose FOR UPDATE), removed AS (
            DELETE FROM job WHERE id = whose
        )
        INSERT INTO dead
            (id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
             attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, put_by)
        SELECT gen_random_uuid(), sound_name(queue), sound_name(task), version, run_at, order_at, expires_at, enqueued_at,
               payload, options, attempt, crashes, instant(fence), worker, claimed_at,
               sound_errors(errors), at, 'unreadable', put_by
        FROM gone;
    WHEN 'live and dead', 'finished and dead' THEN
        UPDATE dead SET id = gen_random_uuid()
        WHERE id = whose AND (EXISTS (SELECT FROM job WHERE id = whose)
                              OR EXISTS (SELECT FROM finished_record WHERE id = whose));
    WHEN 'finished twice' THEN
        DELETE FROM finished WHERE id = whose AND finished_at >= (SELECT since FROM kept)
                               AND (finished_at, tableoid, ctid) <> (
            SELECT finished_at, tableoid, ctid FROM finished
            WHERE id = whose AND finished_at >= (SELECT since FROM kept)
            ORDER BY finished_at DESC, ctid LIMIT 1
        );
    WHEN 'unsound' THEN
        UPDATE job SET worker = coalesce(worker, 'unknown'), claimed_at = coalesce(claimed_at, at)
        WHERE id = whose AND lease_until > 0;
        PERFORM FROM job WHERE id = whose FOR UPDATE;  -- bury passes over what others have locked.
        PERFORM bury(ARRAY[whose], at);
    WHEN 'half running' THEN
        UPDATE job SET worker = NULL, claimed_at = NULL, lost = false
        WHERE id = whose AND lease_until = 0;
    WHEN 'running and parked', 'no place', 'early' THEN
        UPDATE job SET parked = CASE WHEN run_at > at AND lease_until = 0 THEN 1 ELSE 3 END
        WHERE id = whose;
    WHEN 'no fence' THEN
        UPDATE job SET fence = at WHERE id = whose AND fence = 0;
    WHEN 'long lease' THEN
        UPDATE job SET lease_until = at WHERE id = whose AND lease_until > at + 366 * 86400000000;
    WHEN 'head start' THEN
        UPDATE job SET order_at = run_at, parked = CASE WHEN parked = 0 THEN 3 ELSE parked END
        WHERE id = whose AND abs(run_at::numeric - order_at) > 86400000000;
    WHEN 'errors' THEN
        UPDATE job SET errors = sound_errors(errors) WHERE id = whose;
    WHEN 'unsound dead' THEN
        UPDATE dead SET
            id = CASE sound_id(id) WHEN id THEN id ELSE gen_random_uuid()::text END, queue = sound_name(queue), task = sound_name(task),
            version = greatest(version, 0), run_at = instant(run_at),
            order_at = instant(run_at) - head_start(run_at, order_at),
            expires_at = instant(expires_at), enqueued_at = instant(enqueued_at),
            attempt = runs(attempt), crashes = runs(crashes), fence = instant(fence),
            claimed_at = instant(claimed_at), finished_at = instant(finished_at)
        WHERE id = whose;
    WHEN 'no reason' THEN
        UPDATE dead SET reason = 'unreadable' WHERE id = whose;
    WHEN 'dead errors' THEN
        UPDATE dead SET errors = sound_errors(errors) WHERE id = whose;
    WHEN 'unsound finished', 'not final', 'finished errors' THEN
        UPDATE finished SET
            id = sound_id(id), queue = sound_name(queue), task = sound_name(task),
            version = greatest(version, 0), run_at = instant(run_at),
            order_at = instant(run_at) - head_start(run_at, order_at),
            expires_at = instant(expires_at), enqueued_at = instant(enqueued_at),
            attempt = runs(attempt), crashes = runs(crashes), fence = instant(fence),
            claimed_at = instant(claimed_at), errors = sound_errors(errors),
            state = CASE state WHEN 'done' THEN 'done' ELSE 'cancelled' END
        WHERE id = whose AND finished_at >= (SELECT since FROM kept);
    WHEN 'one fence twice' THEN
        DELETE FROM attempt AS later USING attempt AS first
        WHERE later.job_id = whose AND first.job_id = whose AND later.fence = first.fence
          AND (later.finished_at, later.seq, later.tableoid, later.ctid)
              > (first.finished_at, first.seq, first.tableoid, first.ctid);
    WHEN 'unsound attempt' THEN
        UPDATE attempt SET
            job_id = sound_id(job_id), queue = sound_name(queue), task = sound_name(task),
            attempt = runs(attempt), fence = instant(fence), ready_at = instant(ready_at),
            claimed_at = instant(claimed_at), started_at = instant(started_at)
        WHERE job_id = whose;
    WHEN 'mark' THEN
        DELETE FROM queue WHERE name = whose AND octet_length(name) NOT BETWEEN 1 AND 255;
        UPDATE queue SET mark = -1152921504606846976, next_look = 0 WHERE name = whose;
    WHEN 'worker' THEN
        DELETE FROM worker
        WHERE id = whose
          AND NOT is_worker(id, capable, pools, processes, started_at, live_until, at);
    WHEN 'paused' THEN
        DELETE FROM paused WHERE queue = whose;
    WHEN 'audit' THEN
        UPDATE audit SET done_at = instant(done_at), count = runs(count) WHERE id = whose;
    WHEN 'day' THEN
        IF is_part('finished_' || coalesce(day_of_text(whose), ''), 'finished')
           OR is_part('attempt_' || coalesce(day_of_text(whose), ''), 'attempt') THEN
            PERFORM open_day(whose::bigint);
        ELSE
            DELETE FROM day WHERE first = whose::bigint;
        END IF;
    WHEN 'no day' THEN
        INSERT INTO day VALUES (first_of(whose)) ON CONFLICT DO NOTHING;
    WHEN 'retention' THEN
        UPDATE retention SET before = coalesce((SELECT min(first) FROM day WHERE first >= 0), 0)
        WHERE before NOT BETWEEN 0 AND at + 86400000000;
        UPDATE retention SET keep = instant(keep) WHERE keep NOT BETWEEN 0 AND 1152921504606846976;
        INSERT INTO retention (before)
        SELECT coalesce(min(first), 0) FROM day WHERE first >= 0 ON CONFLICT DO NOTHING;
    WHEN 'step' THEN
        DELETE FROM migration WHERE number = whose::integer AND number NOT BETWEEN 1 AND 9999;
        UPDATE migration SET applied_at = instant(applied_at) WHERE number = whose::integer;
    WHEN 'no step' THEN
        INSERT INTO migration VALUES (whose::integer, at) ON CONFLICT DO NOTHING;
    END CASE;
END $$;

-- The day of an instant that is written as text, if it is the beginning of one.
CREATE FUNCTION day_of_text(opens text) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN opens::bigint BETWEEN 0 AND 1152921504606846976
                     AND opens::bigint % 86400000000 = 0
                THEN day_of(opens::bigint) END
$$;

-- Mend a bounded number of each kind, and write the audit log. Returns what was met: [what, whose,
-- why it could not be mended], the last being null mostly. It waits little for rows that others have.
CREATE FUNCTION repair(batch text) RETURNS text LANGUAGE plpgsql SET lock_timeout = '2s'
AS $$
DECLARE
    doc  jsonb  := document(batch);
    at   bigint := coalesce(moment((doc->>'at')::bigint), stamp());
    flaw record;
    done integer := 0;
    told jsonb   := '[]';
    why  text;
BEGIN
    FOR flaw IN SELECT * FROM flaws(at, (doc->>'batch')::integer) LOOP
        BEGIN
            why := NULL;
            PERFORM mend(flaw.what, flaw.whose, at);
            done := done + 1;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded
                       OR lock_not_available THEN
            why := SQLERRM;
        END;
        told := told || jsonb_build_array(jsonb_build_array(flaw.what, flaw.whose, why));
    END LOOP;
    IF done > 0 THEN
        PERFORM note(doc->'by', done, '{}', NULL, at);
    END IF;
    RETURN told::text;
END $$;

-- What was made is the owner's alone until it is allowed to others, whatever default privileges say.
DO $$
DECLARE
    each record;
    verb text;
BEGIN
    FOREACH verb IN ARRAY ARRAY['flaws(bigint, integer)', 'repair(text)', 'strays()'] LOOP
        EXECUTE format(
            'ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp', verb, current_schema()
        );
    END LOOP;
    EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA %I FROM PUBLIC', current_schema());
    FOR each IN
        SELECT p.oid::regprocedure AS made, grantee::regrole AS who
        FROM pg_proc AS p CROSS JOIN aclexplode(proacl)
        WHERE pronamespace = current_schema()::regnamespace AND grantee <> proowner
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %s CASCADE', each.made, each.who);
    END LOOP;
    PERFORM seal(oid::regclass) FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'S');
END $$;
