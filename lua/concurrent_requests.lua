-- Concurrent requests: at most `limit` units in flight, each permit for at most `window`.
-- Lua port of crates/tollgate-core/src/algorithm/concurrent_requests.rs.
--
-- This is a sliding window log at full resolution with regular refunds: the same rule, state, view
-- and functions. It has its own table because algorithms are compared by table, and neither
-- algorithm may read the other's state.

local log = sliding_window_log()

-- Restarts a permit of `units` after its old units were refunded, and returns its new start.
local function renew(rule, state, units, now)
  local _, seen = log.refresh(rule, state, now)
  log.owe(rule, state, units, now)
  return seen
end

log.renew = renew

return log
