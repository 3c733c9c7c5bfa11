-- name: put
-- One statement that reads nothing first, so that in a caller's deferred transaction it
-- takes the write lock with the caller's own patience. The tuple repeats once per job.
-- An id that is known in any state is left alone.
INSERT INTO fairlead_job
    (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, size, payload,
     options)
SELECT * FROM (VALUES
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
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
