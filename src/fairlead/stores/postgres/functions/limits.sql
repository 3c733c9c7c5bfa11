-- Limits: gates that count. There is none yet. A new kind of limit is an entry of core.selection.LIMITS, and is
-- counted here: claims, lists, counts and explain know it by these.

-- The limit for which jobs of this number are parked; null for the number of a gate that this program does not know.
CREATE OR REPLACE FUNCTION limit_named(reason smallint) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT NULL::text $$;

-- How much of each limit is in use, by its keys.
CREATE OR REPLACE FUNCTION limits_in_use() RETURNS TABLE (name text, key text, number bigint) LANGUAGE sql STABLE
AS $$ SELECT '', '', 0::bigint WHERE false $$;

-- Of jobs that a claim has locked, those that may start. Charges them, the first in place first, after it has locked
-- what counts them, in the order of its names; and parks whom it refuses.
CREATE OR REPLACE FUNCTION admitted(jobs tid[], at bigint) RETURNS tid[] LANGUAGE sql STABLE
AS $$ SELECT jobs $$;

-- Bring back jobs under keys that have room. Returns the queue of each.
CREATE OR REPLACE FUNCTION bring_back_limited(at bigint, most integer) RETURNS text[] LANGUAGE sql STABLE
AS $$ SELECT '{}'::text[] $$;
