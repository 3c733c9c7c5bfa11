-- name: entry_range
-- Entries by key. An entry of nobody has an empty owner.
SELECT kind, key, value, version, nullif(owner, '') AS owner, due_at, expires_at FROM fairlead_entry
WHERE kind = :kind AND owner = :owner AND key >= :first AND key < :past
  AND (expires_at IS NULL OR expires_at > :now)
ORDER BY key LIMIT :limit

-- name: entries_due
SELECT kind, key, value, version, nullif(owner, '') AS owner, due_at, expires_at
FROM fairlead_entry INDEXED BY fairlead_entry_due
WHERE kind = :kind AND owner = :owner AND due_at < :due_before
  AND (expires_at IS NULL OR expires_at > :now)
ORDER BY due_at, key LIMIT :limit

-- name: entries_named
-- :names is a JSON array of [kind, owner, key].
SELECT entry.kind, entry.key, entry.value, entry.version, nullif(entry.owner, '') AS owner,
       entry.due_at, entry.expires_at
FROM json_each(:names) AS name
CROSS JOIN fairlead_entry AS entry ON entry.kind = json_extract(name.value, '$[0]')
 AND entry.owner = json_extract(name.value, '$[1]') AND entry.key = json_extract(name.value, '$[2]')

-- name: live_owners
SELECT json_group_array(id) FROM fairlead_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND level <= :level

-- name: write_entries
-- :entries is a JSON array of [kind, owner, key, value, version, due_at, expires_at].
INSERT INTO fairlead_entry (kind, owner, key, value, version, due_at, expires_at)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
       json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'),
       json_extract(value, '$[6]')
FROM json_each(:entries) WHERE true
ON CONFLICT (kind, owner, key) DO UPDATE
SET value = excluded.value, version = excluded.version, due_at = excluded.due_at,
    expires_at = excluded.expires_at

-- name: remove_entries
-- :names is a JSON array of [kind, owner, key].
DELETE FROM fairlead_entry WHERE seq IN (
    SELECT entry.seq FROM json_each(:names) AS name
    CROSS JOIN fairlead_entry AS entry ON entry.kind = json_extract(name.value, '$[0]')
     AND entry.owner = json_extract(name.value, '$[1]')
     AND entry.key = json_extract(name.value, '$[2]')
)

-- name: attach_entries
UPDATE fairlead_job SET attached = attached | 1
WHERE id IN (SELECT value FROM json_each(:ids)) AND attached & 1 = 0

-- name: prune_entries
DELETE FROM fairlead_entry WHERE seq IN (
    SELECT seq FROM fairlead_entry INDEXED BY fairlead_entry_expires
    WHERE expires_at <= :now AND owner = '' ORDER BY expires_at LIMIT :batch
)

-- name: old_owners
-- Jobs with entries that are to be forgotten.
SELECT json_group_array(seq) FROM (
    SELECT seq, level FROM fairlead_finished INDEXED BY fairlead_finished_entries
    WHERE attached & 1 AND finished_at < :before ORDER BY finished_at LIMIT :look
)
WHERE level <= :level

-- name: owners_meant
-- Jobs with entries that a person deletes.
SELECT json_group_array(seq) FROM fairlead_{place} WHERE attached & 1 AND {ended}

-- name: some_entries
-- Some entries of these jobs, and whose they are. A job in the line has the same id only by damage; it keeps them.
SELECT json_group_array(json_array(seq, owner)) FROM (
    SELECT entry.seq, ended.seq AS owner FROM json_each(:seqs) AS old
    CROSS JOIN fairlead_{place} AS ended ON ended.seq = old.value
    CROSS JOIN fairlead_entry AS entry ON entry.owner = ended.id AND entry.owner <> ''
    WHERE ended.id NOT IN (SELECT id FROM fairlead_job WHERE id = ended.id) LIMIT :batch
)

-- name: remove_some
DELETE FROM fairlead_entry WHERE seq IN (SELECT value FROM json_each(:entries))

-- name: detach_entries
-- Note who of these has none left, and who has lost some.
UPDATE fairlead_{place} SET attached = iif(
    id IN (SELECT owner FROM fairlead_entry WHERE owner <> '' AND owner = fairlead_{place}.id)
        AND id NOT IN (SELECT id FROM fairlead_job WHERE id = fairlead_{place}.id),
    attached, attached & ~1
) | iif(seq IN (SELECT value FROM json_each(:losers)), :forgetting, 0)
WHERE seq IN (SELECT value FROM json_each(:seqs))
