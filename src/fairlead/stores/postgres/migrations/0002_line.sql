-- The verbs of the line. Each takes one JSON text and is one round trip; its statements are planned
-- once per session, and for good, so they leave the planner no choice, whatever it believes about the
-- tables: SET clauses allow only indexes, and jobs are looked up by id in LATERAL subqueries with
-- FOR UPDATE or OFFSET 0, which cannot be turned around into a walk through all of them.
-- In each text "at" is the instant of a test's clock, else null.

-- Whether the names and numbers of a job are what core/job.py says they may be: id of 1 to 36
-- ASCII characters, instants and fences up to 2^60, a billion runs. What is null is not asked about.
CREATE FUNCTION in_bounds(
    id text, queue text, task text, version integer, run_at bigint, order_at bigint,
    expires_at bigint, enqueued_at bigint, attempt integer, crashes integer, fence bigint,
    claimed_at bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT octet_length(id) = least(char_length(id), 36) AND id <> '' AND queue <> '' AND task <> ''
       AND greatest(octet_length(queue), octet_length(task)) <= 255
       AND least(version, attempt, crashes) >= 0 AND greatest(attempt, crashes) <= 1000000000
       AND least(run_at, enqueued_at, fence, expires_at, claimed_at) >= 0
       AND greatest(run_at, enqueued_at, fence, expires_at, claimed_at, order_at)
           <= 1152921504606846976
       AND order_at >= -1152921504606846976
$$;

-- Whether a job in the line is sound: within bounds, and a run of it has a worker and a beginning. A claim
-- that meets one that is not makes a dead letter of it, see bury; who else moves it mends its numbers.
CREATE FUNCTION is_sound(
    id text, queue text, task text, version integer, run_at bigint, order_at bigint,
    expires_at bigint, enqueued_at bigint, attempt integer, crashes integer, fence bigint,
    lease_until bigint, worker text, claimed_at bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT in_bounds(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                     crashes, fence, claimed_at)
       AND lease_until BETWEEN 0 AND 1152921504606846976
       AND (lease_until = 0 OR (worker IS NOT NULL AND claimed_at IS NOT NULL))
$$;

-- The nearest value within bounds; what is sound stays as it is, and null stays null.
CREATE FUNCTION instant(at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN at IS NOT NULL THEN greatest(0, least(at, 1152921504606846976)) END $$;
CREATE FUNCTION runs(number integer) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT greatest(0, least(number, 1000000000)) $$;
-- How often a job shared the death of a process. What is no such number makes it run alone, as 3 does.
CREATE FUNCTION deaths(number integer) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN number BETWEEN 0 AND 1000000000 THEN number ELSE 3 END $$;
CREATE FUNCTION head_start(run_at bigint, order_at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$
    SELECT greatest(-86400000000, least(86400000000,
        instant(run_at) - greatest(-1152921504606846976, least(order_at, 1152921504606846976))))
$$;
CREATE FUNCTION sound_name(name text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN octet_length(name) BETWEEN 1 AND 255 THEN name
                WHEN name = '' THEN 'unreadable' ELSE left(name, 60) END
$$;
CREATE FUNCTION sound_id(id text) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN octet_length(id) = least(char_length(id), 36) AND id <> '' THEN id
                ELSE left(encode(sha256(convert_to(id, 'UTF8')), 'hex'), 32) END
$$;

-- Jobs in the line as they are written elsewhere when they leave it: their numbers within bounds, so
-- that what is wrong with one stops nobody.
CREATE VIEW mended AS
SELECT id, queue, task, greatest(version, 0) AS version, parked, instant(run_at) AS run_at,
       instant(run_at) - head_start(run_at, order_at) AS order_at, instant(expires_at) AS expires_at,
       instant(enqueued_at) AS enqueued_at, payload, options, runs(attempt) AS attempt,
       runs(crashes) AS crashes, deaths(shared_deaths) AS shared_deaths, fence, lease_until, lost, worker,
       instant(claimed_at) AS claimed_at, cancel, errors, put_by, ctid AS place
FROM job;

-- The tasks that a worker knows, by name, with the newest version of each; what is no such thing
-- counts for nothing.
CREATE FUNCTION known_tasks(capable jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce(jsonb_object_agg(key, value), '{}')
    FROM jsonb_each(CASE WHEN jsonb_typeof(capable) = 'object' THEN capable ELSE '{}' END)
    WHERE CASE WHEN value::text ~ '^[0-9]{1,10}$' THEN value::text::bigint <= 2147483647 END
$$;
CREATE FUNCTION known_version(capable jsonb, task text) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN (capable->task)::text ~ '^[0-9]{1,10}$'
                THEN least((capable->task)::text::bigint, 2147483647)::integer END
$$;

-- Add to what is kept of a job's failures; a list that is none begins anew.
CREATE FUNCTION with_error(errors text[], error text) RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN array_ndims(errors) > 1 THEN ARRAY[error] ELSE array_append(errors, error) END
$$;

-- The id of a new dead letter: that of its job, or another if there is such a letter already. None is
-- ever written over. It is volatile, and so sees what the statement that asks has written already.
CREATE FUNCTION letter_id(job_id text) RETURNS text LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    own text := sound_id(job_id);
BEGIN
    RETURN CASE WHEN EXISTS (SELECT FROM dead WHERE id = own) THEN gen_random_uuid()::text ELSE own END;
END $$;

-- Make dead letters of those of these jobs that are damaged, with as much of them as can be kept.
-- One that somebody has locked is left for another time. Two may have the same id, if somebody dropped
-- the primary key.
CREATE FUNCTION bury(ids text[], at bigint) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    buried text[];
BEGIN
    WITH bad AS MATERIALIZED (
        SELECT ctid AS place, format(
            'the stored row is damaged: id of %s characters, version %s, run_at %s, order_at %s, '
            'expires_at %s, enqueued_at %s, attempt %s, crashes %s, fence %s, lease_until %s, '
            'worker %s, claimed_at %s; `fairlead dead replay` lets it run again',
            char_length(id), version, run_at, order_at, expires_at, enqueued_at, attempt, crashes,
            fence, lease_until, left(worker, 100), claimed_at
        ) AS why
        FROM job
        WHERE id = ANY (ids)
          AND is_sound(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                       crashes, fence, lease_until, worker, claimed_at) IS NOT TRUE
        FOR UPDATE SKIP LOCKED
    ), moved AS (
        INSERT INTO dead
            (id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
             attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, put_by)
        SELECT letter_id(id), sound_name(queue), sound_name(task), version, run_at, order_at,
               expires_at, enqueued_at, payload, options, attempt, crashes, instant(fence), worker,
               claimed_at, with_error(errors, json_build_object(
                   'attempt', attempt, 'outcome', 'failed', 'worker', worker,
                   'claimed_at', claimed_at, 'started_at', NULL, 'finished_at', at,
                   'error', 'Unreadable', 'message', why, 'fingerprint', '89e45653b9f8c718'
               )::text), at, 'unreadable', put_by
        FROM bad CROSS JOIN LATERAL (SELECT * FROM mended WHERE place = bad.place OFFSET 0) AS job
    ), gone AS (
        DELETE FROM job WHERE ctid = ANY (ARRAY(SELECT place FROM bad)) RETURNING id
    )
    SELECT coalesce(array_agg(id), '{}') INTO buried FROM gone;
    RETURN buried;
END $$;

-- The first closed gate before a waiting job, as core/selection.py asks them; null if it may start.
CREATE FUNCTION gate(
    id text, queue text, task text, version integer, run_at bigint, order_at bigint,
    expires_at bigint, enqueued_at bigint, attempt integer, crashes integer, fence bigint,
    lease_until bigint, worker text, claimed_at bigint, at bigint, spare boolean, capable jsonb
) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN is_sound(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                      crashes, fence, lease_until, worker, claimed_at) IS NOT TRUE THEN 'unreadable'
        WHEN expires_at <= at AND lease_until = 0 THEN 'expired'
        WHEN run_at > at THEN 'not_due'
        WHEN spare AND lease_until > 0 THEN 'lease_spared'
        WHEN capable IS NOT NULL AND coalesce((capable->>task)::integer, 0) < version
            THEN 'no_capable_worker'
    END
$$;

-- Whether something is nested more than 64 levels deep.
CREATE FUNCTION is_deep(read jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_path_exists(
        read, 'strict $.**{64 to last} ? (@.type() == "array" || @.type() == "object")'
    )
$$;

-- Refuse a put that has a fault. What is wrong with the names of one, with its terms, and with a job of it is
-- asked below; the numbers are those of core/codec.py, core/queue.py, core/job.py and producer.py, and hold
-- here for those who do not use our programs.
CREATE FUNCTION refuse_put(fault text) RETURNS void LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF fault IS NOT NULL THEN
        RAISE '%', fault USING ERRCODE = 'JQ002';
    END IF;
END $$;

-- What is wrong with JSON; null if nothing is. A text with NUL in it is JSON, but jsonb does not take it.
CREATE FUNCTION json_fault(told text, what text) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN CASE WHEN is_deep(replace(told, '\u0000', '\u0001')::jsonb)
                THEN what || ' nested at most 64 levels deep' END;
EXCEPTION
    WHEN data_exception THEN RETURN what || ' JSON';
    WHEN program_limit_exceeded THEN RETURN what || ' nested at most 64 levels deep';
END $$;

CREATE FUNCTION check_names(queue text, task text, version integer) RETURNS text LANGUAGE plpgsql
IMMUTABLE
AS $$
BEGIN
    PERFORM refuse_put(CASE
        WHEN coalesce(octet_length(queue), 0) NOT BETWEEN 1 AND 128
            THEN 'the name of a queue has 1 to 128 bytes'
        WHEN coalesce(octet_length(task), 0) NOT BETWEEN 1 AND 128
            THEN 'the name of a task has 1 to 128 bytes'
        WHEN coalesce(version, 0) < 1 THEN 'the version of a task is 1 or more'
    END);
    RETURN queue;
END $$;

CREATE FUNCTION check_terms(options text, run_at bigint, head_start bigint, expires_at bigint)
RETURNS bigint LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    tags jsonb;
BEGIN
    PERFORM refuse_put(CASE
        WHEN coalesce(abs(head_start), 86400000001) > 86400000000
            THEN 'a head start is at most a day'
        WHEN coalesce(run_at, -1) NOT BETWEEN 0 AND 1152921504606846976
            OR coalesce(expires_at, 0) NOT BETWEEN 0 AND 1152921504606846976
            THEN 'instants are from 0 to 2^60 microseconds since 1970'
        WHEN run_at - head_start > 1152921504606846976
            THEN 'a job that is put behind others is due earlier than 2^60 microseconds since 1970'
        WHEN octet_length(options) > 262144 THEN 'the options of a job have at most 262,144 bytes'
        ELSE json_fault(options, 'the options of a job are')
    END);
    tags := replace(options, '\u0000', '\u0001')::jsonb->'tags';
    IF jsonb_typeof(tags) = 'array' AND jsonb_array_length(tags) > 64 THEN
        PERFORM refuse_put('a job has at most 64 tags');
    END IF;
    RETURN run_at;
END $$;

CREATE FUNCTION check_job(id text, payload text) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM refuse_put(CASE
        WHEN id IS NULL OR payload IS NULL THEN 'a job has an id and a payload'
        WHEN octet_length(id) NOT BETWEEN 1 AND 36 OR id ~ '[^[:ascii:]]'
            THEN 'the id of a job has 1 to 36 ASCII characters'
        WHEN octet_length(payload) > 262144 THEN 'a payload has at most 262,144 bytes'
        ELSE json_fault(payload, 'a payload is')
    END);
    RETURN id;
END $$;

-- The queue of a put, its due time, and the id of a job, if they are sound. These are part of each statement
-- that uses them, so that what is sound costs no call. What is short cannot be nested deep, nor have many
-- tags, and is not looked into.
CREATE FUNCTION sound_names(queue text, task text, version integer) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN octet_length(queue) BETWEEN 1 AND 128 AND octet_length(task) BETWEEN 1 AND 128
                 AND version >= 1
                THEN queue ELSE check_names(queue, task, version) END
$$;
CREATE FUNCTION sound_terms(options text, run_at bigint, head_start bigint, expires_at bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN head_start BETWEEN -86400000000 AND 86400000000
                 AND run_at BETWEEN 0 AND 1152921504606846976
                 AND run_at - head_start <= 1152921504606846976
                 AND coalesce(expires_at, 0) BETWEEN 0 AND 1152921504606846976
                 AND coalesce(octet_length(options), 0) < 130
                THEN run_at ELSE check_terms(options, run_at, head_start, expires_at) END
$$;
CREATE FUNCTION sound_job(id text, payload text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN octet_length(id) BETWEEN 1 AND 36 AND char_length(id) = octet_length(id)
                 AND (octet_length(payload) < 130
                      OR octet_length(payload) <= 262144
                         AND octet_length(payload)
                             - octet_length(replace(replace(payload, '[', ''), '{', '')) <= 64)
                THEN id ELSE check_job(id, payload) END
$$;

-- Payloads and options are texts. What else JSON can hold is written out when it is read as one, and a
-- number of eight characters may have as many digits as a payload has room for.
CREATE FUNCTION no_text(told jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM refuse_put('the payload and the options of a job are texts, with JSON in them');
END $$;
CREATE FUNCTION text_of(told jsonb) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN coalesce(jsonb_typeof(told), 'null') IN ('string', 'null') THEN told #>> '{}'
                ELSE no_text(told) END
$$;
CREATE FUNCTION texts_of(list jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN list @? 'strict $[*] ? (@.type() != "string")'
                THEN no_text(list)::jsonb ELSE list END
$$;

-- A put tells of one job, or of kinds of jobs that are alike: [queue, task, version, id, payload] and, if it
-- has terms, [options, run_at, delay, priority, expires_at, expires_in] behind that. A kind has lists
-- in place of the id and the payload.

-- When such jobs fall due and expire, by how much they are ahead, and where they wait. An instant in the
-- past is now: else it would be a head start of more than a day.
CREATE FUNCTION told_due_at(told jsonb, at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT greatest(at, coalesce((told->>6)::bigint, at + (told->>7)::bigint)) $$;
CREATE FUNCTION told_head_start(told jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce((told->>8)::bigint * 1000000, 0) $$;
CREATE FUNCTION told_expires_at(told jsonb, at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce(at + (told->>10)::bigint, (told->>9)::bigint) $$;
CREATE FUNCTION parked_at(run_at bigint, head_start bigint, at bigint) RETURNS smallint LANGUAGE sql
IMMUTABLE
AS $$
    SELECT (CASE WHEN run_at > at THEN 1 WHEN run_at - head_start < at THEN 3 ELSE 0 END)::smallint
$$;

-- The kinds of a put, checked: each is read once, not once for each of its jobs. Paths lead to them, for an
-- arrow would copy all that it leads to.
CREATE FUNCTION kinds(doc jsonb, at bigint) RETURNS TABLE (
    queue text, task text, version integer, options text, parked smallint, run_at bigint,
    order_at bigint, expires_at bigint, put_by text, ids jsonb, payloads jsonb
) LANGUAGE sql STABLE ROWS 10
AS $$
    SELECT sound_names(k.queue, k.task, k.version), k.task, k.version, k.options,
           parked_at(k.run_at, k.head_start, at),
           sound_terms(k.options, k.run_at, k.head_start, k.expires_at),
           k.run_at - k.head_start, k.expires_at, k.put_by, k.ids, k.payloads
    FROM (
        SELECT kind->>0 AS queue, kind->>1 AS task, (kind->>2)::integer AS version,
               text_of(kind->5) AS options, told_due_at(kind, at) AS run_at,
               told_head_start(kind) AS head_start, told_expires_at(kind, at) AS expires_at,
               session_user::text AS put_by, kind->3 AS ids, texts_of(kind->4) AS payloads
        FROM jsonb_path_query(doc, '$.kinds[*]') AS kind
        OFFSET 0
    ) AS k
    OFFSET 0
$$;

-- The jobs of a put, checked one by one: an id that is a number is written out, and refused, before the next
-- is. If there are more ids than payloads, or fewer, the rest lacks one of the two.
CREATE FUNCTION given(doc jsonb, at bigint) RETURNS TABLE (
    id text, queue text, task text, version integer, parked smallint, run_at bigint, order_at bigint,
    expires_at bigint, payload text, options text, put_by text
) LANGUAGE sql STABLE ROWS 1000
AS $$
    SELECT sound_job(j.id, j.payload), queue, task, version, parked, run_at, order_at, expires_at,
           j.payload, options, put_by
    FROM kinds(doc, at) CROSS JOIN LATERAL (
        SELECT ids->>n AS id, payloads->>n AS payload
        FROM generate_series(
            0, greatest(jsonb_array_length(ids), jsonb_array_length(payloads)) - 1
        ) AS n
        OFFSET 0
    ) AS j
$$;

-- The ids of a put, and the first place that it tells of.
CREATE FUNCTION ids_of(doc jsonb) RETURNS SETOF text LANGUAGE sql IMMUTABLE ROWS 1000
AS $$
    SELECT id FROM jsonb_path_query(doc, '$.kinds[*][3]') AS ids
    CROSS JOIN jsonb_array_elements_text(ids) AS id
    UNION ALL
    SELECT doc #>> '{job,3}' WHERE doc ? 'job'
$$;
CREATE FUNCTION place_of(doc jsonb, at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$
    SELECT min(told_due_at(told, at) - told_head_start(told)) FROM (
        SELECT jsonb_path_query(doc, 'strict $.kinds[*] ? (exists(@[3][0]))', '{}', true) AS told
        UNION ALL
        SELECT doc->'job' WHERE doc ? 'job'
    ) AS each
$$;

-- Whether an id has the shape of those that we make. Those say when they were made, by their first
-- eight digits to the minute.
CREATE FUNCTION is_shaped(id text) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$ SELECT id LIKE '________-____-7%' $$;
CREATE FUNCTION is_dated(id text) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$ SELECT id ~ '^[0-9a-f]{8,8}-' $$;
CREATE FUNCTION made_at(id text) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT ('x' || left(id, 8))::bit(32)::bigint * 65536000 $$;

-- Refuse what says that it was made more than a day from now. We rely on dates within a day: a day after it
-- had ended such a job would not be known any more.
CREATE FUNCTION check_date(id text, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF made_at(id) > greatest(at, stamp()) + 86400000000 THEN
        PERFORM refuse_put('the id of a job says that it was made more than a day from now; set the clock '
                           'of the machine that puts it');
    END IF;
END $$;

-- Take back those jobs of a put that ended before, and say which they are. Fresh are those that were added
-- just now; null if all were. Looked for after the rows are there: what is put a second time while its first
-- put is on its way cannot slip through in between. If every id says when it was made, none of them ended
-- before the first was, if the clocks agree by a day; all that lie between two with the same digits have
-- these too. Mostly none has ended, nor any other of their time, which is one look however many they are.
CREATE FUNCTION take_back(
    doc jsonb, fresh text[], low text, high text, shaped boolean, at bigint
) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    earliest bigint  := 0;
    dated    boolean := shaped AND is_dated(low);
    made     bigint;
    known    text[];
BEGIN
    IF dated AND left(low, 9) <> left(high, 9) THEN
        dated := NOT EXISTS (SELECT FROM ids_of(doc) AS id WHERE NOT is_dated(id));
    END IF;
    IF dated THEN
        made := made_at(low);
        earliest := least(at, made) - 86400000000;
        IF high > low THEN
            made := made_at(high);
        END IF;
        IF made > at THEN
            PERFORM check_date(high, at);
        END IF;
    ELSIF high > low THEN
        PERFORM check_date(id, at) FROM ids_of(doc) AS id WHERE is_shaped(id) AND is_dated(id);
    END IF;
    IF NOT EXISTS (
        SELECT FROM dead WHERE id BETWEEN low AND high
        UNION ALL
        SELECT FROM finished WHERE id BETWEEN low AND high AND finished_at >= earliest
    ) THEN
        RETURN NULL;
    END IF;
    fresh := coalesce(fresh, ARRAY(SELECT ids_of(doc)));
    SELECT array_agg(id) INTO known FROM (
        SELECT id FROM dead WHERE id = ANY (fresh)
        UNION ALL
        SELECT id FROM finished WHERE id = ANY (fresh) AND finished_at >= earliest
                                  AND finished_at >= (SELECT since FROM kept)
    ) AS ended;
    IF known IS NOT NULL THEN
        DELETE FROM job WHERE id = ANY (known);
    END IF;
    RETURN known;
END $$;

-- Add one job, and return its place; null if its id is known. Most puts are of one, and most of those
-- have no terms: what is not told is neither read nor checked.
CREATE FUNCTION add_one(told jsonb, at bigint) RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    queue_   text    := told->>0;
    task_    text    := told->>1;
    version_ integer := told->>2;
    payload_ text    := text_of(told->4);
    due      bigint  := at;
    ahead    bigint  := 0;
    expiry   bigint;
    options_ text;
    place    bigint;
BEGIN
    IF told->5 IS NOT NULL THEN
        options_ := text_of(told->5);
        ahead := told_head_start(told);
        expiry := told_expires_at(told, at);
        due := sound_terms(options_, told_due_at(told, at), ahead, expiry);
    END IF;
    INSERT INTO job
        (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, payload,
         options, put_by)
    VALUES (
        sound_job(told->>3, payload_), sound_names(queue_, task_, version_), task_, version_,
        parked_at(due, ahead, at), due, due - ahead, expiry, at, payload_, options_, session_user
    )
    ON CONFLICT (id) DO NOTHING RETURNING order_at INTO place;
    RETURN place;
END $$;

-- Add the jobs of a put as if all were new, which is twice as quick, and say whether they are.
CREATE FUNCTION add_all(doc jsonb, at bigint) RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO job
        (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, payload,
         options, put_by)
    SELECT id, queue, task, version, parked, run_at, order_at, expires_at, at, payload, options, put_by
    FROM given(doc, at);
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false;
END $$;

-- Adds jobs. Our own connections and the application's call it alike. Of many jobs a put says how many.
-- One whose ids somebody else may be putting says for how many milliseconds it may wait for that.
-- Returns null if all jobs are new, else the ids of those that are. To a producer what another user
-- put is new: the answer is the same whether there is such a job or not.
CREATE FUNCTION put(batch text) RETURNS text LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    doc    jsonb   := document(batch, 'JQ002');
    at     bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    asked  integer := 1;
    had    integer;
    place  bigint;
    low    text;
    high   text;
    shaped boolean;
    fresh  text[]; -- The jobs that were added; null if all were.
    known  text[];
BEGIN
    IF doc ? 'wait' THEN
        PERFORM set_config('lock_timeout', doc->>'wait', true);
    END IF;
    IF doc ? 'job' THEN
        IF doc ? 'kinds' THEN
            PERFORM refuse_put('a put has a job or kinds, not both');
        END IF;
        place := add_one(doc->'job', at);
        low := doc #>> '{job,3}';
        high := low;
        shaped := is_shaped(low);
        IF place IS NULL THEN
            fresh := '{}';
        END IF;
    ELSE
        asked := (doc->>'count')::integer;
        IF asked IS NULL OR (doc @? 'strict $.kinds ? (@.type() == "array")') IS NOT TRUE THEN
            PERFORM refuse_put('a put has a job, or kinds and a count');
        END IF;
        -- Not if they are few: the try is a transaction in that of a caller, who may put often in it.
        IF asked >= 50 AND add_all(doc, at) THEN
            SELECT min(id COLLATE "C"), max(id COLLATE "C"), bool_and(is_shaped(id)), count(*)
            INTO low, high, shaped, had
            FROM ids_of(doc) AS id;
        ELSE
            WITH added AS (
                INSERT INTO job
                    (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at,
                     payload, options, put_by)
                SELECT id, queue, task, version, parked, run_at, order_at, expires_at, at, payload,
                       options, put_by
                FROM given(doc, at)
                ON CONFLICT (id) DO NOTHING RETURNING id, order_at
            )
            SELECT coalesce(array_agg(id), '{}'), min(id), max(id), bool_and(is_shaped(id)),
                   min(order_at)
            INTO fresh, low, high, shaped, place
            FROM added;
            SELECT count(*) INTO had FROM ids_of(doc);
            IF cardinality(fresh) = had THEN
                fresh := NULL;
            END IF;
        END IF;
        IF had <> asked THEN
            PERFORM refuse_put(
                format('a put says how many jobs it has: it has %s, not %s', had, asked)
            );
        END IF;
    END IF;
    known := take_back(doc, fresh, low, high, shaped, at);
    IF doc ? 'tell' THEN
        IF place IS NULL OR fresh IS NOT NULL THEN
            place := place_of(doc, at);
        END IF;
        PERFORM pg_notify(current_schema(), concat(doc->>'tell', ' ', place));
    END IF;
    IF coalesce(fresh, known) IS NULL THEN
        RETURN NULL;
    END IF;
    fresh := coalesce(fresh, ARRAY(SELECT ids_of(doc)));
    fresh := ARRAY(SELECT unnest(fresh) EXCEPT SELECT unnest(known));
    IF NOT sees_all() THEN
        fresh := fresh || ARRAY(
            SELECT id FROM (SELECT ids_of(doc) AS id EXCEPT SELECT unnest(fresh)) AS other
            WHERE is_own(id) IS NOT TRUE
        );
    END IF;
    -- By their ids: an order of ours would tell which of them are there.
    RETURN CASE WHEN cardinality(fresh) < asked
                THEN to_json(ARRAY(SELECT unnest(fresh) COLLATE "C" ORDER BY 1))::text END;
END $$;

-- Let jobs whose time has come into the order; their place is kept. Returns the queue of each. A damaged
-- one may not fit into the index there.
CREATE FUNCTION promote(at bigint, most integer) RETURNS text[] LANGUAGE plpgsql
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
CREATE FUNCTION bring_back(known jsonb, most integer) RETURNS text[] LANGUAGE plpgsql
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

-- Cancel waiting jobs: the caller has locked them.
CREATE FUNCTION call_off(ids text[], why text, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM day WHERE first = at / 86400000000 * 86400000000) THEN
        PERFORM open_day(at);
    END IF;
    WITH gone AS MATERIALIZED (
        SELECT * FROM mended WHERE id = ANY (ids)
    ), removed AS (
        DELETE FROM job WHERE id = ANY (ids)
    )
    INSERT INTO finished
        (id, queue, task, version, state, run_at, order_at, expires_at, enqueued_at, payload,
         options, attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, result,
         put_by)
    SELECT sound_id(id), sound_name(queue), sound_name(task), version, 'cancelled', run_at, order_at,
           expires_at, enqueued_at, payload, options, attempt, crashes, instant(fence), worker,
           claimed_at, errors, at, why, NULL, put_by
    FROM gone;
END $$;

CREATE FUNCTION expire(at bigint, most integer) RETURNS integer LANGUAGE plpgsql
AS $$
DECLARE
    ids text[] := ARRAY(
        SELECT id FROM job WHERE expires_at BETWEEN 0 AND at AND lease_until = 0
        ORDER BY expires_at LIMIT most FOR UPDATE SKIP LOCKED
    );
BEGIN
    IF cardinality(ids) > 0 THEN
        PERFORM call_off(ids, 'expired', at);
    END IF;
    RETURN cardinality(ids);
END $$;

-- See to what fell due, is known again, or expired. Mostly there is none of it, and to ask is cheap.
-- Returns the queues that have jobs again.
CREATE FUNCTION look_after(known jsonb, most integer, at bigint) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    stirred text[] := '{}';
    due     boolean;
    unknown boolean;
    expired boolean;
BEGIN
    SELECT EXISTS (SELECT FROM job WHERE parked = 1 AND run_at <= at),
           EXISTS (SELECT FROM job WHERE parked = 2),
           EXISTS (SELECT FROM job WHERE expires_at BETWEEN 0 AND at AND lease_until = 0)
    INTO due, unknown, expired;
    IF due THEN
        stirred := promote(at, most);
    END IF;
    IF unknown THEN
        stirred := stirred || bring_back(known, most);
    END IF;
    IF expired THEN
        PERFORM expire(at, most);
    END IF;
    RETURN ARRAY(SELECT DISTINCT unnest(stirred));
END $$;

CREATE TYPE claimed AS (
    id text, task text, version integer, queue text, payload text, options text, attempt integer,
    crashes integer, fence bigint, run_at bigint, enqueued_at bigint, expires_at bigint,
    claimed_at bigint, lease_until bigint, worker text, lost boolean, shared_deaths integer,
    order_at bigint, aside boolean
);

-- A queue that a claim asks for: what the rule needs of it; how many jobs it is asked for ("want"), how many
-- were found that may start ("had"), and how many of those out of turn ("beside"); how many there are at
-- most, once that is known; and the place in its order after which the walk along it begins. With "look"
-- that place is its mark, and jobs out of turn are taken in; "resumed" says that an earlier claim stopped there.
-- "places" are those of the jobs that were found, if they are locked already.
CREATE TYPE stretch AS (
    name text, weight float8, debt float8, reserve integer, critical boolean,
    want integer, had integer, beside integer, most integer, gates integer, bytes bigint,
    from_at bigint, from_id text, look boolean, resumed boolean, mark bigint,
    first_at bigint, upto_at bigint, places tid[]
);

-- Where to begin in the order of a queue that nothing is remembered of.
CREATE FUNCTION mark_of(name_ text, since bigint, at bigint) RETURNS bigint LANGUAGE sql STABLE
AS $$ SELECT least(mark, since) FROM queue WHERE name = name_ AND mark <= at $$;

-- The queues of a plan. told: [name, weight, debt, reserve, critical, want, after_at, after_id, resumed];
-- what is left out at the end has the usual value.
CREATE FUNCTION lines(told jsonb, since bigint, at bigint) RETURNS stretch[] LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ARRAY(
        SELECT ROW(
            q->>0, coalesce((q->>1)::float8, 1), coalesce((q->>2)::float8, 0),
            least(coalesce((q->>3)::integer, 0), 1000000), coalesce((q->>4)::boolean, false),
            CASE WHEN is_paused THEN 0 ELSE coalesce((q->>5)::integer, 0) END, 0, 0,
            CASE WHEN is_paused THEN 0 END, 0, 0,
            coalesce((q->>6)::bigint, low, -9223372036854775808), coalesce(q->>7, ''),
            is_paused OR q->>7 IS NULL OR q->>8 IS NOT NULL, q->>8 IS NOT NULL AND NOT is_paused, low,
            NULL, 9223372036854775807, NULL
        )::stretch
        FROM jsonb_array_elements(told) AS q
        CROSS JOIN LATERAL (
            SELECT CASE WHEN q->>7 IS NULL THEN mark_of(q->>0, since, at) END AS low,
                   EXISTS (SELECT FROM paused WHERE paused.queue = q->>0) AS is_paused
            OFFSET 0
        ) AS begin
    );
END $$;

-- Those of some queues that have a job which no lease keeps, whatever gate it is behind.
CREATE FUNCTION awake(told jsonb, since bigint, at bigint) RETURNS stretch[] LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ARRAY(
        SELECT l::stretch FROM unnest(lines(told, since, at)) AS l
        WHERE l.most IS NULL AND (
            EXISTS (SELECT FROM job
                    WHERE parked = 0 AND queue = l.name AND (order_at, id) > (l.from_at, '')
                      AND lease_until <= at)
            OR EXISTS (SELECT FROM job WHERE parked = 3 AND queue = l.name AND lease_until <= at)
        )
    );
END $$;

-- The next jobs of a queue that no lease keeps, in order, each with its closed gate, if there is one. It
-- becomes a part of the statement that asks.
CREATE FUNCTION walk(
    line text, from_at bigint, from_id text, look boolean, resumed boolean, at bigint, spare boolean,
    able jsonb, most integer
) RETURNS TABLE (
    id text, order_at bigint, aside boolean, shut text, size integer, task text, version integer
) LANGUAGE sql STABLE
AS $$
    SELECT * FROM (
        (SELECT job.id, job.order_at, false,
                gate(job.id, queue, job.task, job.version, run_at, job.order_at, expires_at, enqueued_at,
                     attempt, crashes, fence, lease_until, worker, claimed_at, at, spare, able),
                octet_length(payload) + coalesce(octet_length(options), 0), job.task, job.version
         FROM job
         WHERE parked = 0 AND queue = line
           AND (job.order_at, job.id) > (from_at, from_id) AND lease_until <= at
         ORDER BY job.order_at, job.id LIMIT most)
        UNION ALL
        (SELECT job.id, job.order_at, true,
                gate(job.id, queue, job.task, job.version, run_at, job.order_at, expires_at, enqueued_at,
                     attempt, crashes, fence, lease_until, worker, claimed_at, at, spare, able),
                octet_length(payload) + coalesce(octet_length(options), 0), job.task, job.version
         FROM job
         WHERE look AND parked = 3 AND queue = line AND lease_until <= at
           AND (NOT resumed OR (job.order_at, job.id) > (from_at, from_id))
         ORDER BY job.order_at, job.id LIMIT most)
    ) AS next
    ORDER BY 2, 1 LIMIT most
$$;

-- Ask each queue that should give another number of jobs than it has: the walks along all of them are one
-- statement. What is behind a gate is counted with the others, and told apart by "gates". Where a claim goes
-- on after the last, gates are not expected, and jobs are locked as they are found; else they are locked when
-- it is known which of them start.
CREATE FUNCTION ask(lines stretch[], at bigint, spare boolean, able jsonb) RETURNS stretch[]
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ARRAY(
        SELECT CASE WHEN want = l.had THEN l::stretch ELSE ROW(
            name, weight, debt, reserve, critical, want, w.had + v.had, w.beside, most,
            w.gates + v.gates, w.bytes + v.bytes, from_at, from_id, look, resumed, mark, w.first_at,
            9223372036854775807, CASE WHEN NOT look THEN v.places END
        )::stretch END
        FROM unnest(lines) AS l
        CROSS JOIN LATERAL (
            SELECT count(*)::integer AS had, (count(*) FILTER (WHERE aside))::integer AS beside,
                   count(shut)::integer AS gates, coalesce(sum(size), 0) AS bytes,
                   min(order_at) FILTER (WHERE NOT aside) AS first_at
            FROM walk(l.name, l.from_at, l.from_id, l.look, l.resumed, at, spare, able,
                      CASE WHEN look AND want <> l.had THEN want ELSE 0 END)
        ) AS w
        CROSS JOIN LATERAL (
            SELECT count(*)::integer AS had, count(shut)::integer AS gates,
                   coalesce(sum(size), 0) AS bytes, array_agg(place) AS places
            FROM (
                SELECT ctid AS place, octet_length(payload) + coalesce(octet_length(options), 0) AS size,
                       gate(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                            crashes, fence, lease_until, worker, claimed_at, at, spare, able) AS shut
                FROM job
                WHERE parked = 0 AND queue = l.name AND (order_at, id) > (l.from_at, l.from_id)
                  AND lease_until <= at
                ORDER BY order_at, id LIMIT CASE WHEN look OR want = l.had THEN 0 ELSE want END
                FOR UPDATE SKIP LOCKED
            ) AS locked
        ) AS v
    );
END $$;

-- Say how many jobs each queue is asked for, if all of which that is not known have enough.
--
-- Weighted round robin with credit: the next is always the queue that owes least, and each turn
-- adds 1/weight to what its queue owes. So a queue has its n-th turn at debt + (n-1)/weight,
-- and the first turns fill the slots. Of turns at the same time, that one is first whose queue had its last
-- turn before the other's; who had none in this claim stands in the order of the lines. Critical queues go first. Their reserves are
-- their own; beyond those they have their part of the shared slots. Of the others no more have a turn than
-- there are slots, and none after the instant at which those that have enough have filled them. So few turns
-- are ranked, however many queues there are.
CREATE FUNCTION share_out(lines stretch[], shared integer, critical_share integer, per_turn integer)
RETURNS stretch[] LANGUAGE plpgsql
AS $$
DECLARE
    wants integer[] := array_fill(0, ARRAY[cardinality(lines)]);
    each  record;
BEGIN
    FOR each IN
        WITH numbered AS MATERIALIZED (
            SELECT row_number() OVER () AS place, weight, debt, reserve, critical, most
            FROM unnest(lines) AS l
        ), line AS MATERIALIZED (
            SELECT *, max(debt) OVER kind + shared / sum(weight) FILTER (WHERE most IS NULL) OVER kind
                      AS last_turn
            FROM (
                SELECT *, row_number() OVER (PARTITION BY critical ORDER BY debt, place) AS rank
                FROM numbered WHERE most IS DISTINCT FROM 0
            ) AS ordered
            WHERE critical OR rank <= shared
            WINDOW kind AS (PARTITION BY critical)
        ), ranked AS MATERIALIZED (
            SELECT place, critical, critical AND n <= reserve AS reserved,
                   row_number() OVER (
                       PARTITION BY critical, critical AND n <= reserve
                       ORDER BY debt + past::float8 / weight,
                                CASE WHEN past > 0 THEN debt + (past - 1)::float8 / weight END NULLS FIRST,
                                past, place
                   ) AS turn
            FROM line CROSS JOIN LATERAL generate_series(1, least(most, CASE
                WHEN critical THEN reserve + least(shared, critical_share)
                ELSE least(shared, per_turn * (floor((last_turn - debt) * weight)::integer + 2)) END)) AS n
            CROSS JOIN LATERAL (SELECT (n - 1) / per_turn AS past) AS before
        ), preferred AS MATERIALIZED (
            SELECT place, reserved FROM ranked
            WHERE critical AND (reserved OR turn <= least(shared, critical_share))
        ), chosen AS (
            SELECT place FROM preferred
            UNION ALL
            SELECT place FROM ranked
            WHERE NOT critical
              AND turn <= shared - (SELECT count(*) FROM preferred WHERE NOT reserved)
        )
        SELECT place, count(*)::integer AS jobs FROM chosen GROUP BY place
    LOOP
        wants[each.place] := each.jobs;
    END LOOP;
    RETURN ARRAY(
        SELECT ROW(
            name, weight, debt, reserve, critical, wants[place], had, beside, most, gates, bytes,
            from_at, from_id, look, resumed, mark, first_at, upto_at, places
        )::stretch
        FROM (SELECT l.*, row_number() OVER () AS place FROM unnest(lines) AS l) AS numbered
    );
END $$;

-- Note where the order of some queues begins to hold live jobs, after looks along them. Puts that are being
-- committed just now may still appear before the last one, so a mark stays behind: a minute or two, if that
-- costs little, else two seconds. What appears later still is told of when it is committed, and
-- found by upkeep if the news is lost.
CREATE FUNCTION move_marks(lines stretch[], at bigint, slow boolean) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    behind   bigint := CASE WHEN slow THEN 2000000 ELSE 60000000 END;
    line     record;
    found_at bigint;
BEGIN
    FOR line IN
        SELECT name, mark FROM unnest(lines) AS l
        WHERE look AND NOT resumed
          AND (mark IS NULL OR mark <= at - CASE WHEN slow THEN 3000000 ELSE 120000000 END)
        ORDER BY name
    LOOP
        SELECT order_at INTO found_at FROM job
        WHERE parked = 0 AND queue = line.name
          AND (order_at, id) > (coalesce(line.mark, -9223372036854775808), '')
        ORDER BY order_at, id LIMIT 1;
        found_at := least(coalesce(found_at, at), at - behind);
        IF line.mark IS NULL THEN
            INSERT INTO queue VALUES (line.name, found_at) ON CONFLICT (name) DO NOTHING;
        END IF;
        UPDATE queue SET mark = found_at WHERE ctid = (
            SELECT ctid FROM queue WHERE name = line.name AND mark <> found_at FOR UPDATE SKIP LOCKED
        );
    END LOOP;
END $$;

-- Whether work on so many queues took longer than it should, as it does where dead entries are many.
CREATE FUNCTION is_slow(began timestamptz, queues integer) RETURNS boolean LANGUAGE sql VOLATILE
AS $$ SELECT clock_timestamp() - began > interval '5 ms' + queues * interval '0.1 ms' $$;

-- See to what is not in the order, and ask which of the rest of a plan's queues are awake.
CREATE FUNCTION look_round(doc jsonb, able jsonb, at bigint, OUT stirred text[], OUT others stretch[])
LANGUAGE plpgsql
AS $$
DECLARE
    since bigint := (doc->>'since')::bigint;
    began timestamptz;
BEGIN
    stirred := look_after(able, (doc->>'batch')::integer, at);
    began := clock_timestamp();
    others := awake(doc->'rest', since, at);
    IF is_slow(began, jsonb_array_length(doc->'rest')) THEN
        PERFORM move_marks(lines(doc->'rest', since, at), at, true);
    END IF;
END $$;

-- Go along a queue job by job, because there are gates, or too many bytes: up to the jobs that are wanted,
-- to the bytes, and to the steps over jobs behind gates. "stopped" is the place where it was broken off, if jobs
-- were stepped over before. Jobs whose task another live worker knows stay where they are; the strange ones
-- may be left out.
CREATE FUNCTION step(
    INOUT line stretch, at bigint, spare boolean, able jsonb, steps integer, most_size bigint,
    OUT strange text[], OUT damaged text[], OUT stepped integer, OUT stopped jsonb, OUT ample boolean
) LANGUAGE plpgsql
AS $$
DECLARE
    head  record;
    known jsonb := '{}';
    kind  text;
BEGIN
    strange := '{}';
    damaged := '{}';
    stepped := 0;
    ample := false;
    line.had := 0;
    line.beside := 0;
    line.gates := 0;
    line.bytes := 0;
    line.places := NULL;
    FOR head IN
        SELECT * FROM walk(line.name, line.from_at, line.from_id, line.look, line.resumed, at, spare, able,
                           line.want + steps)
    LOOP
        IF head.shut IS NULL THEN
            line.had := line.had + 1;
            line.beside := line.beside + head.aside::integer;
            line.bytes := line.bytes + head.size;
            ample := line.bytes >= most_size AND line.had < line.want;
        ELSE
            stepped := stepped + 1;
            IF head.shut = 'no_capable_worker' THEN
                kind := concat(head.version, ' ', head.task);
                IF NOT known ? kind THEN
                    known := known || jsonb_build_object(kind, is_known(head.task, head.version, at));
                END IF;
                IF NOT (known->kind)::boolean THEN
                    strange := strange || head.id;
                END IF;
            ELSIF head.shut = 'unreadable' THEN
                damaged := damaged || head.id;
            END IF;
        END IF;
        line.upto_at := head.order_at;
        IF line.had = line.want OR stepped = steps OR ample THEN
            stopped := CASE WHEN stepped > 0 THEN jsonb_build_array(head.order_at, head.id) END;
            EXIT;
        END IF;
    END LOOP;
    IF ample THEN
        line.want := line.had;
    ELSIF stepped = steps THEN
        line.most := line.had;
    END IF;
END $$;

-- A queue as it is asked from its mark.
CREATE FUNCTION afresh(line stretch, since bigint, at bigint) RETURNS stretch LANGUAGE plpgsql STABLE
AS $$
BEGIN
    line.look := true;
    line.resumed := false;
    line.mark := mark_of(line.name, since, at);
    line.from_at := coalesce(line.mark, -9223372036854775808);
    line.from_id := '';
    line.had := 0;
    line.beside := 0;
    line.bytes := 0;
    line.places := NULL;
    RETURN line;
END $$;

-- A queue that had less than was wanted, as it is asked again: from its mark; or no more, if it was, and
-- nothing has come into it since.
CREATE FUNCTION again(line stretch, stirred text[], since bigint, at bigint) RETURNS stretch
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF line.had < line.want THEN
        IF NOT line.look OR line.name = ANY (stirred) THEN
            RETURN afresh(line, since, at);
        END IF;
        line.most := line.had;
        line.want := line.had;
    END IF;
    RETURN line;
END $$;

-- Lease the next jobs of some queues, by the rule of core/selection.py.
--
-- queues: those whose turn it is, see lines, each with the number of jobs it is asked for; rest: others
-- that may be asked for what those leave. "shared" and "critical" are the slots they have in common. A claim
-- goes along the order of each queue from the place its worker remembers: nothing before it is free, or so
-- the worker believes. If the worker remembers none, it begins at the queue's mark; or before it, where it
-- heard that a job was put ("since").
--
-- It goes along the queues first and counts what may start, up to the number that is wanted and to the
-- "bytes", stepping over at most "steps" jobs behind gates of each. If some have less than is wanted, or if the
-- worker wants it ("look"), it looks for itself: it sees to what fell due, expired or is known again,
-- begins at the marks, and asks the rest. What is left then is shared out again, until the slots or the jobs run
-- out. How many of each queue start is the rule's; that many are locked and leased then, without waiting for
-- anybody.
--
-- The first row has no id: its payload tells the time; the kinds of jobs that were parked; the queues with jobs
-- behind gates, each with the number of those and the place where the walk was broken off, if it was; the queues
-- that were gone through to the end; those of the rest that have jobs; the queues in which something fell due
-- or is known again; whether it looked, how many microseconds it took, and whether it ended early.
CREATE FUNCTION claim(plan text) RETURNS SETOF claimed LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    doc       jsonb   := document(plan);
    at        bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    term      bigint  := (doc->>'lease')::bigint;
    who       text    := doc->>'worker';
    steps     integer := (doc->>'steps')::integer;
    -- No pool has more slots than this, and to share out more would take long.
    shared    integer := least((doc->>'shared')::integer, 1000000);
    preferred integer := least((doc->>'critical')::integer, 1000000);
    per_turn  integer := least(greatest(coalesce((doc->>'per_turn')::integer, 1), 1), 1000);
    most_size bigint  := (doc->>'bytes')::bigint;
    able      jsonb   := nullif(doc->'capable', 'null');
    spare     boolean := (doc->>'spare')::boolean
                         OR coalesce(at - (doc->>'asked_at')::bigint >= term / 2, false);
    started   timestamptz := clock_timestamp();
    began     timestamptz;
    heard     bigint      := (doc->>'since')::bigint;
    asked     stretch[]   := lines(doc->'queues', heard, at);
    others    stretch[]   := '{}';  -- Those of the rest that are awake.
    short     boolean := EXISTS (SELECT FROM unnest(asked) WHERE most = 0);
    looked    boolean := false;
    size      bigint;
    wanted    bigint;
    gates     boolean;
    cut       boolean := false;
    ample     boolean := false;
    line      stretch;
    way       record;
    strange   text[]  := '{}';
    damaged   text[]  := '{}';
    gated     jsonb   := '{}';
    stirred   text[]  := '{}';
    fresh     text[];
BEGIN
    -- A run without a worker, or with such a lease, is damaged: it would cost others their jobs.
    IF coalesce(octet_length(who), 0) NOT BETWEEN 1 AND 1000
        OR coalesce(term, -1) NOT BETWEEN 0 AND 31622400000000
    THEN
        RAISE 'a claim names its worker, in up to 1,000 bytes, and a lease of 0 s to 366 days'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (doc->>'look')::boolean OR short OR cardinality(asked) = 0 THEN
        SELECT * INTO stirred, others FROM look_round(doc, able, at);
        looked := true;
        asked := ARRAY(
            SELECT CASE WHEN resumed AND name = ANY (stirred)
                        THEN afresh(l::stretch, heard, at) ELSE l::stretch END
            FROM unnest(asked) AS l
        ) || others;
    END IF;
    LOOP
        IF cardinality(others) > 0 OR short AND cardinality(asked) > 1 THEN
            asked := share_out(asked, shared, preferred, per_turn);
        END IF;
        EXIT WHEN ample OR NOT EXISTS (SELECT FROM unnest(asked) AS l WHERE want <> had);
        began := clock_timestamp();
        asked := ask(asked, at, spare, able);
        IF looked THEN
            PERFORM move_marks(asked, at, is_slow(began, cardinality(asked)));
        END IF;
        SELECT bool_or(l.gates > 0), sum(l.bytes), sum(want), bool_or(had < want)
        INTO gates, size, wanted, short
        FROM unnest(asked) AS l;
        IF gates OR size >= most_size THEN
            short := false;
            FOR i IN 1..cardinality(asked) LOOP
                line := asked[i];
                IF line.gates > 0 OR size >= most_size AND line.had > 0 THEN
                    way := step(line, at, spare, able, steps, greatest(1, most_size * line.want / wanted));
                    asked[i] := way.line;
                    strange := strange || way.strange;
                    damaged := damaged || way.damaged;
                    ample := ample OR way.ample;
                    cut := cut OR way.ample OR way.stepped = steps;
                    IF way.stepped > 0 THEN
                        gated := gated || jsonb_build_object(
                            line.name, jsonb_build_array(way.stepped, way.stopped)
                        );
                    END IF;
                END IF;
                short := short OR (asked[i]).had < (asked[i]).want;
            END LOOP;
        END IF;
        EXIT WHEN NOT short;
        fresh := '{}';
        IF NOT looked THEN
            SELECT * INTO stirred, others FROM look_round(doc, able, at);
            looked := true;
            fresh := stirred;
            asked := asked || others;
        END IF;
        asked := ARRAY(
            SELECT again(l::stretch, fresh, heard, at) FROM unnest(asked) AS l
        );
    END LOOP;
    IF cardinality(damaged) > 0 THEN
        PERFORM bury(damaged, at);
    END IF;
    RETURN NEXT ROW(
        NULL, NULL, NULL, NULL, jsonb_build_array(
            at, leave_out(strange, at), gated,
            ARRAY(SELECT name FROM unnest(asked)
                  WHERE most IS NOT NULL AND look AND coalesce(gated->name->1, 'null') = 'null'),
            ARRAY(SELECT name FROM unnest(others)), stirred, looked,
            (date_part('epoch', clock_timestamp() - started) * 1000000)::bigint, cut
        )::text,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    )::claimed;
    IF NOT EXISTS (SELECT FROM unnest(asked) WHERE had > 0) THEN
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE job SET
        fence = greatest(job.fence + 1, at),
        attempt = job.attempt + (job.lease_until = 0)::integer,
        worker = CASE WHEN job.lease_until = 0 THEN who ELSE job.worker END,
        claimed_at = CASE WHEN job.lease_until = 0 THEN at ELSE job.claimed_at END,
        lost = job.lease_until > 0,
        lease_until = at + term
    WHERE ctid = ANY (
        ARRAY(SELECT unnest(places) FROM unnest(asked)) || ARRAY(
            SELECT chosen.ctid FROM unnest(asked) AS l
            CROSS JOIN LATERAL (
                SELECT ctid FROM job
                -- Whatever the walk went over before the first of them need not be gone over again.
                WHERE parked = 0 AND queue = l.name
                  AND (order_at, id) > (greatest(l.first_at, l.from_at),
                                        CASE WHEN l.first_at > l.from_at THEN '' ELSE l.from_id END)
                  AND order_at <= l.upto_at AND lease_until <= at
                  AND gate(id, queue, task, version, run_at, order_at, expires_at, enqueued_at,
                           attempt, crashes, fence, lease_until, worker, claimed_at, at, spare,
                           able) IS NULL
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
                           attempt, crashes, fence, lease_until, worker, claimed_at, at, spare,
                           able) IS NULL
                ORDER BY order_at, id LIMIT l.beside FOR UPDATE SKIP LOCKED
            ) AS chosen
        )
    )
    RETURNING job.id, job.task, job.version, job.queue, job.payload, job.options, job.attempt,
              job.crashes, job.fence, job.run_at, job.enqueued_at, job.expires_at, job.claimed_at,
              job.lease_until, job.worker, job.lost, deaths(job.shared_deaths), job.order_at,
              job.parked = 3;
END $$;

-- Whether a live worker knows a task in a version.
CREATE FUNCTION is_known(task text, version integer, at bigint) RETURNS boolean LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM worker
        WHERE live_until > at
          AND coalesce(known_version(worker.capable, is_known.task), 0) >= is_known.version
    )
$$;

-- Park jobs whose task no live worker knows, unless one that does has come and taken them meanwhile. A lost
-- run keeps its passed lease, and is claimed as lost when it comes back. Returns for each task, version and queue
-- one of its jobs, and how many they are. Long options are not told: a thousand of them would fill the answer.
CREATE FUNCTION leave_out(ids text[], at bigint) RETURNS jsonb LANGUAGE plpgsql
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

-- Renew leases. runs: [id, fence]. Returns those that are held, whether a person wants them cancelled,
-- and whether they were renewed. A job that somebody has locked cannot be taken over meanwhile, so
-- it counts as held; it is waited for only if that is asked ("patient").
CREATE FUNCTION extend(batch text) RETURNS TABLE (id text, asked boolean, renewed boolean)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    doc   jsonb  := document(batch);
    at    bigint;
    done  text[];
BEGIN
    IF doc ? 'patient' THEN
        PERFORM FROM job WHERE id = doc->'runs'->0->>0 FOR UPDATE;
    END IF;
    at := coalesce(moment((doc->>'at')::bigint), stamp());
    IF coalesce((doc->>'lease')::bigint, -1) NOT BETWEEN 0 AND 31622400000000 THEN
        RAISE 'a lease is of 0 s to 366 days' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WITH kept AS (
        UPDATE job SET lease_until = at + (doc->>'lease')::bigint WHERE ctid = ANY (ARRAY(
            SELECT held.ctid FROM jsonb_array_elements(doc->'runs') AS run
            CROSS JOIN LATERAL (
                SELECT ctid FROM job
                WHERE id = run->>0 AND fence = (run->>1)::bigint AND lease_until > 0
                FOR UPDATE SKIP LOCKED
            ) AS held
        ))
        RETURNING id
    )
    SELECT array_agg(id) INTO done FROM kept;
    RETURN QUERY
    SELECT held.id, held.cancel IS NOT NULL, coalesce(held.id = ANY (done), false)
    FROM jsonb_array_elements(doc->'runs') AS run
    CROSS JOIN LATERAL (
        SELECT id, cancel FROM job
        WHERE id = run->>0 AND fence = (run->>1)::bigint AND lease_until > 0 OFFSET 0
    ) AS held;
END $$;

-- A job in a state that there is not would be nowhere.
CREATE FUNCTION no_state(state text) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RAISE 'a run ends as done, waiting, dead or cancelled, not as %', quote_nullable(left(state, 100))
        USING ERRCODE = 'invalid_parameter_value';
END $$;

-- Write what became of running jobs, each under its fence, with its line of the attempt log.
-- Runs that ended alike are told together. kinds: [state, outcome, counts, crashed, shared_deaths,
-- reason, pool, fingerprint, error, message, traceback, runs], and runs: [id, fence, started_at, run_at,
-- result, ord]. With "ruled", those that a person wants cancelled are written as they are told.
--
-- Returns null if all was written. Else what was; which jobs a person wants cancelled, and why, for
-- core/outcome.py to rule on; and those that somebody has locked just now. It waits for those only
-- if it is told to be patient, as in a user's transaction, where it is the last statement.
CREATE FUNCTION settle(batch text) RETURNS text LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    doc     jsonb  := document(batch);
    at      bigint := coalesce(moment((doc->>'at')::bigint), stamp());
    ruled   boolean := doc ? 'ruled';
    place   bigint;
    written text[];
    asked   jsonb;
    busy    jsonb;
BEGIN
    IF NOT EXISTS (SELECT FROM day WHERE first = at / 86400000000 * 86400000000) THEN
        PERFORM open_day(at);
    END IF;
    IF doc ? 'patient' THEN
        PERFORM FROM jsonb_array_elements(doc->'kinds') AS kind
        CROSS JOIN jsonb_array_elements(kind->11) AS run
        CROSS JOIN LATERAL (SELECT FROM job WHERE id = run->>0 FOR UPDATE) AS held;
    END IF;
    WITH kind AS MATERIALIZED (
        SELECT CASE WHEN kind->>0 IN ('done', 'waiting', 'dead', 'cancelled') THEN kind->>0
                    ELSE no_state(kind->>0) END AS state,
               kind->>1 AS outcome, (kind->>2)::boolean AS counts, (kind->>3)::boolean AS crashed,
               (kind->>4)::integer AS shared_deaths, kind->>5 AS reason, kind->>6 AS pool, kind->>7 AS fingerprint, kind->>8 AS error, kind->>9 AS message,
               kind->>10 AS traceback, kind->11 AS runs
        FROM jsonb_array_elements(doc->'kinds') AS kind
    ), given AS MATERIALIZED (
        -- Without the runs themselves, of which each row would have a copy.
        SELECT state, outcome, counts, crashed, shared_deaths, reason, pool, fingerprint, error,
               message, traceback, run->>0 AS id, (run->>1)::bigint AS fence, (run->>2)::bigint AS started_at,
               (run->>3)::bigint AS again_at, run->>4 AS result, (run->>5)::integer AS ord
        FROM kind CROSS JOIN jsonb_array_elements(runs) AS run
    ), ended AS MATERIALIZED (
        SELECT job.id, job.queue, job.task, job.version, job.run_at, job.order_at,
               job.expires_at, job.enqueued_at, job.payload, job.options, job.attempt, job.crashes,
               job.fence, job.worker, job.claimed_at, job.put_by, given.ord, given.state,
               given.outcome, given.counts,
               given.crashed, given.shared_deaths, given.again_at, given.result, given.reason,
               given.started_at, given.pool, given.fingerprint,
               CASE WHEN given.error IS NULL THEN job.errors
                    ELSE with_error(job.errors, json_build_object(
                        'attempt', job.attempt, 'outcome', given.outcome, 'worker', job.worker,
                        'claimed_at', job.claimed_at, 'started_at', given.started_at,
                        'finished_at', at, 'error', given.error, 'message', given.message,
                        'traceback', given.traceback, 'fingerprint', given.fingerprint
                    )::text) END AS errors
        FROM given CROSS JOIN LATERAL (
            SELECT * FROM mended
            WHERE id = given.id AND fence = given.fence AND lease_until > 0
              AND (cancel IS NULL OR ruled)
            FOR UPDATE SKIP LOCKED
        ) AS job
    ), logged AS (
        INSERT INTO attempt
            (job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
             finished_at, outcome, fingerprint)
        SELECT id, fence, attempt, task, queue, pool, worker, greatest(run_at, enqueued_at),
               coalesce(claimed_at, at), started_at, at, outcome, fingerprint
        FROM ended ORDER BY ord
    ), kept AS (
        INSERT INTO finished
            (id, queue, task, version, state, run_at, order_at, expires_at, enqueued_at, payload,
             options, attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason,
             result, put_by)
        SELECT id, queue, task, version, state, run_at, order_at, expires_at, enqueued_at,
               payload, options, greatest(attempt - (NOT counts)::integer, 0),
               crashes + crashed::integer, fence, worker, claimed_at, errors, at, reason, result,
               put_by
        FROM ended WHERE state IN ('done', 'cancelled')
    ), buried AS (
        INSERT INTO dead
            (id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
             attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, put_by)
        SELECT letter_id(id), queue, task, version, run_at, order_at, expires_at, enqueued_at,
               payload, options, greatest(attempt - (NOT counts)::integer, 0),
               crashes + crashed::integer, fence, worker, claimed_at, errors, at, reason, put_by
        FROM ended WHERE state = 'dead'
    ), removed AS (
        DELETE FROM job WHERE id = ANY (ARRAY(SELECT id FROM ended WHERE state <> 'waiting'))
    ), returned AS (
        UPDATE job SET
            queue = sound_name(job.queue),
            attempt = greatest(ended.attempt - (NOT ended.counts)::integer, 0),
            crashes = ended.crashes + ended.crashed::integer,
            shared_deaths = ended.shared_deaths,
            order_at = ended.order_at - ended.run_at + coalesce(ended.again_at, ended.run_at),
            run_at = coalesce(ended.again_at, ended.run_at),
            parked = CASE WHEN coalesce(ended.again_at, ended.run_at) > at THEN 1 ELSE 3 END,
            errors = ended.errors,
            lease_until = 0, lost = false, worker = NULL, claimed_at = NULL
        FROM ended
        WHERE job.id = ANY (ARRAY(SELECT id FROM ended WHERE state = 'waiting'))
          AND job.id = ended.id
    )
    SELECT array_agg(id), min(order_at - run_at + coalesce(again_at, run_at))
    INTO written, place FROM ended;
    IF doc ? 'tell' THEN
        PERFORM pg_notify(current_schema(), concat(doc->>'tell', ' ', place));
    END IF;
    IF cardinality(written) = (doc->>'count')::integer THEN
        RETURN NULL;
    END IF;
    SELECT jsonb_object_agg(job.id, job.cancel) FILTER (WHERE job.cancel IS NOT NULL AND NOT ruled),
           jsonb_agg(job.id) FILTER (WHERE job.cancel IS NULL OR ruled)
    INTO asked, busy
    FROM jsonb_array_elements(doc->'kinds') AS kind CROSS JOIN jsonb_array_elements(kind->11) AS run
    CROSS JOIN LATERAL (
        SELECT id, cancel FROM job
        WHERE id = run->>0 AND fence = (run->>1)::bigint AND lease_until > 0 OFFSET 0
    ) AS job;
    RETURN jsonb_build_array(
        coalesce(to_jsonb(written), '[]'), coalesce(asked, '{}'), coalesce(busy, '[]')
    )::text;
END $$;

-- The running jobs that a worker claimed. An index on the worker would slow every claim, and to read
-- ten million waiting jobs would take too long for a heartbeat. So it goes along the order of each
-- queue, and ends where it has met so many jobs in a row that nobody ever claimed.
CREATE FUNCTION held(who text) RETURNS SETOF claimed LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    line  queue;
    low   bigint;
    seen  record;
    fresh integer;
    ids   text[] := ARRAY(
        SELECT id FROM job WHERE parked = 3 AND worker = who AND lease_until > 0
        UNION ALL
        SELECT id FROM job WHERE parked = 2 AND worker = who AND lease_until > 0
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
            EXIT WHEN fresh = 20000;
            IF seen.worker = who THEN
                ids := ids || seen.id;
            END IF;
        END LOOP;
    END LOOP;
    RETURN QUERY
    SELECT id, task, version, queue, payload, options, attempt, crashes, fence, run_at, enqueued_at,
           expires_at, coalesce(claimed_at, enqueued_at), lease_until, worker, false, shared_deaths,
           order_at, parked = 3
    FROM mended WHERE id = ANY (ids) AND worker = who AND lease_until > 0;
END $$;

-- Say that a worker lives, and let the jobs that it knows into the order.
-- worker: [id, capable, pools, processes].
CREATE FUNCTION announce(batch text) RETURNS integer LANGUAGE plpgsql
AS $$
DECLARE
    doc  jsonb  := document(batch);
    at   bigint := coalesce(moment((doc->>'at')::bigint), stamp());
    term bigint := (doc->>'lease')::bigint;
    told jsonb  := doc->'worker';
BEGIN
    IF coalesce(octet_length(told->>0), 0) NOT BETWEEN 1 AND 1000
        OR coalesce(term, -1) NOT BETWEEN 0 AND 31622400000000
    THEN
        RAISE 'a worker says its name, in up to 1,000 bytes, and a lease of 0 s to 366 days'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO worker (id, capable, pools, processes, started_at, live_until)
    VALUES (told->>0, told->1, told->>2, (told->>3)::integer, at, at + term)
    ON CONFLICT (id) DO UPDATE SET
        capable = excluded.capable, pools = excluded.pools, processes = excluded.processes,
        live_until = excluded.live_until;
    RETURN cardinality(bring_back(told->1, (doc->>'batch')::integer));
END $$;

-- The instant at which the next parked job falls due, and the present one. A producer has nothing to
-- do then, and is not told of others' jobs.
CREATE FUNCTION due(at_ bigint, OUT next_at bigint, OUT at bigint) LANGUAGE plpgsql
AS $$
BEGIN
    at := coalesce(at_, stamp());
    IF sees_all() THEN
        SELECT run_at INTO next_at FROM job
        WHERE parked = 1 AND run_at > at ORDER BY run_at LIMIT 1;
    END IF;
END $$;

-- Look for jobs that came to stand before the mark of their queue, because they were committed late.
-- Under an old snapshot it goes over all that was done since, so one does it for all, for a
-- twentieth of the time.
CREATE FUNCTION lower_marks(at bigint) RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    line    queue;
    began   timestamptz;
    lowest  bigint;
BEGIN
    FOR line IN
        -- What is to be looked at in a day or later was not written by us.
        SELECT * FROM queue WHERE next_look <= at OR next_look > at + 86400000000
        FOR UPDATE SKIP LOCKED
    LOOP
        began := clock_timestamp();
        SELECT order_at INTO lowest FROM job
        WHERE parked = 0 AND queue = line.name AND (order_at, id) < (line.mark, '')
        ORDER BY order_at, id LIMIT 1;
        UPDATE queue SET
            mark = least(line.mark, lowest),
            next_look = at + 5000000
                        + (date_part('epoch', clock_timestamp() - began) * 20000000)::bigint
        WHERE name = line.name;
    END LOOP;
END $$;

-- One bounded round of housekeeping. What ended before the retention time is forgotten at once, and
-- goes when its day does; nothing is forgotten that an operator wants kept. What a person forgets who
-- is no worker is in the audit log. Returns how many were promoted, brought back, expired, and
-- forgotten.
CREATE FUNCTION upkeep(batch text) RETURNS integer[] LANGUAGE plpgsql
AS $$
DECLARE
    doc    jsonb   := document(batch);
    at     bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    most   integer := greatest(1, least((doc->>'batch')::integer, 100000));
    keep_  bigint  := (doc->>'keep')::bigint;
    limit_ bigint;
    past   bigint;
    known  jsonb;
    counts integer[];
    -- A person is told of all that is forgotten, so that the audit log has the number.
    person boolean := NOT has_function_privilege(session_user, 'claim(text)', 'EXECUTE');
    seen   integer := CASE WHEN NOT person THEN most END;
BEGIN
    IF coalesce(keep_, -1) < 0 THEN
        RAISE 'what ended is kept for 0 s or longer, not for % microseconds', quote_nullable(keep_)
            USING ERRCODE = 'JQ001';
    END IF;
    -- Who calls may be wrong about the time as well.
    limit_ := least(at - keep_, stamp(), (SELECT stamp() - max(keep) FROM retention WHERE keep >= 0));
    SELECT coalesce(jsonb_object_agg(task, version), '{}') INTO known FROM (
        SELECT key AS task, max(value::integer) AS version
        FROM worker CROSS JOIN jsonb_each_text(known_tasks(capable)) WHERE live_until > at GROUP BY key
    ) AS each;
    counts := ARRAY[
        cardinality(promote(at, most)), cardinality(bring_back(known, most)), expire(at, most)
    ];
    SELECT before INTO past FROM retention FOR UPDATE SKIP LOCKED;
    IF past > stamp() + 86400000000 THEN
        past := 0; -- It is still to come: that is damage, and hides nothing.
    END IF;
    IF past < limit_ THEN
        counts := counts || ARRAY[
            (SELECT count(*) FROM (
                SELECT FROM finished WHERE finished_at >= past AND finished_at < limit_ LIMIT seen
            ) AS gone)::integer,
            (SELECT count(*) FROM (
                SELECT FROM attempt WHERE finished_at >= past AND finished_at < limit_ LIMIT seen
            ) AS gone)::integer
        ];
        UPDATE retention SET before = limit_;
        IF person AND counts[4] + counts[5] > 0 THEN
            PERFORM note(
                jsonb_build_array(
                    gen_random_uuid(), session_user, 'upkeep',
                    format('all that ended before %s', to_timestamp(limit_ / 1000000))
                ),
                counts[4], at
            );
        END IF;
    ELSE
        counts := counts || ARRAY[0, 0];
    END IF;
    DELETE FROM worker WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM worker WHERE live_until < limit_ FOR UPDATE SKIP LOCKED
    ));
    PERFORM lower_marks(at);
    PERFORM open_day(at);
    PERFORM open_day(at + 86400000000);
    -- What is gone was forgotten before, and told of.
    PERFORM close_days(least(limit_, (SELECT since FROM kept)));
    RETURN counts;
END $$;
