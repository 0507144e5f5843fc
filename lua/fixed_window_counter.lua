-- Fixed window counter: at most `limit` units in each window, aligned to the epoch.
-- Lua port of crates/tollgate-core/src/algorithm/fixed_window_counter.rs.
--
-- rule: limit, window.  state: at, used.  view: start, used.

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

local function decide(rule, now, kind, wait, charged_at, start, used)
  local reset_after = used == 0 and 0 or until_end(rule, now, start)
  return kind, max(rule.limit - used, 0), reset_after, wait, charged_at
end

local function fresh()
  return { at = 0, used = 0 }
end

local function refresh(rule, state, now)
  local start = start_of(rule, now)
  if state.at < start or state.used == 0 then return start, 0 end
  -- The clock may have stepped back to before the state's window.
  if state.at > now then start = start_of(rule, state.at) end
  return start, state.used
end

local function assess(rule, now, cost, start, used)
  if cost > rule.limit then return decide(rule, now, EXCEED, 0, 0, start, used) end
  local used_after = used + cost
  if cost == 0 or used_after <= rule.limit then
    return decide(rule, now, ALLOW, 0, max(now, start), start, used_after)
  end
  return decide(rule, now, DENY, until_end(rule, now, start), 0, start, used)
end

-- Charges `units` more to a state with `used` units.
local function add_units(state, used, units, now)
  -- The clock may have stepped back within the window.
  state.at = used == 0 and now or max(now, state.at)
  state.used = used + units
end

local function charge(rule, state, now, cost)
  local _, used = refresh(rule, state, now)
  add_units(state, used, cost, now)
end

local function give_back(rule, state, charged, units, now)
  local start, used = refresh(rule, state, now)
  if start_of(rule, charged.charged_at) ~= start then return 0 end
  units = min(units, used)
  state.used = used - units
  return units
end

local function owe(rule, state, units, now)
  local _, used = refresh(rule, state, now)
  units = min(units, since(2 * rule.limit, used))
  add_units(state, used, units, now)
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
  return used == 0
end

-- Units charged later would count in the next window.
local function last_instant(rule, state, now)
  local start = refresh(rule, state, now)
  return min(start + rule.window - 1, MAX)
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
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
