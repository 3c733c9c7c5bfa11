#!lua flags=allow-oom
-- Put an entry of a job of this queue right, or remove it.
--   ARGV: its name, level
--   answers right or removed, '' if nothing was wrong
return mending.mend_owned(ARGV[1], count_of(ARGV[2]))
