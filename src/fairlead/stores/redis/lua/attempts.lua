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

local earlier, text = call('HGET', gone, id), call('HGET', runs, id) or call('HGET', ends, id)
if earlier then read(cmsgpack.unpack(earlier)) end
local is_read, run = pcall(cmsgpack.unpack, text or '')
if is_read and type(run) == 'table' and type(run[LINES]) == 'table' then read(run[LINES]) end
return batches
