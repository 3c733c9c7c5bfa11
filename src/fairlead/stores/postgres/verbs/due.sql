-- The instant at which the next parked job falls due, and the present one, in a list. A producer has
-- nothing to do then, and is not told of others' jobs.
CREATE OR REPLACE FUNCTION due(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
DECLARE
    at      bigint := coalesce((document(batch)->>'at')::bigint, stamp());
    next_at bigint;
BEGIN
    IF sees_all() THEN
        SELECT run_at INTO next_at FROM job
        WHERE parked = 1 AND run_at > at ORDER BY run_at LIMIT 1;
    END IF;
    RETURN json_build_array(next_at, at);
END $$;
