-- The kinds of damage of entries, and of jobs that do not say that they have some.
CREATE OR REPLACE FUNCTION entry_kinds() RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$ SELECT ARRAY['entry', 'entry owner', 'attached', 'has entries'] $$;

-- How people know an entry, and the repair.
CREATE OR REPLACE FUNCTION entry_name(kind text, owner text, key text) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT concat_ws(' ', kind, nullif(owner, ''), key) COLLATE "C" $$;

-- Whether there is such a job; or there was, and its entries are about to be forgotten.
CREATE OR REPLACE FUNCTION is_owner(job_id text) RETURNS boolean LANGUAGE plpgsql STABLE
AS $$ BEGIN RETURN is_kept(job_id) OR EXISTS (SELECT FROM finished WHERE id = job_id AND attached & 1 <> 0); END $$;

-- Whose damage of one of these kinds there is, see flaws_of.
CREATE OR REPLACE FUNCTION flaws_entries(what text, start text, most integer)
RETURNS TABLE (whose text) LANGUAGE plpgsql STABLE
AS $$
BEGIN
    CASE what
    WHEN 'entry' THEN
        RETURN QUERY SELECT entry_name(kind, owner, key) FROM entry
            WHERE entry_name(kind, owner, key) >= start
              AND is_entry(kind, owner, key, value, version, due_at, expires_at) IS NOT TRUE
            ORDER BY 1 LIMIT most;
    WHEN 'entry owner' THEN
        RETURN QUERY SELECT entry_name(kind, owner, key) FROM entry
            WHERE entry_name(kind, owner, key) >= start
              AND owner IN (
                  SELECT each.owner FROM (SELECT DISTINCT owner FROM entry WHERE owner <> '') AS each
                  WHERE NOT is_owner(each.owner)
              )
            ORDER BY 1 LIMIT most;
    WHEN 'attached' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start AND attached < 0 ORDER BY id LIMIT most;
    WHEN 'has entries' THEN
        RETURN QUERY SELECT id FROM job WHERE id >= start
            AND attached & 1 = 0 AND EXISTS (SELECT FROM entry WHERE owner = job.id AND owner <> '')
            ORDER BY id LIMIT most;
    END CASE;
END $$;

-- Mend one of them, see mend. An entry that cannot be read, or that nobody owns any more, is removed.
CREATE OR REPLACE FUNCTION mend_entries(what text, whose text) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    CASE what
    WHEN 'entry' THEN
        DELETE FROM entry WHERE entry_name(kind, owner, key) = whose
            AND is_entry(kind, owner, key, value, version, due_at, expires_at) IS NOT TRUE;
    WHEN 'entry owner' THEN
        DELETE FROM entry WHERE entry_name(kind, owner, key) = whose
            AND owner <> '' AND NOT is_owner(owner);
    WHEN 'attached' THEN
        UPDATE job SET attached = 0 WHERE id = whose AND attached < 0;
    WHEN 'has entries' THEN
        UPDATE job SET attached = attached | 1
        WHERE id = whose AND EXISTS (SELECT FROM entry WHERE owner = job.id AND owner <> '');
    END CASE;
END $$;
