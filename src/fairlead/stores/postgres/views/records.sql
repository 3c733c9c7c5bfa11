-- Jobs by one shape: those in the line, those that ended well or were cancelled, the dead letters.
CREATE OR REPLACE VIEW job_record AS
SELECT id, task, version, queue, CASE WHEN lease_until > 0 THEN 'running' ELSE 'waiting' END AS state,
       payload, options, run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at,
       parked, worker, claimed_at, nullif(lease_until, 0) AS lease_until,
       cancel IS NOT NULL AS cancel_requested, NULL::bigint AS finished_at, NULL::text AS result,
       NULL::text AS reason, errors, put_by, shared_deaths,
       CASE WHEN level BETWEEN 1 AND 1000 THEN level ELSE 1::smallint END AS level,
       CASE WHEN parked = 1 THEN 'not_due' WHEN parked = 2 THEN 'no_capable_worker'
            WHEN parked > 3 THEN coalesce(limit_named(parked), 'newer_program') END AS gate
FROM job;

CREATE OR REPLACE VIEW finished_record AS
SELECT id, task, version, queue, CASE state WHEN 'done' THEN state ELSE 'cancelled' END AS state,
       payload, options, run_at, order_at, attempt, crashes, fence,
       enqueued_at, expires_at, 0::smallint AS parked, worker, claimed_at,
       NULL::bigint AS lease_until, false AS cancel_requested, finished_at, result, reason, errors,
       put_by, 0 AS shared_deaths,
       CASE WHEN level BETWEEN 1 AND 1000 THEN level ELSE 1::smallint END AS level, NULL::text AS gate
FROM finished WHERE finished_at >= (SELECT since FROM kept);

CREATE OR REPLACE VIEW dead_record AS
SELECT id, task, version, queue, 'dead' AS state, payload, options, run_at, order_at, attempt,
       crashes, fence, enqueued_at, expires_at, 0::smallint AS parked, worker, claimed_at,
       NULL::bigint AS lease_until, false AS cancel_requested, finished_at, NULL::text AS result,
       reason, errors, put_by, 0 AS shared_deaths,
       CASE WHEN level BETWEEN 1 AND 1000 THEN level ELSE 1::smallint END AS level, NULL::text AS gate
FROM dead;

CREATE OR REPLACE VIEW attempt_record AS
SELECT seq, job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
       finished_at, outcome, fingerprint
FROM attempt WHERE finished_at >= (SELECT since FROM kept);
