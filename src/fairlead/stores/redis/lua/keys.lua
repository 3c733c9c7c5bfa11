-- What functions know: the keys of one queue, and what is kept under them. In the library it stands
-- after clock.lua and calls.lua, before moves.lua, orders.lua and checks.lua; the verbs follow, each as a function (functions.py).
--
-- A function works on one queue at a time. All keys of a queue are in one slot, because its name is their
-- hash tag. Which of them a function gets is said in functions.py; it has no name for the others.
--
--   bodies    HASH  id -> body              every job the queue knows, in whatever state
--   runs      HASH  id -> run               live jobs that were claimed before, or are parked
--   errors    HASH  id -> [failed run]      jobs that failed at least once
--   ends      HASH  id -> end               jobs that are done, cancelled or dead
--   ready     ZSET  id by order_at          waits for its turn
--   due       ZSET  id by run_at            waits for its time
--   leases    ZSET  id by lease_until       runs
--   lost      ZSET  id by order_at          its lease has passed; waits to be taken over
--   unknown   ZSET  task,version,id         parked, because no live worker knows its task; before
--                                           the id stands w if it waits, r if its run was lost
--   expiring  ZSET  id by expires_at        waits, and must not for ever
--   done      ZSET  id by finished_at       is done
--   cancelled ZSET  id by finished_at       is cancelled
--   dead      ZSET  id by finished_at       is a dead letter
--   gone      HASH  id -> lines             was deleted, but has lines in the log; see there
--   log       LIST  of batches             the attempt log: when they ended in 16 digits, then lines
--   settings  HASH                          paused; log_start: how many entries of the log are gone;
--                                           apart: 1 if a job ever came with a priority
--   acts      ZSET  action by number        what people did here, in order
--   acted     HASH  action -> line          and what that was
--
-- A live job is in exactly one of ready, due, leases, lost and unknown, any other in one of done,
-- cancelled and dead. Values are MessagePack arrays; their fields are numbered below. Times are
-- microseconds, which a number of Lua holds exactly until the year 2255.

local bodies, runs, errors, ends, ready, due, leases, lost, unknown, expiring
local done, cancelled, dead, gone, log, settings, acts, acted

local final = {} -- The keys of the final states, by state.

-- body: what was enqueued; what claims look at stands first, so that they need not read the rest
local TASK, VERSION, PRIORITY, ENQUEUED_AT, EXPIRES_AT, OPTIONS, PAYLOAD = 1, 2, 3, 4, 5, 6, 7
-- run: a live job's counts, and its lease if it runs (0 if not)
local FENCE, LEASE_UNTIL, ATTEMPT, CRASHES, SHARED_DEATHS, ORDER_AT, PARKED = 1, 2, 3, 4, 5, 6, 7
local WORKER, CLAIMED_AT, CANCEL, LINES = 8, 9, 10, 11
-- the rest of a run is of its body, so that to settle it the body need not be read
local RUN_TASK, RUN_VERSION, HEAD_START, RUN_ENQUEUED_AT, RUN_EXPIRES_AT = 12, 13, 14, 15, 16
-- end: how it was in the end; the first fields are those of a run, up to its lines
local STATE, FINISHED_AT, REASON, RESULT = 12, 13, 14, 15

local MOST = 1000
local ALONE = 3 -- Who has shared so many deaths of processes has the next one to itself.

-- Do a command with a list of any length; what it answers, as one list or one sum. With an empty list it does nothing
-- and answers an empty list.
local function many(command, key, list)
  if #list <= MOST then
    if #list == 0 then return {} end
    return call(command, key, unpack(list))
  end
  local answers, sum = {}, 0
  for first = 1, #list, MOST do
    local part = call(command, key, unpack(list, first, math.min(first + MOST - 1, #list)))
    if type(part) == 'table' then
      for n = 1, #part do answers[#answers + 1] = part[n] end
    else
      sum = sum + part
    end
  end
  return #answers > 0 and answers or sum
end

-- How arrays of so many fields begin, for who packs the fields one by one, which is much cheaper
-- than to pack a table. `unpack_limit` reads them after as many bytes.
local BODY, END, RUN = '\151', '\159', '\220\0\16'
