-- The tables share a file with the application's own, so every name is prefixed.
-- Instants are microseconds since 1970, UTC.

-- Waiting and running jobs. A claim writes only columns no index holds (fence, lease_until,
-- attempt, worker, claimed_at), so nothing moves. order_at is run_at minus the head start.
-- parked: 0 in the order, 1 not due, 2 no capable worker. size is that of options and payload,
-- in bytes. What may be large comes last, so that a claim passes over it without reading it.
CREATE TABLE fairlead_job (
    seq         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,
    version     INTEGER NOT NULL,
    parked      INTEGER NOT NULL,
    run_at      INTEGER NOT NULL,
    order_at    INTEGER NOT NULL,
    expires_at  INTEGER,
    enqueued_at INTEGER NOT NULL,
    attempt     INTEGER NOT NULL DEFAULT 0,
    crashes     INTEGER NOT NULL DEFAULT 0,
    fence       INTEGER NOT NULL DEFAULT 0,
    lease_until INTEGER NOT NULL DEFAULT 0,
    worker      TEXT,
    claimed_at  INTEGER,
    cancel      TEXT,
    size        INTEGER NOT NULL DEFAULT 0,
    options     TEXT,
    payload     TEXT    NOT NULL,
    errors      TEXT
);
CREATE INDEX fairlead_job_order   ON fairlead_job (queue, order_at, id) WHERE parked = 0;
CREATE INDEX fairlead_job_due     ON fairlead_job (run_at)              WHERE parked = 1;
CREATE INDEX fairlead_job_unknown ON fairlead_job (task, version)       WHERE parked = 2;
CREATE INDEX fairlead_job_expires ON fairlead_job (expires_at)          WHERE expires_at IS NOT NULL;

-- Done and cancelled jobs, until their retention time is over.
CREATE TABLE fairlead_finished (
    seq         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,
    version     INTEGER NOT NULL,
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
    result      TEXT
);

CREATE INDEX fairlead_finished_at ON fairlead_finished (finished_at);

-- Dead letters: kept until a person removes them.
CREATE TABLE fairlead_dead (
    seq         INTEGER PRIMARY KEY,
    id          TEXT    NOT NULL UNIQUE,
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,
    version     INTEGER NOT NULL,
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
    reason      TEXT
);

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

-- Workers and the tasks they know, as a JSON object of name to newest version.
CREATE TABLE fairlead_worker (
    id         TEXT    PRIMARY KEY,
    capable    TEXT    NOT NULL,
    live_until INTEGER NOT NULL
) WITHOUT ROWID;
