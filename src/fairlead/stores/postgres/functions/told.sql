-- A put tells of one job, or of kinds of jobs that are alike: [queue, task, version, id, payload] and, if it
-- has terms, [options, run_at, delay, priority, expires_at, expires_in, level] behind that. A kind has lists
-- in place of the id and the payload.

-- When such jobs fall due and expire, by how much they are ahead, and where they wait. An instant in the
-- past is now: else it would be a head start of more than a day.
CREATE OR REPLACE FUNCTION told_due_at(told jsonb, at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT greatest(at, coalesce((told->>6)::bigint, at + (told->>7)::bigint)) $$;

CREATE OR REPLACE FUNCTION told_head_start(told jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce((told->>8)::bigint * 1000000, 0) $$;

CREATE OR REPLACE FUNCTION told_expires_at(told jsonb, at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT coalesce(at + (told->>10)::bigint, (told->>9)::bigint) $$;

CREATE OR REPLACE FUNCTION parked_at(run_at bigint, head_start bigint, at bigint) RETURNS smallint LANGUAGE sql
IMMUTABLE
AS $$
    SELECT (CASE WHEN run_at > at THEN 1 WHEN run_at - head_start < at THEN 3 ELSE 0 END)::smallint
$$;

-- The kinds of a put, checked: each is read once, not once for each of its jobs. Paths lead to them, for an
-- arrow would copy all that it leads to.
CREATE OR REPLACE FUNCTION kinds(doc jsonb, at bigint) RETURNS TABLE (
    queue text, task text, version integer, options text, parked smallint, run_at bigint,
    order_at bigint, expires_at bigint, put_by text, ids jsonb, payloads jsonb, level smallint
) LANGUAGE sql STABLE ROWS 10
AS $$
    SELECT sound_names(k.queue, k.task, k.version), k.task, k.version, k.options,
           parked_at(k.run_at, k.head_start, at),
           sound_terms(k.options, k.run_at, k.head_start, k.expires_at),
           k.run_at - k.head_start, k.expires_at, k.put_by, k.ids, k.payloads, k.level
    FROM (
        SELECT kind->>0 AS queue, kind->>1 AS task, (kind->>2)::integer AS version,
               text_of(kind->5) AS options, told_due_at(kind, at) AS run_at,
               told_head_start(kind) AS head_start, told_expires_at(kind, at) AS expires_at,
               session_user::text AS put_by, kind->3 AS ids, texts_of(kind->4) AS payloads,
               sound_level((kind->>11)::integer) AS level
        FROM jsonb_path_query(doc, '$.kinds[*]') AS kind
        OFFSET 0
    ) AS k
    OFFSET 0
$$;

-- The jobs of a put, checked one by one: an id that is a number is written out, and refused, before the next
-- is. If there are more ids than payloads, or fewer, the rest lacks one of the two.
CREATE OR REPLACE FUNCTION given(doc jsonb, at bigint) RETURNS TABLE (
    id text, queue text, task text, version integer, parked smallint, run_at bigint, order_at bigint,
    expires_at bigint, payload text, options text, put_by text, level smallint
) LANGUAGE sql STABLE ROWS 1000
AS $$
    SELECT sound_job(j.id, j.payload), queue, task, version, parked, run_at, order_at, expires_at,
           j.payload, options, put_by, level
    FROM kinds(doc, at) CROSS JOIN LATERAL (
        SELECT ids->>n AS id, payloads->>n AS payload
        FROM generate_series(
            0, greatest(jsonb_array_length(ids), jsonb_array_length(payloads)) - 1
        ) AS n
        OFFSET 0
    ) AS j
$$;

-- The ids of a put, and the first place that it tells of.
CREATE OR REPLACE FUNCTION ids_of(doc jsonb) RETURNS SETOF text LANGUAGE sql IMMUTABLE ROWS 1000
AS $$
    SELECT id FROM jsonb_path_query(doc, '$.kinds[*][3]') AS ids
    CROSS JOIN jsonb_array_elements_text(ids) AS id
    UNION ALL
    SELECT doc #>> '{job,3}' WHERE doc ? 'job'
$$;

CREATE OR REPLACE FUNCTION place_of(doc jsonb, at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$
    SELECT min(told_due_at(told, at) - told_head_start(told)) FROM (
        SELECT jsonb_path_query(doc, 'strict $.kinds[*] ? (exists(@[3][0]))', '{}', true) AS told
        UNION ALL
        SELECT doc->'job' WHERE doc ? 'job'
    ) AS each
$$;
