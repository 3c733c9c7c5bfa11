-- name: expired
SELECT json_group_array(seq) FROM (
    SELECT seq, lease_until, level FROM fairlead_job
    WHERE expires_at >= 0 AND expires_at <= :now ORDER BY expires_at LIMIT :look
)
WHERE lease_until = 0 AND level <= :level LIMIT :batch

-- name: due
SELECT min(run_at) FROM fairlead_job WHERE parked = 1 AND run_at > :now AND run_at <= :latest

-- name: prune_finished
DELETE FROM fairlead_finished
WHERE seq IN (
    SELECT seq FROM (
        SELECT seq, level, attached FROM fairlead_finished
        WHERE finished_at < :before ORDER BY finished_at LIMIT :look
    )
    WHERE level <= :level AND NOT attached & 1 LIMIT :batch
)

-- name: prune_attempts
DELETE FROM fairlead_attempt
WHERE seq IN (
    SELECT seq FROM fairlead_attempt
    WHERE finished_at < :before ORDER BY finished_at LIMIT :batch
)

-- name: prune_workers
DELETE FROM fairlead_worker WHERE live_until < :before

-- name: known
-- What live workers know, in bytes: what one of them wrote may be anything.
SELECT CAST(capable AS BLOB) FROM fairlead_worker WHERE live_until > :now AND live_until <= :latest
