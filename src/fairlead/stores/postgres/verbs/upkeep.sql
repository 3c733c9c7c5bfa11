-- One bounded round of housekeeping. What ended before the retention time is forgotten at once, and
-- goes when its day does; nothing is forgotten that an operator wants kept. What a person forgets who
-- is no worker is in the audit log. Returns how many jobs were promoted, brought back, expired and forgotten,
-- how many runs were forgotten, and how many entries, which had expired or whose job is forgotten, in a list.
CREATE OR REPLACE FUNCTION upkeep(batch text) RETURNS text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
DECLARE
    doc    jsonb   := document(batch);
    own    integer := told_level(doc);
    at     bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    most   integer := greatest(1, least((doc->>'batch')::integer, 100000));
    keep_  bigint  := (doc->>'keep')::bigint;
    limit_ bigint;
    past   bigint;
    known  jsonb;
    counts integer[];
    -- A person is told of all that is forgotten, so that the audit log has the number.
    person boolean := NOT has_function_privilege(session_user, 'claim(text)', 'EXECUTE');
    seen   integer := CASE WHEN NOT person THEN most END;
BEGIN
    IF coalesce(keep_, -1) < 0 THEN
        RAISE 'what ended is kept for 0 s or longer, not for % microseconds', quote_nullable(keep_)
            USING ERRCODE = 'JQ001';
    END IF;
    -- Who calls may be wrong about the time as well.
    limit_ := least(at - keep_, stamp(), (SELECT stamp() - max(keep) FROM retention WHERE keep >= 0));
    SELECT coalesce(jsonb_object_agg(task, version), '{}') INTO known FROM (
        SELECT key AS task, max(value::integer) AS version
        FROM worker CROSS JOIN jsonb_each_text(known_tasks(capable)) WHERE live_until > at GROUP BY key
    ) AS each;
    counts := ARRAY[
        cardinality(bring_back_due(at, most)), cardinality(bring_back_known(known, most)),
        expire(at, most, own, 50000)
    ];
    SELECT before INTO past FROM retention FOR UPDATE SKIP LOCKED;
    IF past > stamp() + 86400000000 THEN
        past := 0; -- It is still to come: that is damage, and hides nothing.
    END IF;
    IF past < limit_ THEN
        counts := counts || ARRAY[
            (SELECT count(*) FROM (
                SELECT FROM finished WHERE finished_at >= past AND finished_at < limit_ LIMIT seen
            ) AS gone)::integer,
            (SELECT count(*) FROM (
                SELECT FROM attempt WHERE finished_at >= past AND finished_at < limit_ LIMIT seen
            ) AS gone)::integer
        ];
        UPDATE retention SET before = limit_;
        IF person AND counts[4] + counts[5] > 0 THEN
            PERFORM note(
                jsonb_build_array(
                    gen_random_uuid(), session_user, 'upkeep',
                    format('all that ended before %s', to_timestamp(limit_ / 1000000))
                ),
                counts[4], at
            );
        END IF;
    ELSE
        counts := counts || ARRAY[0, 0];
    END IF;
    DELETE FROM worker WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM worker WHERE live_until < limit_ FOR UPDATE SKIP LOCKED
    ));
    counts := counts || (forget_entries(most) + prune_entries(at, most));
    PERFORM lower_marks(at);
    PERFORM open_day(at);
    PERFORM open_day(at + 86400000000);
    -- What is gone was forgotten before, and told of.
    PERFORM close_days(least(limit_, (SELECT since FROM kept)));
    RETURN to_json(counts);
END $$;
