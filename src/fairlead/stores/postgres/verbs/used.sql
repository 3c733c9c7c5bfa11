-- How much of each limit is in use: its name, a key of it and a number, in a list for each key.
CREATE OR REPLACE FUNCTION used(batch text) RETURNS SETOF text LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
BEGIN
    PERFORM told_level(document(batch));
    RETURN QUERY SELECT json_build_array(name, key, number)::text FROM limits_in_use();
END $$;
