-- Jobs in the line as they are written elsewhere when they leave it: their numbers within bounds, so
-- that what is wrong with one stops nobody.
CREATE OR REPLACE VIEW mended AS
SELECT id, sound_name(queue) AS queue, sound_name(task) AS task, greatest(version, 0) AS version, parked, instant(run_at) AS run_at,
       instant(run_at) - head_start(run_at, order_at) AS order_at, instant(expires_at) AS expires_at,
       instant(enqueued_at) AS enqueued_at, payload, options, runs(attempt) AS attempt,
       runs(crashes) AS crashes, deaths(shared_deaths) AS shared_deaths, fence, lease_until, lost, worker,
       instant(claimed_at) AS claimed_at, cancel, errors, put_by, ctid AS place,
       level_of(level) AS level, attached
FROM job;
