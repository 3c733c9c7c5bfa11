-- Jobs by one shape: those in the line, those that ended well or were cancelled, the dead letters.
CREATE VIEW job_record AS
SELECT id, task, version, queue, CASE WHEN lease_until > 0 THEN 'running' ELSE 'waiting' END AS state,
       payload, options, run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at,
       CASE WHEN parked IN (1, 2) THEN parked ELSE 0::smallint END AS parked,
       worker, claimed_at, nullif(lease_until, 0) AS lease_until,
       cancel IS NOT NULL AS cancel_requested, NULL::bigint AS finished_at, NULL::text AS result,
       NULL::text AS reason, errors, put_by, shared_deaths
FROM job;

CREATE VIEW finished_record AS
SELECT id, task, version, queue, CASE state WHEN 'done' THEN state ELSE 'cancelled' END AS state,
       payload, options, run_at, order_at, attempt, crashes, fence,
       enqueued_at, expires_at, 0::smallint AS parked, worker, claimed_at,
       NULL::bigint AS lease_until, false AS cancel_requested, finished_at, result, reason, errors,
       put_by, 0 AS shared_deaths
FROM finished WHERE finished_at >= (SELECT since FROM kept);

CREATE VIEW dead_record AS
SELECT id, task, version, queue, 'dead' AS state, payload, options, run_at, order_at, attempt,
       crashes, fence, enqueued_at, expires_at, 0::smallint AS parked, worker, claimed_at,
       NULL::bigint AS lease_until, false AS cancel_requested, finished_at, NULL::text AS result,
       reason, errors, put_by, 0 AS shared_deaths
FROM dead;

CREATE VIEW attempt_record AS
SELECT seq, job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
       finished_at, outcome, fingerprint
FROM attempt WHERE finished_at >= (SELECT since FROM kept);

-- Whether the user may know of all jobs, as workers and operators do; a producer knows of its own.
CREATE FUNCTION sees_all() RETURNS boolean LANGUAGE sql STABLE
AS $$
    SELECT has_function_privilege(session_user, 'claim(text)', 'EXECUTE')
        OR has_function_privilege(session_user, 'act(text)', 'EXECUTE')
$$;

-- Whether it was this user who put a job.
CREATE FUNCTION is_own(wanted text) RETURNS boolean LANGUAGE sql STABLE
AS $$
    SELECT session_user::text IN (
        SELECT put_by FROM job WHERE id = wanted
        UNION ALL
        SELECT put_by FROM finished
        WHERE id = wanted AND finished_at >= (SELECT since FROM kept)
        UNION ALL
        SELECT put_by FROM dead WHERE id = wanted
    )
$$;

-- One job in whatever state; one statement sees one state, so a job that is just moving is seen once. A
-- producer sees what it put itself, though others may have put a job of the same id before.
CREATE FUNCTION find(wanted text) RETURNS SETOF job_record LANGUAGE plpgsql STABLE
AS $$
DECLARE
    all_ boolean := sees_all();
BEGIN
    RETURN QUERY
    SELECT * FROM job_record WHERE id = wanted AND (all_ OR put_by = session_user)
    UNION ALL
    SELECT * FROM finished_record WHERE id = wanted AND (all_ OR put_by = session_user)
    UNION ALL
    SELECT * FROM dead_record WHERE id = wanted AND (all_ OR put_by = session_user);
END $$;

-- The runs of a job. An operator may have deleted a job of the same id before, which another put: a
-- producer sees the runs since its own put.
CREATE FUNCTION attempts(wanted text) RETURNS SETOF attempt_record LANGUAGE plpgsql STABLE
AS $$
DECLARE
    since bigint := 0;
BEGIN
    IF NOT sees_all() THEN
        SELECT max(enqueued_at) INTO since FROM find(wanted);
    END IF;
    RETURN QUERY SELECT * FROM attempt_record WHERE job_id = wanted AND finished_at >= since
                 ORDER BY finished_at, seq;
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
-- Calls of one action add to one line, which has the time of the last and the job of the first. None
-- comes more than an hour after the one before: else an id of long ago would hide an action of today.
-- The line of an edit, which keeps what was replaced, stays as it is.
--
-- A line also keeps what each of its calls was answered (core/answers.py): the mark of the call, and to
-- which of what it asked for nothing was done, by place from 0: ;8c1f:0,4. says all but the first and the fifth.

-- What a call asks for, as a short text.
CREATE FUNCTION mark_of(doc jsonb) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT left(encode(sha256(convert_to((doc - 'at' - 'by' - 'tell')::text, 'UTF8')), 'hex'), 16)
$$;

-- Take the line of an action, and keep it from others until this transaction ends: who repeats a call
-- waits here for the first. Tells what this call was answered, null if it is new; whether the line is; and
-- whether it is that of another action, so that the call must not add to it. Nobody is told what another
-- user was answered.
CREATE FUNCTION take_line(
    by_ jsonb, mark text, job_ids text[], at bigint,
    OUT past text, OUT is_new boolean, OUT is_other boolean
) LANGUAGE plpgsql
AS $$
DECLARE
    one  text := CASE WHEN cardinality(job_ids) = 1 THEN job_ids[1] END;
    line audit;
BEGIN
    IF '' IN (coalesce(by_->>0, ''), coalesce(by_->>1, ''), coalesce(by_->>2, '')) THEN
        RAISE 'an action needs its id, who and verb: say who does what, for the audit log'
            USING ERRCODE = 'JQ001';
    END IF;
    IF octet_length(by_::text) > 20000 THEN
        RAISE 'id, who, verb and target of an action have at most 20,000 bytes'
            USING ERRCODE = 'JQ001';
    END IF;
    INSERT INTO audit (id, done_at, who, verb, target, count, job_id)
    VALUES (by_->>0, at, by_->>1, by_->>2, by_->>3, 0, one)
    ON CONFLICT (id) DO NOTHING;
    is_new := FOUND;
    SELECT * INTO line FROM audit WHERE id = by_->>0 FOR UPDATE;
    is_other := (line.by_user, line.who, line.verb, line.target)
                IS DISTINCT FROM (session_user::text, by_->>1, by_->>2, by_->>3);
    IF NOT is_other THEN
        past := substring(line.answers FROM ';' || mark || ':([0-9,]*)[.]');
        is_other := past IS NULL AND NOT is_new
                    AND (line.before IS NOT NULL OR line.done_at <= at - 3600000000);
    END IF;
END $$;

CREATE FUNCTION refuse_line(by_ jsonb) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    RAISE 'the audit log has another action with the id %; give each action a new id',
        quote_literal(by_->>0) USING ERRCODE = 'JQ001';
END $$;

-- Add to the line of an action what a call of it did, and how it is answered.
CREATE FUNCTION add_to_line(id_ text, count_ integer, before_ text, mark text, missed text, at bigint)
RETURNS void LANGUAGE sql
AS $$
    UPDATE audit SET
        count = count + count_, done_at = greatest(done_at, at), before = coalesce(before_, before),
        answers = concat(answers, ';' || mark || ':' || missed || '.')
    WHERE id = id_
$$;

-- Write down what was done, in a call that is not repeated.
CREATE FUNCTION note(by_ jsonb, count_ integer, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF (SELECT is_other FROM take_line(by_, NULL, NULL, at)) THEN
        PERFORM refuse_line(by_);
    END IF;
    PERFORM add_to_line(by_->>0, count_, NULL, NULL, NULL, at);
END $$;

-- Keep what ended for so long at least, whatever keep= workers have; null leaves it to them.
CREATE FUNCTION retain(period interval, who text DEFAULT session_user) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    -- 2^60 microseconds are a little more.
    IF date_part('epoch', period) NOT BETWEEN 0 AND 36000 * 31557600.0 THEN
        RAISE 'what ended is kept for 0 s to 36,000 years, not for %; NULL leaves it to the workers',
            period USING ERRCODE = 'JQ001';
    END IF;
    INSERT INTO retention VALUES (0, (date_part('epoch', period) * 1000000)::bigint)
    ON CONFLICT ((true)) DO UPDATE SET keep = excluded.keep;
    PERFORM note(
        jsonb_build_array(
            gen_random_uuid(), who, 'retain', coalesce(period::text, 'as workers say')
        ),
        0, stamp()
    );
END $$;

CREATE FUNCTION act(batch text) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    doc     jsonb  := document(batch);
    at      bigint := coalesce(moment((doc->>'at')::bigint), stamp());
    edits   boolean := (doc->>'verb') IS NOT DISTINCT FROM 'edit';
    given   text[] := ARRAY(SELECT jsonb_array_elements_text(doc->'ids'));
    ids     text[] := CASE WHEN edits THEN given[1:1] ELSE given END;
    states  text[] := ARRAY(SELECT jsonb_array_elements_text(doc->'states'));
    asked   text[] := CASE WHEN doc ? 'queue' THEN ARRAY[doc->>'queue'] ELSE ids END;
    mark    text   := mark_of(doc);
    line    record;
    touched text[] := '{}';
BEGIN
    line := take_line(doc->'by', mark, ids, at);
    IF line.is_other AND NOT edits THEN
        PERFORM refuse_line(doc->'by');
    END IF;
    IF line.past IS NOT NULL THEN
        RETURN ARRAY(
            SELECT one FROM unnest(asked) WITH ORDINALITY AS a(one, n)
            WHERE (n - 1)::text <> ALL (string_to_array(line.past, ',')) ORDER BY n
        );
    END IF;
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
    IF edits AND cardinality(touched) = 0 THEN
        DELETE FROM audit WHERE id = doc #>> '{by,0}' AND line.is_new;
        RETURN touched;
    END IF;
    IF edits AND NOT line.is_new THEN
        PERFORM refuse_line(doc->'by');
    END IF;
    PERFORM add_to_line(
        doc #>> '{by,0}', cardinality(touched), CASE WHEN edits THEN doc->>'was' END, mark, (
            SELECT coalesce(string_agg((n - 1)::text, ',' ORDER BY n), '')
            FROM unnest(asked) WITH ORDINALITY AS a(one, n)
            WHERE one NOT IN (SELECT unnest(touched))
        ), at
    );
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

CREATE FUNCTION revive_all(ids text[], states text[], at bigint) RETURNS text[] LANGUAGE plpgsql
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
                shared_deaths = CASE WHEN crashes > 0 THEN greatest(shared_deaths, 3)
                                     ELSE shared_deaths END,
                attempt = 0, crashes = 0
            WHERE id = ANY (ids) AND lease_until = 0 AND run_at > at
            RETURNING id
        )
        SELECT coalesce(array_agg(id), '{}') INTO hastened FROM sooner;
    END IF;
    WITH ended AS (
        SELECT id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
               fence, crashes, errors, put_by
        FROM dead WHERE 'dead' = ANY (states) AND id = ANY (ids)
        UNION ALL
        SELECT id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
               fence, crashes, errors, put_by
        FROM finished WHERE state = ANY (states) AND id = ANY (ids)
                        AND finished_at >= (SELECT since FROM kept)
    ), back AS (
        INSERT INTO job
            (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, payload,
             options, fence, shared_deaths, errors, put_by)
        SELECT id, sound_name(queue), sound_name(task), greatest(version, 0), 3, at,
               at - head_start(run_at, order_at),
               CASE WHEN expires_at > at THEN instant(expires_at) END, instant(enqueued_at), payload,
               options, instant(fence), CASE WHEN crashes > 0 THEN 3 ELSE 0 END, errors,
               put_by
        FROM ended
        ON CONFLICT (id) DO NOTHING
        RETURNING id
    )
    SELECT coalesce(array_agg(id), '{}') INTO lifted FROM back;
    PERFORM forget(lifted, states);
    RETURN hastened || lifted;
END $$;

-- Let jobs run again. Who puts the id of an ended job keeps it until the end of his transaction: that one is
-- left as it is, and the others are revived.
CREATE FUNCTION revive(ids text[], states text[], at bigint) RETURNS text[] LANGUAGE plpgsql
SET lock_timeout = '200ms'
AS $$
DECLARE
    touched text[] := '{}';
    one     text;
BEGIN
    RETURN revive_all(ids, states, at);
EXCEPTION WHEN lock_not_available THEN
    FOREACH one IN ARRAY ids LOOP
        BEGIN
            touched := touched || revive_all(ARRAY[one], states, at);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
    END LOOP;
    RETURN touched;
END $$;

CREATE FUNCTION forget(ids text[], states text[]) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    gone text[];
BEGIN
    WITH buried AS (
        DELETE FROM dead WHERE 'dead' = ANY (states) AND id = ANY (ids) RETURNING id
    ), ended AS (
        DELETE FROM finished
        WHERE state = ANY (states) AND id = ANY (ids)
          AND finished_at >= (SELECT since FROM kept)
        RETURNING id
    )
    SELECT coalesce(array_agg(id), '{}') INTO gone
    FROM (SELECT id FROM ended UNION ALL SELECT id FROM buried) AS each;
    RETURN gone;
END $$;

CREATE FUNCTION edit(ids text[], was text, payload_ text, version_ integer)
RETURNS text[] LANGUAGE plpgsql
AS $$
BEGIN
    -- What a producer may not put nobody may write later.
    PERFORM check_job('any', payload_), check_names('any', 'any', version_);
    UPDATE dead SET payload = payload_, version = version_ WHERE id = ids[1] AND payload = was;
    RETURN CASE WHEN FOUND THEN ids[1:1] ELSE '{}' END;
END $$;

CREATE FUNCTION pause(name text) RETURNS text[] LANGUAGE plpgsql
AS $$
BEGIN
    IF coalesce(octet_length(name), 0) NOT BETWEEN 1 AND 128 THEN
        RAISE 'the name of a queue has 1 to 128 bytes' USING ERRCODE = 'JQ001';
    END IF;
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
    doc  jsonb   := document(batch);
    at   bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    mark text    := mark_of(doc);
    done integer := doc->>'count';
    line record;
BEGIN
    line := take_line(doc->'by', mark, ARRAY(SELECT jsonb_array_elements_text(doc->'ids')), at);
    IF line.is_other THEN
        PERFORM refuse_line(doc->'by');
    END IF;
    IF coalesce(done, -1) < 0 THEN
        RAISE 'an action is done to 0 jobs or more, not to %', quote_nullable(done)
            USING ERRCODE = 'JQ001';
    END IF;
    IF line.past IS NULL THEN
        PERFORM add_to_line(doc #>> '{by,0}', done, NULL, mark, '', at);
    END IF;
END $$;
