-- name: pending
-- What has to be looked after before a claim: jobs that fell due, that wait for a worker
-- who knows them, that expired.
SELECT json_array(
    EXISTS (SELECT 1 FROM fairlead_job WHERE parked = 1 AND run_at <= :now),
    EXISTS (SELECT 1 FROM fairlead_job WHERE parked = 2),
    EXISTS (SELECT 1 FROM fairlead_job WHERE expires_at <= :now AND lease_until = 0),
    (SELECT json_group_array(queue) FROM fairlead_paused)
)

-- name: heads
-- The next waiting jobs of a queue after a place in its order, in order. Running jobs are in
-- the order too and are stepped over until their lease has passed; a run that was lost must
-- be decided on whether the job has expired or not.
SELECT json_group_array(json_array(id, task, version, order_at, run_at, expires_at))
FROM (
    SELECT id, task, version, order_at, run_at, iif(lease_until, NULL, expires_at) AS expires_at
    FROM fairlead_job INDEXED BY fairlead_job_order
    WHERE queue = :queue AND parked = 0 AND (order_at, id) > (:order_at, :id)
      AND lease_until <= :now
    ORDER BY order_at, id
    LIMIT :limit
)

-- name: lease
-- A lost run keeps its attempt, its worker and its claim time: they tell of that run.
UPDATE fairlead_job
SET fence = max(fence + 1, :now),
    attempt = attempt + (lease_until = 0),
    worker = iif(lease_until, worker, :worker),
    claimed_at = iif(lease_until, claimed_at, :now),
    lease_until = :now + :lease
WHERE id IN (SELECT value FROM json_each(:ids))

-- name: leased
-- The jobs just leased, in the order of the ids. A claim time in the past marks a lost run.
SELECT json_group_array(json_array(
    id, task, version, queue, CAST(payload AS TEXT), options, attempt, crashes, fence, run_at, enqueued_at,
    expires_at, claimed_at, lease_until, worker, json(iif(claimed_at < :now, 'true', 'false'))
))
FROM (
    SELECT job.* FROM json_each(:ids) AS chosen
    CROSS JOIN fairlead_job AS job ON job.id = chosen.value
    ORDER BY chosen.key
)

-- name: park_unknown
-- Jobs whose task no live worker knows leave the order.
UPDATE fairlead_job SET parked = 2
WHERE id IN (SELECT value FROM json_each(:ids)) AND lease_until = 0
  AND NOT EXISTS (
    SELECT 1 FROM fairlead_worker, json_each(fairlead_worker.capable) AS known
    WHERE live_until > :now AND known.key = task AND known.value >= version
  )
