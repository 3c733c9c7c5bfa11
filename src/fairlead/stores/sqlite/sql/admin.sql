-- name: find
-- A job in whatever state, by one shape. One statement sees one state of the file, so a job
-- that is just moving is seen exactly once.
SELECT id, task, version, queue, iif(lease_until, 'running', 'waiting') AS state, payload, options,
       run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at, parked, worker,
       claimed_at, nullif(lease_until, 0) AS lease_until, cancel IS NOT NULL AS cancel_requested,
       NULL AS finished_at, NULL AS result, NULL AS reason, errors
FROM fairlead_job WHERE id = :id
UNION ALL
SELECT id, task, version, queue, state, payload, options,
       run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at, 0, worker,
       claimed_at, NULL, 0, finished_at, result, reason, errors
FROM fairlead_finished WHERE id = :id
UNION ALL
SELECT id, task, version, queue, 'dead', payload, options,
       run_at, order_at, attempt, crashes, fence, enqueued_at, expires_at, 0, worker,
       claimed_at, NULL, 0, finished_at, NULL, reason, errors
FROM fairlead_dead WHERE id = :id

-- name: attempts
SELECT json_group_array(json_array(
    job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
    finished_at, outcome, fingerprint
))
FROM (SELECT * FROM fairlead_attempt WHERE job_id = :id ORDER BY seq)

-- name: count
SELECT queue, iif(lease_until, 'running', 'waiting'), count(*) FROM fairlead_job GROUP BY 1, 2
UNION ALL
SELECT queue, state, count(*) FROM fairlead_finished GROUP BY 1, 2
UNION ALL
SELECT queue, 'dead', count(*) FROM fairlead_dead GROUP BY 1

-- name: waiting
-- Which of these jobs wait, and so can be cancelled at once.
SELECT json_group_array(seq) FROM fairlead_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND lease_until = 0

-- name: ask_cancel
UPDATE fairlead_job SET cancel = :reason
WHERE id IN (SELECT value FROM json_each(:ids)) AND lease_until > 0

-- name: pause
INSERT INTO fairlead_paused (queue) VALUES (:queue) ON CONFLICT DO NOTHING

-- name: resume
DELETE FROM fairlead_paused WHERE queue = :queue

-- name: paused
SELECT queue FROM fairlead_paused

-- name: announce
INSERT INTO fairlead_worker (id, capable, live_until) VALUES (:worker, :capable, :until)
ON CONFLICT (id) DO UPDATE SET capable = excluded.capable, live_until = excluded.live_until

-- name: workers
SELECT id, capable, live_until FROM fairlead_worker WHERE live_until > :now ORDER BY id
