#!lua flags=allow-oom
-- Put an entry of this slot right, or remove it.
--   ARGV: the part in which something is wrong, and the member
--   answers right or removed, '' if nothing was wrong
return mending.mend_loose(ARGV[1], ARGV[2])
