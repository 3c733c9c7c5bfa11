#!lua flags=allow-oom
-- Count one more.
--   KEYS: what is counted
count_of(call('GET', KEYS[1]) or 0, MOST_COUNTED - 1)
return call('INCR', KEYS[1])
