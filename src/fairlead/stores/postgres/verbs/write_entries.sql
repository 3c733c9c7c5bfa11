-- Write small values beside the jobs, each if the version that it expects is there and its owner lives.
-- changes: [[kind, owner or '', key, value or null, expect, due_at, expires_at]], fence: [job, fence].
-- Returns [answers]: for each its new version, 0 if it is removed, null if it is refused. It is [null] if the job does
-- not run under its fence any more; then nothing is written.
--
-- Jobs are locked before entries, and both in the order of their names: two who write the same wait for one
-- another. A job is locked as it is changed, for two who only share it could not change it both. One that ends
-- meanwhile is found locked, and takes with it what was written. "wait" says for how many milliseconds it may wait
-- for somebody else's transaction.
CREATE OR REPLACE FUNCTION write_entries(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
SET plan_cache_mode = force_generic_plan SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    doc     jsonb    := document(batch);
    at      bigint   := coalesce(moment((doc->>'at')::bigint), stamp());
    own     integer  := told_level(doc);
    answers bigint[] := array_fill(NULL::bigint, ARRAY[jsonb_array_length(doc->'changes')]);
    owners  text[]   := ARRAY(
        SELECT each->>1 FROM jsonb_array_elements(doc->'changes') AS each UNION SELECT doc #>> '{fence,0}'
    );
    live    text[];
    seen    bigint;
    change  record;
BEGIN
    PERFORM check_changes(doc->'changes');
    IF doc ? 'wait' THEN
        PERFORM set_config('lock_timeout', doc->>'wait', true);
    END IF;
    -- Who comes back into the line meanwhile is not locked, and may be gone again before this ends.
    WITH locked AS (
        SELECT id, level FROM job WHERE id = ANY (owners) ORDER BY id FOR NO KEY UPDATE
    )
    SELECT coalesce(array_agg(id) FILTER (WHERE may_touch(own, level)), '{}') INTO live FROM locked;
    IF doc ? 'fence' AND NOT EXISTS (
        SELECT FROM job WHERE id = doc #>> '{fence,0}' AND fence = (doc #>> '{fence,1}')::bigint
                          AND lease_until > 0
    ) THEN
        RETURN '[null]';
    END IF;
    FOR change IN
        SELECT each->>0 AS kind, each->>1 AS owner, each->>2 AS key, each->>3 AS value,
               (each->>4)::bigint AS expect, (each->>5)::bigint AS due_at,
               (each->>6)::bigint AS expires_at, n,
               row_number() OVER (PARTITION BY each->>0, each->>1, each->>2 ORDER BY n) AS nth,
               count(*) OVER (PARTITION BY each->>0, each->>1, each->>2) AS times
        FROM jsonb_array_elements(doc->'changes') WITH ORDINALITY AS a(each, n)
        ORDER BY (each->>0) COLLATE "C", (each->>1) COLLATE "C", (each->>2) COLLATE "C", n
    LOOP
        -- One that this call removes and writes anew has a later version than any before.
        seen := CASE WHEN change.nth > 1 THEN seen END;
        IF change.times > 1 THEN
            seen := greatest(seen, (
                SELECT version FROM entry
                WHERE kind = change.kind AND owner = change.owner AND key = change.key
            ));
        END IF;
        IF change.owner = '' OR change.owner = ANY (live) THEN
            answers[change.n] := write_entry(change.kind, change.owner, change.key, change.value,
                                             change.expect, change.due_at, change.expires_at, at, greatest(at, seen + 1));
        END IF;
    END LOOP;
    UPDATE job SET attached = attached | 1
    WHERE id = ANY (live) AND attached & 1 = 0
      AND EXISTS (SELECT FROM entry WHERE owner = job.id AND owner <> '');
    RETURN json_build_array(answers);
END $$;
