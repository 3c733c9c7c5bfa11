#!lua flags=no-writes
-- What is known of some jobs.
--   ARGV: ids
--   answers for each its body, standing, failed runs, and its score in ready and in due
--   not for the last ones, if it has read enough before them
local answers, left = {}, MOST_READ
for n, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  if left < 0 then break end
  answers[n] = kept(id)
  left = left - size_of(answers[n])
end
return answers
