-- Small values beside the jobs, those that have not expired, each as [kind, key, value, version, owner, due_at,
-- expires_at]: those of some keys, or those that fall due, or from a key on; past is the bound of what begins with
-- a prefix. Those of a job that has ended are all told: they lie in one row.
CREATE OR REPLACE FUNCTION read_entries(batch text) RETURNS SETOF text LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = {schema}, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    doc   jsonb   := document(batch);
    own   integer := told_level(doc);
    at    bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    kind_ text    := doc->>'kind';
    whose text    := doc->>'owner';
    most  integer := least((doc->>'limit')::integer, 1000);
BEGIN
    IF doc ? 'keys' THEN
        RETURN QUERY SELECT told_entry(entry) FROM entry
            WHERE kind = kind_ AND owner = whose
              AND key = ANY (ARRAY(SELECT jsonb_array_elements_text(doc->'keys')))
              AND (expires_at IS NULL OR expires_at > at) ORDER BY key LIMIT most;
    ELSIF doc ? 'due_before' THEN
        RETURN QUERY SELECT told_entry(entry) FROM entry
            WHERE kind = kind_ AND owner = whose AND due_at < (doc->>'due_before')::bigint
              AND (expires_at IS NULL OR expires_at > at) ORDER BY due_at, key LIMIT most;
    ELSIF doc ? 'past' THEN
        RETURN QUERY SELECT told_entry(entry) FROM entry
            WHERE kind = kind_ AND owner = whose AND key >= doc->>'prefix' AND key > doc->>'after'
              AND key < doc->>'past'
              AND (expires_at IS NULL OR expires_at > at) ORDER BY key LIMIT most;
    ELSE
        RETURN QUERY SELECT told_entry(entry) FROM entry
            WHERE kind = kind_ AND owner = whose AND key >= doc->>'prefix' AND key > doc->>'after'
              AND (expires_at IS NULL OR expires_at > at) ORDER BY key LIMIT most;
    END IF;
    IF NOT FOUND AND whose <> '' THEN
        RETURN QUERY SELECT json_build_array(each->0, each->1, each->2, each->3, whose, each->5, each->6)::text
            FROM (
                SELECT entries FROM finished
                WHERE id = whose AND finished_at >= (SELECT since FROM kept)
                UNION ALL SELECT entries FROM dead WHERE id = whose
            ) AS ended CROSS JOIN entries_in(entries) AS each
            WHERE each->>6 IS NULL OR (each->>6)::bigint > at;
    END IF;
END $$;
