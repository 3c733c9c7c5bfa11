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
-- out. How many of each queue start is the rule's; that many are locked and leased then, without waiting for
-- anybody.
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
    doc       jsonb   := document(batch);
    at        bigint  := coalesce(moment((doc->>'at')::bigint), stamp());
    term      bigint  := (doc->>'lease')::bigint;
    who       text    := doc->>'worker';
    steps     integer := (doc->>'steps')::integer;
    -- No pool has more slots than this, and to share out more would take long.
    shared    integer := least((doc->>'shared')::integer, 1000000);
    preferred integer := least((doc->>'critical')::integer, 1000000);
    per_turn  integer := least(greatest(coalesce((doc->>'per_turn')::integer, 1), 1), 1000);
    most_size bigint  := (doc->>'bytes')::bigint;
    able      jsonb   := nullif(doc->'capable', 'null');
    spare     boolean := (doc->>'spare')::boolean
                         OR coalesce(at - (doc->>'asked_at')::bigint >= term / 2, false);
    started   timestamptz := clock_timestamp();
    began     timestamptz;
    heard     bigint      := (doc->>'since')::bigint;
    asked     stretch[]   := lines(doc->'queues', heard, at);
    others    stretch[]   := '{}';  -- Those of the rest that are awake.
    short     boolean := EXISTS (SELECT FROM unnest(asked) WHERE most = 0);
    looked    boolean := false;
    size      bigint;
    wanted    bigint;
    gates     boolean;
    cut       boolean := false;
    ample     boolean := false;
    line      stretch;
    way       record;
    strange   text[]  := '{}';
    damaged   text[]  := '{}';
    gated     jsonb   := '{}';
    stirred   text[]  := '{}';
    fresh     text[];
BEGIN
    -- A run without a worker, or with such a lease, is damaged: it would cost others their jobs.
    IF coalesce(octet_length(who), 0) NOT BETWEEN 1 AND 1000
        OR coalesce(term, -1) NOT BETWEEN 0 AND 31622400000000
    THEN
        RAISE 'a claim names its worker, in up to 1,000 bytes, and a lease of 0 s to 366 days'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
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
        asked := ask(asked, at, spare, able);
        IF looked THEN
            PERFORM move_marks(asked, at, is_slow(began, cardinality(asked)));
        END IF;
        SELECT bool_or(l.gates > 0), sum(l.bytes), sum(want), bool_or(had < want)
        INTO gates, size, wanted, short
        FROM unnest(asked) AS l;
        IF gates OR size >= most_size THEN
            short := false;
            FOR i IN 1..cardinality(asked) LOOP
                line := asked[i];
                IF line.gates > 0 OR size >= most_size AND line.had > 0 THEN
                    way := step(line, at, spare, able, steps, greatest(1, most_size * line.want / wanted));
                    asked[i] := way.line;
                    strange := strange || way.strange;
                    damaged := damaged || way.damaged;
                    ample := ample OR way.ample;
                    cut := cut OR way.ample OR way.stepped = steps;
                    IF way.stepped > 0 THEN
                        gated := gated || jsonb_build_object(
                            line.name, jsonb_build_array(way.stepped, way.stopped)
                        );
                    END IF;
                END IF;
                short := short OR (asked[i]).had < (asked[i]).want;
            END LOOP;
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
    IF cardinality(damaged) > 0 THEN
        PERFORM bury(damaged, at);
    END IF;
    RETURN NEXT jsonb_build_array(
        at, leave_out(strange, at), gated,
        ARRAY(SELECT name FROM unnest(asked)
              WHERE most IS NOT NULL AND look AND coalesce(gated->name->1, 'null') = 'null'),
        ARRAY(SELECT name FROM unnest(others)), stirred, looked,
        (date_part('epoch', clock_timestamp() - started) * 1000000)::bigint, cut
    )::text;
    IF NOT EXISTS (SELECT FROM unnest(asked) WHERE had > 0) THEN
        RETURN;
    END IF;
    RETURN QUERY
    UPDATE job SET
        fence = greatest(job.fence + 1, at),
        attempt = job.attempt + (job.lease_until = 0)::integer,
        worker = CASE WHEN job.lease_until = 0 THEN who ELSE job.worker END,
        claimed_at = CASE WHEN job.lease_until = 0 THEN at ELSE job.claimed_at END,
        lost = job.lease_until > 0,
        lease_until = at + term
    WHERE ctid = ANY (
        ARRAY(SELECT unnest(places) FROM unnest(asked)) || ARRAY(
            SELECT chosen.ctid FROM unnest(asked) AS l
            CROSS JOIN LATERAL (
                SELECT ctid FROM job
                -- Whatever the walk went over before the first of them need not be gone over again.
                WHERE parked = 0 AND queue = l.name
                  AND (order_at, id) > (greatest(l.first_at, l.from_at),
                                        CASE WHEN l.first_at > l.from_at THEN '' ELSE l.from_id END)
                  AND order_at <= l.upto_at AND lease_until <= at
                  AND gate(id, queue, task, version, run_at, order_at, expires_at, enqueued_at,
                           attempt, crashes, fence, lease_until, worker, claimed_at, at, spare,
                           able) IS NULL
                ORDER BY order_at, id
                LIMIT CASE WHEN l.places IS NULL THEN l.had - l.beside ELSE 0 END FOR UPDATE SKIP LOCKED
            ) AS chosen
        ) || ARRAY(
            SELECT chosen.ctid FROM unnest(asked) AS l
            CROSS JOIN LATERAL (
                SELECT ctid FROM job
                WHERE parked = 3 AND queue = l.name AND order_at <= l.upto_at AND lease_until <= at
                  AND (NOT l.resumed OR (order_at, id) > (l.from_at, l.from_id))
                  AND gate(id, queue, task, version, run_at, order_at, expires_at, enqueued_at,
                           attempt, crashes, fence, lease_until, worker, claimed_at, at, spare,
                           able) IS NULL
                ORDER BY order_at, id LIMIT l.beside FOR UPDATE SKIP LOCKED
            ) AS chosen
        )
    )
    RETURNING leased(
        id, task, queue, payload, version, attempt, fence, run_at, order_at, enqueued_at, parked,
        CASE WHEN lost THEN json_build_object(
            'options', options, 'expires_at', expires_at, 'crashes', crashes,
            'shared_deaths', deaths(shared_deaths), 'lost', lost, 'worker', worker,
            'claimed_at', claimed_at
        ) WHEN coalesce(options, expires_at::text) IS NOT NULL OR crashes > 0 OR shared_deaths <> 0
        THEN json_build_object(
            'options', options, 'expires_at', expires_at, 'crashes', crashes,
            'shared_deaths', deaths(shared_deaths)
        ) END
    );
END $$;
