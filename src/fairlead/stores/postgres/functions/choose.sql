-- Choose how many jobs of which queues start, as claim says. "asked" are the queues with what was found in
-- them, "others" those of the rest that are awake; "strange" jobs are those that no live worker knows,
-- "damaged" ones those that cannot be read; "gated" tells of queues with jobs behind gates; "stirred" are
-- queues in which something fell due or is known again; "cut" says that it ended early.
CREATE OR REPLACE FUNCTION choose(
    doc jsonb, at bigint, spare boolean, able jsonb, OUT asked stretch[], OUT others stretch[],
    OUT strange text[], OUT damaged text[], OUT gated jsonb, OUT stirred text[], OUT looked boolean,
    OUT cut boolean
) LANGUAGE plpgsql
AS $$
DECLARE
    -- No pool has more slots than this, and to share out more would take long.
    shared    integer := least((doc->>'shared')::integer, 1000000);
    preferred integer := least((doc->>'critical')::integer, 1000000);
    per_turn  integer := least(greatest(coalesce((doc->>'per_turn')::integer, 1), 1), 1000);
    most_size bigint  := (doc->>'bytes')::bigint;
    heard     bigint  := (doc->>'since')::bigint;
    own       integer := told_level(doc);
    short     boolean;
    ample     boolean := false;
    gates     boolean;
    size      bigint;
    wanted    bigint;
    way       record;
    fresh     text[];
    began     timestamptz;
BEGIN
    asked := lines(doc->'queues', heard, at);
    short := EXISTS (SELECT FROM unnest(asked) WHERE most = 0);
    others := '{}';
    strange := '{}';
    damaged := '{}';
    gated := '{}';
    stirred := '{}';
    looked := false;
    cut := false;
    IF (doc->>'look')::boolean OR short OR cardinality(asked) = 0 THEN
        SELECT * INTO stirred, others FROM look_round(doc, able, at);
        looked := true;
        asked := ARRAY(
            SELECT CASE WHEN resumed AND name = ANY (stirred)
                        THEN afresh(l::stretch, heard, at) ELSE l::stretch END
            FROM unnest(asked) AS l
        ) || others;
    END IF;
    LOOP
        IF cardinality(others) > 0 OR short AND cardinality(asked) > 1 THEN
            asked := share_out(asked, shared, preferred, per_turn);
        END IF;
        EXIT WHEN ample OR NOT EXISTS (SELECT FROM unnest(asked) AS l WHERE want <> had);
        began := clock_timestamp();
        asked := ask(asked, at, spare, able, own);
        IF looked THEN
            PERFORM move_marks(asked, at, is_slow(began, cardinality(asked)));
        END IF;
        SELECT bool_or(l.gates > 0), sum(l.bytes), sum(want), bool_or(had < want)
        INTO gates, size, wanted, short
        FROM unnest(asked) AS l;
        IF gates OR size >= most_size THEN
            way := step_along(
                asked, at, spare, able, own, (doc->>'steps')::integer, most_size, size, wanted
            );
            asked := way.asked;
            short := way.short;
            ample := ample OR way.ample;
            cut := cut OR way.cut;
            strange := strange || way.strange;
            damaged := damaged || way.damaged;
            gated := gated || way.gated;
        END IF;
        EXIT WHEN NOT short;
        fresh := '{}';
        IF NOT looked THEN
            SELECT * INTO stirred, others FROM look_round(doc, able, at);
            looked := true;
            fresh := stirred;
            asked := asked || others;
        END IF;
        asked := ARRAY(
            SELECT again(l::stretch, fresh, heard, at) FROM unnest(asked) AS l
        );
    END LOOP;
END $$;
