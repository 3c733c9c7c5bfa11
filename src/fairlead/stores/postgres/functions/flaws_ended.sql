-- The kinds of damage of what ended.
CREATE OR REPLACE FUNCTION ended_kinds() RETURNS text[] LANGUAGE sql IMMUTABLE
AS $$
    SELECT ARRAY[
        'unsound dead', 'no reason', 'dead errors', 'dead options', 'unsound finished', 'not final',
        'finished errors', 'finished options', 'dead entries', 'finished entries', 'one fence twice',
        'unsound attempt'
    ]
$$;

-- Whose damage of one of these kinds there is, see flaws_of.
CREATE OR REPLACE FUNCTION flaws_ended(kind text, start text, at bigint, most integer)
RETURNS TABLE (whose text) LANGUAGE plpgsql STABLE
AS $$
BEGIN
    CASE kind
    WHEN 'unsound dead' THEN
        RETURN QUERY SELECT id FROM dead WHERE id >= start
            AND (in_bounds(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                           crashes, fence, claimed_at) IS NOT TRUE
                 OR finished_at NOT BETWEEN 0 AND 1152921504606846976 OR level <> level_of(level)
                 OR attached < 0)
            ORDER BY id LIMIT most;
    WHEN 'no reason' THEN
        RETURN QUERY SELECT id FROM dead WHERE id >= start AND reason IS NULL ORDER BY id LIMIT most;
    WHEN 'dead errors' THEN
        RETURN QUERY SELECT id FROM dead WHERE id >= start
            AND cardinality(errors) > 0 AND errors IS DISTINCT FROM sound_errors(errors)
            ORDER BY id LIMIT most;
    WHEN 'dead options' THEN
        -- Those that made a job a dead letter stay: a person may want to see them.
        RETURN QUERY SELECT id FROM dead WHERE id >= start
            AND reason <> 'unreadable' AND NOT is_options(options) ORDER BY id LIMIT most;
    WHEN 'unsound finished' THEN
        RETURN QUERY SELECT id FROM finished WHERE id >= start
            AND finished_at >= (SELECT since FROM kept)
            AND (in_bounds(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                           crashes, fence, claimed_at) IS NOT TRUE
                 OR level <> level_of(level) OR attached < 0)
            ORDER BY id LIMIT most;
    WHEN 'not final' THEN
        RETURN QUERY SELECT id FROM finished WHERE id >= start
            AND finished_at >= (SELECT since FROM kept) AND state NOT IN ('done', 'cancelled')
            ORDER BY id LIMIT most;
    WHEN 'finished errors' THEN
        RETURN QUERY SELECT id FROM finished_record WHERE id >= start
            AND cardinality(errors) > 0 AND errors IS DISTINCT FROM sound_errors(errors)
            ORDER BY id LIMIT most;
    WHEN 'finished options' THEN
        RETURN QUERY SELECT id FROM finished_record WHERE id >= start AND NOT is_options(options)
            ORDER BY id LIMIT most;
    WHEN 'dead entries' THEN
        RETURN QUERY SELECT id FROM dead WHERE id >= start
            AND attached & 1 = 0 AND EXISTS (SELECT FROM entry WHERE owner = dead.id AND owner <> '')
            ORDER BY id LIMIT most;
    WHEN 'finished entries' THEN
        RETURN QUERY SELECT id FROM finished WHERE id >= start AND finished_at >= (SELECT since FROM kept)
            AND attached & 1 = 0 AND EXISTS (SELECT FROM entry WHERE owner = finished.id AND owner <> '')
            ORDER BY id LIMIT most;
    WHEN 'one fence twice' THEN
        RETURN QUERY SELECT job_id FROM attempt_record WHERE job_id >= start
            GROUP BY job_id, fence HAVING count(*) > 1 ORDER BY job_id LIMIT most;
    WHEN 'unsound attempt' THEN
        RETURN QUERY SELECT job_id FROM attempt_record WHERE job_id >= start
            AND in_bounds(job_id, queue, task, 0, ready_at, 0, started_at, 0, attempt, 0, fence,
                          claimed_at) IS NOT TRUE
            ORDER BY job_id LIMIT most;
    END CASE;
END $$;

-- Mend one of them, see mend.
CREATE OR REPLACE FUNCTION mend_ended(what text, whose text, at bigint) RETURNS void LANGUAGE plpgsql
AS $$
BEGIN
    CASE what
    WHEN 'unsound dead' THEN
        UPDATE dead SET
            id = CASE sound_id(id) WHEN id THEN id ELSE gen_random_uuid()::text END, queue = sound_name(queue), task = sound_name(task),
            version = greatest(version, 0), run_at = instant(run_at),
            order_at = instant(run_at) - head_start(run_at, order_at),
            expires_at = instant(expires_at), enqueued_at = instant(enqueued_at),
            attempt = runs(attempt), crashes = runs(crashes), fence = instant(fence),
            claimed_at = instant(claimed_at), finished_at = instant(finished_at), level = level_of(level),
            attached = greatest(attached, 0)
        WHERE id = whose;
    WHEN 'no reason' THEN
        UPDATE dead SET reason = 'unreadable' WHERE id = whose;
    WHEN 'dead errors' THEN
        UPDATE dead SET errors = sound_errors(errors) WHERE id = whose;
    WHEN 'dead options' THEN
        UPDATE dead SET options = NULL WHERE id = whose AND NOT is_options(options);
    WHEN 'finished options' THEN
        UPDATE finished SET options = NULL
        WHERE id = whose AND NOT is_options(options) AND finished_at >= (SELECT since FROM kept);
    WHEN 'unsound finished', 'not final', 'finished errors' THEN
        UPDATE finished SET
            id = sound_id(id), queue = sound_name(queue), task = sound_name(task),
            version = greatest(version, 0), run_at = instant(run_at),
            order_at = instant(run_at) - head_start(run_at, order_at),
            expires_at = instant(expires_at), enqueued_at = instant(enqueued_at),
            attempt = runs(attempt), crashes = runs(crashes), fence = instant(fence),
            claimed_at = instant(claimed_at), errors = sound_errors(errors), level = level_of(level),
            attached = greatest(attached, 0),
            state = CASE state WHEN 'done' THEN 'done' ELSE 'cancelled' END
        WHERE id = whose AND finished_at >= (SELECT since FROM kept);
    WHEN 'dead entries' THEN
        UPDATE dead SET attached = attached | 1
        WHERE id = whose AND EXISTS (SELECT FROM entry WHERE owner = dead.id AND owner <> '');
    WHEN 'finished entries' THEN
        UPDATE finished SET attached = attached | 1
        WHERE id = whose AND finished_at >= (SELECT since FROM kept)
          AND EXISTS (SELECT FROM entry WHERE owner = finished.id AND owner <> '');
    WHEN 'one fence twice' THEN
        DELETE FROM attempt AS later USING attempt AS first
        WHERE later.job_id = whose AND first.job_id = whose AND later.fence = first.fence
          AND (later.finished_at, later.seq, later.tableoid, later.ctid)
              > (first.finished_at, first.seq, first.tableoid, first.ctid);
    WHEN 'unsound attempt' THEN
        UPDATE attempt SET
            job_id = sound_id(job_id), queue = sound_name(queue), task = sound_name(task),
            attempt = runs(attempt), fence = instant(fence), ready_at = instant(ready_at),
            claimed_at = instant(claimed_at), started_at = instant(started_at)
        WHERE job_id = whose;
    END CASE;
END $$;
