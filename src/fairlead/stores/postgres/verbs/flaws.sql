-- Every damage there is, up to "most" of each kind: [what it is, whose, how often there is that kind].
-- One call sees one state.
CREATE OR REPLACE FUNCTION flaws(batch text) RETURNS SETOF text LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = {schema}, pg_temp
SET jit = off
AS $$
DECLARE
    doc  jsonb   := document(batch);
    own  integer := told_level(doc);
    at   bigint  := coalesce((doc->>'at')::bigint, stamp());
    most integer := (doc->>'most')::integer;
    what text;
BEGIN
    FOREACH what IN ARRAY flaw_kinds() LOOP
        RETURN QUERY SELECT json_build_array(what, f.whose, count(*) OVER ())::text
                     FROM flaws_of(what, '', at, NULL) AS f LIMIT most;
    END LOOP;
END $$;
