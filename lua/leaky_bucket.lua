-- Leaky bucket: a bucket with a `capacity` in units that drains at the quota's rate.
-- Lua port of crates/tollgate-core/src/algorithm/leaky_bucket.rs.
--
-- rule: capacity, queue, max_wait, unit, rate, full.  state: level, at.  view: level, at.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local MAX = number.MAX
local add, since, mul_div_ceil = number.add, number.since, number.mul_div_ceil

-- The time it takes for `level` to drain.
local function until_drained(rule, level)
  return ceil(level / rule.rate)
end

-- When the bucket will be empty if no more requests arrive.
local function empty_at(rule, level, at)
  return add(at, until_drained(rule, level))
end

-- How long a request is delayed if it is charged on top of the state.
local function delay_of(rule, now, level, at)
  if rule.queue and level > 0 then return since(empty_at(rule, level, at), now) end
  return 0
end

-- By how much a request that is charged on top of the state would exceed `max_wait`. Zero if there
-- is no `max_wait`, which saves a division in that case.
local function too_long_of(rule, now, level, at)
  if rule.max_wait == MAX then return 0 end
  return since(delay_of(rule, now, level, at), rule.max_wait)
end

-- Whether `charged` is the last charge. If so, the bucket without this charge would be empty
-- exactly when the request was due to leave.
local function is_last(rule, state, charged)
  local cost = charged.cost * rule.unit
  return state.at == charged.charged_at
    and state.level >= cost
    and empty_at(rule, state.level - cost, state.at) == charged.leaves_at
end

-- If the wait is too long, no units remain, regardless of the level.
local function remaining_of(rule, now, level, at)
  local left = rule.full - level
  if left <= 0 or too_long_of(rule, now, level, at) > 0 then return 0 end
  return floor(left / rule.unit)
end

local function decide(rule, now, kind, wait, charged_at, level, at)
  local reset_after = level == 0 and 0 or since(empty_at(rule, level, at), now)
  return kind, remaining_of(rule, now, level, at), reset_after, wait, charged_at
end

local function fresh()
  return { level = 0, at = 0 }
end

local function refresh(rule, state, now)
  local level, at = state.level, state.at
  if now > at then
    level, at = level - (now - at) * rule.rate, now
  end
  if level <= 0 then return 0, now end
  return level, at
end

local function assess(rule, now, cost, level, at)
  if cost > rule.capacity then return decide(rule, now, EXCEED, 0, 0, level, at) end
  if cost == 0 then return decide(rule, now, ALLOW, 0, at, level, at) end
  local scaled = cost * rule.unit
  -- Subtract first: with a debt, the sum of level and scaled could pass 2^53.
  local over = level - rule.full + scaled
  local too_long = too_long_of(rule, now, level, at)
  if over <= 0 and too_long == 0 then
    return decide(rule, now, ALLOW, delay_of(rule, now, level, at), at, level + scaled, at)
  end
  -- Room becomes available as the bucket drains, but the bucket does not drain while the clock is
  -- behind the last charge. The wait gets shorter even then.
  local room_after = 0
  if over > 0 then room_after = since(empty_at(rule, over, at), now) end
  return decide(rule, now, DENY, max(room_after, too_long), 0, level, at)
end

local function charge(rule, state, now, cost)
  local level, at = refresh(rule, state, now)
  state.level, state.at = level + cost * rule.unit, at
end

-- In queue mode, only the last charge is refunded: later requests already have their departure
-- times, and two requests must not leave at the same time. In meter mode, the units that have not
-- drained yet are refunded.
local function give_back(rule, state, charged, units, now)
  local level, at = refresh(rule, state, now)
  local scaled = min(units, charged.cost) * rule.unit
  if not rule.queue then
    local drained = since(at, charged.charged_at) * rule.rate
    state.level, state.at = level - min(since(scaled, drained), level), at
  elseif is_last(rule, state, charged) then
    -- As if the last charge had been smaller: the level drains again from the time of the charge.
    state.level = state.level - scaled
  else
    return 0
  end
  return floor((level - (refresh(rule, state, now))) / rule.unit)
end

local function owe(rule, state, units, now)
  state.level, state.at = refresh(rule, state, now)
  units = min(units, floor(since(2 * rule.full, state.level) / rule.unit))
  state.level = state.level + units * rule.unit
  return units
end

local function consumed(rule, state, now)
  local level = refresh(rule, state, now)
  return ceil(level / rule.unit)
end

-- The bucket never contains more than its capacity. Otherwise a client would wait under a small
-- quota for units that a larger quota had granted.
local function resume(rule, units, now)
  return { level = min(units, rule.capacity) * rule.unit, at = now }
end

local function convert(rule, from, state, now)
  local level, at = refresh(from, state, now)
  return { level = min(mul_div_ceil(level, rule.unit, from.unit), rule.full), at = at }
end

local function is_fresh(rule, state, now)
  local level = refresh(rule, state, now)
  return level == 0
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
  return empty_at(rule, state.level, state.at)
end

local function encode(front, state)
  return front .. struct.pack('>I7I7', state.level, state.at)
end

local function decode(rule, value, from)
  if #value ~= from + 13 then return nil end
  local level, at = struct.unpack('>I7I7', value, from)
  if level > 2 * rule.full then return nil end
  return { level = level, at = at }
end
