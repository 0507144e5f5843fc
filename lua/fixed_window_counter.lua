-- Fixed window counter: at most `limit` units in each window, aligned to the epoch.
-- Lua port of crates/tollgate-core/src/algorithm/fixed_window_counter.rs.
--
-- rule: limit, window.  state: index, used.  view: index, used.

local floor, min, max = math.floor, math.min, math.max
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local MAX, since = number.MAX, number.since

-- The time until the state's window is over.
local function until_end(rule, now, index)
  return since(min((index + 1) * rule.window, MAX), now)
end

local function decide(rule, now, kind, wait, charged_at, index, used)
  local reset_after = used == 0 and 0 or until_end(rule, now, index)
  return kind, max(rule.limit - used, 0), reset_after, wait, charged_at
end

local function fresh()
  return { index = 0, used = 0 }
end

local function refresh(rule, state, now)
  local index = floor(now / rule.window)
  if index > state.index or state.used == 0 then return index, 0 end
  return state.index, state.used
end

local function assess(rule, now, cost, index, used)
  if cost > rule.limit then return decide(rule, now, EXCEED, 0, 0, index, used) end
  local used_after = used + cost
  if cost == 0 or used_after <= rule.limit then
    local charged_at = max(now, index * rule.window)
    return decide(rule, now, ALLOW, 0, charged_at, index, used_after)
  end
  return decide(rule, now, DENY, until_end(rule, now, index), 0, index, used)
end

local function charge(rule, state, now, cost)
  local index, used = refresh(rule, state, now)
  state.index, state.used = index, used + cost
end

local function give_back(rule, state, charged, units, now)
  local index, used = refresh(rule, state, now)
  if floor(charged.charged_at / rule.window) ~= index then return 0 end
  units = min(units, used)
  state.index, state.used = index, used - units
  return units
end

local function owe(rule, state, units, now)
  local index, used = refresh(rule, state, now)
  units = min(units, since(2 * rule.limit, used))
  state.index, state.used = index, used + units
  return units
end

local function consumed(rule, state, now)
  local _, used = refresh(rule, state, now)
  return used
end

local function resume(rule, units, now)
  return { index = floor(now / rule.window), used = units }
end

local function convert(rule, from, state, now)
  if from.window == rule.window then return { index = state.index, used = state.used } end
  -- The clock may have stepped back to before the state's window.
  local seen = max(now, min(state.index * from.window, MAX))
  return resume(rule, consumed(from, state, now), seen)
end

local function is_fresh(rule, state, now)
  local _, used = refresh(rule, state, now)
  return used == 0
end

-- Units charged later would count in the next window.
local function last_instant(rule, state, now)
  local index = refresh(rule, state, now)
  return min((index + 1) * rule.window - 1, MAX)
end

-- The instant at which the state will be fresh.
local function fresh_at(rule, state)
  return min((state.index + 1) * rule.window, MAX)
end

local function encode(front, state)
  return front .. struct.pack('>I7I6', state.index, state.used)
end

local function decode(_, value, from)
  if #value ~= from + 12 then return nil end
  local index, used = struct.unpack('>I7I6', value, from)
  return { index = index, used = used }
end
