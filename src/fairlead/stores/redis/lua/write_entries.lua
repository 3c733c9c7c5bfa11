#!lua
-- Write entries that belong to jobs of this queue, if a job of it runs under a fence.
--   ARGV: now, level; id of that job, or '' if there is no fence; the fence; changes
--   answers 0 if the job does not run under the fence; else for each change its version, 0 if the entry is gone, nothing
--   if it is refused
local now, level = clock(ARGV[1]), count_of(ARGV[2])
local changes = entry.changes_in(ARGV[5])
if ARGV[3] ~= '' and not entry.runs_under(ARGV[3], tonumber(ARGV[4])) then return 0 end
local answers, lists = {}, {}
for n = 1, #changes do
  local owner = changes[n][CHANGE.OWNER] or ''
  if lists[owner] == nil then lists[owner] = entry.owned(owner, level, now) end
  answers[n] = lists[owner] and entry.change_owned(lists[owner], changes[n], now)
end
for owner, list in pairs(lists) do
  if list and list.is_changed then entry.write_owned(owner, list) end
end
return answers
