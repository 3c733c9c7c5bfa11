-- Adds jobs. Our own connections and the application's call it alike. Of many jobs a put says how many.
-- One whose ids somebody else may be putting says for how many milliseconds it may wait for that.
-- Returns null if all jobs are new, else [the ids of those that are]. To a producer what another user
-- put is new: the answer is the same whether there is such a job or not.
CREATE OR REPLACE FUNCTION put(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    doc    jsonb   := document(batch, 'JQ002');
    own    integer := told_level(doc);
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
        place := enter_one(doc->'job', at);
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
        SELECT * INTO fresh, had, low, high, shaped, place FROM enter_many(doc, asked, at);
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
                THEN json_build_array(ARRAY(SELECT unnest(fresh) COLLATE "C" ORDER BY 1))::text END;
END $$;
