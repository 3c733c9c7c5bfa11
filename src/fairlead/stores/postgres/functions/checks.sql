-- Whether something is nested more than 64 levels deep.
CREATE OR REPLACE FUNCTION is_deep(read jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT jsonb_path_exists(
        read, 'strict $.**{64 to last} ? (@.type() == "array" || @.type() == "object")'
    )
$$;

-- Refuse a put that has a fault. What is wrong with the names of one, with its terms, and with a job of it is
-- asked below; the numbers are those of core/codec.py, core/queue.py, core/job.py and producer.py, and hold
-- here for those who do not use our programs.
CREATE OR REPLACE FUNCTION refuse_put(fault text) RETURNS void LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF fault IS NOT NULL THEN
        RAISE '%', fault USING ERRCODE = 'JQ002';
    END IF;
END $$;

-- What is wrong with JSON; null if nothing is. A text with NUL in it is JSON, but jsonb does not take it.
CREATE OR REPLACE FUNCTION json_fault(told text, what text) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN CASE WHEN is_deep(replace(told, '\u0000', '\u0001')::jsonb)
                THEN what || ' nested at most 64 levels deep' END;
EXCEPTION
    WHEN data_exception THEN RETURN what || ' JSON';
    WHEN program_limit_exceeded THEN RETURN what || ' nested at most 64 levels deep';
END $$;

CREATE OR REPLACE FUNCTION check_names(queue text, task text, version integer) RETURNS text LANGUAGE plpgsql
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

CREATE OR REPLACE FUNCTION check_terms(options text, run_at bigint, head_start bigint, expires_at bigint)
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

CREATE OR REPLACE FUNCTION check_job(id text, payload text) RETURNS text LANGUAGE plpgsql IMMUTABLE
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
CREATE OR REPLACE FUNCTION sound_names(queue text, task text, version integer) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN octet_length(queue) BETWEEN 1 AND 128 AND octet_length(task) BETWEEN 1 AND 128
                 AND version >= 1
                THEN queue ELSE check_names(queue, task, version) END
$$;

CREATE OR REPLACE FUNCTION sound_terms(options text, run_at bigint, head_start bigint, expires_at bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN head_start BETWEEN -86400000000 AND 86400000000
                 AND run_at BETWEEN 0 AND 1152921504606846976
                 AND run_at - head_start <= 1152921504606846976
                 AND coalesce(expires_at, 0) BETWEEN 0 AND 1152921504606846976
                 AND coalesce(octet_length(options), 0) < 130
                THEN run_at ELSE check_terms(options, run_at, head_start, expires_at) END
$$;

CREATE OR REPLACE FUNCTION sound_job(id text, payload text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN octet_length(id) BETWEEN 1 AND 36 AND char_length(id) = octet_length(id)
                 AND (octet_length(payload) < 130
                      OR octet_length(payload) <= 262144
                         AND octet_length(payload)
                             - octet_length(replace(replace(payload, '[', ''), '{', '')) <= 64)
                THEN id ELSE check_job(id, payload) END
$$;

-- The level of a job; most puts do not tell one.
CREATE OR REPLACE FUNCTION check_level(level integer) RETURNS smallint LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF level NOT BETWEEN 1 AND 1000 THEN
        PERFORM refuse_put('the level of a job is from 1 to 1,000');
    END IF;
    RETURN level;
END $$;
CREATE OR REPLACE FUNCTION sound_level(level integer) RETURNS smallint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN level IS NULL THEN 1::smallint ELSE check_level(level) END $$;

-- Payloads and options are texts. What else JSON can hold is written out when it is read as one, and a
-- number of eight characters may have as many digits as a payload has room for.
CREATE OR REPLACE FUNCTION no_text(told jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    PERFORM refuse_put('the payload and the options of a job are texts, with JSON in them');
END $$;

CREATE OR REPLACE FUNCTION text_of(told jsonb) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN coalesce(jsonb_typeof(told), 'null') IN ('string', 'null') THEN told #>> '{}'
                ELSE no_text(told) END
$$;

CREATE OR REPLACE FUNCTION texts_of(list jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN list @? 'strict $[*] ? (@.type() != "string")'
                THEN no_text(list)::jsonb ELSE list END
$$;
