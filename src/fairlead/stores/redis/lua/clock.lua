-- What the library begins with. A server that loads it has neither redis.call nor cjson yet, so each
-- function sets these when it is called.
local null, call

-- The greatest number that Lua holds exactly; no instant and no fence is later.
local LATEST = 9007199254740991

-- A number that a caller gives: whole, and from zero up to some most. A loop up to any other one might
-- not end, and would keep everybody waiting.
local function count_of(text, most)
  local value = tonumber(text)
  if not value or value % 1 ~= 0 or value < 0 or value > (most or LATEST) then
    error({ err = string.format('ERR a whole number from 0 to %.0f is wanted', most or LATEST) })
  end
  return value
end

-- A name that a caller gives, which is written into every job that it claims: UTF-8, or nobody could
-- read those jobs again.
local function name_of(text)
  local single_bytes = string.gsub(text, '[\194-\244][\128-\191]+', '')
  if #text == 0 or #text > 1000 or string.find(single_bytes, '[\128-\255]') then
    error({ err = 'ERR a name of 1 to 1,000 bytes of UTF-8 is wanted' })
  end
  return text
end

-- What time it is, by the server's clock; tests move another one. All queues of one call have the same.
local instant

local function clock(at)
  if at ~= '' then return count_of(at) end
  if not instant then
    local time = call('TIME')
    instant = time[1] * 1000000 + time[2]
  end
  return instant
end

-- A function that works on one queue, and on several one after the other. `run` gets the keys, how many of them
-- are before those of its queue, and its words. A call for several queues says first how many words all of
-- them share; those follow, and then the words of each queue. It answers for each queue, and with nothing
-- for one that failed: whoever asked asks again for that one alone, and hears why. What `run` refuses it
-- refuses before it writes (functions.py), so to ask again does no harm. Whoever may not run one of the commands
-- that `run` needs is refused before all: what a function wrote before it failed would stay written.
local function each(run, parts, needs)
  return function(KEYS, ARGV)
    instant = nil
    for n = 1, #needs do
      if not redis.acl_check_cmd(needs[n], KEYS[1]) then
        error({ err = 'NOPERM this user may not run ' .. needs[n] })
      end
    end
    if #KEYS <= parts then return run(KEYS, 0, ARGV) end
    local queues, shared = #KEYS / parts, count_of(ARGV[1], #ARGV - 1)
    local own = (#ARGV - 1 - shared) / queues
    if queues % 1 ~= 0 or own % 1 ~= 0 then error({ err = 'ERR the words do not fit the keys' }) end
    local words, answers = {}, {}
    for n = 1, shared do words[n] = ARGV[1 + n] end
    for queue = 0, queues - 1 do
      for n = 1, own do words[shared + n] = ARGV[1 + shared + queue * own + n] end
      local is_done, answer = pcall(run, KEYS, queue * parts, words)
      answers[queue + 1] = is_done and answer
    end
    return answers
  end
end
