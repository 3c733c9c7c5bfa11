-- The first closed gate before a waiting job, as core/selection.py asks them; null if it may start.
CREATE OR REPLACE FUNCTION gate(
    id text, queue text, task text, version integer, run_at bigint, order_at bigint,
    expires_at bigint, enqueued_at bigint, attempt integer, crashes integer, fence bigint,
    lease_until bigint, worker text, claimed_at bigint, level smallint, at bigint, spare boolean,
    capable jsonb, own integer
) RETURNS text LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN is_sound(id, queue, task, version, run_at, order_at, expires_at, enqueued_at, attempt,
                      crashes, fence, lease_until, worker, claimed_at) IS NOT TRUE THEN 'unreadable'
        WHEN NOT may_touch(own, level) THEN 'newer_program'
        WHEN expires_at <= at AND lease_until = 0 THEN 'expired'
        WHEN run_at > at THEN 'not_due'
        WHEN spare AND lease_until > 0 THEN 'lease_spared'
        WHEN capable IS NOT NULL AND coalesce((capable->>task)::integer, 0) < version
            THEN 'no_capable_worker'
    END
$$;
