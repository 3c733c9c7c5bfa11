#!lua flags=allow-oom
-- Write down what a person did by other verbs, or to no job at all.
--   ARGV: now, who did it (see write_act), to how many
local mark = mark_of('note', ARGV[3])
if not past_of(ARGV[2], mark) then
  write_act(ARGV[2], count_of(ARGV[3]), clock(ARGV[1]), nil, mark, 0, '')
end
return 1
