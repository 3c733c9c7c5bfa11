#!lua flags=allow-oom
-- Forget jobs for good, if they are in one of these states, final, and not above the level. Their lines of the log stay.
--   ARGV: now, ids, level, states, who does it (see write_act)
--   answers the ids of those that were deleted, and how many it is done with: it may have read enough before the
--   last, or be half through one that has many entries
local now, level, states = clock(ARGV[1]), count_of(ARGV[3]), set_of(ARGV[4])
local ids, mark = cmsgpack.unpack(ARGV[2]), mark_of('delete', ARGV[2], ARGV[4])
local past, missed = past_of(ARGV[5], mark)
if past then return { past_ids(ids, past, missed), past } end
local log_start = gone_before()
local touched, looked, left = {}, 0, MOST_READ
for _, id in ipairs(ids) do
  if left < 0 then break end
  local standing, bytes = ended_in(id, states)
  left = left - bytes
  if standing and standing[STANDING.LEVEL] <= level then
    local count = may_own(standing) and lose_entries(id) or 0
    left = left - count * ENTRY_BYTES
    if count == MOST then
      begin_to_forget(id)
      break
    end
    local lines = standing[STANDING.LINES]
    if #lines > 0 then
      -- It may have been deleted before, and put again.
      local numbers = lines_in(call('HGET', gone, id))
      for n = 1, #lines do
        if lines[n] >= log_start then numbers[#numbers + 1] = lines[n] end
      end
      if #numbers > 0 then call('HSET', gone, id, cmsgpack.pack(numbers)) end
    end
    call('ZREM', final[standing[STANDING.STATE]], id)
    forget({ id })
    touched[#touched + 1] = id
  end
  looked = looked + 1
end
-- That has no answer yet which is not done with any: the next call for the same jobs goes on with it.
write_act(ARGV[5], #touched, now, nil, looked > 0 and mark or nil, looked, missed_in(ids, looked, touched))
return { touched, looked }
