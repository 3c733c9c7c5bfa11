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
-- the order too, and are stepped over until their lease has passed.
SELECT json_group_array(json_array(
    id, task, version, order_at, run_at, expires_at, json(iif(lease_until, 'true', 'false')),
    length(payload), seq, payload, options, attempt, crashes, json(iif(suspect, 'true', 'false')), fence, enqueued_at,
    claimed_at, worker
))
FROM (
    SELECT * FROM fairlead_job INDEXED BY fairlead_job_order
    WHERE queue = :queue AND parked = 0 AND (order_at, id) > (:order_at, :id)
      AND lease_until <= :now
    ORDER BY order_at, id
    LIMIT :limit
)

-- name: next_seq
-- The first of the same jobs by its sequence number, which is always readable.
SELECT seq FROM fairlead_job INDEXED BY fairlead_job_order
WHERE queue = :queue AND parked = 0 AND (order_at, id) > (:order_at, :id) AND lease_until <= :now
ORDER BY order_at, id
LIMIT 1

-- name: lease
UPDATE fairlead_job
SET fence = :fence, lease_until = :until, attempt = attempt + 1, worker = :worker, claimed_at = :now
WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: take_over
-- A lost run keeps its attempt, its worker and its claim time: they tell of that run.
UPDATE fairlead_job SET fence = :fence, lease_until = :until
WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: park_unknown
-- Jobs whose task no live worker knows leave the order. A lost run keeps its passed lease, and
-- is claimed as lost when it comes back.
UPDATE fairlead_job SET parked = 2
WHERE id IN (SELECT value FROM json_each(:ids))
  AND NOT EXISTS (
    SELECT 1 FROM fairlead_worker, json_each(fairlead_worker.capable) AS known
    WHERE live_until > :now AND known.key = task AND known.value >= version
  )
RETURNING id, task, version, queue, options

-- name: held
-- Seldom asked, so it may read the whole table; an index on the worker would slow every claim.
SELECT json_group_array(json_array(
    id, task, version, queue, payload, options, attempt, crashes, fence, run_at, enqueued_at,
    expires_at, claimed_at, lease_until, worker, json('false'), json(iif(suspect, 'true', 'false'))
))
FROM fairlead_job WHERE worker = :worker AND lease_until > 0
