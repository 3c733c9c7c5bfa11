#!lua flags=no-writes
-- The batches of the attempt log that have lines of a job, oldest first.
--   ARGV: id
local id = ARGV[1]
local log_start = gone_before()
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

read(lines_in(call('HGET', gone, id)))
local standing = standing_of(call('HGET', standings, id))
if standing then read(standing[STANDING.LINES]) end
return batches
