-- name: chosen
-- What a filter asks of one job; a part of the statements below. A list that is NULL asks nothing.
(%(queues)s::text[] IS NULL OR queue = ANY (%(queues)s::text[]))
AND (%(tasks)s::text[] IS NULL OR task = ANY (%(tasks)s::text[]))
AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s::text[]))
AND (%(waits)s::text[] IS NULL OR state <> 'waiting' OR CASE
    WHEN parked NOT IN (0, 1, 3) THEN 'parked' WHEN run_at <= %(at)s::bigint THEN 'due' WHEN attempt > 0 THEN 'retrying'
    ELSE 'delayed' END = ANY (%(waits)s::text[]))
AND (%(since)s::bigint IS NULL OR coalesce(finished_at, enqueued_at) >= %(since)s::bigint)
AND (%(begins)s::text IS NULL OR starts_with(id, %(begins)s::text))
AND (%(tags)s::text[] IS NULL OR {schema}.tags_of(options) @> %(tags)s::text[])
AND (%(error)s::text IS NULL OR (
    {schema}.last_of(errors)->>'fingerprint' = %(error)s::text
    OR strpos(lower({schema}.last_of(errors)->>'error' COLLATE "C"), lower(%(error)s::text COLLATE "C")) > 0
    OR strpos(lower({schema}.last_of(errors)->>'message' COLLATE "C"), lower(%(error)s::text COLLATE "C")) > 0
))

-- name: finished_all
{schema}.finished_record

-- name: finished_since
(SELECT * FROM {schema}.finished_record WHERE finished_at >= %(since)s::bigint) AS finished_record

-- name: apart
-- What people's questions begin with, see lane.NO_PATH.
SELECT {schema}.served(%s), pg_catalog.set_config('search_path'::pg_catalog.text, ''::pg_catalog.text, true)

-- name: find
SELECT {schema}.find(%s)

-- name: count
SELECT queue, state, count(*) FROM {schema}.job_record
WHERE %(live)s AND {chosen} GROUP BY 1, 2
UNION ALL
SELECT queue, state, count(*) FROM {finished} WHERE %(finished)s AND {chosen} GROUP BY 1, 2
UNION ALL
SELECT queue, state, count(*) FROM {schema}.dead_record WHERE %(dead)s AND {chosen} GROUP BY 1, 2

-- name: groups
SELECT fingerprint,
       (array_agg(error ORDER BY id DESC))[1], (array_agg(message ORDER BY id DESC))[1],
       array_agg(DISTINCT task), count(*), min(at), max(at), max(id)
FROM (
    SELECT id, task, coalesce(finished_at, enqueued_at) AS at, last->>'fingerprint' AS fingerprint,
           last->>'error' AS error, last->>'message' AS message
    FROM (
        SELECT * FROM {schema}.job_record WHERE %(live)s AND {chosen}
        UNION ALL
        SELECT * FROM {finished} WHERE %(finished)s AND {chosen}
        UNION ALL
        SELECT * FROM {schema}.dead_record WHERE %(dead)s AND {chosen}
    ) AS chosen CROSS JOIN LATERAL {schema}.last_of(errors) AS last
) AS failed
GROUP BY fingerprint
ORDER BY count(*) DESC, max(id) DESC

-- name: attempts
SELECT {schema}.attempts(%s)

-- name: recent
SELECT job_id, fence, attempt, task, queue, pool, worker, ready_at, claimed_at, started_at,
       finished_at, outcome, fingerprint
FROM {schema}.attempt_record
WHERE finished_at >= %(since)s AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
ORDER BY finished_at DESC, seq DESC LIMIT %(limit)s

-- name: waiting_counts
SELECT queue, CASE
    WHEN parked NOT IN (0, 1, 3) THEN 'parked' WHEN run_at <= now THEN 'due' WHEN attempt > 0 THEN 'retrying'
    ELSE 'delayed' END,
    count(*), min(run_at) FILTER (WHERE run_at >= 0)
FROM {schema}.job CROSS JOIN (SELECT coalesce(%(at)s, {schema}.stamp()) AS now) AS clock
WHERE lease_until = 0 GROUP BY 1, 2

-- name: running
SELECT coalesce(worker, ''), queue, task, count(*), min(claimed_at) FROM {schema}.job
WHERE lease_until > coalesce(%(at)s, {schema}.stamp()) GROUP BY 1, 2, 3

-- name: now
SELECT coalesce(%(at)s, {schema}.stamp())

-- name: standing
-- The first jobs of a queue in order that no lease keeps: those in the order, those that fell due,
-- and those that were parked and can be run now: somebody knows their task, or their limit has room. Each kind has an
-- index of its own. full maps limits to their keys that have no room.
SELECT id, task, version, order_at, run_at, expires_at, lease_until > 0,
       octet_length(payload) + coalesce(octet_length(options), 0), level
FROM (
    (SELECT * FROM {schema}.job
     WHERE parked = 0 AND queue = %(queue)s AND lease_until <= %(now)s AND run_at <= %(now)s
     ORDER BY order_at, id LIMIT %(limit)s)
    UNION ALL
    (SELECT * FROM {schema}.job
     WHERE parked = 3 AND queue = %(queue)s AND lease_until <= %(now)s AND run_at <= %(now)s
     ORDER BY order_at, id LIMIT %(limit)s)
    UNION ALL
    (SELECT * FROM {schema}.job
     WHERE parked = 1 AND run_at <= %(now)s AND queue = %(queue)s AND lease_until <= %(now)s
     ORDER BY order_at, id LIMIT %(limit)s)
    UNION ALL
    (SELECT * FROM {schema}.job
     WHERE parked = 2 AND park_key IS NOT NULL AND queue = %(queue)s AND lease_until <= %(now)s AND run_at <= %(now)s
       AND (%(capable)s::jsonb IS NULL OR (%(capable)s::jsonb->>task)::integer >= version)
     ORDER BY order_at, id LIMIT %(limit)s)
    UNION ALL
    (SELECT * FROM {schema}.job
     WHERE parked > 3 AND park_key IS NOT NULL AND queue = %(queue)s AND lease_until <= %(now)s AND run_at <= %(now)s
       AND NOT (%(full)s::jsonb->{schema}.limit_named(parked)) ? park_key
     ORDER BY order_at, id LIMIT %(limit)s)
) AS each
ORDER BY order_at, id LIMIT %(limit)s

-- name: ahead
SELECT count(*) FROM {schema}.job AS other
JOIN {schema}.job AS mine ON other.queue = mine.queue
WHERE mine.id = %(id)s AND other.parked IN (0, 1, 3) AND other.lease_until = 0
  AND other.run_at <= coalesce(%(at)s, {schema}.stamp())
  AND (other.order_at, other.id) < (mine.order_at, mine.id)

-- name: unknown
SELECT task, version, count(*) FROM {schema}.job
WHERE parked = 2 AND park_key IS NOT NULL GROUP BY task, version

-- name: paused
SELECT queue FROM {schema}.paused

-- name: workers
SELECT {schema}.live_workers(%s)

-- name: audit_log
SELECT done_at, who, verb, target, count, before, by_user FROM {schema}.audit
WHERE %(job_id)s::text IS NULL OR job_id = %(job_id)s::text
ORDER BY seq DESC LIMIT %(limit)s

-- name: used
SELECT {schema}.used(%s)

-- name: flaws
SELECT {schema}.flaws(%s)

-- name: repair
SELECT {schema}.repair(%s)
