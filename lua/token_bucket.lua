-- Token bucket: a bucket with a `capacity` in tokens that is refilled at the quota's rate.
-- Lua port of crates/tollgate-core/src/algorithm/token_bucket.rs.
--
-- rule: capacity, limit, window, interval, unit, rate, full.  state: missing, at.
-- view: missing, at.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local add, since, mul_div_ceil = number.add, number.since, number.mul_div_ceil

-- The time from state.at until `missing` tokens have been refilled.
local function until_restored(rule, missing)
  if rule.interval then return ceil(missing / rule.limit) * rule.window end
  return ceil(missing / rule.rate)
end

local function decide(rule, now, kind, wait, charged_at, missing, at)
  local reset_after = 0
  if missing > 0 then reset_after = since(add(at, until_restored(rule, missing)), now) end
  local left = rule.full - missing
  local remaining = left > 0 and floor(left / rule.unit) or 0
  return kind, remaining, reset_after, wait, charged_at
end

local function fresh()
  return { missing = 0, at = 0 }
end

local function refresh(rule, state, now)
  local missing, at = state.missing, state.at
  if now > at then
    local elapsed = now - at
    if rule.interval then
      local intervals = floor(elapsed / rule.window)
      missing, at = missing - intervals * rule.limit, at + intervals * rule.window
    else
      missing, at = missing - elapsed * rule.rate, now
    end
  end
  if missing <= 0 then return 0, now end
  return missing, at
end

local function assess(rule, now, cost, missing, at)
  if cost > rule.capacity then return decide(rule, now, EXCEED, 0, 0, missing, at) end
  local scaled = cost * rule.unit
  -- Subtract first: with a debt, the sum of missing and scaled could pass 2^53.
  local over = missing - rule.full + scaled
  if cost == 0 or over <= 0 then
    return decide(rule, now, ALLOW, 0, max(now, at), missing + scaled, at)
  end
  local fits_at = add(at, until_restored(rule, over))
  return decide(rule, now, DENY, since(fits_at, now), 0, missing, at)
end

local function charge(rule, state, now, cost)
  local missing, at = refresh(rule, state, now)
  state.missing, state.at = missing + cost * rule.unit, at
end

-- Greedy: tokens refilled since the charge may be the same units and are not refunded again.
-- Interval: units are only refunded within the charge's interval. If the charge started the
-- interval, the interval restarts now.
local function give_back(rule, state, charged, units, now)
  state.missing, state.at = refresh(rule, state, now)
  units = min(units, charged.cost)
  local scaled = units * rule.unit
  if not rule.interval then
    scaled = since(scaled, since(state.at, charged.charged_at) * rule.rate)
  elseif charged.charged_at < state.at then
    scaled = 0
  elseif charged.charged_at == state.at and units == charged.cost then
    state.at = max(now, state.at)
  end
  scaled = min(scaled, state.missing)
  state.missing = state.missing - scaled
  return floor(scaled / rule.unit)
end

local function owe(rule, state, units, now)
  state.missing, state.at = refresh(rule, state, now)
  units = min(units, floor(since(2 * rule.full, state.missing) / rule.unit))
  state.missing = state.missing + units * rule.unit
  return units
end

local function consumed(rule, state, now)
  local missing = refresh(rule, state, now)
  return ceil(missing / rule.unit)
end

-- Never more than the capacity is missing. Otherwise a client would pay under a small quota for
-- units that a larger quota had granted.
local function resume(rule, units, now)
  return { missing = min(units, rule.capacity) * rule.unit, at = now }
end

local function convert(rule, from, state, now)
  local missing, at = refresh(from, state, now)
  missing = min(mul_div_ceil(missing, rule.unit, from.unit), rule.full)
  -- The interval continues, unless its length has changed, which starts a new interval.
  local goes_on = rule.interval and from.interval and from.window == rule.window
  return { missing = missing, at = goes_on and at or max(now, at) }
end

local function is_fresh(rule, state, now)
  local missing = refresh(rule, state, now)
  return missing == 0
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
  return add(state.at, until_restored(rule, state.missing))
end

local function encode(front, state)
  return front .. struct.pack('>I7I7', state.missing, state.at)
end

local function decode(rule, value, from)
  if #value ~= from + 13 then return nil end
  local missing, at = struct.unpack('>I7I7', value, from)
  if missing > 2 * rule.full then return nil end
  return { missing = missing, at = at }
end
