#!lua flags=allow-oom
-- Bring back jobs that were parked, now that somebody knows their tasks.
--   ARGV: now, capable (task -> version), how many at most, level
--   answers how many
return bring_known(cmsgpack.unpack(ARGV[2]), clock(ARGV[1]), count_of(ARGV[3], 1000), count_of(ARGV[4]))
