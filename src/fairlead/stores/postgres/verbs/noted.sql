-- Add to the audit log something that was done by other verbs. Returns null.
CREATE OR REPLACE FUNCTION noted(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
DECLARE
    doc  jsonb   := document(batch);
    own  integer := told_level(doc);
    at   bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    mark text    := call_mark(doc);
    done integer := doc->>'count';
    line record;
BEGIN
    line := take_line(doc->'by', mark, ARRAY(SELECT jsonb_array_elements_text(doc->'ids')), at);
    IF line.is_other THEN
        PERFORM refuse_line(doc->'by');
    END IF;
    IF coalesce(done, -1) < 0 THEN
        RAISE 'an action is done to 0 jobs or more, not to %', quote_nullable(done)
            USING ERRCODE = 'JQ001';
    END IF;
    IF line.past IS NULL THEN
        PERFORM add_to_line(doc #>> '{by,0}', done, NULL, mark, '', at);
    END IF;
    RETURN NULL;
END $$;
