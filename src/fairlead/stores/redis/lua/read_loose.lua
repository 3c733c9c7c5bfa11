#!lua flags=allow-oom
-- Some entries of this slot, by key or by when they fall due, expired or not.
--   ARGV: now, listed or awaited, the end of the range, how many at most; its beginning
--   answers now, the last member that it came to, '' if there are no more, and the entries as they are kept
local now, most, is_due = clock(ARGV[1]), count_of(ARGV[4], 1000), ARGV[2] == 'awaited'
return { now, entry.read(is_due and awaited or listed, loose, ARGV[5], ARGV[3], most, is_due and entry.marked) }
