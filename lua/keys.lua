-- Keys. Each key is read before the first request and, if it changed, written after the last, with
-- an expiry shortly after its states are fresh. A value consists of a header, the instant `since`,
-- leased blocks and other versions if there are any, and the state. A key has a state for each
-- version of its policy's quota that charged it. Every charge counts under all of them. A value that
-- cannot be read is a fault, which only fails the requests that name the key.

local VERSION, OLD_VERSION = 2, 1
-- Bytes of `since`, the instant from which the key is held under its form.
local SINCE = 7
-- Added to the form's code if the key has open blocks, or states under other versions, which are
-- stored before the state in this order.
local HOLDS, OTHERS = 64, 128
-- The maximum number of versions that count together. Another version replaces the oldest.
local MAX_VERSIONS = 4
-- The maximum number of keys per redis.call, far below Lua's limit of some 8000 arguments.
local MOST = 1000

-- An entry per key: name; versions, oldest first, each with rule, state and since; fault, if its
-- value cannot be read; exists, whether Redis has the key; changed, whether to write the key;
-- was_reset, whether this call reset the key; holds, if it has any.
local entries = {}
for i = 1, #KEYS do
  -- Create all fields together, here and below, because Lua reallocates a growing table.
  entries[i] = {
    name = KEYS[i], versions = {}, fault = false, exists = false, changed = false,
    was_reset = false, first_read = false, is_receipt = false, settled_until = false,
    holds = false,
  }
end

-- Whether charges under both rules count together. Quota units, permits and strikes do not count as
-- one another.
local function counts_with(rule, other)
  return rule.in_flight == other.in_flight and rule.penalises == other.penalises
end

local function is_fresh(version)
  return version.rule.algorithm.is_fresh(version.rule, version.state, now)
end

-- Reads the version at a value's start, and the versions and blocks that the value contains. Nil if
-- the value is invalid. Only the value of a key may continue beyond the bytes read.
local function parse(value, key)
  local version, code = value:byte(1, 2)
  if not code or version ~= VERSION and version ~= OLD_VERSION then return nil end
  local has_others, has_holds = code >= OTHERS, code % OTHERS > HOLDS
  code = code % HOLDS
  if code < 1 or code > FAILURE_PENALTY then return nil end
  local length = header_length(code)
  local from = length + SINCE + 1
  if #value < from then return nil end
  local rule = rule_of(string.char(VERSION, code) .. value:sub(3, length))
  if not rule then return nil end
  local holds, others = false, {}
  if has_holds then
    holds, from = leasing().decode(value, from)
    if not holds then return nil end
  end
  if has_others then
    local count = value:byte(from)
    from = from + 1
    for i = 1, count or 0 do
      if #value < from + 3 then return nil end
      local size = struct.unpack('>I4', value, from)
      others[i] = parse(value:sub(from + 4, from + 3 + size))
      if not others[i] then return nil end
      from = from + 4 + size
    end
  end
  local state = rule.algorithm.decode(rule, value, from, key, version == OLD_VERSION)
  if not state then return nil end
  local since = value:sub(length + 1, length + SINCE)
  return { rule = rule, state = state, since = since }, others, holds
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
  local first, others, holds = parse(value, entry.name)
  if not first then
    entry.fault = UNREADABLE
    return
  end
  entry.versions = { first, spread(others) }
  if holds then
    leases.lapse(holds, entry.versions, now)
    entry.holds = #holds > 0 and holds
  end
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

-- A key's version for a rule. Permits have one version for all rules.
local function version_of(entry, rule)
  for i, version in ipairs(entry.versions) do
    if version.rule == rule or version.rule.in_flight and rule.in_flight then return version, i end
  end
end

-- The version from which a new version starts: of those that count the same charges and are not
-- fresh, the one that counts units for longest, and of several the one with room for most. It stays
-- the same while time passes, and so do the waits that the new version tells.
local function source_of(entry, rule)
  local source, latest
  for _, version in ipairs(entry.versions) do
    if counts_with(version.rule, rule) and not is_fresh(version) then
      local fresh_at = version.rule.algorithm.fresh_at(version.rule, version.state)
      local has_more_room = source and version.rule.room > source.rule.room
      if not source or fresh_at > latest or fresh_at == latest and has_more_room then
        source, latest = version, fresh_at
      end
    end
  end
  return source
end

-- A version's state, continued under `rule`.
local function converted(rule, version)
  local from, state, algorithm = version.rule, version.state, rule.algorithm
  if from == rule then return state end
  if from.algorithm == algorithm and algorithm.convert then
    return algorithm.convert(rule, from, state)
  end
  local at = from.algorithm.counts_from(state)
  return algorithm.resume(rule, from.algorithm.consumed(from, state, at), at)
end

-- A key's state as `rule` reads it.
local function state_under(rule, entry)
  local version = version_of(entry, rule) or source_of(entry, rule)
  if version then return converted(rule, version) end
  return rule.algorithm.fresh(rule)
end

-- Decides on a cost under `rule` at an instant, in addition to the key's open blocks.
local function assess(rule, entry, state, cost, at)
  local algorithm, holds = rule.algorithm, entry.holds
  if holds then
    return leases.assess(holds, rule, at, cost, algorithm.refresh(rule, state, at))
  end
  return algorithm.assess(rule, at, cost, algorithm.refresh(rule, state, at))
end

-- The later of two instants in the stored format.
local function later(a, b)
  return unpack('>I7', a) > unpack('>I7', b) and a or b
end

-- Whether the current request changed a key that must be written.
local changes = false

-- Stores a rule's state in the key's entry, marks the key as changed, and returns the version.
-- A charge made in the same microsecond as an earlier charge or a reset cannot be told apart, so
-- the version identifies charges from `since` on.
local function keep(entry, rule, state)
  changes, entry.changed = true, true
  local version, source, since = version_of(entry, rule), source_of(entry, rule), this_instant
  if version then
    -- Permits retain their dates under another rule.
    version.rule, version.state = rule, state
    -- Redis may have deleted fresh states, so the other versions must make no difference.
    if not source then
      for i = #entry.versions, 1, -1 do
        local other = entry.versions[i]
        if other ~= version and counts_with(other.rule, rule) then
          table.remove(entry.versions, i)
        end
      end
    end
    return version
  end
  if source then
    local counts_from = source.rule.algorithm.counts_from(source.state)
    since = later(after(source.since), later(since, after(pack('>I7', counts_from))))
  elseif entry.was_reset then
    since = next_instant
  end
  local versions, counting = {}, 0
  for _, other in ipairs(entry.versions) do
    local counts = counts_with(other.rule, rule)
    if counts then counting = counting + 1 end
    if source or not counts then versions[#versions + 1] = other end
  end
  if source and counting == MAX_VERSIONS then
    for i, other in ipairs(versions) do
      if counts_with(other.rule, rule) then
        table.remove(versions, i)
        break
      end
    end
  end
  version = { rule = rule, state = state, since = since }
  versions[#versions + 1] = version
  entry.versions = versions
  return version
end

-- Counts units that were charged under `rule` at an instant under all other versions. Returns whether any version
-- counted all of them. A version that is too full can no longer refund earlier charges.
local function count_elsewhere(entry, rule, units, at)
  local counted = false
  for _, version in ipairs(entry.versions) do
    local other = version.rule
    if other ~= rule and counts_with(other, rule) then
      local algorithm, is_counted = other.algorithm, false
      if algorithm.count then
        is_counted = algorithm.count(other, version.state, units, at)
      else
        is_counted = algorithm.owe(other, version.state, units, at) == units
      end
      if is_counted then
        counted = true
      else
        local counts_from = algorithm.counts_from(version.state)
        version.since =
          later(version.since, later(next_instant, after(pack('>I7', counts_from))))
      end
    end
  end
  if entry.holds and rule.calendar then
    -- Charge the blocks now: after they lapse, their period cannot be determined any more.
    leases.charge(entry.versions, entry.holds.held, now)
    entry.holds = false
  end
  return counted
end

local function forget(entry)
  changes = true
  entry.versions, entry.changed = {}, true
end

-- Whether the key needs no states any more.
local function is_forgettable(entry)
  for _, version in ipairs(entry.versions) do
    if not is_fresh(version) then return false end
  end
  return not entry.holds
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

-- The other versions' values, each after its length.
local function others_of(entry)
  local parts = { string.char(#entry.versions - 1) }
  for i = 2, #entry.versions do
    local version = entry.versions[i]
    local rule, algorithm = version.rule, version.rule.algorithm
    local encode = algorithm.encode_whole or algorithm.encode
    local value = encode(rule.header .. version.since, version.state)
    parts[i] = struct.pack('>I4', #value) .. value
  end
  return table.concat(parts)
end

-- Afterwards Redis has the key exactly if its states are not fresh.
local function write(entry)
  local name, holds, first = entry.name, entry.holds, entry.versions[1]
  if not first or is_forgettable(entry) then
    if entry.exists then redis.call('DEL', name) end
    return
  end
  local rule, state = first.rule, first.state
  local algorithm, header = rule.algorithm, rule.header
  local front = header .. first.since
  if holds or #entry.versions > 1 then
    local flags = (holds and HOLDS or 0) + (#entry.versions > 1 and OTHERS or 0)
    front = string.char(VERSION, header:byte(2) + flags) .. front:sub(3)
    if holds then front = front .. leases.encode(holds) end
    if #entry.versions > 1 then front = front .. others_of(entry) end
  end
  local is_amended = algorithm.amend and algorithm.amend(front, state, store)
  local value = not is_amended and algorithm.encode(front, state)
  -- Only after encoding, because with leased blocks fresh_at changes the states.
  local fresh_at = 0
  for _, version in ipairs(entry.versions) do
    local at
    if holds and version.rule.limits_rate then
      at = leases.fresh_at(holds, version.rule, version.state)
    elseif not is_fresh(version) then
      at = version.rule.algorithm.fresh_at(version.rule, version.state)
    end
    if at then fresh_at = max(fresh_at, at) end
  end
  if value then set(name, value, fresh_at) else expire(name, fresh_at) end
end
