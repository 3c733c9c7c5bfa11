-- Small values beside the jobs, those that have not expired, each as [kind, key, value, version, owner, due_at,
-- expires_at]: those of some keys, or those that fall due, or from a key on; past is the bound of what begins with
-- a prefix. Those of a job are told as long as that is kept.
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
    IF whose <> '' AND NOT is_kept(whose) THEN
        RETURN;
    ELSIF doc ? 'keys' THEN
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
END $$;
