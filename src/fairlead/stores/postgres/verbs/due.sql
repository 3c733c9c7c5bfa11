-- The instant at which the next parked job falls due, and the present one, in a list. A producer has
-- nothing to do then, and is not told of others' jobs.
CREATE OR REPLACE FUNCTION due(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
DECLARE
    doc     jsonb   := document(batch);
    own     integer := told_level(doc);
    at      bigint  := coalesce((doc->>'at')::bigint, stamp());
    next_at bigint;
BEGIN
    IF sees_all() THEN
        SELECT run_at INTO next_at FROM job
        WHERE parked = 1 AND run_at > at ORDER BY run_at LIMIT 1;
    END IF;
    RETURN json_build_array(next_at, at);
END $$;
