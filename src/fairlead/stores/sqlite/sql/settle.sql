-- name: current
-- The jobs of these ids that run, with the fence they run under: what extend and settle
-- compare their own fences with.
SELECT json_group_array(json_array(
    job.seq, job.id, job.fence, job.cancel, job.attempt, job.worker, job.claimed_at
))
FROM json_each(:ids) AS wanted
CROSS JOIN fairlead_job AS job ON job.id = wanted.value
WHERE job.lease_until > 0 AND job.level <= :level

-- name: take_write_lock
-- Changes nothing. First in an application's transaction, so that what is read after it stays
-- true to the end; waits with the application's own patience, and begins a transaction where
-- Python's driver does that by itself.
UPDATE fairlead_job SET fence = fence WHERE 0

-- name: extend
UPDATE fairlead_job SET lease_until = :until WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: log
-- :runs maps the sequence number of each ended run to the time it started.
INSERT INTO fairlead_attempt
    (job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
     finished_at, outcome, fingerprint)
SELECT job.id, job.fence, job.attempt, job.task, job.queue, :pool, job.worker,
       max(job.run_at, job.enqueued_at), coalesce(job.claimed_at, :now), run.value, :now,
       :outcome, :fingerprint
FROM json_each(:runs) AS run
CROSS JOIN fairlead_job AS job ON job.seq = CAST(run.key AS INTEGER)

-- name: remember
-- :runs maps the sequence number of each failed run to what is kept of it.
UPDATE fairlead_job
SET errors = json_insert(
    CASE WHEN typeof(errors) <> 'text' THEN '[]'
         WHEN NOT json_valid(errors) THEN '[]'
         WHEN json_type(errors) <> 'array' THEN '[]'
         ELSE errors END,
    '$[#]', json(run.value)
)
FROM json_each(:runs) AS run
WHERE fairlead_job.seq = CAST(run.key AS INTEGER)

-- name: runs_under
-- The sequence number of a job that runs under this fence, whatever else is wrong with it.
SELECT max(seq) FROM fairlead_job WHERE id = :id AND fence = :fence AND lease_until > 0
