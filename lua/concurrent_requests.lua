-- Concurrent requests: at most `limit` units in flight, each permit for at most `window`.
-- Lua port of crates/tollgate-core/src/algorithm/concurrent_requests.rs.
--
-- This is a sliding window log at full resolution with regular refunds: the same state, view and
-- most functions. It has its own table because algorithms are compared by table, and neither
-- algorithm may read the other's state. Each permit retains its own expiry under all versions of
-- the limit: an entry's instant is a window before the expiry.

local log = sliding_window_log()
local max, min = math.max, math.min

local function charge(rule, state, now, cost)
  log.insert(rule, state, log.prune(rule, state, now), cost)
end

local function give_back(rule, state, charged, units, now)
  log.prune(rule, state, now)
  return log.take(state, max(charged.resets_at - rule.window, 0), units)
end

local function owe(rule, state, units, now)
  local seen = log.prune(rule, state, now)
  units = min(units, log.room_for_debt(rule, state))
  if units > 0 then log.insert(rule, state, seen, units) end
  return units
end

-- Restarts a permit of `units` after its old units were refunded, and returns its new start. Its
-- request is in flight, so it counts even beyond the limit.
local function renew(rule, state, units, now)
  local seen = log.prune(rule, state, now)
  log.insert(rule, state, seen, units)
  return seen
end

-- Moves the permits, so they retain their expiry, and can be returned under any limit.
local function convert(rule, from, state)
  return log.moved(state, from.window, rule.window)
end

log.charge, log.give_back, log.owe, log.renew, log.convert = charge, give_back, owe, renew, convert

return log
