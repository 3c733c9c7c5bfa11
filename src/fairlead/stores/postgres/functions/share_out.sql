-- Say how many jobs each queue is asked for, if all of which that is not known have enough.
--
-- Weighted round robin with credit: the next is always the queue that owes least, and each turn
-- adds 1/weight to what its queue owes. So a queue has its n-th turn at debt + (n-1)/weight,
-- and the first turns fill the slots. Of turns at the same time, that one is first whose queue had its last
-- turn before the other's; who had none in this claim stands in the order of the lines. Critical queues go first. Their reserves are
-- their own; beyond those they have their part of the shared slots. Of the others no more have a turn than
-- there are slots, and none after the instant at which those that have enough have filled them. So few turns
-- are ranked, however many queues there are.
CREATE OR REPLACE FUNCTION share_out(lines stretch[], shared integer, critical_share integer, per_turn integer)
RETURNS stretch[] LANGUAGE plpgsql
AS $$
DECLARE
    wants integer[] := array_fill(0, ARRAY[cardinality(lines)]);
    each  record;
BEGIN
    FOR each IN
        WITH numbered AS MATERIALIZED (
            SELECT row_number() OVER () AS place, weight, debt, reserve, critical, most
            FROM unnest(lines) AS l
        ), line AS MATERIALIZED (
            SELECT *, max(debt) OVER kind + shared / sum(weight) FILTER (WHERE most IS NULL) OVER kind
                      AS last_turn
            FROM (
                SELECT *, row_number() OVER (PARTITION BY critical ORDER BY debt, place) AS rank
                FROM numbered WHERE most IS DISTINCT FROM 0
            ) AS ordered
            WHERE critical OR rank <= shared
            WINDOW kind AS (PARTITION BY critical)
        ), ranked AS MATERIALIZED (
            SELECT place, critical, critical AND n <= reserve AS reserved,
                   row_number() OVER (
                       PARTITION BY critical, critical AND n <= reserve
                       ORDER BY debt + past::float8 / weight,
                                CASE WHEN past > 0 THEN debt + (past - 1)::float8 / weight END NULLS FIRST,
                                past, place
                   ) AS turn
            FROM line CROSS JOIN LATERAL generate_series(1, least(most, CASE
                WHEN critical THEN reserve + least(shared, critical_share)
                ELSE least(shared, per_turn * (floor((last_turn - debt) * weight)::integer + 2)) END)) AS n
            CROSS JOIN LATERAL (SELECT (n - 1) / per_turn AS past) AS before
        ), preferred AS MATERIALIZED (
            SELECT place, reserved FROM ranked
            WHERE critical AND (reserved OR turn <= least(shared, critical_share))
        ), chosen AS (
            SELECT place FROM preferred
            UNION ALL
            SELECT place FROM ranked
            WHERE NOT critical
              AND turn <= shared - (SELECT count(*) FROM preferred WHERE NOT reserved)
        )
        SELECT place, count(*)::integer AS jobs FROM chosen GROUP BY place
    LOOP
        wants[each.place] := each.jobs;
    END LOOP;
    RETURN ARRAY(
        SELECT ROW(
            name, weight, debt, reserve, critical, wants[place], had, beside, most, gates, bytes,
            from_at, from_id, look, resumed, mark, first_at, upto_at, places
        )::stretch
        FROM (SELECT l.*, row_number() OVER () AS place FROM unnest(lines) AS l) AS numbered
    );
END $$;
