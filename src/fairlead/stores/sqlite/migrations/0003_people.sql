-- What a worker serves its tasks with, and since when.
ALTER TABLE fairlead_worker ADD COLUMN pools      TEXT    NOT NULL DEFAULT '[]';
ALTER TABLE fairlead_worker ADD COLUMN processes  INTEGER NOT NULL DEFAULT 1;
ALTER TABLE fairlead_worker ADD COLUMN started_at INTEGER NOT NULL DEFAULT 0;

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
       NULL AS finished_at, NULL AS result, NULL AS reason, errors, shared_deaths
FROM fairlead_job;

CREATE VIEW fairlead_finished_record AS
SELECT id, task, version, queue, state, payload, options,
       run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at, 0 AS parked, worker,
       claimed_at, NULL AS lease_until, 0 AS cancel_requested,
       finished_at, result, reason, errors, 0 AS shared_deaths
FROM fairlead_finished;

CREATE VIEW fairlead_dead_record AS
SELECT id, task, version, queue, 'dead' AS state, payload, options,
       run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at, 0 AS parked, worker,
       claimed_at, NULL AS lease_until, 0 AS cancel_requested,
       finished_at, NULL AS result, reason, errors, 0 AS shared_deaths
FROM fairlead_dead;
