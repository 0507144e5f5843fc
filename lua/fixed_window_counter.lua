-- Fixed window counter: at most `limit` units in each window, aligned to the epoch.
-- Lua port of crates/tollgate-core/src/algorithm/fixed_window_counter.rs.
--
-- rule: limit, window.  state: at, used.  view: start, used, seen.

local floor, min, max = math.floor, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local MAX, add, since = number.MAX, number.add, number.since

-- The start of the window that contains `instant`.
local function start_of(rule, instant)
  return floor(instant / rule.window) * rule.window
end

-- The time until the view's window is over.
local function until_end(rule, now, start)
  return since(add(start, rule.window), now)
end

local function decide(rule, now, kind, wait, charged_at, start, used, seen)
  local reset_after = used == 0 and since(seen, now) or until_end(rule, now, start)
  return kind, max(rule.limit - used, 0), reset_after, wait, charged_at
end

local function fresh()
  return { at = 0, used = 0 }
end

local function refresh(rule, state, now)
  -- The last charge is later if its request queued, or if the clock has stepped back.
  local seen = max(now, state.at)
  local start = start_of(rule, seen)
  return start, state.at < start and 0 or state.used, seen
end

local function assess(rule, now, cost, start, used, seen)
  if cost > rule.limit then return decide(rule, now, EXCEED, 0, 0, start, used, seen) end
  local used_after = used + cost
  if cost == 0 or used_after <= rule.limit then
    return decide(rule, now, ALLOW, 0, seen, start, used_after, seen)
  end
  return decide(rule, now, DENY, until_end(rule, now, start), 0, start, used, seen)
end

local function charge(rule, state, now, cost)
  local _, used, seen = refresh(rule, state, now)
  state.at, state.used = seen, used + cost
end

local function give_back(rule, state, charged, units, now)
  local start, used = refresh(rule, state, now)
  if start_of(rule, charged.charged_at) ~= start then return 0 end
  units = min(units, used)
  state.used = used - units
  return units
end

local function owe(rule, state, units, now)
  local _, used, seen = refresh(rule, state, now)
  units = min(units, since(2 * rule.limit, used))
  state.at, state.used = seen, used + units
  return units
end

local function consumed(rule, state, now)
  local _, used = refresh(rule, state, now)
  return used
end

local function counts_from(state)
  return state.at
end

local function resume(_, units, at)
  return { at = at, used = units }
end

local function is_fresh(rule, state, now)
  local _, used = refresh(rule, state, now)
  return state.at <= now and used == 0
end

-- Units charged later would count in the next window.
local function last_instant(rule, state, now)
  local start = refresh(rule, state, now)
  return min(start + rule.window - 1, MAX)
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
  if state.used == 0 then return state.at end
  return add(start_of(rule, state.at), rule.window)
end

local function encode(front, state)
  return front .. struct.pack('>I7I6', state.at, state.used)
end

-- Earlier versions stored the window's number.
local function decode(rule, value, from, _, is_old)
  if #value ~= from + 12 then return nil end
  local at, used = struct.unpack('>I7I6', value, from)
  if is_old then at = at * rule.window end
  return { at = min(at, MAX), used = used }
end
