-- Whether the user may know of all jobs, as workers and operators do; a producer knows of its own.
CREATE OR REPLACE FUNCTION sees_all() RETURNS boolean LANGUAGE sql STABLE
AS $$
    SELECT has_function_privilege(session_user, 'claim(text)', 'EXECUTE')
        OR has_function_privilege(session_user, 'act(text)', 'EXECUTE')
$$;

-- Whether it was this user who put a job.
CREATE OR REPLACE FUNCTION is_own(wanted text) RETURNS boolean LANGUAGE sql STABLE
AS $$
    SELECT session_user::text IN (
        SELECT put_by FROM job WHERE id = wanted
        UNION ALL
        SELECT put_by FROM finished
        WHERE id = wanted AND (finished_at >= (SELECT since FROM kept) OR attached & 1 <> 0)
        UNION ALL
        SELECT put_by FROM dead WHERE id = wanted
    )
$$;
