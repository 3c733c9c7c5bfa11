-- Say that a worker lives, and let the jobs that it knows into the order.
-- worker: [id, capable, pools, processes, level]. Returns [how many jobs came back].
CREATE OR REPLACE FUNCTION announce(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
DECLARE
    doc  jsonb  := document(batch);
    at   bigint := coalesce(moment((doc->>'at')::bigint), stamp());
    term bigint := (doc->>'lease')::bigint;
    told jsonb  := doc->'worker';
    own  integer := told_level(doc);
BEGIN
    IF coalesce(octet_length(told->>0), 0) NOT BETWEEN 1 AND 1000
        OR coalesce(term, -1) NOT BETWEEN 0 AND 31622400000000
    THEN
        RAISE 'a worker says its name, in up to 1,000 bytes, and a lease of 0 s to 366 days'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO worker (id, capable, pools, processes, started_at, live_until, level)
    VALUES (told->>0, told->1, told->>2, (told->>3)::integer, at, at + term, level_of((told->>4)::integer))
    ON CONFLICT (id) DO UPDATE SET
        capable = excluded.capable, pools = excluded.pools, processes = excluded.processes,
        live_until = excluded.live_until, level = excluded.level;
    RETURN json_build_array(cardinality(bring_back_known(told->1, (doc->>'batch')::integer)));
END $$;
