#!lua
-- Write entries that belong to jobs of this queue, if a job of it runs under a fence.
--   ARGV: now, level; id of that job, or '' if there is no fence; the fence; changes
--   answers 0 if the job does not run under the fence; else for each change its version, 0 if the entry is gone, nothing
--   if it is refused
local now, level = clock(ARGV[1]), count_of(ARGV[2])
local changes = entry.changes_in(ARGV[5])
if ARGV[3] ~= '' and not entry.runs_under(ARGV[3], tonumber(ARGV[4])) then return 0 end
local owners, names, answers, changed, seen = {}, {}, {}, {}, {}
for n = 1, #changes do
  local owner = changes[n][CHANGE.OWNER] or ''
  if owners[owner] == nil then owners[owner] = entry.owner(owner, level) end
  names[n] = entry.owned_as(owner, changes[n][CHANGE.KIND], changes[n][CHANGE.KEY])
end
local texts = many('HMGET', entries, names)
for n = 1, #changes do
  local standing, name, version, text = owners[changes[n][CHANGE.OWNER] or ''], names[n], false, nil
  if standing then
    local known = changed[name]
    if known == nil then known = texts[n] end
    version, text = entry.changed(entry.of(known), changes[n], now, name, seen)
  end
  answers[n] = version
  if version then changed[name] = text or false end
  if text then standing.owns = true end
end
entry.write_owned(changed)
for owner, standing in pairs(owners) do
  if standing and standing.owns then entry.attach(owner, standing) end
end
return answers
