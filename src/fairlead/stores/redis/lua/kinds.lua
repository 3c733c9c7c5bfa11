#!lua flags=no-writes
-- For which gates and keys jobs are parked, some at a time, and how many: those that wait, and those whose run was lost.
--   ARGV: what to go on after, or nothing to begin
--   answers what to go on after, nothing at the end, and for each gate and key its name and both numbers
local at, found, last = ARGV[1], {}, nil
for _ = 1, 500 do
  local member = call('ZRANGEBYLEX', parked, at == '' and '-' or '(' .. at, '+', 'LIMIT', 0, 1)[1]
  if not member then return { '', found } end
  local kind = string.match(member, '^(.*)%z') or ''
  -- What somebody damaged may stand behind all of its kind, and must not come again.
  if kind ~= last then
    found[#found + 1] = kind
    found[#found + 1] = call('ZLEXCOUNT', parked, '[' .. kind .. '\0w', '(' .. kind .. '\0x')
    found[#found + 1] = call('ZLEXCOUNT', parked, '[' .. kind .. '\0r', '(' .. kind .. '\0s')
  end
  last, at = kind, kind .. '\0\255'
  if less(at, member) then at = member end
end
return { at, found }
