-- The tables share a file with the application's own, so every name is prefixed.
-- Instants are microseconds since 1970, UTC.

-- What later steps add must do no harm to programs that do not know it: a new column has a default,
-- and what they write leaves it at that. They do not carry it to where a job goes when it ends, or
-- comes back. What has to go along is a key of `more`, a JSON object: fields of later programs, which
-- this one copies wherever a job goes, and never reads.

-- Waiting and running jobs. A claim writes only columns no index holds (fence, lease_until,
-- attempt, worker, claimed_at), so nothing moves. order_at is run_at minus the head start.
-- level is the least that a program must have to do anything with the job, attached what it
-- has besides its row (core.job.Attached).
-- parked: 0 in the order, 1 not due, 2 no capable worker; from 2 on, park_key says what for.
-- shared_deaths: how often its process died while others ran in it too, since a run of it ended
-- by itself. size is that of options and payload, in bytes. What may be large comes last, so that
-- a claim passes over it without reading it.
CREATE TABLE fairlead_job (
    seq           INTEGER PRIMARY KEY,
    id            TEXT    NOT NULL UNIQUE,
    queue         TEXT    NOT NULL,
    task          TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    level         INTEGER NOT NULL DEFAULT 1,
    attached      INTEGER NOT NULL DEFAULT 0,
    parked        INTEGER NOT NULL,
    park_key      TEXT,
    run_at        INTEGER NOT NULL,
    order_at      INTEGER NOT NULL,
    expires_at    INTEGER,
    enqueued_at   INTEGER NOT NULL,
    attempt       INTEGER NOT NULL DEFAULT 0,
    crashes       INTEGER NOT NULL DEFAULT 0,
    shared_deaths INTEGER NOT NULL DEFAULT 0,
    fence         INTEGER NOT NULL DEFAULT 0,
    lease_until   INTEGER NOT NULL DEFAULT 0,
    worker        TEXT,
    claimed_at    INTEGER,
    cancel        TEXT,
    size          INTEGER NOT NULL DEFAULT 0,
    options       TEXT,
    payload       TEXT    NOT NULL,
    errors        TEXT,
    more          TEXT
);
CREATE INDEX fairlead_job_order   ON fairlead_job (queue, order_at, id)            WHERE parked = 0;
CREATE INDEX fairlead_job_due     ON fairlead_job (run_at)                         WHERE parked = 1;
CREATE INDEX fairlead_job_parked  ON fairlead_job (parked, park_key, order_at, id) WHERE parked > 1;
CREATE INDEX fairlead_job_expires ON fairlead_job (expires_at)          WHERE expires_at IS NOT NULL;

-- Done and cancelled jobs, until their retention time is over.
CREATE TABLE fairlead_finished (
    seq         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    level       INTEGER NOT NULL DEFAULT 1,
    attached    INTEGER NOT NULL DEFAULT 0,
    state       TEXT    NOT NULL,
    run_at      INTEGER NOT NULL,
    order_at    INTEGER NOT NULL,
    expires_at  INTEGER,
    enqueued_at INTEGER NOT NULL,
    payload     TEXT    NOT NULL,
    options     TEXT,
    attempt     INTEGER NOT NULL,
    crashes     INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    worker      TEXT,
    claimed_at  INTEGER,
    errors      TEXT,
    finished_at INTEGER NOT NULL,
    reason      TEXT,
    result      TEXT,
    more        TEXT
);
CREATE INDEX fairlead_finished_at        ON fairlead_finished (finished_at);
CREATE INDEX fairlead_finished_cancelled ON fairlead_finished (finished_at) WHERE state <> 'done';
CREATE INDEX fairlead_finished_entries   ON fairlead_finished (finished_at) WHERE attached & 1;

-- Dead letters: kept until a person removes them.
CREATE TABLE fairlead_dead (
    seq         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    level       INTEGER NOT NULL DEFAULT 1,
    attached    INTEGER NOT NULL DEFAULT 0,
    run_at      INTEGER NOT NULL,
    order_at    INTEGER NOT NULL,
    expires_at  INTEGER,
    enqueued_at INTEGER NOT NULL,
    payload     TEXT    NOT NULL,
    options     TEXT,
    attempt     INTEGER NOT NULL,
    crashes     INTEGER NOT NULL,
    fence       INTEGER NOT NULL,
    worker      TEXT,
    claimed_at  INTEGER,
    errors      TEXT,
    finished_at INTEGER NOT NULL,
    reason      TEXT,
    more        TEXT
);
CREATE INDEX fairlead_dead_at ON fairlead_dead (finished_at);

-- Small values that are no jobs (core/entries.py). An entry of nobody has an empty owner. Those of a
-- job stay where they are when it ends or comes back, and go before it is forgotten.
CREATE TABLE fairlead_entry (
    seq        INTEGER PRIMARY KEY,
    kind       TEXT    NOT NULL,
    owner      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    due_at     INTEGER,
    expires_at INTEGER,
    value      TEXT    NOT NULL,
    UNIQUE (kind, owner, key)
);
CREATE INDEX fairlead_entry_due     ON fairlead_entry (kind, owner, due_at, key) WHERE due_at IS NOT NULL;
CREATE INDEX fairlead_entry_expires ON fairlead_entry (expires_at)
    WHERE expires_at IS NOT NULL AND owner = '';
CREATE INDEX fairlead_entry_owner   ON fairlead_entry (owner)                WHERE owner <> '';

-- The attempt log: one line per ended run, in the order they ended.
CREATE TABLE fairlead_attempt (
    seq         INTEGER PRIMARY KEY,
    job_id      TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    task        TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    pool        TEXT,
    worker      TEXT,
    ready_at    INTEGER NOT NULL,
    claimed_at  INTEGER NOT NULL,
    started_at  INTEGER,
    finished_at INTEGER NOT NULL,
    outcome     TEXT    NOT NULL,
    fingerprint TEXT
);
CREATE INDEX fairlead_attempt_job ON fairlead_attempt (job_id);
CREATE INDEX fairlead_attempt_at  ON fairlead_attempt (finished_at);

-- Queues that a person paused.
CREATE TABLE fairlead_paused (
    queue TEXT PRIMARY KEY
) WITHOUT ROWID;

-- Workers: the tasks they know, as a JSON object of name to newest version, what they serve them
-- with, and since when.
CREATE TABLE fairlead_worker (
    id         TEXT    PRIMARY KEY,
    capable    TEXT    NOT NULL,
    pools      TEXT    NOT NULL DEFAULT '[]',
    processes  INTEGER NOT NULL DEFAULT 1,
    started_at INTEGER NOT NULL DEFAULT 0,
    live_until INTEGER NOT NULL,
    level      INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID;

-- The audit log: what people did, to which jobs in words, and to how many. What was done to
-- single jobs is found by their id; before is the payload that an edit replaced. answers are what
-- its calls were answered (core/answers.py), for those who repeat one.
CREATE TABLE fairlead_audit (
    seq     INTEGER PRIMARY KEY,
    id      TEXT    NOT NULL UNIQUE,
    done_at INTEGER NOT NULL,
    who     TEXT    NOT NULL,
    verb    TEXT    NOT NULL,
    target  TEXT    NOT NULL,
    count   INTEGER NOT NULL,
    job_id  TEXT,
    before  TEXT,
    answers TEXT    NOT NULL DEFAULT ''
);
CREATE INDEX fairlead_audit_job ON fairlead_audit (job_id) WHERE job_id IS NOT NULL;

-- Jobs by one shape: those in the line, those that ended well or were cancelled, the dead letters.
CREATE VIEW fairlead_job_record AS
SELECT id, task, version, queue, iif(lease_until, 'running', 'waiting') AS state, payload, options,
       run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at, parked, worker,
       claimed_at, nullif(lease_until, 0) AS lease_until, cancel IS NOT NULL AS cancel_requested,
       NULL AS finished_at, NULL AS result, NULL AS reason, errors, shared_deaths, level
FROM fairlead_job;

CREATE VIEW fairlead_finished_record AS
SELECT id, task, version, queue, state, payload, options,
       run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at, 0 AS parked, worker,
       claimed_at, NULL AS lease_until, 0 AS cancel_requested,
       finished_at, result, reason, errors, 0 AS shared_deaths, level
FROM fairlead_finished;

CREATE VIEW fairlead_dead_record AS
SELECT id, task, version, queue, 'dead' AS state, payload, options,
       run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at, 0 AS parked, worker,
       claimed_at, NULL AS lease_until, 0 AS cancel_requested,
       finished_at, NULL AS result, reason, errors, 0 AS shared_deaths, level
FROM fairlead_dead;
