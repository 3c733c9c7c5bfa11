#!lua flags=allow-oom
-- Put jobs right, or move them out (mending.lua).
--   ARGV: now, the mark of the queue, level, and for each job its id, how it is parked, or '', and
--         whether its options cannot be read (1)
--   answers for each what it is now: right, dead, removed, '' if nothing was wrong, or its new id;
--   not for the last ones, if it has read enough before them
local now, level = clock(ARGV[1]), count_of(ARGV[3])
check.begin()
local answers = {}
for n = 4, #ARGV, 3 do
  if check.left < 0 then break end
  answers[#answers + 1] = mending.mend(ARGV[n], ARGV[n + 1], ARGV[n + 2] == '1', ARGV[2], now, level)
end
return answers
