-- Keys. Each key is read before the first request and, if it changed, written after the last, with
-- an expiry shortly after its state is fresh. A value consists of a header, the instant `since`,
-- leased blocks if there are any, and the state. A state that was stored under another version of
-- the policy is converted when a request charges it. A value that cannot be read is a fault, which
-- only fails the requests that name the key.

local VERSION = 1
-- Bytes of `since`, the instant from which the key is held under its form.
local SINCE = 7
-- Added to the form's code if the key has open blocks, which are stored before the state.
local HOLDS = 64
-- The maximum number of keys per redis.call, far below Lua's limit of some 8000 arguments.
local MOST = 1000

-- An entry per key: name; rule, state and since, if the key has a state; fault, if its value cannot
-- be read; exists, whether Redis has the key; changed, whether to write the key; was_reset, whether
-- this call reset the key; holds, if it has any.
local entries = {}
for i = 1, #KEYS do
  -- Create all fields together, here and below, because Lua reallocates a growing table.
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
      -- Another node has the slot, or the key is migrating to that node.
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

-- Reads all keys: only the first bytes of logs, and all other keys completely. Keys of the same
-- slot are read together.
local function load_keys()
  local names, whole = {}, {}
  for _, entry in ipairs(entries) do
    if entry.first_read then
      local value = redis.pcall('GETRANGE', entry.name, 0, entry.first_read - 1)
      -- GETRANGE returns an empty string for an absent key.
      read(entry, value ~= '' and value)
      if entry.fault == UNREADABLE and #value == entry.first_read then
        -- The value may belong to another algorithm, which needs all of it.
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
    -- MGET returns the same for an absent key and for a key of another type.
    if #missing > 0 and redis.call('EXISTS', spread(missing)) > 0 then
      for i, entry in ipairs(absent) do read(entry, redis.pcall('GET', missing[i])) end
    end
  end
end

-- A key's state as `rule` reads it.
local function state_under(rule, entry)
  local from = entry.rule
  if from == rule then return entry.state end
  local algorithm = rule.algorithm
  if not from then return algorithm.fresh(rule) end
  if from.algorithm == algorithm then return algorithm.convert(rule, from, entry.state, now) end
  return algorithm.resume(rule, from.algorithm.consumed(from, entry.state, now), now)
end

-- Decides on a cost under `rule`, in addition to the key's open blocks.
local function assess(rule, entry, state, cost)
  local algorithm, holds = rule.algorithm, entry.holds
  if holds then
    return leases.assess(holds, rule, now, cost, algorithm.refresh(rule, state, now))
  end
  return algorithm.assess(rule, now, cost, algorithm.refresh(rule, state, now))
end

-- The value of `since` if the key is held under `rule` from now on. Charges from before that
-- instant can no longer be distinguished from other charges. Neither can charges at the exact
-- instant of the change or reset, because their order is unknown.
local function since_under(rule, entry)
  local from = entry.rule
  if from == rule then return entry.since end
  if not from or from.algorithm.is_fresh(from, entry.state, now) then
    return entry.was_reset and next_instant or this_instant
  end
  -- Permits retain their dates when they are carried over.
  if from.in_flight and rule.in_flight then return entry.since end
  -- If the clock stepped back, earlier charges must not become refundable again.
  return struct.unpack('>I7', entry.since) > now and entry.since or next_instant
end

-- Whether the current request changed a key that must be written.
local changes = false

-- Stores a rule and its state in the key's entry and marks the key as changed.
local function keep(entry, rule, state)
  changes = true
  entry.since = since_under(rule, entry)
  entry.rule, entry.state, entry.changed = rule, state, true
  if entry.holds and rule.calendar then
    -- Charge the blocks now: after they lapse, their period cannot be determined any more.
    rule.algorithm.owe(rule, state, entry.holds.held, now)
    entry.holds = false
  end
end

local function forget(entry)
  changes = true
  entry.rule, entry.state, entry.changed = false, false, true
end

-- Whether the server's memory is full. Redis then refuses a script's first write, and never a later
-- write.
local is_first, is_full = true, false

-- Runs a command that allocates memory. Once the memory is full, it does no more writes.
local function store(...)
  if is_full then return end
  if not is_first then return redis.call(...) end
  is_first = false
  local done = redis.pcall(...)
  if type(done) ~= 'table' or not done.err then return end
  -- Raise any other error by running the command without pcall.
  if done.err:find('OOM', 1, true) then is_full = true else redis.call(...) end
end

-- Sets the key's expiry, given the instant at which its state is fresh.
local function expire(name, fresh_at)
  if is_full then return end
  redis.call('PEXPIREAT', name, format('%d000', floor(fresh_at / 1000000) + SLACK))
end

local function set(name, value, fresh_at)
  if redis.REDIS_VERSION_NUM then
    store('SET', name, value, 'EXAT', format('%d', floor(fresh_at / 1000000) + SLACK))
  else
    -- A server that hides its version may not support EXAT.
    store('SET', name, value)
    expire(name, fresh_at)
  end
end

-- Afterwards Redis has the key exactly if its state is not fresh.
local function write(entry)
  local name, rule, state, holds = entry.name, entry.rule, entry.state, entry.holds
  if holds then
    local header = rule.header
    local code = string.char(header:byte(2) + HOLDS)
    local front = header:sub(1, 1) .. code .. header:sub(3) .. entry.since .. leases.encode(holds)
    local algorithm = rule.algorithm
    local is_amended = algorithm.amend and algorithm.amend(front, state, store)
    local value = not is_amended and algorithm.encode(front, state)
    -- Only after encoding, because fresh_at changes the state.
    local fresh_at = leases.fresh_at(holds, rule, state)
    if value then set(name, value, fresh_at) else expire(name, fresh_at) end
    return
  end
  if not rule or rule.algorithm.is_fresh(rule, state, now) then
    if entry.exists then redis.call('DEL', name) end
    return
  end
  local algorithm, front = rule.algorithm, rule.header .. entry.since
  local fresh_at = algorithm.fresh_at(rule, state)
  if algorithm.amend and algorithm.amend(front, state, store) then return expire(name, fresh_at) end
  set(name, algorithm.encode(front, state), fresh_at)
end
