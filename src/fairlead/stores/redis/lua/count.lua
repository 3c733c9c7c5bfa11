#!lua flags=allow-oom
-- Count one more.
--   KEYS: what is counted
return call('INCR', KEYS[1])
