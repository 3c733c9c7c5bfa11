-- What people do to jobs and queues. Returns [the ids, or the queue, that it was done to]. To "lose" comes before a
-- deletion, belongs to the same action, and returns [the ids of the jobs that have more entries].
CREATE OR REPLACE FUNCTION act(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
DECLARE
    doc     jsonb  := document(batch);
    at      bigint := coalesce(moment((doc->>'at')::bigint), stamp());
    edits   boolean := (doc->>'verb') IS NOT DISTINCT FROM 'edit';
    given   text[] := ARRAY(SELECT jsonb_array_elements_text(doc->'ids'));
    ids     text[] := CASE WHEN edits THEN given[1:1] ELSE given END;
    states  text[] := ARRAY(SELECT jsonb_array_elements_text(doc->'states'));
    asked   text[] := CASE WHEN doc ? 'queue' THEN ARRAY[doc->>'queue'] ELSE ids END;
    mark    text   := call_mark(doc);
    own     integer := told_level(doc);
    line    record;
    touched text[] := '{}';
BEGIN
    line := take_line(doc->'by', mark, ids, at);
    IF line.is_other AND NOT edits THEN
        PERFORM refuse_line(doc->'by');
    END IF;
    IF doc->>'verb' = 'lose' THEN
        RETURN json_build_array(lose(ids, states, own));
    END IF;
    IF line.past IS NOT NULL THEN
        RETURN json_build_array(ARRAY(
            SELECT one FROM unnest(asked) WITH ORDINALITY AS a(one, n)
            WHERE (n - 1)::text <> ALL (string_to_array(line.past, ',')) ORDER BY n
        ));
    END IF;
    -- In the order of their ids, so that two people who act on the same jobs wait for one another.
    PERFORM FROM job WHERE id = ANY (ids) ORDER BY id FOR UPDATE;
    touched := CASE doc->>'verb'
        WHEN 'cancel' THEN cancel(ids, states, doc->>'reason', at, own)
        WHEN 'revive' THEN revive(ids, states, at, own)
        WHEN 'delete' THEN remove(ids, states, own)
        WHEN 'edit' THEN edit(ids, doc->>'was', doc->>'payload', (doc->>'version')::integer, own)
        WHEN 'pause' THEN pause(doc->>'queue')
        WHEN 'resume' THEN resume(doc->>'queue')
    END;
    -- What changed nothing is noted all the same, but for an edit.
    IF edits AND cardinality(touched) = 0 THEN
        DELETE FROM audit WHERE id = doc #>> '{by,0}' AND line.is_new;
        RETURN json_build_array(touched);
    END IF;
    IF edits AND NOT line.is_new THEN
        PERFORM refuse_line(doc->'by');
    END IF;
    PERFORM add_to_line(
        doc #>> '{by,0}', cardinality(touched), CASE WHEN edits THEN doc->>'was' END, mark, (
            SELECT coalesce(string_agg((n - 1)::text, ',' ORDER BY n), '')
            FROM unnest(asked) WITH ORDINALITY AS a(one, n)
            WHERE one NOT IN (SELECT unnest(touched))
        ), at
    );
    IF doc ? 'tell' THEN
        PERFORM pg_notify(current_schema(), concat(doc->>'tell', ' ', 0));
    END IF;
    RETURN json_build_array(touched);
END $$;
