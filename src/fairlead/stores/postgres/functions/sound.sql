-- Whether a text is what is kept of a failed run; it may be no JSON, or nested beyond all measure.
CREATE OR REPLACE FUNCTION is_error(error text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
DECLARE
    past  jsonb;
    exact json;
BEGIN
    past := error;
    exact := error;
    RETURN coalesce(
        jsonb_typeof(past) = 'object' AND NOT is_deep(past)
        AND (exact->'attempt')::text ~ '^-?[0-9]+$' AND (exact->'finished_at')::text ~ '^-?[0-9]+$'
        AND (exact->'claimed_at')::text ~ '^(-?[0-9]+|null)$'
        AND (exact->'started_at')::text ~ '^(-?[0-9]+|null)$'
        AND jsonb_typeof(past->'outcome') = 'string'
        AND jsonb_typeof(past->'worker') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'error'), 'null') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'message'), 'null') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'traceback'), 'null') IN ('string', 'null')
        AND coalesce(jsonb_typeof(past->'fingerprint'), 'null') IN ('string', 'null'),
        false
    );
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END $$;

-- Whether the options of a job are what core/job.py reads: JobOptions, with a curve of core/retry.py.
CREATE OR REPLACE FUNCTION is_options(options text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
DECLARE
    exact json;
    read  jsonb;
    curve jsonb;
BEGIN
    exact := replace(options, '\u0000', '\u0001');
    read := exact;
    curve := nullif(read->'backoff', 'null');
    RETURN coalesce(
        jsonb_typeof(read) = 'object' AND NOT is_deep(read)
        AND coalesce(jsonb_typeof(read->'timeout'), 'null') IN ('number', 'null')
        AND coalesce((read->>'timeout')::double precision, 0) IS NOT NULL
        AND coalesce((exact->'attempts')::text, 'null') ~ '^(-?[0-9]+|null)$'
        AND coalesce(jsonb_typeof(read->'correlation_id'), 'null') IN ('string', 'null')
        AND jsonb_typeof(coalesce(read->'tags', '[]')) = 'array'
        AND jsonb_path_exists(read, 'strict $.tags[*] ? (@.type() != "string")', '{}', true) IS NOT TRUE
        AND jsonb_typeof(coalesce(read->'headers', '{}')) = 'object'
        AND jsonb_path_exists(read, 'strict $.headers.* ? (@.type() != "string")', '{}', true) IS NOT TRUE
        AND (curve IS NULL OR curve->>'curve' IN ('exponential', 'linear', 'fixed') AND NOT EXISTS (
            SELECT FROM jsonb_each(curve)
            WHERE key IN ('base', 'factor', 'cap', 'step', 'seconds', 'jitter')
              AND CASE jsonb_typeof(value) WHEN 'number'
                  THEN value::numeric NOT BETWEEN 0 AND CASE key WHEN 'jitter' THEN 1 ELSE 31622400 END
                  ELSE true END
        )),
        false
    );
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END $$;

-- Those of a job's failures that can be read, in one list; null if there are none.
CREATE OR REPLACE FUNCTION sound_errors(errors text[]) RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT array_agg(error ORDER BY place) FROM unnest(errors) WITH ORDINALITY AS e(error, place)
    WHERE is_error(error)
$$;

CREATE OR REPLACE FUNCTION is_pools(pools text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN json_typeof(pools::json) = 'array' AND NOT EXISTS (
        SELECT FROM json_array_elements(pools::json) AS pool WHERE json_typeof(pool) <> 'object'
    );
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END $$;

-- Whether a worker can have announced itself so.
CREATE OR REPLACE FUNCTION is_worker(
    id text, capable jsonb, pools text, processes integer, started_at bigint, live_until bigint,
    level smallint, at bigint
) RETURNS boolean LANGUAGE sql STABLE
AS $$
    SELECT capable = known_tasks(capable) AND is_pools(pools)
       AND octet_length(id) BETWEEN 1 AND 1000 AND processes BETWEEN 0 AND 1000000
       AND started_at BETWEEN 0 AND 1152921504606846976
       AND live_until BETWEEN 0 AND at + 366 * 86400000000 AND level BETWEEN 1 AND 1000
$$;
