-- Concurrent requests: at most `limit` units in flight, each for a lease of `window`.
-- Twin of crates/tollgate-core/src/algorithm/concurrent_requests.rs.
--
-- A sliding window log at full resolution whose charges are refunded: the same rule, state, view
-- and functions. This is another table, so that a state of one algorithm is not read as a state of
-- the other.

local log = sliding_window_log()

-- Starts a lease of `units` again, after the caller has refunded its units that still counted.
-- Returns when the lease started.
local function renew(rule, state, units, now)
  local _, seen = log.refresh(rule, state, now)
  log.owe(rule, state, units, now)
  return seen
end

log.renew = renew

return log
