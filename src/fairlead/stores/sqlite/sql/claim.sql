-- name: pending
-- What has to be looked after before a claim: jobs that fell due, that wait for a worker
-- who knows them, that expired.
SELECT json_array(
    EXISTS (SELECT 1 FROM fairlead_job WHERE parked = 1 AND run_at <= :now),
    EXISTS (SELECT 1 FROM fairlead_job WHERE parked > 1 AND parked = 2),
    EXISTS (
        SELECT 1 FROM (
            SELECT lease_until, level FROM fairlead_job
            WHERE expires_at >= 0 AND expires_at <= :now ORDER BY expires_at LIMIT :look
        )
        WHERE lease_until = 0 AND level <= :level
    ),
    (SELECT json_group_array(queue) FROM fairlead_paused WHERE typeof(queue) = 'text')
)

-- name: heads
-- The next waiting jobs of a queue after a place in its order, in order. Running jobs are in
-- the order too, and are stepped over until their lease has passed. Large options and payloads are
-- left where they are. A number of shared deaths that is none reads as 3: such a job runs alone. What
-- a lost run leaves must be readable at its settlement: if it is not, `lost` is neither true nor false.
SELECT json_group_array(json_array(
    id, task, version, order_at, run_at, expires_at,
    CASE lost WHEN 0 THEN json('false') WHEN 1 THEN json('true') END,
    size, level, seq, payload, options, attempt, crashes, shared_deaths, fence, enqueued_at, claimed_at, worker
))
FROM (
    SELECT id, task, version, order_at, run_at, expires_at, size, level, seq, attempt, crashes,
           fence, enqueued_at, claimed_at, worker,
           CASE WHEN lease_until = 0 THEN 0
                WHEN typeof(lease_until) = 'integer' AND lease_until > 0
                 AND typeof(cancel) IN ('null', 'text') THEN 1 END AS lost,
           CASE WHEN size <= :large THEN options END AS options,
           CASE WHEN size <= :large THEN payload END AS payload,
           CASE WHEN shared_deaths = 0 THEN 0
                WHEN typeof(shared_deaths) = 'integer' AND shared_deaths BETWEEN 1 AND 1000000000
                THEN shared_deaths ELSE 3 END AS shared_deaths
    FROM fairlead_job INDEXED BY fairlead_job_order
    WHERE queue = :queue AND parked = 0 AND (order_at, id) > (:order_at, :id)
      AND lease_until <= :now
    ORDER BY order_at, id
    LIMIT :limit
)

-- name: queues_with_jobs
-- The names of queues with jobs in the order, found by leaping from one to the next.
WITH RECURSIVE named (queue) AS (
    SELECT min(queue) FROM fairlead_job INDEXED BY fairlead_job_order WHERE parked = 0
    UNION ALL
    SELECT (
        SELECT queue FROM fairlead_job INDEXED BY fairlead_job_order
        WHERE parked = 0 AND queue > named.queue ORDER BY queue LIMIT 1
    )
    FROM named WHERE queue IS NOT NULL
)
SELECT json_group_array(queue) FROM (SELECT queue FROM named LIMIT :most) WHERE queue IS NOT NULL

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM fairlead_job

-- name: news
-- Where the first of the jobs stands that came into each queue after a sequence number.
SELECT json_group_object(queue, order_at)
FROM (
    SELECT queue, min(order_at) AS order_at FROM fairlead_job NOT INDEXED
    WHERE seq > :heard AND parked = 0 GROUP BY queue
)

-- name: large
-- What `heads` left out of these jobs.
SELECT json_group_array(json_array(seq, payload, options))
FROM fairlead_job WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: next_seqs
-- The same jobs by their sequence numbers, which are always readable.
SELECT json_group_array(seq)
FROM (
    SELECT seq FROM fairlead_job INDEXED BY fairlead_job_order
    WHERE queue = :queue AND parked = 0 AND (order_at, id) > (:order_at, :id)
      AND lease_until <= :now
    ORDER BY order_at, id
    LIMIT :limit
)

-- name: lease
UPDATE fairlead_job
SET fence = :fence, lease_until = :until, attempt = attempt + 1, worker = :worker, claimed_at = :now
WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: take_over
-- A lost run keeps its attempt, its worker and its claim time: they tell of that run. Without
-- these somebody damaged it; it needs some to be settled.
UPDATE fairlead_job
SET fence = :fence, lease_until = :until,
    worker = coalesce(worker, :worker), claimed_at = coalesce(claimed_at, :now)
WHERE seq IN (SELECT value FROM json_each(:seqs))

-- name: unknown_kinds
-- Those of these jobs whose task no live worker knows, by task, version and queue: the first of
-- each kind, how many they are, and their sequence numbers. Long options are not told. The others are told in
-- hexadecimal digits, because nobody has checked yet that they are UTF-8.
SELECT json_group_array(json_array(
    first, kind.task, kind.version, kind.queue,
    hex(iif(length(job.options) <= :longest, job.options, NULL)), jobs, json(seqs)
))
FROM (
    SELECT min(id) AS first, task, version, queue, count(*) AS jobs, json_group_array(seq) AS seqs
    FROM fairlead_job WHERE id IN (SELECT value FROM json_each(:ids))
    GROUP BY queue, task, version
) AS kind
JOIN fairlead_job AS job ON job.id = first
WHERE NOT EXISTS (
    SELECT 1 FROM fairlead_worker, json_each(
        iif(typeof(capable) = 'text' AND json_valid(capable), capable, '{}')
    ) AS known
    WHERE live_until > :now AND live_until <= :latest
      AND known.key = kind.task AND known.type = 'integer' AND known.value >= kind.version
)

-- name: held
-- Seldom asked, so it may read the whole table; an index on the worker would slow every claim.
-- :seq asks for one of them alone.
SELECT json_group_array(json_array(
    id, task, version, queue, payload, options, attempt, crashes, fence, run_at, enqueued_at,
    expires_at, claimed_at, lease_until, worker, json('false'),
    iif(typeof(shared_deaths) = 'integer' AND shared_deaths BETWEEN 0 AND 1000000000, shared_deaths, 3)
))
FROM fairlead_job WHERE worker = :worker AND lease_until > 0 AND (:seq IS NULL OR seq = :seq)

-- name: held_seqs
SELECT json_group_array(seq) FROM fairlead_job WHERE worker = :worker AND lease_until > 0
