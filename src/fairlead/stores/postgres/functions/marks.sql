-- Where to begin in the order of a queue that nothing is remembered of.
CREATE OR REPLACE FUNCTION mark_of(name_ text, since bigint, at bigint) RETURNS bigint LANGUAGE sql STABLE
AS $$ SELECT least(mark, since) FROM queue WHERE name = name_ AND mark <= at $$;

-- Note where the order of some queues begins to hold live jobs, after looks along them. Puts that are being
-- committed just now may still appear before the last one, so a mark stays behind: a minute or two, if that
-- costs little, else two seconds. What appears later still is told of when it is committed, and
-- found by upkeep if the news is lost.
CREATE OR REPLACE FUNCTION move_marks(lines stretch[], at bigint, slow boolean) RETURNS void LANGUAGE plpgsql
AS $$
DECLARE
    behind   bigint := CASE WHEN slow THEN 2000000 ELSE 60000000 END;
    line     record;
    found_at bigint;
BEGIN
    FOR line IN
        SELECT name, mark FROM unnest(lines) AS l
        WHERE look AND NOT resumed
          AND (mark IS NULL OR mark <= at - CASE WHEN slow THEN 3000000 ELSE 120000000 END)
        ORDER BY name
    LOOP
        SELECT order_at INTO found_at FROM job
        WHERE parked = 0 AND queue = line.name
          AND (order_at, id) > (coalesce(line.mark, -9223372036854775808), '')
        ORDER BY order_at, id LIMIT 1;
        found_at := least(coalesce(found_at, at), at - behind);
        IF line.mark IS NULL THEN
            INSERT INTO queue VALUES (line.name, found_at) ON CONFLICT (name) DO NOTHING;
        END IF;
        UPDATE queue SET mark = found_at WHERE ctid = (
            SELECT ctid FROM queue WHERE name = line.name AND mark <> found_at FOR UPDATE SKIP LOCKED
        );
    END LOOP;
END $$;

-- Look for jobs that came to stand before the mark of their queue, because they were committed late.
-- Under an old snapshot it goes over all that was done since, so one does it for all, for a
-- twentieth of the time.
CREATE OR REPLACE FUNCTION lower_marks(at bigint) RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET jit = off
AS $$
DECLARE
    line    queue;
    began   timestamptz;
    lowest  bigint;
BEGIN
    FOR line IN
        -- What is to be looked at in a day or later was not written by us.
        SELECT * FROM queue WHERE next_look <= at OR next_look > at + 86400000000
        FOR UPDATE SKIP LOCKED
    LOOP
        began := clock_timestamp();
        SELECT order_at INTO lowest FROM job
        WHERE parked = 0 AND queue = line.name AND (order_at, id) < (line.mark, '')
        ORDER BY order_at, id LIMIT 1;
        UPDATE queue SET
            mark = least(line.mark, lowest),
            next_look = at + 5000000
                        + (date_part('epoch', clock_timestamp() - began) * 20000000)::bigint
        WHERE name = line.name;
    END LOOP;
END $$;

-- Whether work on so many queues took longer than it should, as it does where dead entries are many.
CREATE OR REPLACE FUNCTION is_slow(began timestamptz, queues integer) RETURNS boolean LANGUAGE sql VOLATILE
AS $$ SELECT clock_timestamp() - began > interval '5 ms' + queues * interval '0.1 ms' $$;
