-- What callers give, and how a call is made of functions.

-- A name that a caller gives, which is written into every job that it claims: UTF-8, or nobody could
-- read those jobs again. The next queue of a call is told the same one.
local last_name

local function name_of(text)
  if text == last_name then return text end
  local single_bytes = string.gsub(text, '[\194-\244][\128-\191]+', '')
  if #text == 0 or #text > 1000 or string.find(single_bytes, '[\128-\255]') then
    error({ err = 'ERR a name of 1 to 1,000 bytes of UTF-8 is wanted' })
  end
  last_name = text
  return text
end

-- How many jobs were looked at or moved in this call, with their bytes in some measure: nobody else is served
-- meanwhile.
local MOST_SPENT = 1000
local spent = 0

local function spend(jobs, bytes)
  spent = spent + jobs + bytes / 4000
end

-- A function that works on one queue, and on several one after the other. `run` gets the keys, how many of them
-- are before those of its queue, and its words. A call for several queues says first how many words all of
-- them share; those follow, and then the words of each queue. It answers for each queue, and with nothing
-- for one that failed or would take too long: whoever asked asks again for that one alone. What `run`
-- refuses it refuses before it writes (functions.py), so to ask again does no harm. Whoever may not run one of the
-- commands that `run` needs is refused before all: what a function wrote before it failed would stay written.
-- Without `parts`, `run` gets the keys of all queues, and answers once.
local function each(run, parts, needs)
  return function(KEYS, ARGV)
    instant, spent = nil, 0
    for n = 1, #needs do
      if not redis.acl_check_cmd(needs[n], KEYS[1]) then
        error({ err = 'NOPERM this user may not run ' .. needs[n] })
      end
    end
    if not parts or #KEYS <= parts then return run(KEYS, 0, ARGV) end
    local queues, shared = #KEYS / parts, count_of(ARGV[1], #ARGV - 1)
    local own = (#ARGV - 1 - shared) / queues
    if queues % 1 ~= 0 or own % 1 ~= 0 then error({ err = 'ERR the words do not fit the keys' }) end
    local words, answers = {}, {}
    for n = 1, shared do words[n] = ARGV[1 + n] end
    for queue = 0, queues - 1 do
      answers[queue + 1] = false
      if spent < MOST_SPENT then
        for n = 1, own do words[shared + n] = ARGV[1 + shared + queue * own + n] end
        local is_done, answer = pcall(run, KEYS, queue * parts, words)
        answers[queue + 1] = is_done and answer
      end
    end
    return answers
  end
end
