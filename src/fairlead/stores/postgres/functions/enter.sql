-- Into the line: enter_one and enter_many for what is put, enter_again for what ended.

-- Let one job in, and return its place; null if its id is known. Most puts are of one, and most of those
-- have no terms: what is not told is neither read nor checked.
CREATE OR REPLACE FUNCTION enter_one(told jsonb, at bigint) RETURNS bigint LANGUAGE plpgsql
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
    level_   smallint := 1;
    place    bigint;
BEGIN
    IF told->5 IS NOT NULL THEN
        options_ := text_of(told->5);
        ahead := told_head_start(told);
        expiry := told_expires_at(told, at);
        due := sound_terms(options_, told_due_at(told, at), ahead, expiry);
        level_ := sound_level((told->>11)::integer);
    END IF;
    INSERT INTO job
        (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, payload,
         options, put_by, level)
    VALUES (
        sound_job(told->>3, payload_), sound_names(queue_, task_, version_), task_, version_,
        parked_at(due, ahead, at), due, due - ahead, expiry, at, payload_, options_, session_user, level_
    )
    ON CONFLICT (id) DO NOTHING RETURNING order_at INTO place;
    RETURN place;
END $$;

-- Let the jobs of a put in as if all were new, which is twice as quick, and say whether they are.
CREATE OR REPLACE FUNCTION enter_new(doc jsonb, at bigint) RETURNS boolean LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO job
        (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, payload,
         options, put_by, level)
    SELECT id, queue, task, version, parked, run_at, order_at, expires_at, at, payload, options, put_by,
           level
    FROM given(doc, at);
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false;
END $$;

-- Let the jobs of a put of many in, whether they are new or not. Returns which were added, null if all were; how
-- many the put has; the first and the last of their ids, whether all have the shape of ours, and the first
-- place, if it is known.
CREATE OR REPLACE FUNCTION enter_many(
    doc jsonb, asked integer, at bigint, OUT fresh text[], OUT had integer, OUT low text, OUT high text,
    OUT shaped boolean, OUT place bigint
) LANGUAGE plpgsql
AS $$
BEGIN
    -- Not if they are few: the try is a transaction in that of a caller, who may put often in it.
    IF asked >= 50 AND enter_new(doc, at) THEN
        SELECT min(id COLLATE "C"), max(id COLLATE "C"), bool_and(is_shaped(id)), count(*)
        INTO low, high, shaped, had
        FROM ids_of(doc) AS id;
    ELSE
        WITH added AS (
            INSERT INTO job
                (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at,
                 payload, options, put_by, level)
            SELECT id, queue, task, version, parked, run_at, order_at, expires_at, at, payload,
                   options, put_by, level
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
END $$;

-- Let jobs in that ended in one of these states, due now. One whose id is in the line stays, and so does one that has
-- lost entries (core.job.Attached.FORGETTING). They are locked first: whoever deletes or forgets one at the same moment
-- is seen then, or sees this.
CREATE OR REPLACE FUNCTION enter_again(ids text[], states text[], at bigint, own integer) RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    lifted text[];
BEGIN
    PERFORM FROM dead WHERE 'dead' = ANY (states) AND id = ANY (ids) ORDER BY id FOR UPDATE;
    PERFORM FROM finished WHERE state = ANY (states) AND id = ANY (ids) ORDER BY id FOR UPDATE;
    WITH ended AS (
        SELECT id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
               fence, crashes, errors, put_by, level, attached
        FROM dead WHERE 'dead' = ANY (states) AND id = ANY (ids) AND may_touch(own, level)
                    AND attached & 1024 = 0
        UNION ALL
        SELECT id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
               fence, crashes, errors, put_by, level, attached
        FROM finished WHERE state = ANY (states) AND id = ANY (ids) AND may_touch(own, level)
                        AND attached & 1024 = 0 AND finished_at >= (SELECT since FROM kept)
    ), back AS (
        INSERT INTO job
            (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, payload,
             options, fence, shared_deaths, errors, put_by, level, attached)
        SELECT id, sound_name(queue), sound_name(task), greatest(version, 0), parked_again(at, at), at,
               at - head_start(run_at, order_at),
               CASE WHEN expires_at > at THEN instant(expires_at) END, instant(enqueued_at), payload,
               options, instant(fence), CASE WHEN crashes > 0 THEN 3 ELSE 0 END, errors,
               put_by, level_of(level), attached
        FROM ended
        ON CONFLICT (id) DO NOTHING
        RETURNING id
    )
    SELECT coalesce(array_agg(id), '{}') INTO lifted FROM back;
    PERFORM forget(lifted, states, own);
    RETURN lifted;
END $$;
