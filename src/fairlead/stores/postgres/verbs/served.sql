-- Whether the schema serves a program: else it is refused, see told_level. For those who read tables by statements of
-- their own. Returns null.
CREATE OR REPLACE FUNCTION served(batch text) RETURNS text LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
DECLARE
    own integer := told_level(document(batch));
BEGIN
    RETURN NULL;
END $$;
