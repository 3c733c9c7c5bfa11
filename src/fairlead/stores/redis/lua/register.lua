#!lua flags=allow-oom
-- Make queues known.
--   KEYS: queues. ARGV: their names
return call('SADD', KEYS[1], unpack(ARGV))
