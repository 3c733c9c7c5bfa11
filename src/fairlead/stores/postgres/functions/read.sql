-- An operator's questions call these, whatever is on the search path.

-- The tags of a job; what cannot be read has none.
CREATE OR REPLACE FUNCTION tags_of(options text) RETURNS text[] LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN ARRAY(SELECT json_array_elements_text(options::json->'tags'));
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN '{}';
END $$;

-- The last failure of a job; what cannot be read is none.
CREATE OR REPLACE FUNCTION last_of(errors text[]) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN errors[cardinality(errors)]::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;
