-- The kinds of damage of jobs in the line, and of jobs that are in two places. A clock that went back makes
-- jobs look early, so it is allowed an hour. A reason to be parked that this program does not know is a newer one's,
-- and no damage; but whatever gate that is finds its jobs by a key.
CREATE OR REPLACE FUNCTION line_kinds() RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT ARRAY[
        'live and finished', 'live and dead', 'finished and dead', 'finished twice', 'unsound',
        'half running', 'running and parked', 'no fence', 'long lease', 'no place', 'park key', 'early',
        'head start', 'shared deaths', 'level', 'errors', 'options'
    ]
$$;

-- Whose damage of one of these kinds there is, see flaws_of.
CREATE OR REPLACE FUNCTION flaws_line(kind text, start text, at bigint, most integer)
RETURNS TABLE (whose text) LANGUAGE plpgsql STABLE
AS $$
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
            AND lease_until > at + 366 * 86400000000 AND lease_until <= 1152921504606846976
            ORDER BY id LIMIT most;
    WHEN 'no place' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start AND (parked < 0 OR parked > 3 AND park_key IS NULL)
            ORDER BY id LIMIT most;
    WHEN 'park key' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start
            AND parked BETWEEN 0 AND 3
            AND park_key IS DISTINCT FROM CASE WHEN parked = 2 THEN kind_key(task, version) END
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
        RETURN QUERY SELECT id FROM job WHERE id >= start AND abs(run_at::numeric - order_at) > 86400000000
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

-- Give a job in the line another id, with its entries.
CREATE OR REPLACE FUNCTION rename_job(whose text, new_id text) RETURNS text LANGUAGE sql
AS $$
    UPDATE job SET id = new_id WHERE id = whose;
    UPDATE entry SET owner = new_id WHERE owner = whose AND owner <> '';
    SELECT new_id
$$;

-- Let a job stand where it should: in the order, or parked until it is due.
CREATE OR REPLACE FUNCTION place_anew(whose text, at bigint) RETURNS void LANGUAGE sql
AS $$
    SELECT CASE WHEN run_at > at AND lease_until = 0 THEN park(ARRAY[place], 1, NULL) END,
           CASE WHEN run_at <= at OR lease_until > 0 THEN bring_back(ARRAY[place]) END
    FROM (SELECT ctid AS place, run_at, lease_until FROM job WHERE id = whose FOR UPDATE) AS job
$$;

-- Mend one of them, see mend.
CREATE OR REPLACE FUNCTION mend_line(what text, whose text, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    CASE what
    WHEN 'live and finished' THEN
        IF EXISTS (SELECT FROM finished_record WHERE id = whose) THEN
            PERFORM entomb(rename_job(whose, gen_random_uuid()::text), 'it is finished as well', at);
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
        PERFORM place_anew(whose, at);
    WHEN 'park key' THEN
        UPDATE job SET park_key = CASE WHEN parked = 2 THEN kind_key(task, version) END
        WHERE id = whose AND parked BETWEEN 0 AND 3;
    WHEN 'no fence' THEN
        UPDATE job SET fence = at WHERE id = whose AND fence = 0;
    WHEN 'long lease' THEN
        UPDATE job SET lease_until = at WHERE id = whose AND lease_until > at + 366 * 86400000000;
    WHEN 'shared deaths' THEN
        UPDATE job SET shared_deaths = deaths(shared_deaths) WHERE id = whose;
    WHEN 'level' THEN
        UPDATE job SET level = level_of(level) WHERE id = whose;
    WHEN 'head start' THEN
        UPDATE job SET order_at = run_at
        WHERE id = whose AND abs(run_at::numeric - order_at) > 86400000000;
        PERFORM bring_back(ARRAY(SELECT ctid FROM job WHERE id = whose AND parked = 0));
    WHEN 'errors' THEN
        UPDATE job SET errors = sound_errors(errors) WHERE id = whose;
    WHEN 'options' THEN
        IF EXISTS (SELECT FROM job WHERE id = whose AND NOT is_options(options) FOR UPDATE) THEN
            PERFORM entomb(whose, 'its options cannot be read', at);
        END IF;
    END CASE;
END $$;
