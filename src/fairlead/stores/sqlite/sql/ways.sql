-- name: put
-- One statement that reads nothing first, so that in a caller's deferred transaction it
-- takes the write lock with the caller's own patience. The tuple repeats once per job.
-- An id that is known in any state is left alone.
INSERT INTO fairlead_job
    (id, queue, task, version, level, parked, run_at, order_at, expires_at, enqueued_at, size,
     payload, options)
SELECT * FROM (VALUES
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
)
WHERE NOT EXISTS (SELECT 1 FROM fairlead_finished WHERE id = column1)
  AND NOT EXISTS (SELECT 1 FROM fairlead_dead WHERE id = column1)
ON CONFLICT (id) DO NOTHING

-- name: added
-- The ids of the last rows added: sequence numbers grow by one per row.
SELECT json_group_array(id) FROM fairlead_job WHERE seq > :after AND seq <= :upto

-- name: added_now
-- The same where sequence numbers do not grow: somebody made a row with the greatest one.
SELECT json_group_array(id) FROM fairlead_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND enqueued_at = :now AND fence = 0

-- name: lift
-- Jobs that ended and are to run again, into the line. One whose id is in the line already stays, and so
-- does one that has lost entries (core.job.Attached.FORGETTING).
INSERT INTO fairlead_job
    (id, queue, task, version, level, attached, parked, run_at, order_at, expires_at, enqueued_at,
     size, payload, options, fence, shared_deaths, errors, more)
SELECT id, queue, task, version, level, attached, 0, :now, :now - (run_at - order_at),
       iif(expires_at <= :now, NULL, expires_at), enqueued_at,
       length(CAST(payload AS BLOB)) + coalesce(length(CAST(options AS BLOB)), 0),
       payload, options, fence, iif(crashes > 0, 3, 0), errors, more
FROM fairlead_{place}
WHERE {ended} AND NOT attached & 1024
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: finish
-- :results maps sequence numbers to results.
INSERT INTO fairlead_finished
    (id, queue, task, version, level, attached, state, run_at, order_at, expires_at, enqueued_at, payload, options,
     attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, result, more)
SELECT job.id, job.queue, job.task, job.version, job.level,
       iif(typeof(job.attached) = 'integer', job.attached, 15), :state, job.run_at, job.order_at,
       job.expires_at, job.enqueued_at, job.payload, job.options, job.attempt - :uncounted,
       job.crashes + :crashed, job.fence, job.worker, job.claimed_at, job.errors, :now, :reason,
       ended.value, job.more
FROM json_each(:results) AS ended
CROSS JOIN fairlead_job AS job ON job.seq = CAST(ended.key AS INTEGER)

-- name: bury
-- As finish does; a dead letter has no result.
INSERT INTO fairlead_dead
    (id, queue, task, version, level, attached, run_at, order_at, expires_at, enqueued_at, payload, options,
     attempt, crashes, fence, worker, claimed_at, errors, finished_at, reason, more)
SELECT job.id, job.queue, job.task, job.version, job.level,
       iif(typeof(job.attached) = 'integer', job.attached, 15), job.run_at, job.order_at,
       job.expires_at, job.enqueued_at, job.payload, job.options, job.attempt - :uncounted,
       job.crashes + :crashed, job.fence, job.worker, job.claimed_at, job.errors, :now, :reason,
       job.more
FROM json_each(:results) AS ended
CROSS JOIN fairlead_job AS job ON job.seq = CAST(ended.key AS INTEGER)

-- name: remove
DELETE FROM fairlead_job WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: forget
DELETE FROM fairlead_{place} WHERE {ended} RETURNING id

-- name: ended_dead
-- Which dead letters are meant; a part of the statements above.
'dead' IN (SELECT value FROM json_each(:states))
AND level <= :level AND id IN (SELECT value FROM json_each(:ids))

-- name: ended_finished
state IN (SELECT value FROM json_each(:states))
AND level <= :level AND id IN (SELECT value FROM json_each(:ids))

-- name: wait_again
-- :times maps sequence numbers to new due times; without one the job keeps its place.
UPDATE fairlead_job
SET attempt = attempt - :uncounted,
    crashes = crashes + :crashed,
    shared_deaths = :shared_deaths,
    order_at = order_at - run_at + coalesce(again.value, run_at),
    run_at = coalesce(again.value, run_at),
    parked = iif(coalesce(again.value, run_at) > :now, :not_due, 0), park_key = NULL,
    lease_until = 0, worker = NULL, claimed_at = NULL
FROM json_each(:times) AS again
WHERE fairlead_job.seq = CAST(again.key AS INTEGER)

-- name: park
-- They leave the order, for a reason and a key: :keys maps sequence numbers to keys. A lost run
-- keeps its passed lease, and is claimed as lost when it comes back.
UPDATE fairlead_job SET parked = :parked, park_key = parked_for.value
FROM json_each(:keys) AS parked_for
WHERE fairlead_job.seq = CAST(parked_for.key AS INTEGER)

-- name: bring_back
-- The one way back into the order, for those that a part says, below.
UPDATE fairlead_job SET parked = 0, park_key = NULL WHERE seq IN ({which})

-- name: which_due
SELECT seq FROM fairlead_job WHERE parked = 1 AND run_at <= :now ORDER BY run_at LIMIT :batch

-- name: which_parked
-- Those that are parked for one of the keys of :keys, a JSON array, in their order.
SELECT job.seq FROM json_each(:keys) AS wanted
CROSS JOIN fairlead_job AS job INDEXED BY fairlead_job_parked
  ON job.parked > 1 AND job.parked = :parked AND job.park_key = wanted.value
LIMIT :batch

-- name: which_known
-- Those that are parked for want of a worker that knows their task, which one of :capable does: a JSON object of
-- task to newest version. It goes along what is known, not along what is parked, which may be anything.
SELECT job.seq FROM json_each(:capable) AS known
CROSS JOIN fairlead_job AS job INDEXED BY fairlead_job_parked
  ON job.parked > 1 AND job.parked = 2 AND job.task = known.key
 AND job.park_key BETWEEN known.key || ' ' AND known.key || printf(' %010d', min(known.value, 2147483647))
LIMIT :batch

-- name: which_unknown
SELECT seq FROM fairlead_job INDEXED BY fairlead_job_parked WHERE parked > 1 AND parked = 2 LIMIT :batch

-- name: which_hastened
SELECT seq FROM fairlead_job WHERE parked = 1 AND seq IN (SELECT value FROM json_each(:seqs))

-- name: park_keys
-- What jobs are parked for, by a reason; found by leaping from one key to the next.
WITH RECURSIVE found (park_key) AS (
    SELECT min(park_key) FROM fairlead_job INDEXED BY fairlead_job_parked
    WHERE parked > 1 AND parked = :parked
    UNION ALL
    SELECT (
        SELECT park_key FROM fairlead_job INDEXED BY fairlead_job_parked
        WHERE parked > 1 AND parked = :parked AND park_key > found.park_key
        ORDER BY park_key LIMIT 1
    )
    FROM found WHERE park_key IS NOT NULL
)
SELECT json_group_array(park_key) FROM found WHERE typeof(park_key) = 'text'

-- name: park_counts
SELECT park_key, count(*) FROM fairlead_job INDEXED BY fairlead_job_parked
WHERE parked > 1 AND parked = :parked GROUP BY park_key

-- name: hasten
-- Waiting jobs that are to run now and not later, with their count begun anew.
UPDATE fairlead_job
SET order_at = :now - (run_at - order_at), run_at = :now,
    expires_at = iif(expires_at <= :now, NULL, expires_at), attempt = 0, crashes = 0,
    shared_deaths = iif(crashes > 0, max(shared_deaths, 3), shared_deaths)
WHERE id IN (SELECT value FROM json_each(:ids)) AND lease_until = 0 AND run_at > :now
  AND level <= :level AND typeof(run_at) = 'integer' AND typeof(order_at) = 'integer'
RETURNING seq, id
