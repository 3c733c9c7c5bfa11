#!lua flags=allow-oom
-- Bring back jobs that were parked for a gate, now that it is open for some keys.
--   ARGV: now, gate, keys, how many at most, level
--   answers how many
local now, most = clock(ARGV[1]), count_of(ARGV[4], 1000)
level_out(parked, most)
local members = {}
for _, key in ipairs(cmsgpack.unpack(ARGV[3])) do
  local from = ARGV[2] .. '\0' .. key
  local found = call('ZRANGEBYLEX', parked, '[' .. from .. '\0', '(' .. from .. '\1', 'LIMIT', 0, most - #members)
  for n = 1, #found do members[#members + 1] = found[n] end
  if #members >= most then break end
end
return bring_back(members, now, count_of(ARGV[5]))
