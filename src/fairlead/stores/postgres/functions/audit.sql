-- What people do. Each call is one step, with its line of the audit log. by: [id, who, verb, target].
-- Calls of one action add to one line, which has their latest time and the job of the first. None
-- comes more than an hour after the one before: else an id of long ago would hide an action of today.
-- The line of an edit, which keeps what was replaced, stays as it is.
--
-- A line also keeps what each of its calls was answered (core/answers.py): the mark of the call, and to
-- which of what it asked for nothing was done, by place from 0: ;8c1f:0,4. says all but the first and the fifth.

-- What a call asks for, as a short text.
CREATE OR REPLACE FUNCTION call_mark(doc jsonb) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT left(encode(sha256(convert_to((doc - 'at' - 'by' - 'tell' - 'level')::text, 'UTF8')), 'hex'), 16)
$$;

-- Take the line of an action, and keep it from others until this transaction ends: who repeats a call
-- waits here for the first. Tells what this call was answered, null if it is new; whether the line is; and
-- whether it is that of another action, so that the call must not add to it. Nobody is told what another
-- user was answered.
CREATE OR REPLACE FUNCTION take_line(
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

CREATE OR REPLACE FUNCTION refuse_line(by_ jsonb) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    RAISE 'the audit log has another action with the id %; give each action a new id',
        quote_literal(by_->>0) USING ERRCODE = 'JQ001';
END $$;

-- Add to the line of an action what a call of it did, and how it is answered.
CREATE OR REPLACE FUNCTION add_to_line(id_ text, count_ integer, before_ text, mark text, missed text, at bigint)
RETURNS void LANGUAGE sql
AS $$
    UPDATE audit SET
        count = count + count_, done_at = greatest(done_at, at), before = coalesce(before_, before),
        answers = concat(answers, ';' || mark || ':' || missed || '.')
    WHERE id = id_
$$;

-- Write down what was done, in a call that is not repeated.
CREATE OR REPLACE FUNCTION note(by_ jsonb, count_ integer, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF (SELECT is_other FROM take_line(by_, NULL, NULL, at)) THEN
        PERFORM refuse_line(by_);
    END IF;
    PERFORM add_to_line(by_->>0, count_, NULL, NULL, NULL, at);
END $$;
