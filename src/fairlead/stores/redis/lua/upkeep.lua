#!lua flags=allow-oom
-- One bounded round of housekeeping.
--   ARGV: now, keep, tasks that live workers know (task -> version), how many of each at most, level
--   answers how many were promoted, brought back, expired, attempts forgotten, the ids of jobs
--   forgotten, and how many entries went of these or of jobs that are to be forgotten
local now = clock(ARGV[1])
local before, most, level = now - count_of(ARGV[2]), count_of(ARGV[4], 1000), count_of(ARGV[5])
local promoted = promote(now, most)
local brought_back = bring_known(cmsgpack.unpack(ARGV[3]), now, most, level)
local expired = expire(now, most, level)
local old, entries = prune(before, most, level)

-- Batches are in order, unless the clock went back: so look past a few that are young. Their
-- numbers must not change, so one that is old among younger ones is emptied.
local lines, at, young, passed = 0, 0, 0, 0
local log_start = gone_before()
local traces = call('HLEN', gone) > 0

-- What led to the lines of a deleted job goes with the last of them.
local function lose_trace(id, number)
  local numbers = is_text(id) and lines_in(call('HGET', gone, id)) or {}
  if #numbers > 0 and numbers[#numbers] <= number then call('HDEL', gone, id) end
end

while lines < most and young < 10 and at < most do
  local batch = call('LINDEX', log, at)
  if not batch then break end
  local ended_at = tonumber(string.match(batch, '^%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d'))
  if not ended_at or ended_at < before then
    local is_read, old_lines = pcall(cmsgpack.unpack, string.sub(batch, 17))
    if not is_read or type(old_lines) ~= 'table' then old_lines = {} end
    lines = lines + #old_lines
    if traces then
      for n = 1, #old_lines do
        if type(old_lines[n]) == 'table' then lose_trace(old_lines[n][LINE.JOB_ID], log_start + at) end
      end
    end
    call('LSET', log, at, string.format('%016.0f', ended_at or 0) .. head_of(0))
  else
    young = young + 1
  end
  at = at + 1
  if young == 0 then passed = at end
end
if passed > 0 then
  call('LTRIM', log, passed, -1)
  call('HSET', settings, 'log_start', string.format('%.0f', log_start + passed))
end
return { promoted, brought_back, expired, lines, old, entries }
