-- Leaky bucket: a bucket of `capacity` units that drains at the rate of the quota.
-- Twin of crates/tollgate-core/src/algorithm/leaky_bucket.rs.
--
-- rule: capacity, queue, max_wait, unit, rate, full.  state: level, at.  view: level, at.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local MAX = number.MAX
local add, since, mul_div_ceil = number.add, number.since, number.mul_div_ceil

-- Time until `level` has drained.
local function until_drained(rule, level)
  return ceil(level / rule.rate)
end

-- When the bucket is empty, if nothing else comes.
local function empty_at(rule, level, at)
  return add(at, until_drained(rule, level))
end

-- How long a request charged on top of the state is held back.
local function delay_of(rule, now, level, at)
  if rule.queue and level > 0 then return since(empty_at(rule, level, at), now) end
  return 0
end

-- By how much a request charged on top of the state would wait too long. Without a longest
-- wait there is room however long it is, and that is known without a division.
local function too_long_of(rule, now, level, at)
  if rule.max_wait == MAX then return 0 end
  return since(delay_of(rule, now, level, at), rule.max_wait)
end

-- Whether nothing was charged after `charged`: without it, the bucket would have been
-- empty just when its request was to leave.
local function is_last(rule, state, charged)
  local cost = charged.cost * rule.unit
  return state.at == charged.charged_at
    and state.level >= cost
    and empty_at(rule, state.level - cost, state.at) == charged.leaves_at
end

-- A request that would wait too long finds no room, whatever its cost.
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
  -- In this order, because with a debt the sum of both could pass 2^53.
  local over = level - rule.full + scaled
  local too_long = too_long_of(rule, now, level, at)
  if over <= 0 and too_long == 0 then
    return decide(rule, now, ALLOW, delay_of(rule, now, level, at), at, level + scaled, at)
  end
  -- Room comes as the bucket drains, which it does not while the clock stands before
  -- the last charge; the wait shortens by itself even then.
  local room_after = 0
  if over > 0 then room_after = since(empty_at(rule, over, at), now) end
  return decide(rule, now, DENY, max(room_after, too_long), 0, level, at)
end

local function charge(rule, state, now, cost)
  local level, at = refresh(rule, state, now)
  state.level, state.at = level + cost * rule.unit, at
end

-- A place in the queue is refunded only if nothing was scheduled after it: later requests have
-- received their start times, and two must not start at once. A meter refunds the units that have
-- not drained since.
local function give_back(rule, state, charged, units, now)
  local level, at = refresh(rule, state, now)
  local scaled = min(units, charged.cost) * rule.unit
  if not rule.queue then
    local drained = since(at, charged.charged_at) * rule.rate
    state.level, state.at = level - min(since(scaled, drained), level), at
  elseif is_last(rule, state, charged) then
    -- As if the last charge had been smaller: what drained since, drains again.
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

-- No more than the capacity can be in the bucket, or a client would wait under a small
-- quota for what a large one had granted.
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

-- When a state that is not fresh will be.
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

return {
  fresh = fresh,
  refresh = refresh,
  assess = assess,
  charge = charge,
  give_back = give_back,
  owe = owe,
  consumed = consumed,
  resume = resume,
  convert = convert,
  is_fresh = is_fresh,
  fresh_at = fresh_at,
  encode = encode,
  decode = decode,
}
