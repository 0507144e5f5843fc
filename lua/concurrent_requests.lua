-- Concurrent requests: at most `limit` units in flight, each for a lease of `window`.
-- Twin of crates/tollgate-core/src/algorithm/concurrent_requests.rs.
--
-- A sliding window log at full resolution, of which charges are given back: its rule, state
-- and view, and its verbs. This is another table, so that a state of one is not taken for
-- one of the other.

local log = sliding_window_log()

-- Lets a lease of `units` begin anew, after what it had has been given back as far as it
-- still counted, and says when it began.
local function renew(rule, state, units, now)
  local _, seen = log.refresh(rule, state, now)
  log.owe(rule, state, units, now)
  return seen
end

log.renew = renew

return log
