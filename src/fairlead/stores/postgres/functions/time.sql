-- Instants are microseconds since 1970, UTC, by the server's clock, read when the statement runs.
-- People's questions call it as well, whatever is on their search path: so it names the server's own.
CREATE OR REPLACE FUNCTION stamp() RETURNS bigint LANGUAGE sql VOLATILE
AS $$
    SELECT (pg_catalog.date_part('epoch'::pg_catalog.text, pg_catalog.clock_timestamp())
            OPERATOR(pg_catalog.*) 1000000::double precision)::bigint
$$;

-- The instant of a test's clock. It needs a right of its own, see allow: whoever else could say what
-- time it is could let jobs end so long ago that they are forgotten, and write lies into the audit log.
-- What we refuse to callers has codes of our own, JQ001 for what they do and JQ002 for what they put:
-- what a trigger or a function of somebody else raises is never taken for it.
CREATE OR REPLACE FUNCTION moment(told bigint) RETURNS bigint LANGUAGE plpgsql STABLE STRICT
AS $$
BEGIN
    IF NOT has_function_privilege(session_user, 'moment(bigint)', 'EXECUTE') THEN
        RAISE 'only a role that is allowed to be a tester goes by a clock of its own'
            USING ERRCODE = 'JQ001';
    END IF;
    RETURN told;
END $$;
