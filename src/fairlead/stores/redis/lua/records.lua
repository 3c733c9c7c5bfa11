#!lua flags=no-writes
-- What is known of some jobs.
--   ARGV: ids
--   answers for each its body, standing, failed runs, and its score in ready and in due
--   not for the last ones, if it has read enough before them
local answers, left = {}, MOST_READ
for n, id in ipairs(cmsgpack.unpack(ARGV[1])) do
  if left < 0 then break end
  local texts = { call('HGET', bodies, id), call('HGET', standings, id), call('HGET', errors, id) }
  for part = 1, 3 do left = left - #(texts[part] or '') end
  texts[4], texts[5] = call('ZSCORE', ready, id), call('ZSCORE', due, id)
  answers[n] = texts
end
return answers
