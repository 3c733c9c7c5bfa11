-- The verbs of the line. Each takes one JSON text and is one round trip; its statements are planned
-- once per session, and for good, so they leave the planner no choice, whatever it believes about the
-- tables: SET clauses allow only indexes, and jobs are looked up by id in LATERAL subqueries with
-- FOR UPDATE or OFFSET 0, which cannot be turned around into a walk through all of them.
-- In each text "at" is the instant of a test's clock, else null.

-- Whether the names and numbers of a job are what core/job.py says they may be: id of 1 to 36
-- ASCII characters, instants and fences up to 2^60, a billion runs. What is null is not asked about.
CREATE OR REPLACE FUNCTION in_bounds(
    id text, queue text, task text, version integer, run_at bigint, order_at bigint,
    expires_at bigint, enqueued_at bigint, attempt integer, crashes integer, fence bigint,
    claimed_at bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT octet_length(id) = least(char_length(id), 36) AND id <> '' AND queue <> '' AND task <> ''
       AND greatest(octet_length(queue), octet_length(task)) <= 255
       AND least(version, attempt, crashes) >= 0 AND greatest(attempt, crashes) <= 1000000000
       AND least(run_at, enqueued_at, fence, expires_at, claimed_at) >= 0
       AND greatest(run_at, enqueued_at, fence, expires_at, claimed_at, order_at)
           <= 1152921504606846976
       AND order_at >= -1152921504606846976
$$;

-- Whether a job in the line is sound: within bounds, and a run of it has a worker and a beginning. A claim
-- that meets one that is not makes a dead letter of it, see bury; who else moves it mends its numbers.
CREATE OR REPLACE FUNCTION is_sound(
    id text, queue text, task text, version integer, run_at bigint, order_at bigint,
    expires_at bigint, enqueued_at bigint, attempt integer, crashes integer, fence bigint,
    lease_until bigint, worker text, claimed_at bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT in_bounds(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                     crashes, fence, claimed_at)
       AND lease_until BETWEEN 0 AND 1152921504606846976
       AND (lease_until = 0 OR (worker IS NOT NULL AND claimed_at IS NOT NULL))
$$;

-- The nearest value within bounds; what is sound stays as it is, and null stays null.
CREATE OR REPLACE FUNCTION instant(at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN at IS NOT NULL THEN greatest(0, least(at, 1152921504606846976)) END $$;

CREATE OR REPLACE FUNCTION runs(number integer) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT greatest(0, least(number, 1000000000)) $$;

-- How often a job shared the death of a process. What is no such number makes it run alone, as 3 does.
CREATE OR REPLACE FUNCTION deaths(number integer) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN number BETWEEN 0 AND 1000000000 THEN number ELSE 3 END $$;

CREATE OR REPLACE FUNCTION head_start(run_at bigint, order_at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$
    SELECT greatest(-86400000000, least(86400000000,
        instant(run_at) - greatest(-1152921504606846976, least(order_at, 1152921504606846976))))
$$;

CREATE OR REPLACE FUNCTION sound_name(name text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN octet_length(name) BETWEEN 1 AND 255 THEN name
                WHEN name = '' THEN 'unreadable' ELSE left(name, 60) END
$$;

CREATE OR REPLACE FUNCTION sound_id(id text) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN octet_length(id) = least(char_length(id), 36) AND id <> '' THEN id
                ELSE left(encode(sha256(convert_to(id, 'UTF8')), 'hex'), 32) END
$$;

-- The level of a job, which is 1 if it is no such number; and whether a program of a level may do anything with
-- a job of another.
CREATE OR REPLACE FUNCTION level_of(level integer) RETURNS smallint LANGUAGE sql IMMUTABLE
AS $$ SELECT (CASE WHEN level BETWEEN 1 AND 1000 THEN level ELSE 1 END)::smallint $$;
CREATE OR REPLACE FUNCTION may_touch(own integer, level integer) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$ SELECT level <= own OR level > 1000 $$;
