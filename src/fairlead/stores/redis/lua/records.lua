#!lua flags=no-writes
-- What is known of some jobs.
--   ARGV: ids
--   answers for each its body, run, end, failed runs, and its score in ready and in due
local answers = {}
for n, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  answers[n] = kept(id)
end
return answers
