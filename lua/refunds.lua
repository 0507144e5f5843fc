-- Refunds from buckets that drain continuously.
-- Lua port of `Scale::refundable` in crates/tollgate-core/src/scale.rs.

local min, max, since = math.min, math.max, number.since

-- The refunded units are counted up to here, far below 2^53. A single refund, at most the capacity,
-- then still leaves the count exact.
local MAX_REFUNDED = 4503599627370496

-- How much of a charge of `units` can be refunded at `now`, given how much has been refunded from
-- the bucket so far. Units that drained may be the same units, so this is the largest amount that
-- certainly has not drained. There are two lower bounds, because the bucket contained at least
-- these units just after the charge, and because its level then is known from the receipt.
local function refundable(rule, charged, units, refunded, now)
  units = min(units, charged.cost) * rule.unit
  local drained = since(now, charged.charged_at) * rule.rate
  -- The level was reported as a time, rounded up to a microsecond.
  local left = since(charged.resets_at, now)
  local level = left == 0 and 0 or (left - 1) * rule.rate + 1
  level = refunded < charged.refunded and 0 or since(level, refunded - charged.refunded)
  return max(since(units, drained), min(level, units))
end

-- Restarts a bucket's count before it becomes inexact, and returns whether it did. Earlier charges
-- can then no longer be refunded.
local function restart(state)
  local restarts = state.refunded and state.refunded > MAX_REFUNDED
  if restarts then state.refunded = 0 end
  return restarts
end

-- The bytes of a count of zero.
local NONE = ('\0'):rep(7)

return { refundable = refundable, restart = restart, NONE = NONE }
