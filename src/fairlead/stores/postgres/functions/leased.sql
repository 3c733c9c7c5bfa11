-- A leased job as claims and held tell it: [version, attempt, fence, run_at, order_at, enqueued_at, parked,
-- length of the id, of the task, of the queue, more], a line break, and then id, task, queue and payload,
-- one right behind the other. "more" says by name what few jobs have. To write what may be any text as it is
-- takes half the time of JSON, and there are thousands of these a second.
CREATE OR REPLACE FUNCTION leased(
    id text, task text, queue text, payload text, version integer, attempt integer, fence bigint,
    run_at bigint, order_at bigint, enqueued_at bigint, parked smallint, more json
) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT concat('[', concat_ws(
        ',', version, attempt, fence, run_at, order_at, enqueued_at, parked, char_length(id),
        char_length(task), char_length(queue), more
    ), E']\n', id, task, queue, payload)
$$;
