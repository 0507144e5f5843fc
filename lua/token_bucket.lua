-- Token bucket: a bucket with a `capacity` in tokens that is refilled at the quota's rate.
-- Lua port of crates/tollgate-core/src/algorithm/token_bucket.rs.
--
-- rule: capacity, limit, window, interval, unit, rate, full.  state: missing, at, refunded.
-- view: missing, at, refunded.

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local NO_REFUNDS = refunds.NONE
local add, since, mul_div_ceil = number.add, number.since, number.mul_div_ceil
local refundable = refunds.refundable

-- The time from state.at until `missing` tokens have been refilled.
local function until_restored(rule, missing)
  if rule.interval then return ceil(missing / rule.limit) * rule.window end
  return ceil(missing / rule.rate)
end

local function decide(rule, now, kind, wait, charged_at, missing, at, refunded)
  local reset_after = since(add(at, until_restored(rule, missing)), now)
  local left = rule.full - missing
  local remaining = left > 0 and floor(left / rule.unit) or 0
  return kind, remaining, reset_after, wait, charged_at, refunded
end

local function fresh()
  return { missing = 0, at = 0, refunded = 0 }
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
  -- The last charge is later if its request queued in the store and left.
  if missing <= 0 then return 0, max(now, state.at), state.refunded end
  return missing, at, state.refunded
end

local function assess(rule, now, cost, missing, at, refunded)
  if cost > rule.capacity then return decide(rule, now, EXCEED, 0, 0, missing, at, 0) end
  local scaled = cost * rule.unit
  -- Subtract first: with a debt, the sum of missing and scaled could pass 2^53.
  local over = missing - rule.full + scaled
  if cost == 0 or over <= 0 then
    return decide(rule, now, ALLOW, 0, max(now, at), missing + scaled, at, refunded)
  end
  local fits_at = add(at, until_restored(rule, over))
  return decide(rule, now, DENY, since(fits_at, now), 0, missing, at, 0)
end

local function charge(rule, state, now, cost)
  local missing, at = refresh(rule, state, now)
  state.missing, state.at = missing + cost * rule.unit, at
end

-- Greedy: tokens that may have been refilled since the charge are not refunded again (see
-- refunds.lua). The level at the last charge is corrected, so `at` does not change.
--
-- Interval: units are only refunded within the charge's interval. The interval continues even if
-- this charge started it, because other clients may wait for its end.
local function give_back(rule, state, charged, units, now)
  local missing, at, refunded = refresh(rule, state, now)
  if not rule.interval then
    local scaled = min(refundable(rule, charged, units, refunded, at), missing)
    state.missing, state.refunded = state.missing - scaled, refunded + scaled
    return floor(scaled / rule.unit)
  end
  units = charged.charged_at < at and 0 or min(units, charged.cost, missing)
  -- Without a refund, the interval's start is not stored: it is the time of the last charge.
  if units > 0 then state.missing, state.at = missing - units, at end
  return units
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

-- Never more than the capacity is missing because of another version. Otherwise a client would pay
-- under a small quota for units that a larger quota had granted.
-- Intervals under two versions end at different times, so there the excess is a debt.
local function count(rule, state, units, now)
  if rule.interval then return owe(rule, state, units, now) == units end
  local missing
  missing, state.at = refresh(rule, state, now)
  local room = floor(since(rule.full, missing) / rule.unit)
  state.missing = units <= room and missing + units * rule.unit or max(rule.full, missing)
  return units <= room
end

local function counts_from(state)
  return state.at
end

-- At most the capacity is missing, for the same reason as in `count`.
local function resume(rule, units, at)
  return { missing = min(units, rule.capacity) * rule.unit, at = at, refunded = 0 }
end

local function convert(rule, from, state)
  local missing = min(mul_div_ceil(state.missing, rule.unit, from.unit), rule.full)
  return { missing = missing, at = state.at, refunded = 0 }
end

local function is_fresh(rule, state, now)
  local missing = refresh(rule, state, now)
  return state.at <= now and missing == 0
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
  return add(state.at, until_restored(rule, state.missing))
end

local function encode(front, state)
  return front .. struct.pack('>I7I7I7', state.missing, state.at, state.refunded)
end

-- Earlier versions stored no refunds.
local function decode(rule, value, from, _, is_old)
  if is_old then value = value .. NO_REFUNDS end
  if #value ~= from + 20 then return nil end
  local missing, at, refunded = struct.unpack('>I7I7I7', value, from)
  if missing > 2 * rule.full then return nil end
  return { missing = missing, at = at, refunded = refunded }
end
