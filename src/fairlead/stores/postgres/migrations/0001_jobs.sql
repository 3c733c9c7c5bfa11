-- Instants are microseconds since 1970, UTC, by the server's clock, read when the statement runs.
-- People's questions call it as well, whatever is on their search path: so it names the server's own.
CREATE FUNCTION stamp() RETURNS bigint LANGUAGE sql VOLATILE
AS $$
    SELECT (pg_catalog.date_part('epoch'::pg_catalog.text, pg_catalog.clock_timestamp())
            OPERATOR(pg_catalog.*) 1000000::double precision)::bigint
$$;

-- The instant of a test's clock. It needs a right of its own, see allow: whoever else could say what
-- time it is could let jobs end so long ago that they are forgotten, and write lies into the audit log.
-- What we refuse to callers has codes of our own, JQ001 for what they do and JQ002 for what they put:
-- what a trigger or a function of somebody else raises is never taken for it.
CREATE FUNCTION moment(told bigint) RETURNS bigint LANGUAGE plpgsql STABLE STRICT
AS $$
BEGIN
    IF NOT has_function_privilege(session_user, 'moment(bigint)', 'EXECUTE') THEN
        RAISE 'only a role that is allowed to be a tester goes by a clock of its own'
            USING ERRCODE = 'JQ001';
    END IF;
    RETURN told;
END $$;

-- The document that a verb is given. One that is too long is refused before it is read.
CREATE FUNCTION too_long(batch text, code text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RAISE 'one call takes at most 33,554,432 bytes, not %', octet_length(batch) USING ERRCODE = code;
END $$;
CREATE FUNCTION document(batch text, code text DEFAULT 'program_limit_exceeded') RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN octet_length(batch) > 33554432 THEN too_long(batch, code) ELSE batch::jsonb END
$$;

-- Waiting and running jobs. A claim writes only columns that no index holds (fence, lease_until,
-- attempt, worker, claimed_at, lost), and finds room in the page for it, so no index changes.
-- order_at is run_at minus the head start. parked: 0 in the order, 1 not due, 2 no capable worker,
-- 3 in the order too, but out of turn: given back, promoted, with a head start. The ones out of turn
-- have an index of their own, because claims go along the order from where they were.
-- put_by is the user that the database knows the producer as: a producer sees its own jobs only.
-- What claims change and look at comes first, and is of a fixed width: it is found without reading what
-- comes before, and no room is lost between.
CREATE TABLE job (
    run_at      bigint   NOT NULL,
    order_at    bigint   NOT NULL,
    enqueued_at bigint   NOT NULL,
    fence       bigint   NOT NULL DEFAULT 0,
    lease_until bigint   NOT NULL DEFAULT 0,
    version     integer  NOT NULL,
    attempt     integer  NOT NULL DEFAULT 0,
    crashes     integer  NOT NULL DEFAULT 0,
    shared_deaths integer NOT NULL DEFAULT 0,
    parked      smallint NOT NULL DEFAULT 0,
    lost        boolean  NOT NULL DEFAULT false,
    expires_at  bigint,
    claimed_at  bigint,
    id          text COLLATE "C" PRIMARY KEY,
    queue       text COLLATE "C" NOT NULL,
    task        text COLLATE "C" NOT NULL,
    payload     text     NOT NULL,
    options     text,
    worker      text,
    cancel      text,
    errors      text[],
    put_by      text
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);
CREATE INDEX job_order   ON job (queue, order_at, id) WITH (deduplicate_items = off) WHERE parked = 0;
CREATE INDEX job_aside   ON job (queue, order_at, id) WHERE parked = 3;
CREATE INDEX job_due     ON job (run_at)              WHERE parked = 1;
CREATE INDEX job_unknown ON job (task, version)       WHERE parked = 2;
CREATE INDEX job_expires ON job (expires_at)          WHERE expires_at IS NOT NULL;

-- Where the order of a queue begins to hold live jobs: below the mark are only dead index entries,
-- or so it is believed until the next look there.
CREATE TABLE queue (
    name      text COLLATE "C" PRIMARY KEY,
    mark      bigint NOT NULL,
    next_look bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Done and cancelled jobs, a table for each day they ended in. See open_day and close_days.
CREATE TABLE finished (
    id          text COLLATE "C" NOT NULL,
    queue       text COLLATE "C" NOT NULL,
    task        text COLLATE "C" NOT NULL,
    version     integer NOT NULL,
    state       text    NOT NULL,
    run_at      bigint  NOT NULL,
    order_at    bigint  NOT NULL,
    expires_at  bigint,
    enqueued_at bigint  NOT NULL,
    payload     text    NOT NULL,
    options     text,
    attempt     integer NOT NULL,
    crashes     integer NOT NULL,
    fence       bigint  NOT NULL,
    worker      text,
    claimed_at  bigint,
    errors      text[],
    finished_at bigint  NOT NULL,
    reason      text,
    result      text,
    put_by      text
) PARTITION BY RANGE (finished_at);
CREATE INDEX finished_id ON finished (id);
CREATE INDEX finished_at ON finished (finished_at);

-- The attempt log: one line per ended run, in the order they ended, by the day as well.
CREATE SEQUENCE attempt_seq CACHE 100 CYCLE;
CREATE TABLE attempt (
    seq         bigint  NOT NULL DEFAULT nextval('attempt_seq'),
    job_id      text COLLATE "C" NOT NULL,
    fence       bigint  NOT NULL,
    attempt     integer NOT NULL,
    task        text    NOT NULL,
    queue       text COLLATE "C" NOT NULL,
    pool        text,
    worker      text,
    ready_at    bigint  NOT NULL,
    claimed_at  bigint  NOT NULL,
    started_at  bigint,
    finished_at bigint  NOT NULL,
    outcome     text    NOT NULL,
    fingerprint text
) PARTITION BY RANGE (finished_at);
CREATE INDEX attempt_job ON attempt (job_id);
CREATE INDEX attempt_at  ON attempt (finished_at, seq);

-- The days that have their tables, by the instant they begin.
CREATE TABLE day (first bigint PRIMARY KEY);

-- What ended before this instant is forgotten: nobody sees it, and its table goes with its day.
-- keep is for how many microseconds an operator wants everything kept, whatever workers say.
CREATE TABLE retention (before bigint NOT NULL, keep bigint);
CREATE UNIQUE INDEX retention_one ON retention ((true));
INSERT INTO retention VALUES (0);

-- From when on what ended is kept. An instant that is still to come, or none, is damage and hides nothing.
CREATE VIEW kept AS
SELECT coalesce(max(before), 0) AS since FROM retention WHERE before <= stamp() + 86400000000;

-- Dead letters: kept until a person removes them.
CREATE TABLE dead (
    id          text COLLATE "C" PRIMARY KEY,
    queue       text COLLATE "C" NOT NULL,
    task        text COLLATE "C" NOT NULL,
    version     integer NOT NULL,
    run_at      bigint  NOT NULL,
    order_at    bigint  NOT NULL,
    expires_at  bigint,
    enqueued_at bigint  NOT NULL,
    payload     text    NOT NULL,
    options     text,
    attempt     integer NOT NULL,
    crashes     integer NOT NULL,
    fence       bigint  NOT NULL,
    worker      text,
    claimed_at  bigint,
    errors      text[],
    finished_at bigint  NOT NULL,
    reason      text,
    put_by      text
);

-- Queues that a person paused.
CREATE TABLE paused (queue text COLLATE "C" PRIMARY KEY);

-- Workers: the tasks they know, by name and newest version, and what they serve them with.
CREATE TABLE worker (
    id         text COLLATE "C" PRIMARY KEY,
    capable    jsonb   NOT NULL,
    pools      text    NOT NULL,
    processes  integer NOT NULL,
    started_at bigint  NOT NULL,
    live_until bigint  NOT NULL
) WITH (fillfactor = 50);

-- The audit log: what people did, to which jobs in words, and to how many. What was done to
-- single jobs is found by their id; before is the payload that an edit replaced. who is what the
-- program says, by_user whom the database knows it as. answers are what its calls were answered, for who
-- repeats one: see take_line.
CREATE TABLE audit (
    seq     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id      text COLLATE "C" NOT NULL UNIQUE,
    done_at bigint  NOT NULL,
    who     text    NOT NULL,
    verb    text    NOT NULL,
    target  text    NOT NULL,
    count   integer NOT NULL,
    job_id  text COLLATE "C",
    before  text,
    by_user text    NOT NULL DEFAULT session_user,
    answers text    NOT NULL DEFAULT ''
);
CREATE INDEX audit_job ON audit (job_id) WHERE job_id IS NOT NULL;

-- The name of a day, as its tables have it.
CREATE FUNCTION day_of(opens bigint) RETURNS text LANGUAGE sql STABLE
AS $$ SELECT to_char(to_timestamp(opens / 1000000) AT TIME ZONE 'UTC', 'YYYYMMDD') $$;

CREATE FUNCTION is_part(part text, whole text) RETURNS boolean LANGUAGE sql VOLATILE
AS $$
    SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = to_regclass(quote_ident(part))
                                             AND inhparent = to_regclass(quote_ident(whole)))
$$;

-- The part of a table that holds these times, whatever its name is; null if there is none.
CREATE FUNCTION part_for(whole text, opens bigint, closes bigint) RETURNS regclass LANGUAGE sql VOLATILE
AS $$
    SELECT inhrelid::regclass FROM pg_inherits JOIN pg_class ON oid = inhrelid
    CROSS JOIN regexp_match(
        pg_get_expr(relpartbound, oid), $r$FROM \('(-?\d+)'\) TO \('(-?\d+)'\)$r$
    ) AS bounds
    WHERE inhparent = to_regclass(quote_ident(whole))
      AND bounds[1]::bigint <= opens AND bounds[2]::bigint >= closes
$$;

-- Take from all but the owner what default privileges gave them when this was made.
CREATE FUNCTION seal(made regclass) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    who text;
BEGIN
    FOR who IN
        SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
        FROM pg_class CROSS JOIN aclexplode(relacl) WHERE oid = made AND grantee <> relowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', made, who);
    END LOOP;
END $$;

-- Make one part of a table. A table that has its name already may be somebody's trap: what is in it, and
-- what it does with each row, would happen with the owner's rights. So it is one of the owner's, and plain.
CREATE FUNCTION add_part(whole text, part text, opens bigint, closes bigint) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    full_name text := format('%I.%I', current_schema(), part);
    there     pg_class;
BEGIN
    SELECT * INTO there FROM pg_class WHERE oid = to_regclass(full_name);
    IF NOT FOUND THEN
        EXECUTE format('CREATE TABLE %s (LIKE %I INCLUDING ALL)', full_name, whole);
        PERFORM seal(full_name::regclass);
    ELSIF there.relkind <> 'r' OR there.relhastriggers OR there.relhasrules
          OR there.relowner <> (SELECT relowner FROM pg_class WHERE oid = to_regclass(quote_ident(whole))) THEN
        RAISE 'jobs that end on this day need the table %, and somebody has made another of that name; '
              'let its owner, %, drop or rename it', full_name, there.relowner::regrole
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    EXECUTE format(
        'ALTER TABLE %I ATTACH PARTITION %s FOR VALUES FROM (%s) TO (%s)', whole, full_name, opens, closes
    );
END $$;

-- Make the tables of the day that an instant falls in. Whoever adds the day to the list makes them;
-- others wait for that. They are attached, not created in place: that locks nobody out. The list is
-- not believed: somebody may have changed it, and without its tables no job of the day could end.
CREATE FUNCTION open_day(at bigint) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    opens  bigint := at / 86400000000 * 86400000000;
    closes bigint := opens + 86400000000;
    name   text;
    part   text;
BEGIN
    INSERT INTO day VALUES (opens) ON CONFLICT DO NOTHING;
    FOREACH name IN ARRAY ARRAY['finished', 'attempt'] LOOP
        part := name || '_' || day_of(opens);
        IF NOT is_part(part, name) THEN
            PERFORM FROM day WHERE first = opens FOR UPDATE;
            IF part_for(name, opens, closes) IS NULL THEN
                PERFORM add_part(name, part, opens, closes);
            END IF;
        END IF;
    END LOOP;
END $$;

-- Drop the days that ended before an instant. If somebody reads them, they are dropped another time.
CREATE FUNCTION close_days(before_ bigint) RETURNS void LANGUAGE plpgsql
SET lock_timeout = '50ms'
AS $$
DECLARE
    opens bigint;
BEGIN
    FOR opens IN
        SELECT first FROM day
        WHERE first <= before_ - 86400000000 AND first >= 0 AND first % 86400000000 = 0
        ORDER BY first LIMIT 10
        FOR UPDATE SKIP LOCKED
    LOOP
        EXECUTE format(
            'DROP TABLE IF EXISTS %I, %I', 'finished_' || day_of(opens), 'attempt_' || day_of(opens)
        );
        DELETE FROM day WHERE first = opens;
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    NULL;
END $$;
