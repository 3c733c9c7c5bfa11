#!lua flags=no-writes
-- Parked jobs whose run was lost. Those that wait for the same gate and key stand behind them, and are leapt over.
--   ARGV: the member to go on after, or nothing to begin; and how many
--   answers what to go on after, nothing at the end, and the members
local at, most, members = ARGV[1], count_of(ARGV[2], 1000), {}
for _ = 1, MOST do
  if #members >= most then break end
  local member = call('ZRANGEBYLEX', parked, at == '' and '-' or '(' .. at, '+', 'LIMIT', 0, 1)[1]
  if not member then return { '', members } end
  local kind, mark = string.match(member, '^(.*)%z(.)[^%z]*$')
  at = mark == 'w' and kind .. '\0x' or member ~= '' and member or '\0'
  if mark == 'r' then
    local some = call('ZRANGEBYLEX', parked, '[' .. member, '(' .. kind .. '\0s', 'LIMIT', 0, most - #members)
    for n = 1, #some do members[#members + 1] = some[n] end
    at = members[#members]
  end
end
return { at, members }
