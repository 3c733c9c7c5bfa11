-- Mend a bounded number, from a kind and a key on, and write the audit log. Returns what was met, as [what,
-- whose, why it could not be mended], and the kind and the key to go on from; null when that was all.
CREATE OR REPLACE FUNCTION repair(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
SET lock_timeout = '20ms' SET enable_sort = off SET jit = off
AS $$
DECLARE
    doc   jsonb   := document(batch);
    own   integer := told_level(doc);
    at    bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    most  integer := greatest(1, least(1000, (doc->>'batch')::integer));
    kinds text[]  := flaw_kinds();
    place integer := greatest(1, coalesce((doc->>'kind')::integer, 1));
    start text    := coalesce(doc->>'start', '');
    met   integer := 0;
    done  integer := 0;
    told  jsonb[] := '{}';
    room  integer;
    found text;
    why   text;
BEGIN
    WHILE place <= cardinality(kinds) AND met < most LOOP
        room := most - met;
        FOR found IN SELECT whose FROM flaws_of(kinds[place], start, at, room) LOOP
            why := try_mend(kinds[place], found, at);
            done := done + (why IS NULL)::integer;
            met := met + 1;
            room := room - 1;
            start := found || E'\x01';  -- The least text that comes after it.
            told := told || jsonb_build_array(kinds[place], found, why);
        END LOOP;
        IF room > 0 THEN
            place := place + 1;
            start := '';
        END IF;
    END LOOP;
    IF done > 0 THEN
        PERFORM note(doc->'by', done, at);
    END IF;
    RETURN jsonb_build_array(
        to_jsonb(told), CASE WHEN place <= cardinality(kinds) THEN place END, start
    )::text;
END $$;
