-- The workers that are announced and live: [id, capable, pools, processes, started_at, live_until, level] of
-- each.
CREATE OR REPLACE FUNCTION live_workers(batch text) RETURNS SETOF text LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
DECLARE
    doc jsonb   := document(batch);
    own integer := told_level(doc);
BEGIN
    RETURN QUERY
    SELECT json_build_array(
        id, known_tasks(capable)::text, pools, processes, started_at, live_until, level_of(level)
    )::text
    FROM worker WHERE live_until > coalesce((doc->>'at')::bigint, stamp()) ORDER BY id;
END $$;
