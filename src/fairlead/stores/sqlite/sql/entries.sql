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

-- name: entries_packed
-- Those of a job that has ended, as its row has them.
SELECT entries FROM (
    SELECT entries FROM fairlead_finished WHERE id = :owner
    UNION ALL SELECT entries FROM fairlead_dead WHERE id = :owner
)
WHERE typeof(entries) = 'text' AND json_valid(entries)

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

-- name: with_entries
-- Those of these jobs that own some.
SELECT json_group_array(seq) FROM fairlead_job
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND attached & 1

-- name: pack_entries
-- The entries of jobs that leave the line go into the rows that these have now.
UPDATE fairlead_{place} SET entries = (
    SELECT json_group_array(json_array(
        kind, key, value, version, owner, due_at, expires_at, iif(typeof(more) = 'text', more, NULL)
    ))
    FROM fairlead_entry WHERE owner = fairlead_{place}.id AND owner <> ''
      AND typeof(kind) || typeof(key) || typeof(value) || typeof(version) = 'texttexttextinteger'
      AND typeof(due_at) <> 'blob' AND typeof(expires_at) <> 'blob'
)
WHERE id IN (SELECT id FROM fairlead_job WHERE seq IN (SELECT value FROM json_each(:seqs)))

-- name: drop_entries
DELETE FROM fairlead_entry WHERE owner <> '' AND owner IN (
    SELECT id FROM fairlead_job WHERE seq IN (SELECT value FROM json_each(:seqs))
)

-- name: unpack_entries
INSERT INTO fairlead_entry (kind, owner, key, value, version, due_at, expires_at, more)
SELECT json_extract(packed.value, '$[0]'), ended.id, json_extract(packed.value, '$[1]'),
       json_extract(packed.value, '$[2]'), json_extract(packed.value, '$[3]'),
       json_extract(packed.value, '$[5]'), json_extract(packed.value, '$[6]'),
       json_extract(packed.value, '$[7]')
FROM fairlead_{place} AS ended CROSS JOIN json_each(
    iif(typeof(ended.entries) = 'text' AND json_valid(ended.entries), ended.entries, '[]')
) AS packed
WHERE ended.id IN (SELECT value FROM json_each(:ids)) AND ended.attached & 1
ON CONFLICT (kind, owner, key) DO NOTHING
