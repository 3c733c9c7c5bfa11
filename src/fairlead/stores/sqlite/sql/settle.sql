-- name: current
-- The jobs of these ids that run, with the fence they run under: what extend and settle
-- compare their own fences with.
SELECT json_group_array(json_array(
    job.seq, job.id, job.fence, job.cancel, job.attempt, job.worker, job.claimed_at
))
FROM json_each(:ids) AS wanted
CROSS JOIN fairlead_job AS job ON job.id = wanted.value
WHERE job.lease_until > 0

-- name: extend
UPDATE fairlead_job SET lease_until = :until WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: log
-- :rows holds [seq, outcome, started_at, pool, fingerprint] of each ended run.
INSERT INTO fairlead_attempt
    (job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
     finished_at, outcome, fingerprint)
SELECT job.id, job.fence, job.attempt, job.task, job.queue, json_extract(ended.value, '$[3]'), job.worker,
       max(job.run_at, job.enqueued_at), job.claimed_at, json_extract(ended.value, '$[2]'), :now,
       json_extract(ended.value, '$[1]'), json_extract(ended.value, '$[4]')
FROM json_each(:rows) AS ended
CROSS JOIN fairlead_job AS job ON job.seq = json_extract(ended.value, '$[0]')

-- name: remember
-- :rows holds [seq, failed run] of each run that failed.
UPDATE fairlead_job
SET errors = json_insert(coalesce(errors, '[]'), '$[#]', json(json_extract(failed.value, '$[1]')))
FROM json_each(:rows) AS failed
WHERE fairlead_job.seq = json_extract(failed.value, '$[0]')

-- name: finish
-- :rows holds [seq, state, attempt, crashes, reason, result]; counts left out stay as they are.
INSERT INTO fairlead_finished
    (id, queue, task, version, state, run_at, order_at, expires_at, enqueued_at, payload, options,
     attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, result)
SELECT job.id, job.queue, job.task, job.version, json_extract(ended.value, '$[1]'), job.run_at, job.order_at,
       job.expires_at, job.enqueued_at, job.payload, job.options,
       coalesce(json_extract(ended.value, '$[2]'), job.attempt),
       coalesce(json_extract(ended.value, '$[3]'), job.crashes), job.fence, job.worker, job.claimed_at, job.errors,
       :now, json_extract(ended.value, '$[4]'), json_extract(ended.value, '$[5]')
FROM json_each(:rows) AS ended
CROSS JOIN fairlead_job AS job ON job.seq = json_extract(ended.value, '$[0]')

-- name: bury
-- :rows holds [seq, state, attempt, crashes, reason, result]; a dead letter has no result.
INSERT INTO fairlead_dead
    (id, queue, task, version, run_at, order_at, expires_at, enqueued_at, payload, options,
     attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason)
SELECT job.id, job.queue, job.task, job.version, job.run_at, job.order_at,
       job.expires_at, job.enqueued_at, job.payload, job.options,
       coalesce(json_extract(ended.value, '$[2]'), job.attempt),
       coalesce(json_extract(ended.value, '$[3]'), job.crashes), job.fence, job.worker, job.claimed_at, job.errors,
       :now, json_extract(ended.value, '$[4]')
FROM json_each(:rows) AS ended
CROSS JOIN fairlead_job AS job ON job.seq = json_extract(ended.value, '$[0]')

-- name: remove
DELETE FROM fairlead_job WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: requeue
-- :rows holds [seq, attempt, crashes, run_at]; without run_at the job keeps its place.
UPDATE fairlead_job
SET attempt = json_extract(again.value, '$[1]'),
    crashes = json_extract(again.value, '$[2]'),
    order_at = order_at - run_at + coalesce(json_extract(again.value, '$[3]'), run_at),
    run_at = coalesce(json_extract(again.value, '$[3]'), run_at),
    parked = coalesce(json_extract(again.value, '$[3]'), run_at) > :now,
    lease_until = 0, worker = NULL, claimed_at = NULL
FROM json_each(:rows) AS again
WHERE fairlead_job.seq = json_extract(again.value, '$[0]')
