#!lua flags=allow-oom
-- Forget jobs for good, if they are in one of these states, and final. Their lines of the log stay.
--   ARGV: now, ids, states, who does it (see write_act)
--   answers the ids of those that were deleted, and how many it looked at before it had read enough
local now, states = clock(ARGV[1]), set_of(ARGV[3])
local ids, mark = cmsgpack.unpack(ARGV[2]), mark_of('delete', ARGV[2], ARGV[3])
local past, missed = past_of(ARGV[4], mark)
if past then return { past_ids(ids, past, missed), past } end
local log_start = gone_before()
local touched, looked, left = {}, 0, MOST_READ
for _, id in ipairs(ids) do
  if left < 0 then break end
  local ending, bytes = end_in(id, states)
  looked, left = looked + 1, left - bytes
  if ending then
    if #ending[LINES] > 0 then
      -- It may have been deleted before, and put again.
      local numbers = lines_in(call('HGET', gone, id))
      for n = 1, #ending[LINES] do
        if ending[LINES][n] >= log_start then numbers[#numbers + 1] = ending[LINES][n] end
      end
      if #numbers > 0 then call('HSET', gone, id, cmsgpack.pack(numbers)) end
    end
    call('ZREM', final[ending[STATE]], id)
    call('HDEL', bodies, id)
    call('HDEL', ends, id)
    call('HDEL', errors, id)
    touched[#touched + 1] = id
  end
end
write_act(ARGV[4], #touched, now, nil, mark, looked, missed_in(ids, looked, touched))
return { touched, looked }
