-- name: chosen
-- What a filter asks of one job; a part of the statements below. A list that is NULL asks nothing.
(:queues IS NULL OR queue IN (SELECT value FROM json_each(:queues)))
AND (:tasks IS NULL OR task IN (SELECT value FROM json_each(:tasks)))
AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
AND (:waits IS NULL OR state <> 'waiting' OR CASE
    WHEN parked > 1 THEN 'parked' WHEN run_at <= :at THEN 'due' WHEN attempt > 0 THEN 'retrying'
    ELSE 'delayed' END IN (SELECT value FROM json_each(:waits)))
AND (:since IS NULL OR coalesce(finished_at, enqueued_at) >= :since)
AND (:begins IS NULL OR substr(id, 1, length(:begins)) = :begins)
AND (:tags IS NULL OR NOT EXISTS (
    SELECT 1 FROM json_each(:tags) AS wanted
    WHERE wanted.value NOT IN (
        SELECT value FROM json_each(
            iif(typeof(options) = 'text' AND json_valid(options), options, 'null'), '$.tags'
        )
    )
))
AND (:error IS NULL OR (typeof(errors) = 'text' AND json_valid(errors) AND (
    json_extract(errors, '$[#-1].fingerprint') = :error
    OR instr(lower(json_extract(errors, '$[#-1].error')), lower(:error))
    OR instr(lower(json_extract(errors, '$[#-1].message')), lower(:error))
)))

-- name: finished_all
fairlead_finished_record

-- name: finished_since
(SELECT * FROM fairlead_finished_record WHERE id IN (
    SELECT id FROM fairlead_finished WHERE finished_at >= :since
))

-- name: find
-- One statement sees one state of the file, so a job that is just moving is seen exactly once.
SELECT * FROM fairlead_job_record WHERE id = :id
UNION ALL
SELECT * FROM fairlead_finished_record WHERE id = :id
UNION ALL
SELECT * FROM fairlead_dead_record WHERE id = :id

-- name: count
SELECT queue, state, count(*) FROM fairlead_job_record WHERE :live AND {chosen} GROUP BY 1, 2
UNION ALL
SELECT queue, state, count(*) FROM {finished} WHERE :finished AND {chosen} GROUP BY 1, 2
UNION ALL
SELECT queue, state, count(*) FROM fairlead_dead_record WHERE :dead AND {chosen} GROUP BY 1, 2

-- name: groups
-- With max(id), the bare columns are those of the newest job.
SELECT fingerprint, error, message, json_group_array(DISTINCT coalesce(CAST(task AS TEXT), '')), count(*),
       min(at), max(at), max(id)
FROM (
    SELECT id, task, iif(typeof(at) = 'integer', at, NULL) AS at,
           json_extract(errors, '$[#-1].fingerprint') AS fingerprint,
           json_extract(errors, '$[#-1].error') AS error,
           json_extract(errors, '$[#-1].message') AS message
    FROM (
        SELECT id, task, coalesce(finished_at, enqueued_at) AS at,
               iif(typeof(errors) = 'text' AND json_valid(errors), errors, NULL) AS errors
        FROM (
            SELECT * FROM fairlead_job_record WHERE :live AND {chosen}
            UNION ALL
            SELECT * FROM {finished} WHERE :finished AND {chosen}
            UNION ALL
            SELECT * FROM fairlead_dead_record WHERE :dead AND {chosen}
        )
    )
)
GROUP BY fingerprint
ORDER BY count(*) DESC, max(id) DESC

-- name: attempts
SELECT json_group_array(json_array(
    job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
    finished_at, outcome, fingerprint
))
FROM (SELECT * FROM fairlead_attempt WHERE job_id = :id ORDER BY seq)

-- name: recent
SELECT json_group_array(json_array(
    job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
    finished_at, outcome, fingerprint
))
FROM (
    SELECT * FROM fairlead_attempt INDEXED BY fairlead_attempt_at
    WHERE finished_at >= :since AND (:queue IS NULL OR queue = :queue)
    ORDER BY finished_at DESC, seq DESC LIMIT :limit
)

-- name: attempts_rows
-- The same, a row each, for a log in which somebody damaged a line.
SELECT job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
       finished_at, outcome, fingerprint
FROM fairlead_attempt WHERE job_id = :id ORDER BY seq

-- name: recent_rows
SELECT job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
       finished_at, outcome, fingerprint
FROM fairlead_attempt INDEXED BY fairlead_attempt_at
WHERE finished_at >= :since AND (:queue IS NULL OR queue = :queue)
ORDER BY finished_at DESC, seq DESC LIMIT :limit

-- name: waiting_counts
SELECT queue, CASE
    WHEN parked > 1 THEN 'parked' WHEN run_at <= :now THEN 'due' WHEN attempt > 0 THEN 'retrying'
    ELSE 'delayed' END,
    count(*), min(run_at) FILTER (WHERE typeof(run_at) = 'integer' AND run_at >= 0)
FROM fairlead_job WHERE lease_until = 0 GROUP BY 1, 2

-- name: running
SELECT worker, queue, task, count(*), min(claimed_at) FROM fairlead_job
WHERE lease_until > :now GROUP BY 1, 2, 3

-- name: standing
-- The first jobs of a queue in order that no lease keeps: those in the order, those that fell due,
-- and those that were parked and can be run now: somebody knows their task, or their limit has room. Each kind has an
-- index of its own. :limited maps the numbers of limits to their keys that have no room.
SELECT id, task, version, order_at, run_at, expires_at, lease_until > 0, size, level
FROM (
    SELECT * FROM (
        SELECT * FROM fairlead_job
        WHERE parked = 0 AND queue = :queue AND lease_until <= :now AND run_at <= :now
        ORDER BY order_at, id LIMIT :limit
    )
    UNION ALL
    SELECT * FROM (
        SELECT * FROM fairlead_job
        WHERE parked = 1 AND run_at <= :now AND queue = :queue AND lease_until <= :now
        ORDER BY order_at, id LIMIT :limit
    )
    UNION ALL
    SELECT * FROM (
        SELECT * FROM fairlead_job INDEXED BY fairlead_job_parked
        WHERE parked > 1 AND parked = 2 AND queue = :queue AND lease_until <= :now AND run_at <= :now
          AND (:capable IS NULL OR EXISTS (
              SELECT 1 FROM json_each(:capable) AS known
              WHERE known.key = task AND known.value >= version
          ))
        ORDER BY order_at, id LIMIT :limit
    )
    UNION ALL
    SELECT * FROM (
        SELECT job.* FROM json_each(:limited) AS limited
        CROSS JOIN fairlead_job AS job INDEXED BY fairlead_job_parked
          ON job.parked > 1 AND job.parked = CAST(limited.key AS INTEGER)
        WHERE job.queue = :queue AND job.lease_until <= :now AND job.run_at <= :now
          AND job.park_key NOT IN (SELECT value FROM json_each(limited.value))
        ORDER BY job.order_at, job.id LIMIT :limit
    )
    ORDER BY order_at, id LIMIT :limit
)

-- name: ahead
-- Those in the order are found by its index, those that fell due by theirs.
SELECT (
    SELECT count(*) FROM fairlead_job AS job
    CROSS JOIN fairlead_job AS other ON other.queue = job.queue
    WHERE job.id = :id AND other.parked = 0 AND other.lease_until = 0 AND other.run_at <= :now
      AND (other.order_at, other.id) < (job.order_at, job.id)
) + (
    SELECT count(*) FROM fairlead_job AS job
    CROSS JOIN fairlead_job AS other ON other.queue = job.queue
    WHERE job.id = :id AND other.parked = 1 AND other.lease_until = 0 AND other.run_at <= :now
      AND (other.order_at, other.id) < (job.order_at, job.id)
)

-- name: waiting
-- Which of these jobs wait, and so can be cancelled at once.
SELECT json_group_array(json_array(seq, id)) FROM fairlead_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND lease_until = 0 AND level <= :level

-- name: ask_cancel
UPDATE fairlead_job SET cancel = :reason
WHERE id IN (SELECT value FROM json_each(:ids)) AND lease_until > 0 AND cancel IS NULL
  AND level <= :level
RETURNING id

-- name: pause
INSERT INTO fairlead_paused (queue) VALUES (:queue) ON CONFLICT DO NOTHING

-- name: resume
DELETE FROM fairlead_paused WHERE queue = :queue

-- name: paused
SELECT queue FROM fairlead_paused

-- name: edit
UPDATE fairlead_dead SET payload = :payload, version = :version
WHERE id = :id AND payload = :was AND level <= :level

-- name: note
-- One action is one line, however many calls it takes, with the latest time of them. An id that another
-- action has changes nothing, nor does that of an edit, whose old payload the line keeps.
INSERT INTO fairlead_audit (id, done_at, who, verb, target, count, job_id, before, answers)
VALUES (:id, :now, :who, :verb, :target, :count, :job_id, :before, :answers)
ON CONFLICT (id) DO UPDATE SET
    count = iif(typeof(count) = 'integer', count, 0) + excluded.count,
    done_at = max(iif(typeof(done_at) = 'integer', done_at, 0), excluded.done_at),
    answers = excluded.answers

-- name: noted
SELECT who, verb, target, before, answers FROM fairlead_audit WHERE id = :id

-- name: audit_log
SELECT done_at, who, verb, target, count, before FROM fairlead_audit ORDER BY seq DESC LIMIT :limit

-- name: audit_log_of
SELECT done_at, who, verb, target, count, before FROM fairlead_audit
WHERE job_id = :job_id ORDER BY seq DESC LIMIT :limit

-- name: announce
INSERT INTO fairlead_worker (id, capable, pools, processes, started_at, live_until, level)
VALUES (:id, :capable, :pools, :processes, :now, :until, :level)
ON CONFLICT (id) DO UPDATE SET
    capable = excluded.capable, pools = excluded.pools, processes = excluded.processes,
    live_until = excluded.live_until, level = excluded.level

-- name: workers
SELECT id, capable, pools, processes, started_at, live_until, level FROM fairlead_worker
WHERE live_until > :now AND live_until <= :latest ORDER BY id
