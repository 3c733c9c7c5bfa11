-- Lists of jobs, each in an order that an index keeps, from a key on. A row tells the sequence number of a
-- job, whether a filter means it, whether nobody ever claimed it, and its key. Outside of a condition SQLite asks every
-- part of a filter, also what only sound JSON may be asked; within iif it stops at the first that says no.

-- name: live_rows
(SELECT *, iif(lease_until, 'running', 'waiting') AS state, NULL AS finished_at FROM fairlead_job)

-- name: finished_rows
(SELECT *, 0 AS parked FROM fairlead_finished)

-- name: dead_rows
(SELECT *, 0 AS parked, 'dead' AS state FROM fairlead_dead)

-- name: list_ready
SELECT seq, iif({chosen}, 1, 0), fence = 0, queue, order_at, id FROM {live_rows}
WHERE parked = 0 AND (queue, order_at, id) > (:key0, :key1, :key2) AND queue <= :upto
ORDER BY queue, order_at, id LIMIT :look

-- name: list_later
SELECT seq, iif({chosen}, 1, 0), 0, run_at, seq FROM {live_rows}
WHERE parked = 1 AND (run_at, seq) > (:key0, :key1) AND run_at <= :upto
ORDER BY run_at, seq LIMIT :look

-- name: list_parked
SELECT seq, iif({chosen}, 1, 0), 0, parked, park_key, order_at, id FROM {live_rows}
WHERE parked > 1 AND (parked, park_key, order_at, id) > (:key0, :key1, :key2, :key3)
ORDER BY parked, park_key, order_at, id LIMIT :look

-- name: list_done
SELECT seq, iif(state = 'done' AND {chosen}, 1, 0), 0, finished_at, seq FROM {finished_rows}
WHERE (finished_at, seq) < (:key0, :key1) AND finished_at >= :upto
ORDER BY finished_at DESC, seq DESC LIMIT :look

-- name: list_cancelled
SELECT seq, iif({chosen}, 1, 0), 0, finished_at, seq FROM {finished_rows}
WHERE state <> 'done' AND (finished_at, seq) < (:key0, :key1) AND finished_at >= :upto
ORDER BY finished_at DESC, seq DESC LIMIT :look

-- name: list_dead
SELECT seq, iif({chosen}, 1, 0), 0, finished_at, seq FROM {dead_rows}
WHERE (finished_at, seq) < (:key0, :key1) AND finished_at >= :upto
ORDER BY finished_at DESC, seq DESC LIMIT :look

-- name: list_live_ids
SELECT seq, iif({chosen}, 1, 0), 0, id FROM {live_rows}
WHERE id >= :key0 AND id IS NOT :but AND id < :upto ORDER BY id LIMIT :look

-- name: list_finished_ids
SELECT seq, iif({chosen}, 1, 0), 0, id FROM {finished_rows}
WHERE id >= :key0 AND id IS NOT :but AND id < :upto ORDER BY id LIMIT :look

-- name: list_dead_ids
SELECT seq, iif({chosen}, 1, 0), 0, id FROM {dead_rows}
WHERE id >= :key0 AND id IS NOT :but AND id < :upto ORDER BY id LIMIT :look

-- name: listed_job
SELECT seq, record.* FROM fairlead_job AS job CROSS JOIN fairlead_job_record AS record USING (id)
WHERE seq IN (SELECT value FROM json_each(:rows))

-- name: listed_finished
SELECT seq, record.* FROM fairlead_finished AS job CROSS JOIN fairlead_finished_record AS record USING (id)
WHERE seq IN (SELECT value FROM json_each(:rows))

-- name: listed_dead
SELECT seq, record.* FROM fairlead_dead AS job CROSS JOIN fairlead_dead_record AS record USING (id)
WHERE seq IN (SELECT value FROM json_each(:rows))
