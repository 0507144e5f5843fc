-- Keys: each is read once, before anything is decided, and written at most once, after all is.

local VERSION = 1
-- Bytes behind the header that tell since when a state is held.
local SINCE = 7
-- Added to the code of a form where holds stand before the state.
local HOLDS = 64
-- Keys that one redis.call takes: far below Lua's limit of some 8000 arguments.
local MOST = 1000

-- What is known of each key: name; rule, state and since, if there is something; fault, if
-- it cannot be read; exists, whether Redis has it; changed, whether it is to be written;
-- was_reset, whether it was in this call; holds, if there are any.
local entries = {}
for i = 1, #KEYS do
  -- All fields at once, here and below: a table that grows by one is made anew each time.
  entries[i] = {
    name = KEYS[i], rule = false, state = false, since = false, fault = false, exists = false,
    changed = false, was_reset = false, first_read = false, is_receipt = false,
    settled_until = false, holds = false,
  }
end

local function read(entry, value)
  if type(value) == 'table' then
    if value.err:find('WRONGTYPE', 1, true) then
      entry.fault = WRONG_TYPE
    elseif is_cross_slot then
      -- Another node has the slot, or the key is on its way there.
      entry.fault = ELSEWHERE
    else
      error(value.err)
    end
    return
  end
  if not value then return end
  entry.exists = true
  if entry.is_receipt then return end
  local version, code = value:byte(1, 2)
  local has_holds = code and code > HOLDS
  if has_holds then code = code - HOLDS end
  local rule, state, holds
  if version == VERSION and code and code >= 1 and code <= FAILURE_PENALTY then
    local length = header_length(code)
    local from = length + SINCE + 1
    local header = value:sub(1, length)
    if has_holds then header = value:sub(1, 1) .. string.char(code) .. value:sub(3, length) end
    rule = #value > length and rule_of(header)
    if has_holds then
      holds, from = leasing().decode(value, from)
      rule = holds and rule
    end
    state = rule and rule.algorithm.decode(rule, value, from, entry.name)
    entry.since = value:sub(length + 1, length + SINCE)
  end
  if not state then
    entry.fault = UNREADABLE
    return
  end
  if holds then
    leases.lapse(holds, rule, state, now)
    entry.holds = #holds > 0 and holds
  end
  entry.rule, entry.state = rule, state
end

-- Reads all keys: logs by their beginning, the others whole, and together if they share a slot.
local function load_keys()
  local names, whole = {}, {}
  for _, entry in ipairs(entries) do
    if entry.first_read then
      local value = redis.pcall('GETRANGE', entry.name, 0, entry.first_read - 1)
      -- The beginning of nothing.
      read(entry, value ~= '' and value)
      if entry.fault == UNREADABLE and #value == entry.first_read then
        -- Of what was no log the beginning is not enough.
        entry.fault = false
        read(entry, redis.pcall('GET', entry.name))
      end
    elseif is_cross_slot then
      read(entry, redis.pcall('GET', entry.name))
    else
      names[#names + 1], whole[#whole + 1] = entry.name, entry
    end
  end
  if #names == 1 then
    read(whole[1], redis.pcall('GET', names[1]))
    return
  end
  for first = 1, #names, MOST do
    local last = math.min(first + MOST - 1, #names)
    local values = redis.call('MGET', spread(names, first, last))
    local missing, absent = {}, {}
    for i = first, last do
      local value = values[i - first + 1]
      if value then
        read(whole[i], value)
      else
        missing[#missing + 1], absent[#absent + 1] = names[i], whole[i]
      end
    end
    -- MGET does not tell an absent key from one of another type.
    if #missing > 0 and redis.call('EXISTS', spread(missing)) > 0 then
      for i, entry in ipairs(absent) do read(entry, redis.pcall('GET', missing[i])) end
    end
  end
end

-- The state of a key as `rule` reads it.
local function state_under(rule, entry)
  local from = entry.rule
  if from == rule then return entry.state end
  local algorithm = rule.algorithm
  if not from then return algorithm.fresh(rule) end
  if from.algorithm == algorithm then return algorithm.convert(rule, from, entry.state, now) end
  return algorithm.resume(rule, from.algorithm.consumed(from, entry.state, now), now)
end

-- What `rule` says of a cost, beside what is held.
local function assess(rule, entry, state, cost)
  local algorithm, holds = rule.algorithm, entry.holds
  if holds then
    return leases.assess(holds, rule, now, cost, algorithm.refresh(rule, state, now))
  end
  return algorithm.assess(rule, now, cost, algorithm.refresh(rule, state, now))
end

-- When `rule` began to hold for a key, if it holds from now on.
-- Earlier charges cannot be distinguished from other charges any more. The same is true of charges
-- in the very instant of the change or reset, because their order is not known.
local function since_under(rule, entry)
  local from = entry.rule
  if from == rule then return entry.since end
  if not from or from.algorithm.is_fresh(from, entry.state, now) then
    return entry.was_reset and next_instant or this_instant
  end
  -- What is in flight is carried over with its dates.
  if from.in_flight and rule.in_flight then return entry.since end
  -- A clock that stepped back does not make earlier charges good again.
  return struct.unpack('>I7', entry.since) > now and entry.since or next_instant
end

-- Whether the present request has changed something that is to be written.
local changes = false

-- What is kept of a key from now on, if it is written.
local function keep(entry, rule, state)
  changes = true
  entry.since = since_under(rule, entry)
  entry.rule, entry.state, entry.changed = rule, state, true
  if entry.holds and rule.calendar then
    -- Once they have lapsed, their period cannot be found any more.
    rule.algorithm.owe(rule, state, entry.holds.held, now)
    entry.holds = false
  end
end

local function forget(entry)
  changes = true
  entry.rule, entry.state, entry.changed = false, false, true
end

-- Whether the memory of the server is full: it refuses the first write of a script or none.
local is_first, is_full = true, false

-- A command that takes memory. Where that is full, it does nothing.
local function store(...)
  if is_full then return end
  if not is_first then return redis.call(...) end
  is_first = false
  local done = redis.pcall(...)
  if type(done) ~= 'table' or not done.err then return end
  -- Any other error ends the call, as if there were no pcall.
  if done.err:find('OOM', 1, true) then is_full = true else redis.call(...) end
end

local function set(name, value, expires)
  if redis.REDIS_VERSION_NUM then
    store('SET', name, value, 'PXAT', expires)
  else
    -- A server that does not tell its version may be one that does not know PXAT.
    store('SET', name, value)
    if not is_full then redis.call('PEXPIREAT', name, expires) end
  end
end

-- Afterwards Redis has the key exactly when its state is not fresh, and until it is: up
-- to the first whole millisecond, since that is as exactly as keys expire.
local function write(entry)
  local name, rule, state, holds = entry.name, entry.rule, entry.state, entry.holds
  if holds then
    local header = rule.header
    local code = string.char(header:byte(2) + HOLDS)
    local front = header:sub(1, 1) .. code .. header:sub(3) .. entry.since .. leases.encode(holds)
    local algorithm = rule.algorithm
    local is_amended = algorithm.amend and algorithm.amend(front, state, store)
    local value = not is_amended and algorithm.encode(front, state)
    -- After that the state is not what is to be stored.
    local expires = ceil(leases.fresh_at(holds, rule, state) / 1000)
    if value then
      set(name, value, expires)
    elseif not is_full then
      redis.call('PEXPIREAT', name, expires)
    end
    return
  end
  if not rule or rule.algorithm.is_fresh(rule, state, now) then
    if entry.exists then redis.call('DEL', name) end
    return
  end
  local algorithm, front = rule.algorithm, rule.header .. entry.since
  local expires = ceil(algorithm.fresh_at(rule, state) / 1000)
  if algorithm.amend and algorithm.amend(front, state, store) then
    if not is_full then redis.call('PEXPIREAT', name, expires) end
    return
  end
  set(name, algorithm.encode(front, state), expires)
end
