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

-- Write one entry, if the version that it expects is there; one that has expired is not. Returns its new version, 0
-- if it is removed, and null if it is refused.
CREATE OR REPLACE FUNCTION write_entry(
    kind_ text, owner_ text, key_ text, value_ text, expect bigint, due_at_ bigint, expires_at_ bigint, at bigint
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
        last := greatest(last + 1, at);
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

-- Take the entries of a job that leaves the line, as the row keeps them in which it ends. It is volatile, and so
-- sees what was written before the job was locked, though after the statement that asks had begun.
CREATE OR REPLACE FUNCTION pack_entries(job_id text) RETURNS text LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    packed text;
BEGIN
    WITH gone AS (DELETE FROM entry WHERE owner = job_id AND owner <> '' RETURNING *)
    SELECT json_agg(json_build_array(kind, key, value, version, owner, due_at, expires_at))
    INTO packed FROM gone;
    RETURN packed;
END $$;

-- Whether something in such a text is an entry.
CREATE OR REPLACE FUNCTION is_packed(each json) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN json_typeof(each) <> 'array' OR json_typeof(each->0) <> 'string'
            OR json_typeof(each->1) <> 'string' OR json_typeof(each->2) <> 'string' THEN false
        WHEN concat_ws(' ', each->>3, each->>5, each->>6) ~ '^[0-9]{1,19}( [0-9]{1,19})*$' AND each->>3 IS NOT NULL
            THEN greatest((each->>3)::numeric, (each->>5)::numeric, (each->>6)::numeric) <= 1152921504606846976
                 AND is_entry(each->>0, '', each->>1, each->>2, 0, NULL, NULL)
        ELSE false
    END
$$;

-- The entries in such a text, as far as they can be read; none, if it is no list.
CREATE OR REPLACE FUNCTION entries_in(packed text) RETURNS SETOF json LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN QUERY SELECT json_build_array(
        each->0, each->1, each->2, (each->>3)::bigint, each->4, (each->>5)::bigint, (each->>6)::bigint
    ) FROM json_array_elements(packed::json) AS each WHERE is_packed(each) IS TRUE;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN;
END $$;

-- Whether all of it can be read.
CREATE OR REPLACE FUNCTION are_packed(packed text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN (SELECT coalesce(bool_and(is_packed(each) IS TRUE), true) FROM json_array_elements(packed::json) AS each);
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN false;
END $$;

-- Give a job that comes back its entries.
CREATE OR REPLACE FUNCTION unpack_entries(job_id text, packed text) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO entry (kind, owner, key, value, version, due_at, expires_at)
    SELECT each->>0, job_id, each->>1, each->>2, (each->>3)::bigint, (each->>5)::bigint, (each->>6)::bigint
    FROM entries_in(packed) AS each
    ON CONFLICT (kind, owner, key) DO NOTHING;
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
