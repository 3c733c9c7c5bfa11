-- Limits: gates that count. There is none yet. A new kind of limit is an entry of core.selection.LIMITS, and is
-- counted here.

-- Of jobs that a claim has locked, those that may start. Charges them, the first in place first, after it has locked
-- what counts them, in the order of its names; and parks whom it refuses.
CREATE OR REPLACE FUNCTION admitted(jobs tid[], at bigint) RETURNS tid[] LANGUAGE sql STABLE
AS $$ SELECT jobs $$;

-- Bring back jobs under keys that have room. Returns the queue of each.
CREATE OR REPLACE FUNCTION bring_back_limited(at bigint, most integer) RETURNS text[] LANGUAGE sql STABLE
AS $$ SELECT '{}'::text[] $$;
