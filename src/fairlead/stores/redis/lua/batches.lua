#!lua flags=no-writes
-- Batches of the attempt log from a number on.
--   ARGV: number, how many
--   answers the number of the first batch that is left, and the batches, none if they are gone
local start = gone_before()
local from = count_of(ARGV[1]) - start
if from < 0 then return { start, {} } end
return { start, call('LRANGE', log, from, from + count_of(ARGV[2], 1000) - 1) }
