CREATE OR REPLACE FUNCTION cancel(ids text[], states text[], why text, at bigint, own integer)
RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    marked  text[] := '{}';
    waiting text[] := '{}';
BEGIN
    IF 'running' = ANY (states) THEN
        WITH asked AS (
            UPDATE job SET cancel = why
            WHERE id = ANY (ids) AND lease_until > 0 AND job.cancel IS NULL AND may_touch(own, level)
            RETURNING id
        )
        SELECT coalesce(array_agg(id), '{}') INTO marked FROM asked;
    END IF;
    IF 'waiting' = ANY (states) THEN
        waiting := ARRAY(
            SELECT id FROM job WHERE id = ANY (ids) AND lease_until = 0 AND may_touch(own, level)
        );
        PERFORM call_off(waiting, why, at);
    END IF;
    RETURN marked || waiting;
END $$;

-- Let waiting jobs run now and not later, with their count begun anew.
CREATE OR REPLACE FUNCTION hasten(ids text[], at bigint, own integer) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    hastened text[];
    places   tid[];
BEGIN
    WITH sooner AS (
        UPDATE job SET
            order_at = at - head_start(run_at, order_at), run_at = at,
            expires_at = CASE WHEN expires_at > at THEN expires_at END,
            shared_deaths = CASE WHEN crashes > 0 THEN greatest(shared_deaths, 3)
                                 ELSE shared_deaths END,
            attempt = 0, crashes = 0
        WHERE id = ANY (ids) AND lease_until = 0 AND run_at > at AND may_touch(own, level)
        RETURNING id, ctid AS place, parked
    )
    SELECT coalesce(array_agg(id), '{}'), array_agg(place) FILTER (WHERE parked = 1)
    INTO hastened, places FROM sooner;
    PERFORM bring_back(places);
    RETURN hastened;
END $$;

CREATE OR REPLACE FUNCTION revive_all(ids text[], states text[], at bigint, own integer) RETURNS text[]
LANGUAGE sql
AS $$
    SELECT CASE WHEN 'waiting' = ANY (states) THEN hasten(ids, at, own) ELSE '{}' END
           || enter_again(ids, states, at, own)
$$;

-- Let jobs run again. Who puts the id of an ended job keeps it until the end of his transaction: that one is
-- left as it is, and the others are revived.
CREATE OR REPLACE FUNCTION revive(ids text[], states text[], at bigint, own integer) RETURNS text[]
LANGUAGE plpgsql
SET lock_timeout = '200ms'
AS $$
DECLARE
    touched text[] := '{}';
    one     text;
BEGIN
    RETURN revive_all(ids, states, at, own);
EXCEPTION WHEN lock_not_available THEN
    FOREACH one IN ARRAY ids LOOP
        BEGIN
            touched := touched || revive_all(ARRAY[one], states, at, own);
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
    END LOOP;
    RETURN touched;
END $$;

-- Remove some entries of jobs that a person is about to delete; returns which of these have more. One that has lost
-- some does not run again.
CREATE OR REPLACE FUNCTION lose(ids text[], states text[], own integer) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    owners text[] := ARRAY(
        SELECT id FROM dead WHERE 'dead' = ANY (states) AND id = ANY (ids) AND may_touch(own, level)
                              AND attached & 1 <> 0 ORDER BY id FOR UPDATE
    ) || ARRAY(
        SELECT id FROM finished WHERE state = ANY (states) AND id = ANY (ids) AND may_touch(own, level)
                                  AND attached & 1 <> 0 ORDER BY id FOR UPDATE
    );
    losers text[] := lose_entries(owners, 1000);
BEGIN
    UPDATE dead SET attached = attached | 1024 WHERE id = ANY (losers);
    UPDATE finished SET attached = attached | 1024 WHERE id = ANY (losers);
    RETURN ARRAY(
        SELECT id FROM unnest(owners) AS id
        WHERE NOT is_live(id) AND EXISTS (SELECT FROM entry WHERE owner = id AND owner <> '')
    );
END $$;

-- Remove jobs for good, with their entries. A job in the line has the same id only by damage; it keeps them.
CREATE OR REPLACE FUNCTION remove(ids text[], states text[], own integer) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    gone text[] := forget(ids, states, own);
BEGIN
    DELETE FROM entry WHERE owner = ANY (gone) AND owner <> '' AND NOT is_live(owner);
    RETURN gone;
END $$;

CREATE OR REPLACE FUNCTION edit(ids text[], was text, payload_ text, version_ integer, own integer)
RETURNS text[] LANGUAGE plpgsql
AS $$
BEGIN
    -- What a producer may not put nobody may write later.
    PERFORM check_job('any', payload_), check_names('any', 'any', version_);
    UPDATE dead SET payload = payload_, version = version_
    WHERE id = ids[1] AND payload = was AND may_touch(own, level);
    RETURN CASE WHEN FOUND THEN ids[1:1] ELSE '{}' END;
END $$;

CREATE OR REPLACE FUNCTION pause(name text) RETURNS text[] LANGUAGE plpgsql
AS $$
BEGIN
    IF coalesce(octet_length(name), 0) NOT BETWEEN 1 AND 128 THEN
        RAISE 'the name of a queue has 1 to 128 bytes' USING ERRCODE = 'JQ001';
    END IF;
    INSERT INTO paused VALUES (name) ON CONFLICT DO NOTHING;
    RETURN CASE WHEN FOUND THEN ARRAY[name] ELSE '{}' END;
END $$;

CREATE OR REPLACE FUNCTION resume(name text) RETURNS text[] LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM paused WHERE queue = name;
    RETURN CASE WHEN FOUND THEN ARRAY[name] ELSE '{}' END;
END $$;
