-- How runs end: what is kept of those that failed, and what the log is told.

-- A failed run is kept with its job, after those before it as they came.
local function remember(id, attempt, worker, claimed_at, started_at, now, outcome, failure)
  local text = call('HGET', errors, id)
  local is_read, pasts = pcall(entries_in, text or head_of(0))
  if not is_read or not pasts then pasts = {} end
  pasts[#pasts + 1] = head_of(#PAST) .. cmsgpack.pack(
    attempt, outcome, worker, claimed_at, started_at, now,
    failure.error, failure.message, failure.traceback, failure.fingerprint
  )
  call('HSET', errors, id, list_of(pasts))
end

-- The numbers of a job's batches, with another one; a job that snoozes for ever must not drag along
-- those that are gone.
local function with_line(numbers, number, log_start)
  if #numbers > 20 then
    local left = {}
    for n = 1, #numbers do
      if numbers[n] >= log_start then left[#left + 1] = numbers[n] end
    end
    numbers = left
  end
  numbers[#numbers + 1] = number
  return numbers
end

-- A job that waits again: its lease is gone, and it stands at its new place, or where it stood.
local function wait_again(
  id, now, head, fence, attempt, crashes, shared_deaths, order_at, cancel, lines,
  task, version, head_start, enqueued_at, expires_at, level, attached, rest
)
  call('ZREM', leases, id)
  call('HSET', standings, id, head .. cmsgpack.pack(
    fence, 0, attempt, crashes, shared_deaths, order_at, nil, nil, nil, cancel, lines,
    task, version, head_start, enqueued_at, expires_at, nil, nil, nil, nil, level, attached
  ) .. rest)
  local line = arrivals(now, now)
  arrive(line, id, order_at, order_at + head_start, expires_at)
  enter(line)
end
