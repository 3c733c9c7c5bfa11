-- What is damaged, by one definition for those who look and those who mend. A damaged row harms
-- nobody but itself: the verbs of the line step over it, or write what they can of it elsewhere.

-- Whether a text is what is kept of a failed run; it may be no JSON, or nested beyond all measure.
CREATE FUNCTION is_error(error text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
DECLARE
    past  jsonb;
    exact json;
BEGIN
    past := error;
    exact := error;
    RETURN coalesce(
        jsonb_typeof(past) = 'object' AND NOT is_deep(past)
        AND (exact->'attempt')::text ~ '^-?[0-9]+$' AND (exact->'finished_at')::text ~ '^-?[0-9]+$'
        AND (exact->'claimed_at')::text ~ '^(-?[0-9]+|null)$'
        AND (exact->'started_at')::text ~ '^(-?[0-9]+|null)$'
        AND jsonb_typeof(past->'outcome') = 'string'
        AND jsonb_typeof(past->'worker') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'error'), 'null') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'message'), 'null') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'traceback'), 'null') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'fingerprint'), 'null') IN ('string', 'null'),
        false
    );
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END $$;

-- Whether the options of a job are what core/job.py reads: JobOptions, with a curve of core/retry.py.
CREATE FUNCTION is_options(options text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
DECLARE
    exact json;
    read  jsonb;
    curve jsonb;
BEGIN
    exact := replace(options, '\u0000', '\u0001');
    read := exact;
    curve := nullif(read->'backoff', 'null');
    RETURN coalesce(
        jsonb_typeof(read) = 'object' AND NOT is_deep(read)
        AND coalesce(jsonb_typeof(read->'timeout'), 'null') IN ('number', 'null')
        AND coalesce((read->>'timeout')::double precision, 0) IS NOT NULL
        AND coalesce((exact->'attempts')::text, 'null') ~ '^(-?[0-9]+|null)$'
        AND coalesce(jsonb_typeof(read->'correlation_id'), 'null') IN ('string', 'null')
        AND jsonb_typeof(coalesce(read->'tags', '[]')) = 'array'
        AND jsonb_path_exists(read, 'strict $.tags[*] ? (@.type() != "string")', '{}', true) IS NOT TRUE
        AND jsonb_typeof(coalesce(read->'headers', '{}')) = 'object'
        AND jsonb_path_exists(read, 'strict $.headers.* ? (@.type() != "string")', '{}', true) IS NOT TRUE
        AND (curve IS NULL OR curve->>'curve' IN ('exponential', 'linear', 'fixed') AND NOT EXISTS (
            SELECT FROM jsonb_each(curve)
            WHERE key IN ('base', 'factor', 'cap', 'step', 'seconds', 'jitter')
              AND CASE jsonb_typeof(value) WHEN 'number'
                  THEN value::numeric NOT BETWEEN 0 AND CASE key WHEN 'jitter' THEN 1 ELSE 31622400 END
                  ELSE true END
        )),
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

-- The parts of our tables, and the times that they hold.
CREATE FUNCTION parts() RETURNS TABLE (whole text, name text, opens bigint, closes bigint) LANGUAGE sql STABLE
AS $$
    SELECT inhparent::regclass::text, relname::text, bounds[1]::bigint, bounds[2]::bigint
    FROM pg_inherits JOIN pg_class ON oid = inhrelid CROSS JOIN regexp_match(
        pg_get_expr(relpartbound, oid), $r$FROM \('(-?\d+)'\) TO \('(-?\d+)'\)$r$
    ) AS bounds
    WHERE inhparent IN (to_regclass('finished'), to_regclass('attempt'))
$$;

-- The name that a part should have, if it holds a day.
CREATE FUNCTION part_name(whole text, opens bigint, closes bigint) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN opens >= 0 AND opens % 86400000000 = 0 AND closes = opens + 86400000000
                THEN whole || '_' || day_of(opens) END
$$;

-- The kinds of damage, in the order in which they are mended: where a job is, the line, what ended, and
-- what is not a job.
CREATE FUNCTION flaw_kinds() RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT ARRAY[
        'live and finished', 'live and dead', 'finished and dead', 'finished twice', 'unsound',
        'half running', 'running and parked', 'no fence', 'long lease', 'no place', 'early', 'head start',
        'shared deaths',
        'errors', 'options', 'unsound dead', 'no reason', 'dead errors', 'dead options',
        'unsound finished', 'not final', 'finished errors', 'finished options', 'one fence twice',
        'unsound attempt', 'mark', 'worker', 'paused', 'audit', 'part', 'day', 'no day', 'retention', 'step',
        'no step'
    ]
$$;

-- Whose damage of one kind there is, from a key on, in the order of the keys and up to so many. A clock
-- that went back makes jobs look early, so it is allowed an hour.
CREATE FUNCTION flaws_of(kind text, start text, at bigint, most integer) RETURNS TABLE (whose text)
LANGUAGE plpgsql STABLE
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
    WHEN 'unsound dead' THEN
        RETURN QUERY SELECT id FROM dead WHERE id >= start
            AND (in_bounds(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                           crashes, fence, claimed_at) IS NOT TRUE
                 OR finished_at NOT BETWEEN 0 AND last_)
            ORDER BY id LIMIT most;
    WHEN 'no reason' THEN
        RETURN QUERY SELECT id FROM dead WHERE id >= start AND reason IS NULL ORDER BY id LIMIT most;
    WHEN 'dead errors' THEN
        RETURN QUERY SELECT id FROM dead WHERE id >= start
            AND cardinality(errors) > 0 AND errors IS DISTINCT FROM sound_errors(errors)
            ORDER BY id LIMIT most;
    WHEN 'dead options' THEN
        -- Those that made a job a dead letter stay: a person may want to see them.
        RETURN QUERY SELECT id FROM dead WHERE id >= start
            AND reason <> 'unreadable' AND NOT is_options(options) ORDER BY id LIMIT most;
    WHEN 'unsound finished' THEN
        RETURN QUERY SELECT id FROM finished WHERE id >= start
            AND finished_at >= (SELECT since FROM kept)
            AND in_bounds(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                          crashes, fence, claimed_at) IS NOT TRUE
            ORDER BY id LIMIT most;
    WHEN 'not final' THEN
        RETURN QUERY SELECT id FROM finished WHERE id >= start
            AND finished_at >= (SELECT since FROM kept) AND state NOT IN ('done', 'cancelled')
            ORDER BY id LIMIT most;
    WHEN 'finished errors' THEN
        RETURN QUERY SELECT id FROM finished_record WHERE id >= start
            AND cardinality(errors) > 0 AND errors IS DISTINCT FROM sound_errors(errors)
            ORDER BY id LIMIT most;
    WHEN 'finished options' THEN
        RETURN QUERY SELECT id FROM finished_record WHERE id >= start AND NOT is_options(options)
            ORDER BY id LIMIT most;
    WHEN 'one fence twice' THEN
        RETURN QUERY SELECT job_id FROM attempt_record WHERE job_id >= start
            GROUP BY job_id, fence HAVING count(*) > 1 ORDER BY job_id LIMIT most;
    WHEN 'unsound attempt' THEN
        RETURN QUERY SELECT job_id FROM attempt_record WHERE job_id >= start
            AND in_bounds(job_id, queue, task, 0, ready_at, 0, started_at, 0, attempt, 0, fence,
                          claimed_at) IS NOT TRUE
            ORDER BY job_id LIMIT most;
    WHEN 'mark' THEN
        RETURN QUERY SELECT name FROM queue WHERE name >= start
            AND (mark NOT BETWEEN -last_ AND last_ OR next_look NOT BETWEEN 0 AND at + a_day
                 OR octet_length(name) NOT BETWEEN 1 AND 255)
            ORDER BY name LIMIT most;
    WHEN 'worker' THEN
        RETURN QUERY SELECT id FROM worker WHERE id >= start
            AND NOT is_worker(id, capable, pools, processes, started_at, live_until, at)
            ORDER BY id LIMIT most;
    WHEN 'paused' THEN
        RETURN QUERY SELECT queue FROM paused WHERE queue >= start
            AND octet_length(queue) NOT BETWEEN 1 AND 255 ORDER BY queue LIMIT most;
    WHEN 'audit' THEN
        RETURN QUERY SELECT id FROM audit WHERE id >= start
            AND (done_at NOT BETWEEN 0 AND last_ OR count NOT BETWEEN 0 AND 1000000000)
            ORDER BY id LIMIT most;
    WHEN 'part' THEN
        RETURN QUERY SELECT name FROM parts()
            WHERE name COLLATE "C" >= start AND name <> part_name(whole, opens, closes)
            ORDER BY name COLLATE "C" LIMIT most;
    WHEN 'day' THEN
        RETURN QUERY SELECT first::text FROM day WHERE first::text COLLATE "C" >= start
            AND CASE WHEN first BETWEEN 0 AND last_ AND first % a_day = 0
                     THEN part_for('finished', first, first + a_day) IS NULL
                          OR part_for('attempt', first, first + a_day) IS NULL
                     ELSE true END
            ORDER BY first::text COLLATE "C" LIMIT most;
    WHEN 'no day' THEN
        RETURN QUERY SELECT name FROM parts() WHERE name COLLATE "C" >= start
            AND name = part_name(whole, opens, closes)
            AND NOT EXISTS (SELECT FROM day WHERE first = opens)
            ORDER BY name COLLATE "C" LIMIT most;
    WHEN 'retention' THEN
        RETURN QUERY SELECT '' WHERE start = '' AND NOT EXISTS (
            SELECT FROM retention
            WHERE before BETWEEN 0 AND at + a_day AND coalesce(keep, 0) BETWEEN 0 AND last_
        );
    WHEN 'step' THEN
        RETURN QUERY SELECT number::text FROM migration WHERE number::text COLLATE "C" >= start
            AND (number NOT BETWEEN 1 AND 9999 OR applied_at NOT BETWEEN 0 AND last_)
            ORDER BY number::text COLLATE "C" LIMIT most;
    WHEN 'no step' THEN
        RETURN QUERY SELECT n::text FROM generate_series(
                1, (SELECT greatest(5, max(number)) FROM migration WHERE number <= 9999)
            ) AS n
            WHERE n::text COLLATE "C" >= start AND NOT EXISTS (SELECT FROM migration WHERE number = n)
            ORDER BY n::text COLLATE "C" LIMIT most;
    END CASE;
END $$;

-- Every damage there is, up to so many of each kind: what it is, whose, and how often there is that kind.
-- One call sees one state.
CREATE FUNCTION flaws(at_ bigint, most integer) RETURNS TABLE (what text, whose text, number bigint)
LANGUAGE plpgsql STABLE SET jit = off
AS $$
DECLARE
    at bigint := coalesce(at_, stamp());
BEGIN
    FOREACH what IN ARRAY flaw_kinds() LOOP
        RETURN QUERY SELECT what, f.whose, count(*) OVER () FROM flaws_of(what, '', at, NULL) AS f
                     LIMIT most;
    END LOOP;
END $$;

-- Make a dead letter of a job in the line, and say why.
CREATE FUNCTION entomb(whose text, new_id text, why text, at bigint) RETURNS void LANGUAGE sql
AS $$
    WITH gone AS (SELECT * FROM mended WHERE id = whose FOR UPDATE), removed AS (
        DELETE FROM job WHERE id = whose
    )
    INSERT INTO dead
        (id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
         attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, put_by)
    SELECT new_id, sound_name(queue), sound_name(task), version, run_at, order_at, expires_at, enqueued_at,
           payload, options, attempt, crashes, instant(fence), worker, claimed_at,
           with_error(sound_errors(errors), json_build_object(
               'attempt', attempt, 'outcome', 'failed', 'worker', worker, 'claimed_at', claimed_at,
               'started_at', NULL, 'finished_at', at, 'error', 'Unreadable', 'message',
               'the stored row is damaged: ' || why || '; `fairlead dead replay` lets it run again',
               'fingerprint', '89e45653b9f8c718'
           )::text), at, 'unreadable', put_by
    FROM gone
$$;

-- Put one of them right, or move it out, if it is still so. A number that
-- follows from others is written anew, and a job that cannot stay where it is becomes a dead letter.
-- What is removed: the earlier of two ends of one job, a second line about one run, and what cannot be
-- read of a history, a worker or a pause.
CREATE FUNCTION mend(what text, whose text, at bigint) RETURNS void LANGUAGE plpgsql
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
    WHEN 'head start' THEN
        UPDATE job SET order_at = run_at, parked = CASE WHEN parked = 0 THEN 3 ELSE parked END
        WHERE id = whose AND abs(run_at::numeric - order_at) > 86400000000;
    WHEN 'errors' THEN
        UPDATE job SET errors = sound_errors(errors) WHERE id = whose;
    WHEN 'options' THEN
        IF EXISTS (SELECT FROM job WHERE id = whose AND NOT is_options(options) FOR UPDATE) THEN
            PERFORM entomb(whose, whose, 'its options cannot be read', at);
        END IF;
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
    WHEN 'dead options' THEN
        UPDATE dead SET options = NULL WHERE id = whose AND NOT is_options(options);
    WHEN 'finished options' THEN
        UPDATE finished SET options = NULL
        WHERE id = whose AND NOT is_options(options) AND finished_at >= (SELECT since FROM kept);
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
    WHEN 'part' THEN
        PERFORM set_config('lock_timeout', '2s', true);  -- It waits for who reads the table just now.
        EXECUTE (
            SELECT format('ALTER TABLE %I RENAME TO %I', name, part_name(whole, opens, closes))
            FROM parts() WHERE name = whose AND name <> part_name(whole, opens, closes)
        );
    WHEN 'day' THEN
        PERFORM set_config('lock_timeout', '2s', true);
        IF EXISTS (SELECT FROM parts() WHERE opens::text = whose) THEN
            PERFORM open_day(whose::bigint);
        ELSE
            DELETE FROM day WHERE first = whose::bigint;
        END IF;
    WHEN 'no day' THEN
        INSERT INTO day SELECT opens FROM parts() WHERE name = whose ON CONFLICT DO NOTHING;
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

-- Mend one, and return why it could not be mended; null if it was. It waits little for rows that others
-- have: who mends the next ones cannot wait for each.
CREATE FUNCTION try_mend(what text, whose text, at bigint) RETURNS text LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM mend(what, whose, at);
    RETURN NULL;
EXCEPTION
    WHEN lock_not_available THEN
        RETURN 'somebody has it locked; when that transaction has ended, repair again';
    WHEN OTHERS THEN
        RETURN SQLERRM;
END $$;

-- Mend a bounded number, from a kind and a key on, and write the audit log. Returns what was met, as [what,
-- whose, why it could not be mended], and the kind and the key to go on from; null when that was all.
CREATE FUNCTION repair(batch text) RETURNS text LANGUAGE plpgsql
SET lock_timeout = '20ms' SET enable_sort = off SET jit = off
AS $$
DECLARE
    doc   jsonb   := document(batch);
    at    bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    most  integer := greatest(1, least(1000, (doc->>'batch')::integer));
    kinds text[]  := flaw_kinds();
    place integer := greatest(1, coalesce((doc->>'kind')::integer, 1));
    start text    := coalesce(doc->>'start', '');
    met   integer := 0;
    done  integer := 0;
    told  jsonb[] := '{}';
    room  integer;
    found text;
    why   text;
BEGIN
    WHILE place <= cardinality(kinds) AND met < most LOOP
        room := most - met;
        FOR found IN SELECT whose FROM flaws_of(kinds[place], start, at, room) LOOP
            why := try_mend(kinds[place], found, at);
            done := done + (why IS NULL)::integer;
            met := met + 1;
            room := room - 1;
            start := found || E'\x01';  -- The least text that comes after it.
            told := told || jsonb_build_array(kinds[place], found, why);
        END LOOP;
        IF room > 0 THEN
            place := place + 1;
            start := '';
        END IF;
    END LOOP;
    IF done > 0 THEN
        PERFORM note(doc->'by', done, at);
    END IF;
    RETURN jsonb_build_array(
        to_jsonb(told), CASE WHEN place <= cardinality(kinds) THEN place END, start
    )::text;
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
