#!lua flags=no-writes
-- The batches of the attempt log that have lines of a job, oldest first.
--   ARGV: id
local id = ARGV[1]
local log_start = tonumber(call('HGET', settings, 'log_start') or 0)
local batches, seen = {}, {}

local function read(numbers)
  for n = 1, #numbers do
    local number = numbers[n]
    if number >= log_start and not seen[number] then
      seen[number] = true
      batches[#batches + 1] = call('LINDEX', log, number - log_start) or nil
    end
  end
end

local earlier, run = call('HGET', gone, id), run_of(call('HGET', runs, id))
if earlier then read(cmsgpack.unpack(earlier)) end
local ending = end_in(id, { done = true, cancelled = true, dead = true })
if run or ending then read((run or ending)[LINES]) end
return batches
