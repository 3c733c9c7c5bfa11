-- name: put
-- One statement that reads nothing first, so that in a caller's deferred transaction it
-- takes the write lock with the caller's own patience. The tuple repeats once per job.
-- An id that is known in any state is left alone.
INSERT INTO fairlead_job
    (id, queue, task, version, parked, run_at, order_at, expires_at, enqueued_at, payload, options)
SELECT * FROM (VALUES
    (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
)
WHERE NOT EXISTS (SELECT 1 FROM fairlead_finished WHERE id = column1)
  AND NOT EXISTS (SELECT 1 FROM fairlead_dead WHERE id = column1)
ON CONFLICT (id) DO NOTHING

-- name: added
-- The ids of the last rows added: sequence numbers grow by one per row.
SELECT json_group_array(id) FROM fairlead_job WHERE seq > :after AND seq <= :upto
