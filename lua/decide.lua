-- The script around the rules: a batch of requests over the keys of one call.
--
-- README.md says what comes in and what goes out. Everything is read and decided before
-- anything is written, because an error half way would not take back what was written.

local ceil, floor = math.ceil, math.floor
local unpack = unpack or table.unpack
local ALLOW, PASS, DENY = outcome.ALLOW, outcome.PASS, outcome.DENY

local VERSION = 1
-- Kinds of operations.
local DECIDE, GIVE_BACK, OWE, RESET, RENEW, LEASE = 1, 2, 3, 4, 5, 16
-- What a charge does besides: it enforces, or it is not made.
local ENFORCED, DRY = 1, 2
-- Kinds of rows: the byte with which a row begins.
local STALE, DENIED, ADMITTED, FAULT = '\0', '\1', '\2', '\3'
local RETURNED, CHARGED, REPEATED, LAPSED, FORGOTTEN = '\4', '\5', '\6', '\7', '\8'
local RENEWED, LEASED = '\9', '\16'
-- Why a row is a fault.
local WRONG_TYPE, UNREADABLE = 1, 2
-- Bytes behind the header that tell since when a state is held.
local SINCE = 7
-- Added to the code of a form where holds stand before the state.
local HOLDS = 64
-- The code of limits on what is in flight.
local IN_FLIGHT = 10
-- The code of fixed windows that are the periods of a calendar. Behind the header of such a form
-- come three instants: a boundary between two periods, with the one before and the one after.
local CALENDAR = 12
-- The codes of penalties: the one that counts denials, and the one that does not.
local DENIAL_PENALTY, FAILURE_PENALTY = 11, 13
-- Arguments that one redis.call takes: far below Lua's limit of some 8000.
local MOST = 1000

local nonce, injected, forms, operations, requests = unpack(ARGV)

local now
if injected == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(injected)
end
-- The time of the call, and the instant after it, as they are stored.
local this_instant, next_instant = struct.pack('>I7', now), struct.pack('>I7', number.add(now, 1))

-- Rules ---------------------------------------------------------------------------------

-- Forms that begin with the same code have headers of one length.
local function header_length(code)
  if code <= 4 or code == IN_FLIGHT or code == CALENDAR then return 13 end
  if code == 8 then return 25 end
  if code == DENIAL_PENALTY or code == FAILURE_PENALTY then return 34 end
  return 18
end

local algorithms = {} -- made when they are first needed: most calls need one
local rules = {} -- by header

local function algorithm_of(code)
  local make = leaky_bucket -- 7 queue, 8 queue with max_wait, 9 meter
  if code == 1 then
    make = fixed_window_counter
  elseif code == CALENDAR then
    make = calendar_window_counter
  elseif code <= 3 then
    make = sliding_window_log -- 2 exact, 3 a thousandth of the window
  elseif code == 4 then
    make = sliding_window_counter
  elseif code <= 6 then
    make = token_bucket -- 5 greedy, 6 interval
  elseif code == IN_FLIGHT then
    make = concurrent_requests
  elseif code == DENIAL_PENALTY or code == FAILURE_PENALTY then
    make = penalty
  end
  local algorithm = algorithms[make]
  if not algorithm then
    algorithm = make()
    algorithms[make] = algorithm
  end
  return algorithm
end

-- The rule of a header, or nil if it cannot be one.
local function rule_of(header)
  local rule = rules[header]
  if rule then return rule end
  local _, code, limit, window, from = struct.unpack('>BBI5I6', header)
  if limit == 0 or window == 0 then return nil end
  -- Doubles in every Lua: where there are integers too, their products wrap around.
  limit, window = limit + 0.0, window + 0.0
  local interval = code == 6
  rule = {
    header = header, algorithm = algorithm_of(code), limit = limit, window = window,
    grid = (code == 2 or code == IN_FLIGHT) and 1 or code == 3 and ceil(window / 1000) or false,
    in_flight = code == IN_FLIGHT,
    penalises = code == DENIAL_PENALTY or code == FAILURE_PENALTY,
    counts_denials = code == DENIAL_PENALTY,
    block = 0, factor = 1, max_block = 0, forget_after = 0,
    -- Buckets come with limit and window in lowest terms, which is their scale; in
    -- intervals tokens come back whole and need none.
    interval = interval, unit = interval and 1 or window, rate = limit,
    capacity = 0, full = 0, queue = code == 7 or code == 8, max_wait = number.MAX,
    calendar = code == CALENDAR and window or false, start = 0, stop = 0,
  }
  if code >= 5 and code <= 9 then
    rule.capacity = struct.unpack('>I5', header, from)
    rule.full = rule.capacity * rule.unit
    if rule.capacity == 0 or 2 * rule.full > number.MAX + 1 then return nil end
    if code == 8 then rule.max_wait = struct.unpack('>I7', header, from + 5) end
  end
  if rule.penalises then
    rule.block, rule.factor, rule.max_block, rule.forget_after =
      struct.unpack('>I6I3I6I6', header, from)
    if rule.factor == 0 then return nil end
    -- Doubles, as above.
    rule.block, rule.factor = rule.block + 0.0, rule.factor + 0.0
  end
  rules[header] = rule
  return rule
end

local leases = false -- made when it is first needed

local function leasing()
  leases = leases or lease()
  return leases
end

-- Keys ----------------------------------------------------------------------------------

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
    if not value.err:find('WRONGTYPE', 1, true) then error(value.err) end
    entry.fault = WRONG_TYPE
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

-- Reads all keys: logs by their beginning, the others whole and together.
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
    local values = redis.call('MGET', unpack(names, first, last))
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
    if #missing > 0 and redis.call('EXISTS', unpack(missing)) > 0 then
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

-- Since when a key is held under `rule`, if it is from now on. What was charged before
-- cannot be told from other charges any more. Neither can what is charged in the very
-- instant in which the key is carried over or reset, for who came first?
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

-- What is kept of a key from now on, if it is written.
local function keep(entry, rule, state)
  entry.since = since_under(rule, entry)
  entry.rule, entry.state, entry.changed = rule, state, true
  if entry.holds and rule.calendar then
    -- Once they have lapsed nobody here knows in which period that was.
    rule.algorithm.owe(rule, state, entry.holds.held, now)
    entry.holds = false
  end
end

local function forget(entry)
  entry.rule, entry.state, entry.changed = false, false, true
end

local function set(name, value, expires)
  if redis.REDIS_VERSION_NUM then
    redis.call('SET', name, value, 'PXAT', expires)
  else
    -- A server that does not tell its version may be one that does not know PXAT.
    redis.call('SET', name, value)
    redis.call('PEXPIREAT', name, expires)
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
    local is_amended = algorithm.amend and algorithm.amend(front, state)
    local value = not is_amended and algorithm.encode(front, state)
    -- After that the state is not what is to be stored.
    local expires = ceil(leases.fresh_at(holds, rule, state) / 1000)
    if value then set(name, value, expires) else redis.call('PEXPIREAT', name, expires) end
    return
  end
  if not rule or rule.algorithm.is_fresh(rule, state, now) then
    if entry.exists then redis.call('DEL', name) end
    return
  end
  local algorithm, front = rule.algorithm, rule.header .. entry.since
  local expires = ceil(algorithm.fresh_at(rule, state) / 1000)
  if algorithm.amend and algorithm.amend(front, state) then
    redis.call('PEXPIREAT', name, expires)
    return
  end
  set(name, algorithm.encode(front, state), expires)
end

-- Operations ----------------------------------------------------------------------------

local rule_at = {}
do
  local from, n = 1, 0
  while from <= #forms do
    local length = header_length(forms:byte(from + 1))
    n = n + 1
    local rule = rule_of(forms:sub(from, from + length - 1))
    rule_at[n] = rule
    from = from + length
    if rule.calendar then
      local start, boundary, stop
      start, boundary, stop, from = struct.unpack('>I7I7I7', forms, from)
      if now < boundary then stop = boundary else start = boundary end
      rule.start, rule.stop = start, stop
    end
  end
end

-- Whether it is another time than whoever sent a form took it for.
local function is_elsewhen(rule)
  return rule.calendar and (now < rule.start or now >= rule.stop)
end

local function named(key, form)
  local entry, rule = entries[key], rule_at[form]
  if rule.grid then entry.first_read = rule.algorithm.FIRST_READ end
  return entry, rule
end

local ops = {}
do
  local from, n = 1, 0
  while from <= #operations do
    local op = { kind = 0, stale = false }
    op.kind, from = struct.unpack('>B', operations, from)
    if op.kind == DECIDE then
      local count
      count, from = struct.unpack('>B', operations, from)
      for i = 1, count do
        local key, form, flags, cost
        key, form, flags, cost, from = struct.unpack('>I2I2BI7', operations, from)
        local entry, rule = named(key, form)
        op.stale = op.stale or is_elsewhen(rule)
        op[i] = {
          key = key, entry = entry, rule = rule, enforce = flags % 4 == ENFORCED,
          dry = flags % 4 == DRY, subject = floor(flags / 4), cost = cost, state = false,
          outcome = 0, remaining = 0, reset_after = 0, wait = 0, charged_at = 0,
        }
      end
    elseif op.kind == RESET then
      op.key, from = struct.unpack('>I2', operations, from)
      op.entry = entries[op.key]
    elseif op.kind == LEASE then
      local form, count
      op.key, form, op.units, op.ttl, from = struct.unpack('>I2I2I5I7', operations, from)
      op.entry, op.rule = named(op.key, form)
      op.stale = is_elsewhen(op.rule)
      op.id, from = operations:sub(from, from + 7), from + 8
      count, from = struct.unpack('>B', operations, from)
      for i = 1, count do
        local id = operations:sub(from, from + 7)
        local used
        used, from = struct.unpack('>I5', operations, from + 8)
        op[i] = { id = id, used = used }
      end
    else
      local form, receipt
      op.key, form, receipt, op.units, op.cost, op.charged_at, op.leaves_at, op.lifetime, from =
        struct.unpack('>I2I2I2I7I7I7I7I7', operations, from)
      op.entry, op.rule = named(op.key, form)
      op.stale = is_elsewhen(op.rule)
      op.receipt_key, op.receipt = receipt, entries[receipt]
      op.receipt.is_receipt = true
    end
    n = n + 1
    ops[n] = op
  end
end

local function fault_row(entry, key)
  return FAULT .. struct.pack('>BI2', entry.fault, key)
end

-- Strikes the penalties of subjects that another policy denies, and lets them say what they
-- are then.
local function strike(op)
  local denied = {}
  for i = 1, #op do
    local charge = op[i]
    if charge.enforce and charge.outcome >= DENY and not charge.rule.penalises then
      denied[charge.subject] = true
    end
  end
  for i = 1, #op do
    local charge = op[i]
    local rule, state = charge.rule, charge.state
    if rule.counts_denials and not charge.dry and charge.cost > 0 and denied[charge.subject] then
      keep(charge.entry, rule, state)
      rule.algorithm.owe(rule, state, 1, now)
      charge.outcome, charge.remaining, charge.reset_after, charge.wait, charge.charged_at =
        assess(rule, charge.entry, state, charge.cost)
    end
  end
end

-- What would be said of a charge that is not made, after those before it.
local function ask(charge)
  local entry, rule = charge.entry, charge.rule
  charge.state = entry.state
  if entry.rule ~= rule then charge.state = state_under(rule, entry) end
  charge.outcome, charge.remaining, charge.reset_after, charge.wait, charge.charged_at =
    assess(rule, entry, charge.state, charge.cost)
end

-- Decides one request: all its charges, or none.
local function decide(op)
  local admitted, strikes = ADMITTED, false
  for i = 1, #op do
    local charge = op[i]
    local entry, rule = charge.entry, charge.rule
    if rule.counts_denials and not charge.dry then strikes = true end
    if entry.fault then return fault_row(entry, charge.key) end
    local state = entry.state
    if entry.rule ~= rule then state = state_under(rule, entry) end
    charge.state = state
    if not charge.dry then
      charge.outcome, charge.remaining, charge.reset_after, charge.wait, charge.charged_at =
        assess(rule, entry, state, charge.cost)
      if charge.outcome >= DENY and charge.enforce then admitted = DENIED end
    end
  end
  if strikes and admitted == DENIED then strike(op) end
  local row = admitted
  for i = 1, #op do
    local charge = op[i]
    local dry = charge.dry
    if dry then ask(charge) end
    if charge.outcome == ALLOW then
      local rule, state = charge.rule, charge.state
      if admitted == DENIED or dry then
        -- Nothing is taken, so what is left is what a request for nothing sees.
        local _
        _, charge.remaining, charge.reset_after = assess(rule, charge.entry, state, 0)
        charge.outcome, charge.wait, charge.charged_at = PASS, 0, 0
      elseif charge.cost > 0 and not rule.penalises then
        keep(charge.entry, rule, state)
        rule.algorithm.charge(rule, state, now, charge.cost)
      end
    end
    row = row .. struct.pack('>BI5I7I7I7', charge.outcome, charge.remaining,
      charge.reset_after, charge.wait, charge.charged_at)
  end
  return row
end

-- The rule under which a key is held, if its state could not be forgotten.
local function held_of(entry)
  local held = entry.rule
  if held and held.algorithm.is_fresh(held, entry.state, now) then return false end
  return held
end

-- Whether a charge can be told from others. Of a state that is gone, or under another quota,
-- or was since, or was reset, it cannot; only what is in flight is carried over with its date.
local function is_known(op, held)
  local rule = op.rule
  return held and (held == rule or held.in_flight and rule.in_flight)
    and op.charged_at >= struct.unpack('>I7', op.entry.since)
end

-- Corrects a charge, once per receipt.
local function settle(op)
  local entry, receipt, rule = op.entry, op.receipt, op.rule
  if entry.fault then return fault_row(entry, op.key) end
  if receipt.fault then return fault_row(receipt, op.receipt_key) end
  if now >= number.add(op.charged_at, op.lifetime) then return LAPSED end
  if receipt.exists then return REPEATED end
  receipt.exists, receipt.settled_until = true, number.add(now, op.lifetime)
  local held = held_of(entry)
  local state, units
  if op.kind == OWE then
    -- A debt is owed under the quota that holds now.
    rule = held or rule
    state = state_under(rule, entry)
    units = rule.algorithm.owe(rule, state, op.units, now)
  else
    if not is_known(op, held) then return RETURNED .. struct.pack('>I7', 0) end
    rule, state = held, entry.state
    units = rule.algorithm.give_back(rule, state, op, op.units, now)
  end
  keep(entry, rule, state)
  -- Redis will not have it, so it must not make a difference in this call either.
  if not entry.holds and rule.algorithm.is_fresh(rule, state, now) then forget(entry) end
  return (op.kind == OWE and CHARGED or RETURNED) .. struct.pack('>I7', units)
end

-- Lets the lease of a charge begin anew.
local function renew(op)
  local entry, receipt, rule = op.entry, op.receipt, op.rule
  if entry.fault then return fault_row(entry, op.key) end
  if receipt.fault then return fault_row(receipt, op.receipt_key) end
  if receipt.exists then return REPEATED end
  local known = is_known(op, held_of(entry))
  local state = state_under(rule, entry)
  keep(entry, rule, state)
  if known then rule.algorithm.give_back(rule, state, op, op.cost, now) end
  return RENEWED .. struct.pack('>I7', rule.algorithm.renew(rule, state, op.cost, now))
end

-- What is leased stays so: it may still be spent.
local function reset(op)
  local entry = op.entry
  if entry.fault then return fault_row(entry, op.key) end
  if entry.holds then
    if struct.unpack('>I7', entry.since) <= now then entry.since = next_instant end
    entry.state, entry.changed = entry.rule.algorithm.fresh(entry.rule), true
  else
    forget(entry)
  end
  entry.was_reset = true
  return FORGOTTEN
end

-- Settles blocks and grants another: mostly both, so that a block costs one call.
local function lease_block(op)
  local entry, rule = op.entry, op.rule
  if entry.fault then return fault_row(entry, op.key) end
  local leases = leasing()
  for i = 1, #op do
    local holds, settled = entry.holds, op[i]
    if
      holds and leases.settle(holds, entry.rule, entry.state, now, settled.id, settled.used)
    then
      entry.changed = true
      entry.holds = #holds > 0 and holds
    end
  end
  local units, last = 0, now
  if op.units > 0 then
    local holds, state = entry.holds or { held = 0 }, entry.state
    if entry.rule ~= rule then state = state_under(rule, entry) end
    units, last = leases.grant(holds, rule, state, now, op.id, op.units, op.ttl)
    if units > 0 then
      keep(entry, rule, state)
      entry.holds = holds
    end
  end
  if entry.changed and entry.rule and not entry.holds then
    -- Redis will not have it, so it must not make a difference in this call either.
    if entry.rule.algorithm.is_fresh(entry.rule, entry.state, now) then forget(entry) end
  end
  local state = entry.state
  if entry.rule ~= rule then state = state_under(rule, entry) end
  local _, remaining, reset_after = assess(rule, entry, state, 0)
  local retry_after = 0
  if units == 0 then
    local kind, _, _, wait = assess(rule, entry, state, 1)
    if kind == DENY then retry_after = wait end
  end
  return LEASED .. struct.pack('>I5I7I5I7I7', units, last - now, remaining, reset_after, retry_after)
end

local steps = {
  [DECIDE] = decide, [GIVE_BACK] = settle, [OWE] = settle, [RESET] = reset, [RENEW] = renew,
  [LEASE] = lease_block,
}

load_keys()

local rows, from, n = { nonce, this_instant }, 1, 2
while from <= #requests do
  local index, deadline
  index, deadline, from = struct.unpack('>I2I7', requests, from)
  n = n + 1
  local op = ops[index]
  if deadline > 0 and now > deadline or op.stale then
    rows[n] = STALE
  else
    rows[n] = steps[op.kind](op)
  end
end

for i = 1, #entries do
  local entry = entries[i]
  if entry.settled_until then
    set(entry.name, '1', ceil(entry.settled_until / 1000))
  elseif entry.changed then
    write(entry)
  end
end

return table.concat(rows)
