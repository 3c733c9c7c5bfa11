#!lua flags=allow-oom
-- Some entries of a job of this queue, by kind and key, expired or not.
--   ARGV: now, the beginning of the range, its end, how many at most
--   answers now, the last name that it came to, '' if there are no more, and the entries as they are kept
local now, most = clock(ARGV[1]), count_of(ARGV[4], 1000)
return { now, entry.read(owned, entries, ARGV[2], ARGV[3], most) }
