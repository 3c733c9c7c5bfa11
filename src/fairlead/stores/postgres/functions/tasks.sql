-- The tasks that a worker knows, by name, with the newest version of each; what is no such thing
-- counts for nothing.
CREATE OR REPLACE FUNCTION known_tasks(capable jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce(jsonb_object_agg(key, value), '{}')
    FROM jsonb_each(CASE WHEN jsonb_typeof(capable) = 'object' THEN capable ELSE '{}' END)
    WHERE CASE WHEN value::text ~ '^[0-9]{1,10}$' THEN value::text::bigint <= 2147483647 END
$$;

CREATE OR REPLACE FUNCTION known_version(capable jsonb, task text) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN (capable->task)::text ~ '^[0-9]{1,10}$'
                THEN least((capable->task)::text::bigint, 2147483647)::integer END
$$;

-- Whether a live worker knows a task in a version.
CREATE OR REPLACE FUNCTION is_known(task text, version integer, at bigint) RETURNS boolean LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (
        SELECT FROM worker
        WHERE live_until > at
          AND coalesce(known_version(worker.capable, is_known.task), 0) >= is_known.version
    )
$$;
