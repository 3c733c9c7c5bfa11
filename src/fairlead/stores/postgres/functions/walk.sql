-- The queues of a plan. told: [name, weight, debt, reserve, critical, want, after_at, after_id, resumed];
-- what is left out at the end has the usual value.
CREATE OR REPLACE FUNCTION lines(told jsonb, since bigint, at bigint) RETURNS stretch[] LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ARRAY(
        SELECT ROW(
            q->>0, coalesce((q->>1)::float8, 1), coalesce((q->>2)::float8, 0),
            least(coalesce((q->>3)::integer, 0), 1000000), coalesce((q->>4)::boolean, false),
            CASE WHEN is_paused THEN 0 ELSE coalesce((q->>5)::integer, 0) END, 0, 0,
            CASE WHEN is_paused THEN 0 END, 0, 0,
            coalesce((q->>6)::bigint, low, -9223372036854775808), coalesce(q->>7, ''),
            is_paused OR q->>7 IS NULL OR q->>8 IS NOT NULL, q->>8 IS NOT NULL AND NOT is_paused, low,
            NULL, 9223372036854775807, NULL
        )::stretch
        FROM jsonb_array_elements(told) AS q
        CROSS JOIN LATERAL (
            SELECT CASE WHEN q->>7 IS NULL THEN mark_of(q->>0, since, at) END AS low,
                   EXISTS (SELECT FROM paused WHERE paused.queue = q->>0) AS is_paused
            OFFSET 0
        ) AS begin
    );
END $$;

-- Those of some queues that have a job which no lease keeps, whatever gate it is behind.
CREATE OR REPLACE FUNCTION awake(told jsonb, since bigint, at bigint) RETURNS stretch[] LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ARRAY(
        SELECT l::stretch FROM unnest(lines(told, since, at)) AS l
        WHERE l.most IS NULL AND (
            EXISTS (SELECT FROM job
                    WHERE parked = 0 AND queue = l.name AND (order_at, id) > (l.from_at, '')
                      AND lease_until <= at)
            OR EXISTS (SELECT FROM job WHERE parked = 3 AND queue = l.name AND lease_until <= at)
        )
    );
END $$;

-- The next jobs of a queue that no lease keeps, in order, each with its closed gate, if there is one. It
-- becomes a part of the statement that asks.
CREATE OR REPLACE FUNCTION walk(
    line text, from_at bigint, from_id text, look boolean, resumed boolean, at bigint, spare boolean,
    able jsonb, own integer, most integer
) RETURNS TABLE (
    id text, order_at bigint, aside boolean, shut text, size integer, task text, version integer
) LANGUAGE sql STABLE
AS $$
    SELECT * FROM (
        (SELECT job.id, job.order_at, false,
                gate(job.id, queue, job.task, job.version, run_at, job.order_at, expires_at, enqueued_at,
                     attempt, crashes, fence, lease_until, worker, claimed_at, level, at, spare, able, own),
                octet_length(payload) + coalesce(octet_length(options), 0), job.task, job.version
         FROM job
         WHERE parked = 0 AND queue = line
           AND (job.order_at, job.id) > (from_at, from_id) AND lease_until <= at
         ORDER BY job.order_at, job.id LIMIT most)
        UNION ALL
        (SELECT job.id, job.order_at, true,
                gate(job.id, queue, job.task, job.version, run_at, job.order_at, expires_at, enqueued_at,
                     attempt, crashes, fence, lease_until, worker, claimed_at, level, at, spare, able, own),
                octet_length(payload) + coalesce(octet_length(options), 0), job.task, job.version
         FROM job
         WHERE look AND parked = 3 AND queue = line AND lease_until <= at
           AND (NOT resumed OR (job.order_at, job.id) > (from_at, from_id))
         ORDER BY job.order_at, job.id LIMIT most)
    ) AS next
    ORDER BY 2, 1 LIMIT most
$$;

-- Ask each queue that should give another number of jobs than it has. The walks along all of them are one
-- statement, and so are the locks in all of them; each is begun only if some queue needs it, for to begin one takes as
-- long as ten jobs do. What is behind a gate is counted with the others, and told apart by "gates".
CREATE OR REPLACE FUNCTION ask(lines stretch[], at bigint, spare boolean, able jsonb, own integer) RETURNS stretch[]
LANGUAGE plpgsql
AS $$
DECLARE
    walks boolean;
    locks boolean;
BEGIN
    SELECT bool_or(look), bool_or(NOT look) INTO walks, locks FROM unnest(lines) WHERE want <> had;
    IF walks THEN
        lines := walked(lines, at, spare, able, own);
    END IF;
    IF locks THEN
        lines := locked(lines, at, spare, able, own);
    END IF;
    RETURN lines;
END $$;

-- The queues that are gone through from their marks, with what was found. Jobs are locked when it is known which of
-- them start.
CREATE OR REPLACE FUNCTION walked(lines stretch[], at bigint, spare boolean, able jsonb, own integer)
RETURNS stretch[] LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ARRAY(
        SELECT CASE WHEN NOT look OR want = l.had THEN l::stretch ELSE ROW(
            name, weight, debt, reserve, critical, want, w.had, w.beside, most, w.gates, w.bytes,
            from_at, from_id, look, resumed, mark, w.first_at, 9223372036854775807, NULL
        )::stretch END
        FROM unnest(lines) AS l
        CROSS JOIN LATERAL (
            SELECT count(*)::integer AS had, (count(*) FILTER (WHERE aside))::integer AS beside,
                   count(shut)::integer AS gates, coalesce(sum(size), 0) AS bytes,
                   min(order_at) FILTER (WHERE NOT aside) AS first_at
            FROM walk(l.name, l.from_at, l.from_id, l.look, l.resumed, at, spare, able, own,
                      CASE WHEN look AND want <> l.had THEN want ELSE 0 END)
        ) AS w
    );
END $$;

-- The queues in which a claim goes on after the last, with what was found. Gates are not expected there, and jobs are
-- locked as they are found.
CREATE OR REPLACE FUNCTION locked(lines stretch[], at bigint, spare boolean, able jsonb, own integer)
RETURNS stretch[] LANGUAGE plpgsql
AS $$
BEGIN
    RETURN ARRAY(
        SELECT CASE WHEN look OR want = l.had THEN l::stretch ELSE ROW(
            name, weight, debt, reserve, critical, want, v.had, 0, most, v.gates, v.bytes,
            from_at, from_id, look, resumed, mark, NULL, 9223372036854775807, v.places
        )::stretch END
        FROM unnest(lines) AS l
        CROSS JOIN LATERAL (
            SELECT count(*)::integer AS had, count(shut)::integer AS gates,
                   coalesce(sum(size), 0) AS bytes, array_agg(place) AS places
            FROM (
                SELECT ctid AS place, octet_length(payload) + coalesce(octet_length(options), 0) AS size,
                       gate(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                            crashes, fence, lease_until, worker, claimed_at, level, at, spare, able, own) AS shut
                FROM job
                WHERE parked = 0 AND queue = l.name AND (order_at, id) > (l.from_at, l.from_id)
                  AND lease_until <= at
                ORDER BY order_at, id LIMIT CASE WHEN look OR want = l.had THEN 0 ELSE want END
                FOR UPDATE SKIP LOCKED
            ) AS locked
        ) AS v
    );
END $$;

-- Go along a queue job by job, because there are gates, or too many bytes: up to the jobs that are wanted,
-- to the bytes, and to the steps over jobs behind gates. "stopped" is the place where it was broken off, if jobs
-- were stepped over before. Jobs whose task another live worker knows stay where they are; the strange ones
-- may be left out.
CREATE OR REPLACE FUNCTION step(
    INOUT line stretch, at bigint, spare boolean, able jsonb, own integer, steps integer, most_size bigint,
    OUT strange text[], OUT damaged text[], OUT stepped integer, OUT stopped jsonb, OUT ample boolean
) LANGUAGE plpgsql
AS $$
DECLARE
    head  record;
    known jsonb := '{}';
    kind  text;
BEGIN
    strange := '{}';
    damaged := '{}';
    stepped := 0;
    ample := false;
    line.had := 0;
    line.beside := 0;
    line.gates := 0;
    line.bytes := 0;
    line.places := NULL;
    FOR head IN
        SELECT * FROM walk(line.name, line.from_at, line.from_id, line.look, line.resumed, at, spare, able, own,
                           line.want + steps)
    LOOP
        IF head.shut IS NULL THEN
            line.had := line.had + 1;
            line.beside := line.beside + head.aside::integer;
            line.bytes := line.bytes + head.size;
            ample := line.bytes >= most_size AND line.had < line.want;
        ELSE
            stepped := stepped + 1;
            IF head.shut = 'no_capable_worker' THEN
                kind := concat(head.version, ' ', head.task);
                IF NOT known ? kind THEN
                    known := known || jsonb_build_object(kind, is_known(head.task, head.version, at));
                END IF;
                IF NOT (known->kind)::boolean THEN
                    strange := strange || head.id;
                END IF;
            ELSIF head.shut = 'unreadable' THEN
                damaged := damaged || head.id;
            END IF;
        END IF;
        line.upto_at := head.order_at;
        IF line.had = line.want OR stepped = steps OR ample THEN
            stopped := CASE WHEN stepped > 0 THEN jsonb_build_array(head.order_at, head.id) END;
            EXIT;
        END IF;
    END LOOP;
    IF ample THEN
        line.want := line.had;
    ELSIF stepped = steps THEN
        line.most := line.had;
    END IF;
END $$;

-- Do that in each queue where there are gates, or in all if there are too many bytes.
CREATE OR REPLACE FUNCTION step_along(
    INOUT asked stretch[], at bigint, spare boolean, able jsonb, own integer, steps integer,
    most_size bigint, size bigint, wanted bigint, OUT short boolean, OUT strange text[], OUT damaged text[], OUT gated jsonb,
    OUT ample boolean, OUT cut boolean
) LANGUAGE plpgsql
AS $$
DECLARE
    line stretch;
    way  record;
BEGIN
    short := false;
    strange := '{}';
    damaged := '{}';
    gated := '{}';
    ample := false;
    cut := false;
    FOR i IN 1..cardinality(asked) LOOP
        line := asked[i];
        IF line.gates > 0 OR size >= most_size AND line.had > 0 THEN
            way := step(
                line, at, spare, able, own, steps, greatest(1, most_size * line.want / wanted)
            );
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
END $$;

-- A queue as it is asked from its mark.
CREATE OR REPLACE FUNCTION afresh(line stretch, since bigint, at bigint) RETURNS stretch LANGUAGE plpgsql STABLE
AS $$
BEGIN
    line.look := true;
    line.resumed := false;
    line.mark := mark_of(line.name, since, at);
    line.from_at := coalesce(line.mark, -9223372036854775808);
    line.from_id := '';
    line.had := 0;
    line.beside := 0;
    line.bytes := 0;
    line.places := NULL;
    RETURN line;
END $$;

-- A queue that had less than was wanted, as it is asked again: from its mark; or no more, if it was, and
-- nothing has come into it since.
CREATE OR REPLACE FUNCTION again(line stretch, stirred text[], since bigint, at bigint) RETURNS stretch
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF line.had < line.want THEN
        IF NOT line.look OR line.name = ANY (stirred) THEN
            RETURN afresh(line, since, at);
        END IF;
        line.most := line.had;
        line.want := line.had;
    END IF;
    RETURN line;
END $$;
