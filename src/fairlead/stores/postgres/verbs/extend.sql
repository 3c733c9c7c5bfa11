-- Renew leases. runs: [id, fence]. Returns [the jobs that are held, those of them that a person wants
-- cancelled, those that were not renewed]. A job that somebody has locked cannot be taken over meanwhile, so
-- it counts as held; it is waited for only if that is asked ("patient").
CREATE OR REPLACE FUNCTION extend(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
    doc   jsonb   := document(batch);
    at    bigint;
    done  text[];
BEGIN
    IF doc ? 'patient' THEN
        PERFORM FROM job WHERE id = doc->'runs'->0->>0 FOR UPDATE;
    END IF;
    at := coalesce(moment((doc->>'at')::bigint), stamp());
    IF coalesce((doc->>'lease')::bigint, -1) NOT BETWEEN 0 AND 31622400000000 THEN
        RAISE 'a lease is of 0 s to 366 days' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    WITH kept AS (
        UPDATE job SET lease_until = at + (doc->>'lease')::bigint WHERE ctid = ANY (ARRAY(
            SELECT held.ctid FROM jsonb_array_elements(doc->'runs') AS run
            CROSS JOIN LATERAL (
                SELECT ctid FROM job
                WHERE id = run->>0 AND fence = (run->>1)::bigint AND lease_until > 0
                FOR UPDATE SKIP LOCKED
            ) AS held
        ))
        RETURNING id
    )
    SELECT array_agg(id) INTO done FROM kept;
    RETURN (
        SELECT json_build_array(
            coalesce(array_agg(held.id), '{}'),
            coalesce(array_agg(held.id) FILTER (WHERE held.cancel IS NOT NULL), '{}'),
            coalesce(array_agg(held.id) FILTER (WHERE held.id = ANY (done) IS NOT TRUE), '{}')
        )
        FROM jsonb_array_elements(doc->'runs') AS run
        CROSS JOIN LATERAL (
            SELECT id, cancel FROM job
            WHERE id = run->>0 AND fence = (run->>1)::bigint AND lease_until > 0 OFFSET 0
        ) AS held
    );
END $$;
