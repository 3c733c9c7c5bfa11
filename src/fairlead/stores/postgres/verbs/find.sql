-- One job in whatever state; one statement sees one state, so a job that is just moving is seen once. A
-- producer sees what it put itself, though others may have put a job of the same id before.
CREATE OR REPLACE FUNCTION find(batch text) RETURNS SETOF text LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
DECLARE
    doc    jsonb   := document(batch);
    own    integer := told_level(doc);
    wanted text    := doc->>'id';
    all_   boolean := sees_all();
BEGIN
    RETURN QUERY
    SELECT row_to_json(r)::text FROM job_record AS r WHERE id = wanted AND (all_ OR put_by = session_user)
    UNION ALL
    SELECT row_to_json(r)::text FROM finished_record AS r WHERE id = wanted AND (all_ OR put_by = session_user)
    UNION ALL
    SELECT row_to_json(r)::text FROM dead_record AS r WHERE id = wanted AND (all_ OR put_by = session_user);
END $$;
