-- Lease the next jobs of some queues, by the rule of core/selection.py.
--
-- queues: those whose turn it is, see lines, each with the number of jobs it is asked for; rest: others
-- that may be asked for what those leave. "shared" and "critical" are the slots they have in common. A claim
-- goes along the order of each queue from the place its worker remembers: nothing before it is free, or so
-- the worker believes. If the worker remembers none, it begins at the queue's mark; or before it, where it
-- heard that a job was put ("since").
--
-- It goes along the queues first and counts what may start, up to the number that is wanted and to the
-- "bytes", stepping over at most "steps" jobs behind gates of each. If some have less than is wanted, or if the
-- worker wants it ("look"), it looks for itself: it sees to what fell due, expired or is known again,
-- begins at the marks, and asks the rest. What is left then is shared out again, until the slots or the jobs run
-- out. How many of each queue start is the rule's; that many are locked then, without waiting for anybody, and those
-- that limits admit are leased.
--
-- The first text tells the time; the kinds of jobs that were parked; the queues with jobs
-- behind gates, each with the number of those and the place where the walk was broken off, if it was; the queues
-- that were gone through to the end; those of the rest that have jobs; the queues in which something fell due
-- or is known again; whether it looked, how many microseconds it took, and whether it ended early. Each of
-- the others is a job, see leased.
CREATE OR REPLACE FUNCTION claim(batch text) RETURNS SETOF text LANGUAGE plpgsql
SECURITY DEFINER SET search_path = {schema}, pg_temp
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_sort = off SET jit = off
AS $$
DECLARE
    doc     jsonb   := document(batch);
    own     integer := told_level(doc);
    at      bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    term    bigint  := (doc->>'lease')::bigint;
    who     text    := doc->>'worker';
    able    jsonb   := nullif(doc->'capable', 'null');
    spare   boolean := (doc->>'spare')::boolean
                       OR coalesce(at - (doc->>'asked_at')::bigint >= term / 2, false);
    started timestamptz := clock_timestamp();
    chosen  record;
    found   tid[] := '{}';
    allowed tid[] := '{}';
BEGIN
    -- A run without a worker, or with such a lease, is damaged: it would cost others their jobs.
    IF coalesce(octet_length(who), 0) NOT BETWEEN 1 AND 1000
        OR coalesce(term, -1) NOT BETWEEN 0 AND 31622400000000
    THEN
        RAISE 'a claim names its worker, in up to 1,000 bytes, and a lease of 0 s to 366 days'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    chosen := choose(doc, at, spare, able);
    IF cardinality(chosen.damaged) > 0 THEN
        PERFORM bury(chosen.damaged, at);
    END IF;
    IF EXISTS (SELECT FROM unnest(chosen.asked) WHERE had > 0) THEN
        found := candidates(chosen.asked, at, spare, able, own);
        allowed := admitted(found, at);
    END IF;
    RETURN NEXT jsonb_build_array(
        at, park_unknown(chosen.strange, at), chosen.gated,
        ARRAY(SELECT name FROM unnest(chosen.asked)
              WHERE most IS NOT NULL AND look AND coalesce(chosen.gated->name->1, 'null') = 'null'),
        ARRAY(SELECT name FROM unnest(chosen.others)), chosen.stirred, chosen.looked,
        (date_part('epoch', clock_timestamp() - started) * 1000000)::bigint,
        chosen.cut OR cardinality(allowed) < cardinality(found)
    )::text;
    IF cardinality(allowed) > 0 THEN
        RETURN QUERY SELECT * FROM lease(allowed, at, term, who);
    END IF;
END $$;
