-- Fixed window counter over calendar periods: at most `limit` units in each period.
-- Lua port of crates/tollgate-core/src/algorithm/calendar_window_counter.rs.
--
-- Lua has no calendar. A request's form contains the current period, and a stored state contains
-- its own period.
--
-- rule: limit, calendar, start, stop.  state: start, stop, used, at.  view: start, stop, used.

local max, min = math.max, math.min
local ALLOW, DENY, EXCEED = outcome.ALLOW, outcome.DENY, outcome.EXCEED
local add, since = number.add, number.since

-- A policy's longest window, 400 days.
local LONGEST = 400 * 86400000000

local function decide(rule, now, kind, wait, charged_at, stop, used)
  local reset_after = used == 0 and 0 or since(stop, now)
  return kind, max(rule.limit - used, 0), reset_after, wait, charged_at
end

local function is_fresh(_, state, now)
  return state.used == 0 or now >= state.stop
end

local function fresh(rule)
  return { start = rule.start, stop = rule.stop, used = 0, at = 0 }
end

-- The period of `at`, which is the current time, the last charge under another quota, or the instant
-- at which a block lapses. Units from before the current period no longer count, and after a step
-- back they count in the current period. If the period is unknown, assume a long period: units that
-- were leased under another quota must not be forgotten too early.
local function period(rule, at)
  if rule.stop == 0 then return at, add(at, LONGEST) end
  if at < rule.start then return at, rule.start end
  return rule.start, rule.stop
end

local function refresh(rule, state, now)
  if is_fresh(rule, state, now) then
    if state.start <= now and now < state.stop then return state.start, state.stop, 0 end
    local start, stop = period(rule, now)
    return start, stop, 0
  end
  return state.start, state.stop, state.used
end

local function assess(rule, now, cost, start, stop, used)
  if cost > rule.limit then return decide(rule, now, EXCEED, 0, 0, stop, used) end
  local used_after = used + cost
  if cost == 0 or used_after <= rule.limit then
    return decide(rule, now, ALLOW, 0, max(now, start), stop, used_after)
  end
  return decide(rule, now, DENY, since(stop, now), 0, stop, used)
end

-- Charges `units` more.
local function add_units(rule, state, units, now)
  local start, stop, used = refresh(rule, state, now)
  -- The clock may have stepped back within the period.
  state.at = used == 0 and now or max(now, state.at)
  state.start, state.stop, state.used = start, stop, used + units
end

local function charge(rule, state, now, cost)
  add_units(rule, state, cost, now)
end

local function give_back(rule, state, charged, units, now)
  local start, stop, used = refresh(rule, state, now)
  if charged.charged_at < start or charged.charged_at >= stop then return 0 end
  units = min(units, used)
  state.start, state.stop, state.used = start, stop, used - units
  return units
end

local function owe(rule, state, units, now)
  local _, _, used = refresh(rule, state, now)
  units = min(units, since(2 * rule.limit, used))
  add_units(rule, state, units, now)
  return units
end

-- Once the state's period is over, the current period is unknown unless this version is charged.
local function count(rule, state, units, now)
  return not is_fresh(rule, state, now) and owe(rule, state, units, now) == units
end

local function consumed(rule, state, now)
  return is_fresh(rule, state, now) and 0 or state.used
end

local function counts_from(state)
  return state.at
end

local function resume(rule, units, at)
  local start, stop = period(rule, at)
  return { start = start, stop = stop, used = units, at = at }
end

local function convert(rule, from, state)
  if from.calendar == rule.calendar then
    return { start = state.start, stop = state.stop, used = state.used, at = state.at }
  end
  return resume(rule, state.used, state.at)
end

-- Units charged later would count in the next period.
local function last_instant(rule, state, now)
  local _, stop = refresh(rule, state, now)
  return stop - 1
end

-- The instant at which the state will be fresh.
local function fresh_at(_, state)
  return state.stop
end

local function encode(front, state)
  return front .. struct.pack('>I7I7I6I7', state.start, state.stop, state.used, state.at)
end

-- Earlier versions did not store the time of the last charge.
local function decode(_, value, from, _, is_old)
  if is_old then value = value .. value:sub(from, from + 6) end
  if #value ~= from + 26 then return nil end
  local start, stop, used, at = struct.unpack('>I7I7I6I7', value, from)
  return { start = start, stop = stop, used = used, at = at }
end
