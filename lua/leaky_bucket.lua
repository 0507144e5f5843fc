-- Leaky bucket: a bucket with a `capacity` in units that drains at the quota's rate.
-- Lua port of crates/tollgate-core/src/algorithm/leaky_bucket.rs.
--
-- rule: capacity, queue, max_wait, unit, rate, full.  state: level, at, refunded.
-- view: level, at, refunded.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local MAX, NO_REFUNDS = number.MAX, refunds.NONE
local add, since, mul_div_ceil = number.add, number.since, number.mul_div_ceil
local refundable = refunds.refundable

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

local function decide(rule, now, kind, wait, charged_at, level, at, refunded)
  local reset_after = since(empty_at(rule, level, at), now)
  local remaining = remaining_of(rule, now, level, at)
  return kind, remaining, reset_after, wait, charged_at, refunded
end

local function fresh()
  return { level = 0, at = 0, refunded = 0 }
end

local function refresh(rule, state, now)
  local level, at = state.level, state.at
  if now > at then
    level, at = level - (now - at) * rule.rate, now
  end
  -- The last charge is later if its request queued in the store and left.
  if level <= 0 then return 0, rule.queue and now or max(now, state.at), state.refunded end
  return level, at, state.refunded
end

local function assess(rule, now, cost, level, at, refunded)
  if cost > rule.capacity then return decide(rule, now, EXCEED, 0, 0, level, at, 0) end
  if cost == 0 then return decide(rule, now, ALLOW, 0, at, level, at, refunded) end
  local scaled = cost * rule.unit
  -- Subtract first: with a debt, the sum of level and scaled could pass 2^53.
  local over = level - rule.full + scaled
  local too_long = too_long_of(rule, now, level, at)
  if over <= 0 and too_long == 0 then
    local delay = delay_of(rule, now, level, at)
    return decide(rule, now, ALLOW, delay, at, level + scaled, at, refunded)
  end
  -- Room becomes available as the bucket drains, but the bucket does not drain while the clock is
  -- behind the last charge. The wait gets shorter even then.
  local room_after = 0
  if over > 0 then room_after = since(empty_at(rule, over, at), now) end
  return decide(rule, now, DENY, max(room_after, too_long), 0, level, at, 0)
end

local function charge(rule, state, now, cost)
  local level, at = refresh(rule, state, now)
  state.level, state.at = level + cost * rule.unit, at
end

-- In queue mode, only the last charge is refunded: later requests already have their departure
-- times, and two requests must not leave at the same time. In meter mode, the units that certainly
-- have not drained yet are refunded (see refunds.lua).
--
-- The level at the last charge is corrected, and drains from then on.
local function give_back(rule, state, charged, units, now)
  local level, at, refunded = refresh(rule, state, now)
  if not rule.queue then
    local scaled = min(refundable(rule, charged, units, refunded, at), level)
    state.level, state.refunded = state.level - scaled, refunded + scaled
  elseif is_last(rule, state, charged) then
    state.level = state.level - min(units, charged.cost) * rule.unit
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

-- Another version never fills the bucket beyond its capacity. Otherwise a client would wait under a
-- small quota for units that a larger quota had granted.
local function count(rule, state, units, now)
  local level
  level, state.at = refresh(rule, state, now)
  local room = floor(since(rule.full, level) / rule.unit)
  state.level = units <= room and level + units * rule.unit or max(rule.full, level)
  return units <= room
end

local function counts_from(state)
  return state.at
end

-- The bucket is at most full, for the same reason as in `count`.
local function resume(rule, units, at)
  return { level = min(units, rule.capacity) * rule.unit, at = at, refunded = 0 }
end

local function convert(rule, from, state)
  local level = min(mul_div_ceil(state.level, rule.unit, from.unit), rule.full)
  return { level = level, at = state.at, refunded = 0 }
end

local function is_fresh(rule, state, now)
  local level = refresh(rule, state, now)
  return level == 0 and (rule.queue or state.at <= now)
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
  return empty_at(rule, state.level, state.at)
end

local function encode(front, state)
  return front .. struct.pack('>I7I7I7', state.level, state.at, state.refunded)
end

-- Earlier versions stored no refunds.
local function decode(rule, value, from, _, is_old)
  if is_old then value = value .. NO_REFUNDS end
  if #value ~= from + 20 then return nil end
  local level, at, refunded = struct.unpack('>I7I7I7', value, from)
  if level > 2 * rule.full then return nil end
  return { level = level, at = at, refunded = refunded }
end
