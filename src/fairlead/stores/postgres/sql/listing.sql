-- Lists of jobs, each in an order that an index keeps, from a key on. A row tells the id of a job, whether
-- a filter means it, whether nobody ever claimed it, and its key.

-- name: live_rows
(SELECT *, CASE WHEN lease_until > 0 THEN 'running' ELSE 'waiting' END AS state, NULL::bigint AS finished_at
 FROM {schema}.job) AS job

-- name: finished_rows
(SELECT *, 0::smallint AS parked FROM {schema}.finished
 WHERE finished_at >= (SELECT since FROM {schema}.kept)) AS job

-- name: dead_rows
(SELECT *, 0::smallint AS parked, 'dead' AS state FROM {schema}.dead) AS job

-- name: by_index
-- Whatever the server believes of the tables: each list goes along its index, and compiles nothing for that.
SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off;
SET LOCAL enable_sort = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;
SET LOCAL enable_incremental_sort = off

-- name: by_moment
-- Whether those of one moment are sorted: done jobs have no index that tells them apart, because it would
-- make every end of a job slower. They are as many as ended in one batch.
SELECT set_config('enable_incremental_sort', %s, true)

-- name: list_ready
-- Those out of turn have an index of their own.
SELECT * FROM (
    (SELECT id, {chosen}, fence = 0, queue, order_at, id AS last FROM {live_rows}
     WHERE parked = 0 AND (queue, order_at, id) > (%(key0)s, %(key1)s, %(key2)s) AND queue <= %(upto)s
     ORDER BY queue, order_at, id LIMIT %(look)s)
    UNION ALL
    (SELECT id, {chosen}, fence = 0, queue, order_at, id AS last FROM {live_rows}
     WHERE parked = 3 AND (queue, order_at, id) > (%(key0)s, %(key1)s, %(key2)s) AND queue <= %(upto)s
     ORDER BY queue, order_at, id LIMIT %(look)s)
) AS each
ORDER BY queue, order_at, last LIMIT %(look)s

-- name: list_later
SELECT id, {chosen}, false, run_at, id FROM {live_rows}
WHERE parked = 1 AND (run_at, id) > (%(key0)s, %(key1)s) AND run_at <= %(upto)s
ORDER BY run_at, id LIMIT %(look)s

-- name: list_parked
SELECT id, {chosen}, false, parked, park_key, order_at, id FROM {live_rows}
WHERE park_key IS NOT NULL AND parked NOT IN (0, 1, 3)
  AND (parked, park_key, order_at, id) > (%(key0)s, %(key1)s, %(key2)s, %(key3)s)
ORDER BY parked, park_key, order_at, id LIMIT %(look)s

-- name: list_done
SELECT id, state = 'done' AND {chosen}, false, finished_at, id FROM {finished_rows}
WHERE finished_at <= %(key0)s AND (finished_at, id) < (%(key0)s, %(key1)s) AND finished_at >= %(upto)s
ORDER BY finished_at DESC, id DESC LIMIT %(look)s

-- name: list_cancelled
SELECT id, {chosen}, false, finished_at, id FROM {finished_rows}
WHERE state <> 'done' AND (finished_at, id) < (%(key0)s, %(key1)s) AND finished_at >= %(upto)s
ORDER BY finished_at DESC, id DESC LIMIT %(look)s

-- name: list_dead
SELECT id, {chosen}, false, finished_at, id FROM {dead_rows}
WHERE (finished_at, id) < (%(key0)s, %(key1)s) AND finished_at >= %(upto)s
ORDER BY finished_at DESC, id DESC LIMIT %(look)s

-- name: list_live_ids
SELECT id, {chosen}, false, id FROM {live_rows}
WHERE id >= %(key0)s AND id <> %(but)s AND id < %(upto)s ORDER BY id LIMIT %(look)s

-- name: list_finished_ids
SELECT id, {chosen}, false, id FROM {finished_rows}
WHERE id >= %(key0)s AND id <> %(but)s AND id < %(upto)s ORDER BY id LIMIT %(look)s

-- name: list_dead_ids
SELECT id, {chosen}, false, id FROM {dead_rows}
WHERE id >= %(key0)s AND id <> %(but)s AND id < %(upto)s ORDER BY id LIMIT %(look)s

-- name: listed_job
-- One by one, so that each is found by its id whatever the server believes.
SELECT record.* FROM unnest(%(ids)s::text[]) AS wanted (id)
CROSS JOIN LATERAL (SELECT * FROM {schema}.job_record AS one WHERE one.id = wanted.id) AS record

-- name: listed_finished
SELECT record.* FROM unnest(%(ids)s::text[]) AS wanted (id)
CROSS JOIN LATERAL (SELECT * FROM {schema}.finished_record AS one WHERE one.id = wanted.id) AS record

-- name: listed_dead
SELECT record.* FROM unnest(%(ids)s::text[]) AS wanted (id)
CROSS JOIN LATERAL (SELECT * FROM {schema}.dead_record AS one WHERE one.id = wanted.id) AS record
