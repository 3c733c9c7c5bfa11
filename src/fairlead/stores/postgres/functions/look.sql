-- See to what fell due, is known again, or expired. Mostly there is none of it, and to ask is cheap.
-- Returns the queues that have jobs again.
CREATE OR REPLACE FUNCTION look_after(known jsonb, most integer, at bigint, own integer) RETURNS text[]
LANGUAGE plpgsql
AS $$
DECLARE
    stirred text[] := '{}';
    due     boolean;
    unknown boolean;
    expired boolean;
BEGIN
    SELECT EXISTS (SELECT FROM job WHERE parked = 1 AND run_at <= at),
           EXISTS (SELECT FROM job WHERE parked = 2 AND park_key IS NOT NULL),
           EXISTS (SELECT FROM overdue(at, 1000) WHERE lease_until = 0 AND may_touch(own, level))
    INTO due, unknown, expired;
    IF due THEN
        stirred := bring_back_due(at, most);
    END IF;
    IF unknown THEN
        stirred := stirred || bring_back_known(known, most);
    END IF;
    stirred := stirred || bring_back_limited(at, most);
    IF expired THEN
        PERFORM expire(at, most, own, 1000);
    END IF;
    RETURN ARRAY(SELECT DISTINCT unnest(stirred));
END $$;

-- See to what is not in the order, and ask which of the rest of a plan's queues are awake.
CREATE OR REPLACE FUNCTION look_round(doc jsonb, able jsonb, at bigint, OUT stirred text[], OUT others stretch[])
LANGUAGE plpgsql
AS $$
DECLARE
    since bigint := (doc->>'since')::bigint;
    began timestamptz;
BEGIN
    stirred := look_after(able, (doc->>'batch')::integer, at, told_level(doc));
    began := clock_timestamp();
    others := awake(doc->'rest', since, at);
    IF is_slow(began, jsonb_array_length(doc->'rest')) THEN
        PERFORM move_marks(lines(doc->'rest', since, at), at, true);
    END IF;
END $$;
