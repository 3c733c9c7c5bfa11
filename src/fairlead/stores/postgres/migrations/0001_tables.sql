-- Waiting and running jobs. A claim writes only columns that no index holds (fence, lease_until,
-- attempt, worker, claimed_at, lost), and finds room in the page for it, so no index changes.
-- order_at is run_at minus the head start. parked: 0 in the order, 1 not due, 2 no capable worker,
-- 3 in the order too, but out of turn: given back, promoted, with a head start. The ones out of turn
-- have an index of their own, because claims go along the order from where they were. park_key says for
-- what a job waits that is parked for another reason than its time.
-- put_by is the user that the database knows the producer as: a producer sees its own jobs only.
-- level is the least that a program must have to do anything with the job, and attached says what it has
-- besides its own row (core/job.py).
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
    level       smallint NOT NULL DEFAULT 1,
    attached    smallint NOT NULL DEFAULT 0,
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
    put_by      text,
    park_key    text COLLATE "C"
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);
CREATE INDEX job_order   ON job (queue, order_at, id) WITH (deduplicate_items = off) WHERE parked = 0;
CREATE INDEX job_aside   ON job (queue, order_at, id) WHERE parked = 3;
CREATE INDEX job_due     ON job (run_at, id)          WHERE parked = 1;
CREATE INDEX job_parked  ON job (parked, park_key, order_at, id) WHERE park_key IS NOT NULL;
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
    put_by      text,
    level       smallint NOT NULL DEFAULT 1,
    attached    smallint NOT NULL DEFAULT 0
) PARTITION BY RANGE (finished_at);
CREATE INDEX finished_id ON finished (id);
CREATE INDEX finished_at ON finished (finished_at);
CREATE INDEX finished_cancelled ON finished (finished_at, id) WHERE state <> 'done';
CREATE INDEX finished_entries ON finished (finished_at) WHERE attached & 1 <> 0;

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
    put_by      text,
    level       smallint NOT NULL DEFAULT 1,
    attached    smallint NOT NULL DEFAULT 0
);
CREATE INDEX dead_at ON dead (finished_at, id);

-- Small values that are no jobs (core/entries.py). An entry of nobody has an empty owner. Those of a job
-- stay where they are when it ends or comes back, and go before its day does.
CREATE TABLE entry (
    version    bigint NOT NULL,
    due_at     bigint,
    expires_at bigint,
    kind       text COLLATE "C" NOT NULL,
    owner      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    value      text NOT NULL
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX entry_key ON entry (kind, owner, key);
CREATE INDEX entry_due     ON entry (kind, owner, due_at, key) WHERE due_at IS NOT NULL;
CREATE INDEX entry_expires ON entry (expires_at)               WHERE expires_at IS NOT NULL AND owner = '';
CREATE INDEX entry_owner   ON entry (owner)                    WHERE owner <> '';

-- Queues that a person paused.
CREATE TABLE paused (queue text COLLATE "C" PRIMARY KEY);

-- Workers: the tasks they know, by name and newest version, and what they serve them with.
CREATE TABLE worker (
    id         text COLLATE "C" PRIMARY KEY,
    capable    jsonb   NOT NULL,
    pools      text    NOT NULL,
    processes  integer NOT NULL,
    started_at bigint  NOT NULL,
    live_until bigint  NOT NULL,
    level      smallint NOT NULL DEFAULT 1
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

-- The functions and views that were applied last: by a program of which revision, what their texts come to, and
-- which there are. Those that the ones before had besides are dropped with the next ones: calls that had
-- begun may still need them. See catalog.py.
CREATE TABLE verbs (
    revision   integer NOT NULL,
    functions  text    NOT NULL,
    views      text    NOT NULL,
    applied_at bigint  NOT NULL,
    made       text[]  NOT NULL,
    left_over  text[]  NOT NULL
);
CREATE UNIQUE INDEX verbs_one ON verbs ((true));

-- A queue that a claim asks for: what the rule needs of it; how many jobs it is asked for ("want"), how many
-- were found that may start ("had"), and how many of those out of turn ("beside"); how many there are at
-- most, once that is known; and the place in its order after which the walk along it begins. With "look"
-- that place is its mark, and jobs out of turn are taken in; "resumed" says that an earlier claim stopped there.
-- "places" are those of the jobs that were found, if they are locked already.
CREATE TYPE stretch AS (
    name text, weight float8, debt float8, reserve integer, critical boolean,
    want integer, had integer, beside integer, most integer, gates integer, bytes bigint,
    from_at bigint, from_id text, look boolean, resumed boolean, mark bigint,
    first_at bigint, upto_at bigint, places tid[]
);

-- What was made is the owner's alone until it is allowed to others, whatever default privileges say.
DO $$
DECLARE
    each record;
BEGIN
    FOR each IN
        SELECT DISTINCT c.oid::regclass AS made,
               CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS who
        FROM pg_class AS c CROSS JOIN aclexplode(relacl)
        WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'S')
          AND grantee <> relowner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s CASCADE', each.made, each.who);
    END LOOP;
END $$;
