-- Whether an entry is what core/entries.py says it may be; one of nobody has an empty owner.
CREATE OR REPLACE FUNCTION is_entry(
    kind text, owner text, key text, value text, version bigint, due_at bigint, expires_at bigint
) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT kind ~ '^[A-Za-z0-9._-]{1,64}$' AND kind ~ '[A-Za-z0-9]'
       AND octet_length(owner) = least(char_length(owner), 36)
       AND octet_length(key) BETWEEN 1 AND 512 AND coalesce(octet_length(value), 0) <= 65536
       AND least(version, due_at, expires_at) >= 0
       AND greatest(version, due_at, expires_at) <= 1152921504606846976
$$;

-- What is wrong with a change; null if nothing is.
CREATE OR REPLACE FUNCTION change_fault(change jsonb) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN change @? 'strict $[0 to 2] ? (@.type() != "string")'
            OR coalesce(jsonb_typeof(change->3), 'null') NOT IN ('string', 'null')
            THEN 'the kind, the owner, the key and the value of an entry are texts'
        WHEN is_entry(change->>0, change->>1, change->>2, change->>3, 0, (change->>5)::bigint,
                      (change->>6)::bigint) IS NOT TRUE
            THEN 'the kind of an entry is a plain name of 1 to 64 characters, its owner the id of a job, its key has '
                 '1 to 512 bytes and its value at most 65,536, and its times are from 0 to 2^60'
    END
$$;

-- Refuse changes that cannot be, by the numbers of core/entries.py: they hold here for those who do not use our
-- programs.
CREATE OR REPLACE FUNCTION check_changes(changes jsonb) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    fault text;
BEGIN
    SELECT CASE
        WHEN jsonb_typeof(changes) IS DISTINCT FROM 'array' OR jsonb_array_length(changes) > 1000
            THEN 'one call writes at most 1,000 entries'
        ELSE (SELECT min(change_fault(each)) FROM jsonb_array_elements(changes) AS each)
    END INTO fault;
    IF fault IS NOT NULL THEN
        RAISE '%', fault USING ERRCODE = 'JQ001';
    END IF;
END $$;

-- Write one entry, if the version that it expects is there; one that has expired is not. Returns its new version, which
-- is none before the first one; 0 if it is removed, and null if it is refused.
CREATE OR REPLACE FUNCTION write_entry(
    kind_ text, owner_ text, key_ text, value_ text, expect bigint, due_at_ bigint, expires_at_ bigint, at bigint,
    first bigint
) RETURNS bigint LANGUAGE plpgsql
AS $$
DECLARE
    found_at bigint;
    last     bigint;
BEGIN
    LOOP
        SELECT version, CASE WHEN expires_at <= at THEN 0 ELSE version END INTO found_at, last FROM entry
        WHERE kind = kind_ AND owner = owner_ AND key = key_ FOR UPDATE;
        last := coalesce(last, 0);
        IF expect <> last THEN
            RETURN NULL;
        END IF;
        IF value_ IS NULL THEN
            DELETE FROM entry WHERE kind = kind_ AND owner = owner_ AND key = key_;
            RETURN 0;
        END IF;
        last := greatest(found_at + 1, first);
        IF found_at IS NOT NULL THEN
            UPDATE entry SET value = value_, version = last, due_at = due_at_, expires_at = expires_at_
            WHERE kind = kind_ AND owner = owner_ AND key = key_;
            RETURN last;
        END IF;
        INSERT INTO entry (kind, owner, key, value, version, due_at, expires_at)
        VALUES (kind_, owner_, key_, value_, last, due_at_, expires_at_)
        ON CONFLICT (kind, owner, key) DO NOTHING;
        IF FOUND THEN
            RETURN last;
        END IF;
        -- Somebody wrote it at the same moment: look again.
    END LOOP;
END $$;

-- Whether there is such a job, in whatever state.
CREATE OR REPLACE FUNCTION is_kept(job_id text) RETURNS boolean LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM job WHERE id = job_id) OR EXISTS (SELECT FROM dead WHERE id = job_id)
        OR EXISTS (SELECT FROM finished WHERE id = job_id AND finished_at >= (SELECT since FROM kept));
END $$;

-- An entry, as it is told.
CREATE OR REPLACE FUNCTION told_entry(each entry) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT json_build_array(each.kind, each.key, each.value, each.version, nullif(each.owner, ''),
                            each.due_at, each.expires_at)::text
$$;

-- Remove some of what has expired; returns how many.
CREATE OR REPLACE FUNCTION prune_entries(at bigint, most integer) RETURNS integer LANGUAGE plpgsql
AS $$
DECLARE
    gone integer;
BEGIN
    DELETE FROM entry WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM entry WHERE expires_at <= at AND owner = ''
        ORDER BY expires_at LIMIT most FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

-- Whether there is such a job in the line: beside one that has ended, by damage. It keeps its entries.
CREATE OR REPLACE FUNCTION is_live(job_id text) RETURNS boolean LANGUAGE plpgsql STABLE
AS $$ BEGIN RETURN EXISTS (SELECT FROM job WHERE id = job_id); END $$;

-- Remove some entries of jobs that have ended; returns whose they were, once for each entry.
CREATE OR REPLACE FUNCTION lose_entries(owners text[], most integer) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    losers text[];
BEGIN
    WITH gone AS (
        DELETE FROM entry WHERE ctid = ANY (ARRAY(
            SELECT entry.ctid FROM unnest(owners) AS id CROSS JOIN LATERAL (
                SELECT ctid FROM entry WHERE owner = id AND owner <> '' LIMIT most
            ) AS entry WHERE NOT is_live(id) LIMIT most
        )) RETURNING owner
    )
    SELECT coalesce(array_agg(owner), '{}') INTO losers FROM gone;
    RETURN losers;
END $$;

-- Remove some entries of jobs that are forgotten; returns how many, or of how many jobs if these are more. Who has none
-- left does not keep its day any more.
CREATE OR REPLACE FUNCTION forget_entries(most integer) RETURNS integer LANGUAGE plpgsql
AS $$
DECLARE
    owners text[] := ARRAY(
        SELECT id FROM finished WHERE attached & 1 <> 0 AND finished_at < (SELECT since FROM kept)
        ORDER BY finished_at LIMIT most FOR UPDATE SKIP LOCKED
    );
    gone   integer;
BEGIN
    IF cardinality(owners) = 0 THEN
        RETURN 0;
    END IF;
    gone := cardinality(lose_entries(owners, most));
    UPDATE finished SET attached = attached & ~1
    WHERE id = ANY (owners) AND attached & 1 <> 0 AND finished_at < (SELECT since FROM kept)
      AND (is_live(finished.id) OR NOT EXISTS (SELECT FROM entry WHERE owner = finished.id AND owner <> ''));
    RETURN greatest(gone, cardinality(owners));
END $$;
