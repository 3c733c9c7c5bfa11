-- The kinds of damage of jobs in the line, and of jobs that are in two places. A clock that went back makes
-- jobs look early, so it is allowed an hour.
CREATE OR REPLACE FUNCTION line_kinds() RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT ARRAY[
        'live and finished', 'live and dead', 'finished and dead', 'finished twice', 'unsound',
        'half running', 'running and parked', 'no fence', 'long lease', 'no place', 'early',
        'head start', 'shared deaths', 'level', 'errors', 'options'
    ]
$$;

-- Whose damage of one of these kinds there is, see flaws_of.
CREATE OR REPLACE FUNCTION flaws_line(kind text, start text, at bigint, most integer)
RETURNS TABLE (whose text) LANGUAGE plpgsql STABLE
AS $$
DECLARE
    a_day CONSTANT bigint := 86400000000;
    last_ CONSTANT bigint := 1152921504606846976;
BEGIN
    CASE kind
    WHEN 'live and finished' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start
            AND EXISTS (SELECT FROM finished_record WHERE finished_record.id = job.id)
            ORDER BY id LIMIT most;
    WHEN 'live and dead' THEN
        RETURN QUERY SELECT id FROM job JOIN dead USING (id) WHERE id >= start ORDER BY id LIMIT most;
    WHEN 'finished and dead' THEN
        RETURN QUERY SELECT id FROM dead WHERE id >= start
            AND EXISTS (SELECT FROM finished_record WHERE finished_record.id = dead.id)
            ORDER BY id LIMIT most;
    WHEN 'finished twice' THEN
        RETURN QUERY SELECT id FROM finished_record WHERE id >= start
            GROUP BY id HAVING count(*) > 1 ORDER BY id LIMIT most;
    WHEN 'unsound' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start
            AND is_sound(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                         crashes, fence, lease_until, worker, claimed_at) IS NOT TRUE
            ORDER BY id LIMIT most;
    WHEN 'half running' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start
            AND lease_until = 0 AND (worker IS NOT NULL OR claimed_at IS NOT NULL OR lost)
            ORDER BY id LIMIT most;
    WHEN 'running and parked' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start AND parked = 1 AND lease_until > 0
            ORDER BY id LIMIT most;
    WHEN 'no fence' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start AND lease_until > 0 AND fence = 0
            ORDER BY id LIMIT most;
    WHEN 'long lease' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start
            AND lease_until > at + 366 * a_day AND lease_until <= last_ ORDER BY id LIMIT most;
    WHEN 'no place' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start AND parked NOT IN (0, 1, 2, 3)
            ORDER BY id LIMIT most;
    WHEN 'early' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start
            AND parked IN (0, 3) AND lease_until = 0 AND run_at > at + 3600000000
            ORDER BY id LIMIT most;
    WHEN 'shared deaths' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start AND shared_deaths <> deaths(shared_deaths)
            ORDER BY id LIMIT most;
    WHEN 'level' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start AND level <> level_of(level)
            ORDER BY id LIMIT most;
    WHEN 'head start' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start AND abs(run_at::numeric - order_at) > a_day
            ORDER BY id LIMIT most;
    WHEN 'errors' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start
            AND cardinality(errors) > 0 AND errors IS DISTINCT FROM sound_errors(errors)
            ORDER BY id LIMIT most;
    WHEN 'options' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start AND NOT is_options(options)
            ORDER BY id LIMIT most;
    END CASE;
END $$;

-- Make a dead letter of a job in the line, and say why.
CREATE OR REPLACE FUNCTION entomb(whose text, new_id text, why text, at bigint) RETURNS void LANGUAGE sql
AS $$
    WITH gone AS (SELECT * FROM mended WHERE id = whose FOR UPDATE), removed AS (
        DELETE FROM job WHERE id = whose
    )
    INSERT INTO dead
        (id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
         attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, put_by, level,
         attached, entries)
    SELECT new_id, sound_name(queue), sound_name(task), version, run_at, order_at, expires_at, enqueued_at,
           payload, options, attempt, crashes, instant(fence), worker, claimed_at,
           with_error(sound_errors(errors), json_build_object(
               'attempt', attempt, 'outcome', 'failed', 'worker', worker, 'claimed_at', claimed_at,
               'started_at', NULL, 'finished_at', at, 'error', 'Unreadable', 'message',
               'the stored row is damaged: ' || why || '; `fairlead dead replay` lets it run again',
               'fingerprint', '89e45653b9f8c718'
           )::text), at, 'unreadable', put_by, level, attached,
           CASE WHEN attached & 1 <> 0 THEN pack_entries(id) END
    FROM gone
$$;

-- Mend one of them, see mend.
CREATE OR REPLACE FUNCTION mend_line(what text, whose text, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    CASE what
    WHEN 'live and finished' THEN
        IF EXISTS (SELECT FROM finished_record WHERE id = whose) THEN
            PERFORM entomb(whose, gen_random_uuid()::text, 'it is finished as well', at);
        END IF;
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
    WHEN 'shared deaths' THEN
        UPDATE job SET shared_deaths = deaths(shared_deaths) WHERE id = whose;
    WHEN 'level' THEN
        UPDATE job SET level = level_of(level) WHERE id = whose;
    WHEN 'head start' THEN
        UPDATE job SET order_at = run_at, parked = CASE WHEN parked = 0 THEN 3 ELSE parked END
        WHERE id = whose AND abs(run_at::numeric - order_at) > 86400000000;
    WHEN 'errors' THEN
        UPDATE job SET errors = sound_errors(errors) WHERE id = whose;
    WHEN 'options' THEN
        IF EXISTS (SELECT FROM job WHERE id = whose AND NOT is_options(options) FOR UPDATE) THEN
            PERFORM entomb(whose, whose, 'its options cannot be read', at);
        END IF;
    END CASE;
END $$;
