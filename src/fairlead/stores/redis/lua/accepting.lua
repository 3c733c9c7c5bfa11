-- What a put refuses: what no client of ours puts. Nothing is written before all jobs are checked.
local MOST_BYTES = 262144

local function refuse()
  error({ err = 'REFUSED its id, times or sizes are none that a job may have; enqueue() checks them' })
end

-- What many jobs have in common is checked once: to compare it is cheaper. No task is false.
local sound_task, sound_version, sound_priority, sound_options, sound_level = false

local function check_kind(task, version, priority, options, level)
  if task == sound_task and version == sound_version and priority == sound_priority
      and options == sound_options and level == sound_level then
    return
  end
  if not is_call(task, version, priority, 0, nil, level)
      or options and (not is_text(options) or #options > MOST_BYTES) then
    refuse()
  end
  sound_task, sound_version, sound_priority, sound_options = task, version, priority, options
  sound_level = level
end
