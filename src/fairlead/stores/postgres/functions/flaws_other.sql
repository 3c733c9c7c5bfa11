-- The kinds of damage of what is not a job.
CREATE OR REPLACE FUNCTION other_kinds() RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT ARRAY[
        'mark', 'worker', 'paused', 'audit', 'part', 'day', 'no day', 'retention', 'step', 'no step',
        'verbs'
    ]
$$;

-- Whose damage of one of these kinds there is, see flaws_of.
CREATE OR REPLACE FUNCTION flaws_other(kind text, start text, at bigint, most integer)
RETURNS TABLE (whose text) LANGUAGE plpgsql STABLE
AS $$
DECLARE
    a_day CONSTANT bigint := 86400000000;
    last_ CONSTANT bigint := 1152921504606846976;
BEGIN
    CASE kind
    WHEN 'mark' THEN
        RETURN QUERY SELECT name FROM queue WHERE name >= start
            AND (mark NOT BETWEEN -last_ AND last_ OR next_look NOT BETWEEN 0 AND at + a_day
                 OR octet_length(name) NOT BETWEEN 1 AND 255)
            ORDER BY name LIMIT most;
    WHEN 'worker' THEN
        RETURN QUERY SELECT id FROM worker WHERE id >= start
            AND NOT is_worker(id, capable, pools, processes, started_at, live_until, level, at)
            ORDER BY id LIMIT most;
    WHEN 'paused' THEN
        RETURN QUERY SELECT queue FROM paused WHERE queue >= start
            AND octet_length(queue) NOT BETWEEN 1 AND 255 ORDER BY queue LIMIT most;
    WHEN 'audit' THEN
        RETURN QUERY SELECT id FROM audit WHERE id >= start
            AND (done_at NOT BETWEEN 0 AND last_ OR count NOT BETWEEN 0 AND 1000000000)
            ORDER BY id LIMIT most;
    WHEN 'part' THEN
        RETURN QUERY SELECT name FROM parts()
            WHERE name COLLATE "C" >= start AND name <> part_name(whole, opens, closes)
            ORDER BY name COLLATE "C" LIMIT most;
    WHEN 'day' THEN
        RETURN QUERY SELECT first::text FROM day WHERE first::text COLLATE "C" >= start
            AND CASE WHEN first BETWEEN 0 AND last_ AND first % a_day = 0
                     THEN part_for('finished', first, first + a_day) IS NULL
                          OR part_for('attempt', first, first + a_day) IS NULL
                     ELSE true END
            ORDER BY first::text COLLATE "C" LIMIT most;
    WHEN 'no day' THEN
        RETURN QUERY SELECT name FROM parts() WHERE name COLLATE "C" >= start
            AND name = part_name(whole, opens, closes)
            AND NOT EXISTS (SELECT FROM day WHERE first = opens)
            ORDER BY name COLLATE "C" LIMIT most;
    WHEN 'retention' THEN
        RETURN QUERY SELECT '' WHERE start = '' AND NOT EXISTS (
            SELECT FROM retention
            WHERE before BETWEEN 0 AND at + a_day AND coalesce(keep, 0) BETWEEN 0 AND last_
        );
    WHEN 'step' THEN
        RETURN QUERY SELECT number::text FROM migration WHERE number::text COLLATE "C" >= start
            AND (number NOT BETWEEN 1 AND 9999 OR applied_at NOT BETWEEN 0 AND last_)
            ORDER BY number::text COLLATE "C" LIMIT most;
    WHEN 'no step' THEN
        RETURN QUERY SELECT n::text FROM generate_series(
                1, (SELECT greatest(1, max(number)) FROM migration WHERE number <= 9999)
            ) AS n
            WHERE n::text COLLATE "C" >= start AND NOT EXISTS (SELECT FROM migration WHERE number = n)
            ORDER BY n::text COLLATE "C" LIMIT most;
    WHEN 'verbs' THEN
        RETURN QUERY SELECT '' WHERE start = '' AND NOT EXISTS (
            SELECT FROM verbs WHERE revision BETWEEN 1 AND 1000000 AND applied_at BETWEEN 0 AND last_
        );
    END CASE;
END $$;

-- Mend one of them, see mend.
CREATE OR REPLACE FUNCTION mend_other(what text, whose text, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    CASE what
    WHEN 'mark' THEN
        DELETE FROM queue WHERE name = whose AND octet_length(name) NOT BETWEEN 1 AND 255;
        UPDATE queue SET mark = -1152921504606846976, next_look = 0 WHERE name = whose;
    WHEN 'worker' THEN
        DELETE FROM worker
        WHERE id = whose
          AND NOT is_worker(id, capable, pools, processes, started_at, live_until, level, at);
    WHEN 'paused' THEN
        DELETE FROM paused WHERE queue = whose;
    WHEN 'audit' THEN
        UPDATE audit SET done_at = instant(done_at), count = runs(count) WHERE id = whose;
    WHEN 'part' THEN
        PERFORM set_config('lock_timeout', '2s', true);  -- It waits for who reads the table just now.
        EXECUTE (
            SELECT format('ALTER TABLE %I RENAME TO %I', name, part_name(whole, opens, closes))
            FROM parts() WHERE name = whose AND name <> part_name(whole, opens, closes)
        );
    WHEN 'day' THEN
        PERFORM set_config('lock_timeout', '2s', true);
        IF EXISTS (SELECT FROM parts() WHERE opens::text = whose) THEN
            PERFORM open_day(whose::bigint);
        ELSE
            DELETE FROM day WHERE first = whose::bigint;
        END IF;
    WHEN 'no day' THEN
        INSERT INTO day SELECT opens FROM parts() WHERE name = whose ON CONFLICT DO NOTHING;
    WHEN 'retention' THEN
        UPDATE retention SET before = coalesce((SELECT min(first) FROM day WHERE first >= 0), 0)
        WHERE before NOT BETWEEN 0 AND at + 86400000000;
        UPDATE retention SET keep = instant(keep) WHERE keep NOT BETWEEN 0 AND 1152921504606846976;
        INSERT INTO retention (before)
        SELECT coalesce(min(first), 0) FROM day WHERE first >= 0 ON CONFLICT DO NOTHING;
    WHEN 'step' THEN
        DELETE FROM migration WHERE number = whose::integer AND number NOT BETWEEN 1 AND 9999;
        UPDATE migration SET applied_at = instant(applied_at) WHERE number = whose::integer;
    WHEN 'no step' THEN
        INSERT INTO migration VALUES (whose::integer, at) ON CONFLICT DO NOTHING;
    WHEN 'verbs' THEN
        -- With the least revision there is, so that whoever may applies its own.
        INSERT INTO verbs VALUES (1, '', '', at, '{}', '{}') ON CONFLICT ((true)) DO UPDATE SET
            revision = CASE WHEN verbs.revision BETWEEN 1 AND 1000000 THEN verbs.revision ELSE 1 END,
            applied_at = instant(verbs.applied_at);
    END CASE;
END $$;
