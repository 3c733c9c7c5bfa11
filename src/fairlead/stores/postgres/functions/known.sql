-- Whether an id has the shape of those that we make. Those say when they were made, by their first
-- eight digits to the minute.
CREATE OR REPLACE FUNCTION is_shaped(id text) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$ SELECT id LIKE '________-____-7%' $$;

CREATE OR REPLACE FUNCTION is_dated(id text) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$ SELECT id ~ '^[0-9a-f]{8,8}-' $$;

CREATE OR REPLACE FUNCTION made_at(id text) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT ('x' || left(id, 8))::bit(32)::bigint * 65536000 $$;

-- Refuse what says that it was made more than a day from now. We rely on dates within a day: a day after it
-- had ended such a job would not be known any more.
CREATE OR REPLACE FUNCTION check_date(id text, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    IF made_at(id) > greatest(at, stamp()) + 86400000000 THEN
        PERFORM refuse_put('the id of a job says that it was made more than a day from now; set the clock '
                           'of the machine that puts it');
    END IF;
END $$;

-- Take back those jobs of a put that ended before, and say which they are. Fresh are those that were added
-- just now; null if all were. Looked for after the rows are there: what is put a second time while its first
-- put is on its way cannot slip through in between. If every id says when it was made, none of them ended
-- before the first was, if the clocks agree by a day; all that lie between two with the same digits have
-- these too. Mostly none has ended, nor any other of their time, which is one look however many they are. An id is
-- known for as long as there are entries under it.
CREATE OR REPLACE FUNCTION take_back(
    doc jsonb, fresh text[], low text, high text, shaped boolean, at bigint
) RETURNS text[] LANGUAGE plpgsql
AS $$
DECLARE
    earliest bigint  := 0;
    dated    boolean := shaped AND is_dated(low);
    made     bigint;
    known    text[];
BEGIN
    IF dated AND left(low, 9) <> left(high, 9) THEN
        dated := NOT EXISTS (SELECT FROM ids_of(doc) AS id WHERE NOT is_dated(id));
    END IF;
    IF dated THEN
        made := made_at(low);
        earliest := least(at, made) - 86400000000;
        IF high > low THEN
            made := made_at(high);
        END IF;
        IF made > at THEN
            PERFORM check_date(high, at);
        END IF;
    ELSIF high > low THEN
        PERFORM check_date(id, at) FROM ids_of(doc) AS id WHERE is_shaped(id) AND is_dated(id);
    END IF;
    IF NOT EXISTS (
        SELECT FROM dead WHERE id BETWEEN low AND high
        UNION ALL
        SELECT FROM finished WHERE id BETWEEN low AND high AND finished_at >= earliest
    ) THEN
        RETURN NULL;
    END IF;
    fresh := coalesce(fresh, ARRAY(SELECT ids_of(doc)));
    SELECT array_agg(id) INTO known FROM (
        SELECT id FROM dead WHERE id = ANY (fresh)
        UNION ALL
        SELECT id FROM finished WHERE id = ANY (fresh) AND finished_at >= earliest
                                  AND (finished_at >= (SELECT since FROM kept) OR attached & 1 <> 0)
    ) AS ended;
    IF known IS NOT NULL THEN
        DELETE FROM job WHERE id = ANY (known);
    END IF;
    RETURN known;
END $$;
